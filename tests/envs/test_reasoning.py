"""reasoning-gym: every task is made, split, repeated and scored; hostile answers run nothing, earn nothing, stop nothing."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.envs.base import Split
from marft.envs.reasoning import Reasoning, generator, scoring, tasks
from marft.envs.reasoning.expressions import is_safe_expression
from marft.envs.reasoning.generator import TaskGenerator, split_of
from marft.envs.reasoning.library import make_dataset, task_names
from marft.envs.reasoning.spec import TaskSpec
from marft.types import Completion, MarftError, Reward, Task, Turn

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)

NAMES = task_names()
EASIER: dict[str, dict[str, Any]] = {  # tasks that take seconds by default
    "futoshiki": {"max_board_size": 5},
    "knight_swap": {"impossible_ratio": 1.0},
    "zebra_puzzles": {"num_people": 3, "num_characteristics": 3},
}
EACH = 3  # tasks of each split and name
OTHER_ANSWER = {  # where the library has no answer of its own but keeps one in its notes
    "graph_color": lambda notes: json.dumps({str(node): colour for node, colour in notes["possible_answer"].items()}),
    "propositional_logic": lambda notes: notes["example_answer"],
    "rubiks_cube": lambda notes: notes["example_correct_answer"],
}
NO_ANSWER = {"boxnet", "rush_hour"}  # the library knows no solution, it only judges one
INJECTION = "[__import__('os').system('touch {0}'), open('{0}', 'w')]"


@pytest.fixture(scope="module")
def gym() -> Reasoning:
    return Reasoning({name: EASIER.get(name, {}) for name in NAMES}, held_out=0.5)


def turn(text: str) -> Turn:
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    return Turn(agent="solver", index=0, nth=0, shown="", observation=(), prompt_ids=(), completion=said)


def graded(env: Reasoning, task: Task, text: str) -> Reward:
    return env.step(env.reset(task), turn(text))[1]


def drawn(env: Reasoning, name: str) -> list[Task]:
    place = NAMES.index(name)
    rows = range(place, EACH * len(NAMES), len(NAMES))
    return [env.tasks(split)[index] for split in ("train", "test") for index in rows]  # type: ignore[arg-type]


def made(name: str, count: int, split: Split = "train", seed: int = 0, **settings: Any) -> list[Task]:
    """Tasks made in this process: none of those whose generators go by the order of a set."""
    bench = TaskGenerator(TaskSpec(tasks={name: settings}, seed=seed, held_out=0.3, instruction=""))
    return [tasks.read_task(bench.make(split, index)) for index in range(count)]


# --- every task -------------------------------------------------------------------------------------------------------
def test_there_are_a_hundred_and_five_tasks() -> None:
    assert len(NAMES) == 105
    assert "composite" not in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_made_and_judged(gym: Reasoning, name: str, tmp_path: Path) -> None:
    both = drawn(gym, name)
    assert len({task.id for task in both}) == 2 * EACH
    assert all(task.data["task"] == name for task in both)
    assert not {task.prompt for task in both[:EACH]} & {task.prompt for task in both[EACH:]}
    escape = tmp_path / "escaped"
    for task in both:
        assert pickle.loads(pickle.dumps(task)) == task
        entry = pickle.loads(task.data["entry"])
        assert task.prompt.startswith(entry["question"])
        assert split_of(entry["question"], 0.5) == ("train" if "/train/" in task.id else "test")
        answer = OTHER_ANSWER[name](entry["metadata"]) if name in OTHER_ANSWER else entry["answer"]
        assert (answer is None) == (name in NO_ANSWER)
        if answer is not None:
            assert graded(gym, task, f"So: <answer>{answer}</answer>") == Reward(team=1.0, correct=True), answer
        for garbage in ("qwx zzyv", "nan", INJECTION.format(escape), f"'{'x' * 25_000}'"):
            reward = graded(gym, task, f"<answer>{garbage}</answer>")
            assert reward.team < 1, garbage
            assert reward.correct is False
        assert graded(gym, task, "no answer at all") == Reward(team=0.0, correct=False)
    assert not escape.exists()


def test_a_second_process_makes_the_same_tasks(gym: Reasoning, monkeypatch: pytest.MonkeyPatch) -> None:
    gym.tasks("train")  # its process runs
    monkeypatch.setenv("PYTHONHASHSEED", "77")  # some generators go by the order of a set
    again = pickle.loads(pickle.dumps(gym))
    count = len(NAMES)
    again.tasks("train").prefetch(range(count))
    assert [again.tasks("train")[i] for i in range(count)] == [gym.tasks("train")[i] for i in range(count)]


# --- which tasks there are --------------------------------------------------------------------------------------------
def test_the_first_tasks_never_change() -> None:
    env = Reasoning({"chain_sum": {"min_terms": 2, "max_terms": 3}, "leg_counting": {}}, instruction="Go.")
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test)) == (80_000, 20_000)
    assert [task.id for task in train[:2]] == ["reasoning/chain_sum/0/train/0", "reasoning/leg_counting/0/train/1"]
    asked = "State the final answer to the following arithmetic problem: 2 - 0 ="
    assert (train[0].prompt, train[0].data["answer"]) == (f"{asked}\n\nGo.", "2")
    assert test[1].data["answer"] == "210"
    for outside in (-1, 80_000):
        with pytest.raises(IndexError):
            train[outside]


def test_splits_share_no_question() -> None:
    asked = {task.prompt for task in made("chain_sum", 400, "train", max_terms=2, max_digits=1)}
    held_out = {task.prompt for task in made("chain_sum", 200, "test", max_terms=2, max_digits=1)}
    assert len(asked) > 50
    assert len(held_out) > 20
    assert not asked & held_out


def test_a_seed_decides_the_tasks() -> None:
    one, two = made("chain_sum", 20, seed=1), made("chain_sum", 20, seed=2)
    assert one == made("chain_sum", 20, seed=1)
    assert len({task.prompt for task in (*one, *two)}) == len({task.id for task in (*one, *two)}) == 40


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("chain_sm", {}, "no task 'chain_sm'; did you mean 'chain_sum'?"),
        ("composite", {}, "no task 'composite'"),
        ("chain_sum", {"min_term": 1}, "no setting 'min_term'; did you mean 'min_terms'?; it has min_terms, max_terms"),
        ("chain_sum", {"seed": 1}, "no setting 'seed'"),
        ("chain_sum", {"min_terms": -1}, "chain_sum: min_terms must be positive"),
        ("chain_sum", {"min_terms": "x"}, "chain_sum: '>' not supported"),
    ],
)
def test_a_wrong_task_is_one_line(name: str, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError) as refused:
        make_dataset(name, settings, seed=0)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_task_ends_before_any_is_made() -> None:
    with pytest.raises(MarftError, match="did you mean 'min_terms'"):
        Reasoning({"chain_sum": {"min_term": 1}}).tasks("train")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"task": []}, "names no task"),
        ({"task": ["gcd", "gcd"]}, "twice"),
        ({"task": ["gcd", 3]}, "no name"),
        ({"task": 3}, "task must be"),
        ({"task": {"gcd": 3}}, "mapping of settings"),
        ({"task": {"gcd": {"x": object()}}}, "plain values"),
        ({"task": "gcd", "seed": -1}, "seed must"),
        ({"task": "gcd", "size": 1}, "size must"),
        ({"task": "gcd", "held_out": 0.0}, "held_out must"),
        ({"task": "gcd", "held_out": 1}, "held_out must"),
        ({"task": "gcd", "partial": 1}, "partial must"),
        ({"task": "gcd", "instruction": None}, "instruction must"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Reasoning(**settings)


# --- the process that makes them --------------------------------------------------------------------------------------
def test_tasks_made_ahead_are_the_same_and_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, plain = Reasoning("leg_counting").tasks("train"), Reasoning("leg_counting").tasks("train")
    ahead.prefetch([3, 5, 7])  # type: ignore[attr-defined]
    ahead.prefetch([5, 3])  # type: ignore[attr-defined]
    assert len(ahead.client._ahead) <= 3  # type: ignore[attr-defined]
    told: list[str] = []
    tell = tasks.GeneratorClient._tell
    monkeypatch.setattr(tasks.GeneratorClient, "_tell", lambda self, line: (told.append(line), tell(self, line))[1])
    got = [ahead[7], ahead[3], ahead[5]]
    assert told == []
    assert got == [plain[7], plain[3], plain[5]]
    assert ahead[3] == got[1]


def test_only_so_many_are_made_ahead_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "KEPT", 50)
    train = Reasoning("gcd").tasks("train")
    train.prefetch(range(10_000))  # type: ignore[attr-defined]
    assert len(train.client._ahead) == tasks.AHEAD  # type: ignore[attr-defined]
    test = Reasoning("gcd").tasks("test")[0]
    assert train.client.task("test", 0) == test  # type: ignore[attr-defined]
    for index in range(300):
        assert train[index].id.endswith(f"/{index}")
    assert len(train.client._ready) <= 50  # type: ignore[attr-defined]


def test_a_process_that_dies_or_hangs_is_told_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Reasoning("gcd").tasks("train")
    client: tasks.GeneratorClient = train.client  # type: ignore[attr-defined]
    first = train[0]
    assert client._process is not None
    monkeypatch.setattr(tasks, "PATIENCE", 0.3)
    os.kill(client._process.pid, signal.SIGSTOP)
    with pytest.raises(MarftError, match=r"train task 1 of gcd: .* said nothing"):
        train[1]
    monkeypatch.setattr(tasks, "PATIENCE", 60.0)
    assert train[1] != first
    client._process.kill()
    client._process.wait()
    assert train[2].id.endswith("/2")
    assert train[0] == first


def test_the_process_dies_with_its_parent() -> None:
    program = (
        "from marft.envs.reasoning import Reasoning\nt = Reasoning('futoshiki').tasks('train')\n"
        "t.prefetch(range(100))\nprint(t.client._process.pid, flush=True)\ninput()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    for _ in range(300):
        if gone(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("it lives on")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Fake:
    """A dataset that does what a test wants."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": self.draw(index), "answer": "1", "metadata": {}}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    def with_draw(draw: Any) -> TaskGenerator:
        monkeypatch.setattr(generator, "make_dataset", lambda name, settings, seed: Fake(draw))
        return TaskGenerator(TaskSpec(tasks={"gcd": {}}, seed=0, held_out=0.5, instruction=""))

    return with_draw


