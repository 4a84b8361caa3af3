"""GSM8K: reading the publisher's files, and finding the number in a reply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.cli import main
from marft.envs.gsm8k import Gsm8k, final_number, number
from marft.types import Completion, MarftError, Task, Turn

DATA = Path(__file__).parents[3] / "shared" / "data"


def turn(text: str) -> Turn:
    done = Completion(text=text, token_ids=(1,), logprobs=(0.0,), finish="stop", version=0)
    return Turn(agent="solver", index=0, nth=0, shown="", observation=(), prompt_ids=(1,), completion=done)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 18", 18),
        ("She has 5 apples, and that is all.", 5),  # a comma is no number
        ("First 3, then 4.", 4),
        ("Answer: 1,234 dollars", 1234),
        ("Answer: $70,000", 70000),
        ("Answer: **42**", 42),
        ("Answer: -3", -3),
        ("Answer: 12. That is 3 dozen less 24.", 12),  # a label beats what follows
        ("#### 7", 7),
        ("Answer: 5. No: Answer: 6", 6),
        (r"So \boxed{9}. Answer: 8", 9),
        (r"\boxed{1,000}", 1000),
        (r"\boxed{$3.50}", 3.5),
        (r"\boxed{x}", None),
        ("2.5 hours", 2.5),
        ("0.3333333333333333", 1 / 3),
        ("10-12", 12),
        ("", None),
        ("none", None),
        (", , ,", None),
        ("Answer: ,", None),
        ("9" * 50, None),  # not its last digits
        ("Answer: 0000000000000000000018" + "9" * 30, None),
    ],
)
def test_the_final_number(text: str, expected: float | None) -> None:
    assert (
        final_number(text) == pytest.approx(expected, abs=1e-9) if expected is not None else final_number(text) is None
    )


def test_number() -> None:
    assert number(" 1,234 ") == 1234
    assert number("$5") == 5
    assert number("five") is None
    assert number("") is None


@settings(max_examples=200)
@given(st.text() | st.text(alphabet="0123456789,.-$# Answer:\\boxed{}"))
def test_no_text_breaks_the_grader(text: str) -> None:
    env = Gsm8k(path="x")
    reward = env.reward(env.transition(env.reset(Task(id="t", prompt="", data={"answer": 3.0})), turn(text)))
    assert reward.team == float(bool(reward.correct))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"GSM8K is not here ({DATA})")
def test_every_gold_answer_is_right() -> None:
    env = Gsm8k(path=str(DATA))
    tasks = env.tasks("test")
    texts = [json.loads(line)["answer"] for line in (DATA / "gsm8k_test.jsonl").read_text().splitlines()]
    assert len(tasks) == len(texts) == 1319
    assert all(
        env.reward(env.transition(env.reset(t), turn(text))).correct for t, text in zip(tasks, texts, strict=True)
    )
    assert not any(env.reward(env.transition(env.reset(t), turn("Answer: 0.123"))).correct for t in tasks)
    assert not {t.prompt for t in tasks} & {t.prompt for t in env.tasks("train")}


def write(folder: Path, name: str, *rows: object) -> None:
    (folder / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def test_both_names_of_the_files(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", {"question": "1 + 1?\u2028Really?", "answer": "It is\n#### 2"})
    write(
        tmp_path, "gsm8k_test.jsonl", {"question": "a", "answer": "#### 1,000"}, {"question": "b", "answer": "#### -5"}
    )
    env = Gsm8k(path=str(tmp_path))
    [task] = env.tasks("train")
    assert (task.id, task.prompt, task.data["answer"]) == ("gsm8k/train/0", "1 + 1?\u2028Really?", 2)
    assert [t.data["answer"] for t in env.tasks("test")] == [1000, -5]


@pytest.mark.parametrize(
    "row", [{"question": "a"}, {"question": "a", "answer": "no number"}, {"question": "a", "answer": 5}, [1], "text"]
)
def test_files_that_are_not_gsm8k(tmp_path: Path, row: object) -> None:
    write(tmp_path, "test.jsonl", row)
    with pytest.raises(MarftError, match=r"test\.jsonl is not GSM8K"):
        Gsm8k(path=str(tmp_path)).tasks("test")


def test_broken_json(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text("{")
    with pytest.raises(MarftError, match="is not GSM8K"):
        Gsm8k(path=str(tmp_path)).tasks("test")


@pytest.mark.parametrize("command", ["train", "eval", "play"])
def test_a_folder_that_is_not_there_is_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "env=gsm8k", "env.path=nowhere", "device=cpu"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == "marft: env.path: nowhere holds no gsm8k_test.jsonl; download GSM8K and name its folder"
