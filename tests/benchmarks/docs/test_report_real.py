"""The page of real results says what the runs' files say: exact figures, paired gains, and the words that train a team."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.docs.report_real import make_page, write_report
from benchmarks.docs.results_page import page
from marft.config import load_config
from marft.runs.directory import RunDirectory
from marft.types import MarftError

ROOT = Path(__file__).parents[3]
SITTING = {"machine": "a GPU", "jobs": 4, "entries": ["untuned-duo", "duo-grpo", "duo-token", "duo-action"]}


def measured(folder: Path, name: str, right: Sequence[bool]) -> None:
    where = folder / name
    where.mkdir(parents=True)
    rows = [{"task": f"t{i}", "correct": each} for i, each in enumerate(right)]
    (where / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    accuracy = sum(right) / len(right)
    figures = {"tasks": len(right), "accuracy": accuracy, "accuracy_ci95": [accuracy - 0.1, accuracy + 0.1]}
    figures |= {"tokens_by_agent": {"actor": 5.0}, "tokens_per_task": 123.4, "seconds": 2.0, "failed": 0}
    (where / "results.json").write_text(json.dumps(figures))


def trained(folder: Path, name: str, accuracies: Sequence[float], lr: float) -> None:
    run = RunDirectory.create(
        folder / name, load_config("duo", ["train={tasks: 32, samples: 4, minibatches: 2}", f"optimizer.lr={lr}"]), {}
    )
    for i, accuracy in enumerate(accuracies, start=1):
        seconds = {"rollout": 3.0, "credit": 1.0, "update": 4.0, "eval": 9.0}
        tokens = {"rollout": 1_000_000, "update": 2_500_000}
        agents = {"planner": {"clip_fraction": 0.0}, "solver": {"clip_fraction": 0.25}}
        row = {"iteration": i, "accuracy": accuracy, "agents": agents, "seconds": seconds, "tokens": tokens}
        run.append_metrics(row)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out" / "gsm8k-small"
    measured(folder, "untuned-duo-0-sampled", [True, False, False, False])
    measured(folder, "untuned-duo-long-0-sampled", [True, True, False, False])
    measured(folder, "single-token-2-sampled", [False, True, True, True])
    measured(folder, "duo-token-2-sampled", [False, False, False, False])  # an earlier measurement
    measured(folder, "duo-token-4-sampled", [True, True, True, True])
    measured(folder, "duo-token-4-greedy", [True, True, True, False])
    trained(folder, "single-token", [0.1, 0.2], lr=0.0001)
    trained(folder, "duo-token", [0.1, 0.2, 0.3, 0.4, 0.5], lr=0.0002)  # stopped after its last checkpoint
    trained(folder, "duo-action-too-fast", [0.1, 0.3, 0.0], lr=0.01)  # put aside, never measured
    (folder / "sittings.jsonl").write_text(json.dumps(SITTING) + "\n")
    (folder / "notes.txt").write_text("The power failed.\n")
    return folder.parent


def test_the_figures_are_those_of_the_newest_measurement(out: Path, tmp_path: Path) -> None:
    write_report(out, tmp_path / "docs")
    study = json.loads((tmp_path / "docs/results/real-gsm8k-small.json").read_text())
    duo = study["entries"]["duo-token"]
    assert duo["iterations"] == 4
    assert duo["measured"]["sampled"]["accuracy"] == 1.0
    assert duo["measured"]["greedy"]["accuracy"] == 0.75
    assert duo["curve"] == [0.1, 0.2, 0.3, 0.4]  # not what came after the checkpoint that was measured
    assert duo["seconds"] == {"rollout": 12.0, "credit": 4.0, "update": 16.0}
    assert duo["tokens"] == {"rollout": 4_000_000, "update": 10_000_000}
    assert "greedy" not in study["entries"]["untuned-duo"]["measured"]
    assert (tmp_path / "docs/results/real-gsm8k-small.png").stat().st_size > 1000


def test_gains_are_paired_and_over_the_better_untuned_team(out: Path, tmp_path: Path) -> None:
    write_report(out, tmp_path / "docs")
    entries = json.loads((tmp_path / "docs/results/real-gsm8k-small.json").read_text())["entries"]
    gain, single = entries["duo-token"]["gain"], entries["duo-token"]["over_single"]
    assert (gain["value"], gain["over"], gain["tasks"]) == (0.5, "untuned-duo-long", 4)  # 0, 0, 1, 1
    half = 3.182 * (1 / 3) ** 0.5 / 2  # t(3) · s / √4
    assert gain["ci95"] == pytest.approx([0.5 - half, 1.0])  # no gain is more than that
    assert single["value"] == 0.25
    assert "gain" not in entries["single-token"]  # its untuned team was not measured
    assert "gain" not in entries["untuned-duo"]
    page = (tmp_path / "docs/results.md").read_text()
    said = " ".join(page.split())
    assert "dequantised 4-bit weights" in said
    row = next(line for line in page.splitlines() if line.startswith("| `duo-token`"))
    assert row.split(" | ")[1:4] == ["4 of 12", "0.0002", "100.0 % [90.0 %, 110.0 %]"]
    assert row.split(" | ")[6:] == [
        "+25.0 [-54.5, +100.0], 4 against 2 iterations",
        "123",
        "4.00",
        "10.00",
        "12 + 20 |",
    ]
    assert "a GPU, shared by up to 4 runs" in said
    assert "Training: 32 tasks × 4 episodes and 2 optimizer steps an iteration, a learning rate that falls" in said


def test_what_was_missed_and_what_is_missing_is_said(out: Path, tmp_path: Path) -> None:
    write_report(out, tmp_path / "docs")
    text = " ".join((tmp_path / "docs/results.md").read_text().split())
    assert "Not measured: `duo-action`, `duo-grpo`." in text
    unmeasured = "`duo-action-too-fast`, with a rate of 0.01, was not measured: in 3 iterations its accuracy in training was 30.0 %"
    assert (
        f"{unmeasured} at best and 0.0 % at last, and in the first ten at most 25.0 % of an agent's tokens were clipped."
        in text
    )
    assert "were clipped. The power failed." in text
    assert "`duo-token` gains +50.0 points over `untuned-duo-long` and +75.0 points over `untuned-duo`;" in text
    assert "The aim was 10 points: reached against `untuned-duo-long`, reached against `untuned-duo`." in text
    assert text.endswith("MATH has not been run yet.")
    study = json.loads((tmp_path / "docs/results/real-gsm8k-small.json").read_text())
    study["entries"]["duo-token"]["gain"]["value"] = 0.099
    assert "+9.9 points over `untuned-duo-long`" in page([study])
    assert "missed against `untuned-duo-long`, reached against `untuned-duo`." in page([study])
    assert "MATH has not" not in page([study, {**study, "name": "math-small"}])


def test_a_run_that_had_the_machine_to_itself_shared_it_with_none(out: Path, tmp_path: Path) -> None:
    (out / "gsm8k-small" / "sittings.jsonl").write_text(json.dumps({**SITTING, "jobs": 1}) + "\n")
    write_report(out, tmp_path / "docs")
    assert "4 held-out tasks; a GPU, one run at a time." in (tmp_path / "docs/results.md").read_text()


def test_a_study_of_which_nothing_was_measured_has_its_training_and_no_table(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "gsm8k-small"
    trained(folder, "duo-token", [0.1, 0.3, 0.2], lr=0.01)
    (folder / "sittings.jsonl").write_text(json.dumps({**SITTING, "entries": ["duo-token"]}) + "\n")
    write_report(folder.parent, tmp_path / "docs")
    text = " ".join((tmp_path / "docs/results.md").read_text().split())
    assert "## gsm8k-small a GPU, shared by up to 4 runs at a time. Training: 32 tasks × 4 episodes" in text
    assert "was not measured: in 3 iterations its accuracy in training was 30.0 % at best and 20.0 % at last" in text
    assert "Not measured" not in text
    assert "| team |" not in text
    row = json.loads((tmp_path / "docs/results/real-gsm8k-small.json").read_text())["unmeasured"]["duo-token"]
    assert row["seconds"] == {"rollout": 9.0, "credit": 3.0, "update": 12.0}
    assert row["tokens"] == {"rollout": 3_000_000, "update": 7_500_000}


def test_the_page_says_what_the_recorded_figures_say() -> None:
    assert (ROOT / "docs/results.md").read_text() == make_page(ROOT / "docs/results"), (
        "python benchmarks/learning/real.py report"
    )


def test_nothing_to_report_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match="holds no results"):
        write_report(tmp_path, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()