def test_a_draw_that_hangs_is_named(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "SECONDS", 0.05)

    def hang(index: int) -> str:
        while True:
            try:
                time.sleep(10)
            except Exception:  # as the library's own loops do
                continue

    with pytest.raises(MarftError, match=r"reasoning/gcd/0/test/4 took more than"):
        bench(hang).make("test", 4)


def test_too_few_questions_for_a_split(bench: Any) -> None:
    only = split_of("always this", 0.5)
    assert bench(lambda index: "always this").make(only, 0)["prompt"] == "always this"
    with pytest.raises(MarftError, match="too few questions for its"):
        bench(lambda index: "always this").make("train" if only == "test" else "test", 0)


def test_draws_that_raise_are_passed_over(bench: Any) -> None:
    calls: list[int] = []

    def draw(index: int) -> str:
        calls.append(index)
        if len(calls) < 5:
            raise IndexError("exhausted")
        return f"question {index}"

    assert bench(draw).make("train", 0)["prompt"] == f"question {calls[-1]}"
    with pytest.raises(MarftError, match=r"raised ZeroDivisionError"):
        bench(lambda index: 1 / 0).make("train", 0)


# --- answers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>7</answer>", "7"),
        ("Answer: 7", "7"),
        ("<answer>1</answer> no: <answer> 2\n3 </answer> so", "2\n3"),
        ("<answer>1</answer>\nAnswer: 2", "1"),
        ("Answer: 1\nAnswer: 2 \nand more", "2"),
        ("Answer: 1 or Answer: 2", "2"),
        ("<answer>1", None),
        ("1</answer>", None),
        ("</answer><answer>", None),
        ("<answer></answer>", None),
        ("<answer><answer>4</answer>", "4"),
        ("Answer:", None),
        ("answer: 7", None),
        ("", None),
    ],
)
def test_the_answer_of_a_message(text: str, answer: str | None) -> None:
    assert Reasoning("gcd").answer(text) == answer


@given(st.text(alphabet="<>/answer Answer:\n7", max_size=60))
def test_an_answer_is_a_part_of_its_message(text: str) -> None:
    answer = Reasoning("gcd").answer(text)
    assert answer is None or (answer in text and answer == answer.strip() != "")


def test_the_last_message_counts() -> None:
    env, (task,) = Reasoning("chain_sum"), made("chain_sum", 1)
    right = f"Answer: {task.data['answer']}"
    state = env.transition(env.reset(task), turn(right))
    assert env.reward(state) == Reward(team=1.0, correct=True)
    assert env.reward(env.transition(state, turn("I agree."))) == Reward(team=0.0, correct=False)


def test_partial_credit_can_be_refused() -> None:
    for partial, earned in ((True, 0.5), (False, 0.0)):
        env = Reasoning("letter_counting", partial=partial)
        task = next(t for t in made("letter_counting", 50) if len(t.data["answer"]) == 1)
        assert graded(env, task, f"Answer: -{task.data['answer']}") == Reward(team=earned, correct=False)
        assert graded(env, task, f"Answer: {task.data['answer']}").team == 1.0


@pytest.mark.parametrize(
    ("name", "loophole"), [("coin_flip", "0"), ("game_of_life_halting", "anything"), ("complex_arithmetic", "nan")]
)
def test_what_the_library_takes_for_right_and_is_not(name: str, loophole: str) -> None:
    env = Reasoning(name)
    drawn = [task for task in made(name, 8) if name != "coin_flip" or 0.1 < float(task.data["answer"]) < 1]
    entries = [pickle.loads(task.data["entry"]) for task in drawn]
    assert any(scoring.scorer(name, "{}").score_answer(loophole, entry) == 1 for entry in entries)
    assert [graded(env, task, f"Answer: {loophole}").team for task in drawn] == [0.0] * len(drawn)


# --- hostile answers --------------------------------------------------------------------------------------------------
def test_all_of_the_library_that_evaluates_answers_is_known() -> None:
    """A new version that evaluates text in another place must be looked at before it is used."""
    found = importlib.util.find_spec("reasoning_gym")
    assert found is not None
    assert found.origin is not None
    evaluating = {"eval", "exec", "parse_expr", "sympify", "parse_latex", "__import__"}
    calls = {
        path.stem
        for path in Path(found.origin).parent.rglob("*.py")
        if any(f"{name}(" in (source := path.read_text(encoding="utf-8")) for name in evaluating)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", "") in evaluating or getattr(node.func, "attr", "") in evaluating - {"eval"})
    }
    own_text = {"basic_arithmetic", "bitwise_arithmetic", "codeio", "generators_00_49", "generators_50_99"}
    not_evaluating = {"propositional_logic"}  # its parse_expr is its own
    assert calls == scoring.LISTS | scoring.FORMULAS | own_text | not_evaluating


@pytest.mark.parametrize(
    ("text", "tame"),
    [
        ("x**3/3 + C", True),
        ("-cos(8*x - 5)**5/5 + C", True),
        ("(1 + 2) * 3 - 24/6", True),
        ("2*x*asin(x) + 2*sqrt(1 - x**2)", True),
        ("(x**2 + 1)**3", True),
        ("exp(-x)*1.5e3", True),
        ("9**9**9", False),
        ("((9**99)**99)**99", False),
        ("2**(x - x + 99999*99999)", False),
        ("(x - x + 10)**1000000", False),
        ("1" + "0" * 3000, False),
        ("1e999", False),
        ("().__class__", False),
        ("x.diff()", False),
        ("open('f')", False),
        ("exec(x)", False),
        ("sqrt(x, y=1)", False),
        ("[x]", False),
        ("x if x else y", False),
        ("lambda: x", False),
        ("'x'", False),
        ("x!", False),
        ("x_1", False),
        ("True", False),
        ("1j", False),
        ("х + 1", False),  # not the Latin letter
        ("(" * 300 + "1" + ")" * 300, False),
        ("-" * 999 + "1", False),
        ("", False),
        ("\x00", False),
        ("\ud83d", False),
    ],
)
def test_which_formulas_may_be_parsed(text: str, tame: bool) -> None:
    assert is_safe_expression(text) is tame


@given(st.lists(st.sampled_from(["x", "9", "**", "(", ")", "+", "/", ".", "__class__", "'", "[", "exp", "open", " "])))
def test_nothing_but_formulas_is_tame(parts: list[str]) -> None:
    text = "".join(parts)
    if is_safe_expression(text):
        assert not any(mark in text for mark in ("_", "'", "[", "open(", "x("))


def test_a_scorer_that_hangs_raises_or_gives_no_number_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[int] = []

    def hang(answer: str, entry: Any) -> float:
        while True:
            try:
                time.sleep(10)
            except BaseException:  # as the library does here and there
                rings.append(1)
                if len(rings) == 3:
                    raise

    def fail(answer: str, entry: Any) -> float:
        raise RecursionError

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(scoring, "SECONDS", 0.05)
    for scores, expected in ((hang, 0.0), (fail, 0.0), (lambda a, e: float("nan"), 0.0), (lambda a, e: -3.0, 0.0),
                             (lambda a, e: 7, 1.0), (lambda a, e: 0.25, 0.25)):  # fmt: skip
        judge = Fake(None)
        monkeypatch.setattr(judge, "score_answer", scores, raising=False)
        monkeypatch.setattr(scoring, "scorer", lambda name, settings, judge=judge: judge)
        assert scoring.answer_score("gcd", "{}", pickle.dumps({"answer": "1"}), "5") == expected
    assert signal.getsignal(signal.SIGINT) is before


def test_the_docs_list_every_task() -> None:
    docs = (
        (Path(__file__).parents[2] / "docs" / "reasoning.md").read_text(encoding="utf-8").partition("## All tasks")[2]
    )
    listed = [name for row in docs.splitlines()[4:] if row for name in row.split("|")[2].strip().split(", ")]
    assert sorted(listed) == NAMES


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys, marft.envs.reasoning as r; r.Reasoning('gcd')\n"
        "print([m for m in ('reasoning_gym', 'sympy', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
