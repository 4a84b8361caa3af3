"""From rows to figures: every one by hand, and the two tables that show them."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.evaluation.figures import Result, make_drop, make_figures
from marft.evaluation.folder import Played, Slot
from marft.evaluation.intervals import t_interval, wilson_interval
from marft.evaluation.report import print_results, results_json, results_markdown
from marft.terminal.console import PlainConsole


def row(task: str, sample: int = 0, correct: bool | None = None, **more: Any) -> Played:
    slot = Slot(benchmark="b", silent=more.pop("silent", None), task=task, sample=sample)
    fields: dict[str, Any] = {"reward": float(bool(correct)), "answer": None, "tokens": {}, "turns": {}, "error": None}
    return Played(slot=slot, correct=correct, **{"seconds": 0.5, **fields, **more})


def task(name: str, text: str, right: str = "7", **more: Any) -> list[Played]:
    """Samples of a task by their answers; `-` has none, `!` failed."""
    return [
        row(name, i, error="no paper") if answer == "!"
        else row(name, i, answer == right, answer=None if answer == "-" else answer, **more)
        for i, answer in enumerate(text)
    ]  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------------
def test_several_samples_by_hand() -> None:
    """Tasks with 2, 0 and 3 right of 4: means ½, 0 and ¾."""
    figures = make_figures([*task("x", "7755"), *task("y", "1234"), *task("z", "777-")], [1, 2, 4])
    assert (figures.tasks, figures.samples) == (3, 4)
    assert figures.accuracy is not None
    assert figures.accuracy.value == pytest.approx(5 / 12)
    low, high = t_interval([0.5, 0.0, 0.75])
    assert low < 0
    assert high > 1
    assert figures.accuracy.interval == (0.0, 1.0)  # no accuracy lies beyond
    assert figures.pass_at == pytest.approx({1: 5 / 12, 2: (5 / 6 + 0 + 1) / 3, 4: 2 / 3})
    assert figures.majority_at == pytest.approx({1: 5 / 12, 2: (1 / 2 + 0 + 1) / 3, 4: (1 / 2 + 0 + 1) / 3})
    assert figures.reward.value == pytest.approx(5 / 12)
    assert figures.reward.interval == pytest.approx((low, high))
    assert figures.seconds == 6.0
    assert figures.failed == 0


def test_the_interval_of_several_samples_is_over_tasks() -> None:
    found = [*task("x", "75"), *task("y", "77"), *task("z", "75"), *task("w", "75")]
    figures = make_figures(found, [1])
    assert figures.accuracy is not None
    # means ½ 1 ½ ½: 5/8 ± 3.182 · ¼ / 2
    assert figures.accuracy.interval == pytest.approx((5 / 8 - 3.182 / 8, 1.0))
    assert make_figures(found, [1]) == figures


def test_one_sample_has_wilson_s_interval() -> None:
    figures = make_figures([*task("x", "7"), *task("y", "5"), *task("z", "!"), *task("w", "5")], [1])
    assert figures.accuracy is not None
    assert (figures.accuracy.value, figures.accuracy.interval) == (1 / 4, wilson_interval(1, 4))
    assert (figures.failed, figures.errors) == (1, {"no paper": 1})  # and counted as wrong
    assert figures.pass_at == figures.majority_at == {1: 1 / 4}


def test_tasks_that_agree_have_no_spread_but_still_an_interval() -> None:
    figures = make_figures([*task("x", "77"), *task("y", "77")], [1, 2])
    assert figures.accuracy is not None
    assert figures.accuracy.interval == wilson_interval(2, 2)
    assert figures.reward.interval is None


def test_tokens_by_agent() -> None:
    rows = [
        row("x", 0, True, tokens={"a": 6, "b": 9}, turns={"a": 2, "b": 1}),
        row("x", 1, True, tokens={"a": 2}, turns={"a": 1}, error="cut"),
    ]
    figures = make_figures(rows, [1])
    assert figures.tokens_per_turn == {"a": 8 / 3, "b": 9.0}
    assert figures.tokens_by_agent == {"a": 4.0, "b": 4.5}
    assert figures.tokens_per_task == 8.5


def test_without_right_answers_there_is_the_reward_alone() -> None:
    figures = make_figures([row("x", reward=1.0), row("y", reward=0.0), row("z", error="no", reward=0.0)], [1])
    assert figures.accuracy is None
    assert figures.pass_at == figures.majority_at == {}
    assert figures.reward.value == pytest.approx(1 / 3)


def test_a_task_without_a_right_answer_is_left_out_of_the_accuracy() -> None:
    rows = [*task("x", "77"), row("y", 0, reward=1.0), row("y", 1, reward=1.0), *task("z", "!!")]
    figures = make_figures(rows, [1, 2])
    assert figures.accuracy is not None
    assert figures.accuracy.value == pytest.approx(1 / 2)  # x and z
    assert figures.pass_at == pytest.approx({1: 1 / 2, 2: 1 / 2})
    assert figures.tasks == 3


def test_the_most_frequent_reasons() -> None:
    rows = [row(f"{n}-{i}", error=f"reason {n}") for n in range(1, 8) for i in range(n)]
    figures = make_figures(rows, [1])
    assert figures.failed == 28
    assert figures.errors == {"reason 7": 7, "reason 6": 6, "reason 5": 5, "reason 4": 4, "reason 3": 3}


@given(st.lists(st.lists(st.sampled_from("75-!"), min_size=3, max_size=3), min_size=1, max_size=5))
def test_of_one_sample_all_are_the_accuracy(texts: list[list[str]]) -> None:
    figures = make_figures([each for i, t in enumerate(texts) for each in task(str(i), "".join(t))], [1, 2, 3])
    if figures.accuracy is None:
        assert {answer for text in texts for answer in text} == {"!"}
        return
    assert figures.accuracy.interval is not None
    low, high = figures.accuracy.interval
    assert 0 <= low <= figures.accuracy.value <= high <= 1
    assert figures.pass_at[1] == pytest.approx(figures.accuracy.value)
    assert figures.majority_at[1] == pytest.approx(figures.accuracy.value)
    assert figures.pass_at[1] <= figures.pass_at[2] + 1e-12 <= figures.pass_at[3] + 2e-12
    assert all(figures.majority_at[k] <= figures.pass_at[k] + 1e-12 for k in (1, 2, 3))


# --- drops ------------------------------------------------------------------------------------------------------------
def test_a_drop_is_paired_by_task() -> None:
    """Means 1 ½ 1 and ½ 0 ½: the same ½ everywhere but for the third, whose samples are all wrong without it."""
    team = [*task("x", "77"), *task("y", "75"), *task("z", "77")]
    silent = [*task("z", "55", silent="a"), *task("x", "75", silent="a"), *task("y", "55", silent="a")]
    drop = make_drop("a", team, silent, [1])
    assert drop.accuracy is not None
    assert drop.accuracy.value == pytest.approx(2 / 3)
    half = 4.303 * math.sqrt(1 / 12) / math.sqrt(3)  # of gaps ½ ½ 1
    assert drop.accuracy.interval == pytest.approx((2 / 3 - half, 1.0))
    assert drop.reward.interval == pytest.approx((2 / 3 - half, 2 / 3 + half))
    assert drop.figures == make_figures(silent, [1])


def test_a_drop_that_is_the_same_everywhere_has_newcombe_s_interval() -> None:
    team, silent = [*task("x", "7"), *task("y", "7")], [*task("x", "5"), *task("y", "5")]
    drop = make_drop("a", team, silent, [1])
    assert drop.accuracy is not None
    assert drop.accuracy.value == 1.0
    width = math.hypot(1 - wilson_interval(2, 2)[0], wilson_interval(0, 2)[1])
    assert drop.accuracy.interval == pytest.approx((1 - width, 1.0))
    assert drop.reward.interval is None


def test_without_right_answers_a_drop_is_one_of_reward() -> None:
    team, silent = [row("x", reward=1.0), row("y", reward=0.5)], [row("x", reward=0.0), row("y", reward=0.5)]
    drop = make_drop("a", team, silent, [1])
    assert drop.accuracy is None
    assert drop.reward.value == 0.5


def test_where_all_fail_without_an_agent_that_is_an_accuracy_of_zero() -> None:
    team, silent = [*task("x", "7"), *task("y", "5")], [*task("x", "!"), *task("y", "!")]
    drop = make_drop("a", team, silent, [1])
    assert drop.accuracy is not None
    assert drop.figures.accuracy is not None
    assert (drop.accuracy.value, drop.figures.accuracy.value, drop.figures.failed) == (0.5, 0.0, 2)


# --- what is written --------------------------------------------------------------------------------------------------
def results() -> list[Result]:
    tokens: dict[str, Any] = {"tokens": {"ann": 3, "bob": 5}, "turns": {"ann": 1, "bob": 1}}
    team = [*task("x", "7755", **tokens), *task("y", "777-", **tokens)]
    first = Result(
        name="[red]|", team=make_figures(team, [1, 4]), drops=(make_drop("ann", team, [*task("x", "7555"), *task("y", "777!")], [1, 4]),)
    )  # fmt: skip
    return [first, Result(name="second", team=make_figures(task("z", "5555", **tokens), [1, 4]))]


def test_the_json() -> None:
    found = results_json(results())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    first = found["benchmarks"]["[red]|"]
    assert {key: first[key] for key in ("tasks", "samples", "accuracy", "reward", "failed", "seconds")} == {
        "tasks": 2, "samples": 4, "accuracy": 0.625, "reward": 0.625, "failed": 0, "seconds": 4.0,
    }  # fmt: skip
    assert first["accuracy_ci95"] == [0.0, 1.0]
    assert first["pass@k"] == {"1": 0.625, "4": 1.0}
    assert first["maj@k"] == {"1": 0.625, "4": 0.75}
    assert first["tokens"] == first["tokens_by_agent"] == {"ann": 3.0, "bob": 5.0}
    assert first["tokens_per_task"] == 8.0
    silent = first["ablations"]["ann"]
    assert silent["accuracy"] == 0.5
    assert silent["accuracy_drop"] == silent["reward_drop"] == 0.125
    assert len(silent["accuracy_drop_ci95"]) == len(silent["reward_drop_ci95"]) == 2
    assert (silent["failed"], silent["errors"]) == (1, {"no paper": 1})
    assert found["macro"] == {
        "reward": 0.3125, "accuracy": 0.3125, "pass@k": {"1": 0.3125, "4": 0.5}, "maj@k": {"1": 0.3125, "4": 0.375},
    }  # fmt: skip
    assert "macro" not in results_json(results()[:1])
    assert found["benchmarks"]["second"]["reward_ci95"] is None


def test_a_mean_over_benchmarks_of_which_one_has_no_right_answers() -> None:
    other = Result(name="game", team=make_figures([row("x", reward=2.0)], [1, 4]))
    assert results_json([*results(), other])["macro"] == {"reward": pytest.approx((0.625 + 0 + 2) / 3)}
    assert "| game | 1 × 1 | reward 2.000 |  |  | 0.0 | 1 |" in results_markdown([*results(), other], "t").replace(
        "   ", "  "
    )


def test_the_table() -> None:
    text = results_markdown(results(), "ann, bob with nano")
    lines = text.splitlines()
    assert lines[0] == "# ann, bob with nano"
    assert lines[2] == "| benchmark | tasks × samples | accuracy | pass@4 | maj@4 | tokens a task | seconds |"
    assert lines[4] == r"| [red]\| | 2 × 4 | 0.625 [0.000, 1.000] | 1.000 | 0.750 | 8.0 | 4 |"
    assert lines[5] == "| second | 1 × 4 | 0.000 [0.000, 0.793] | 0.000 | 0.000 | 8.0 | 2 |"
    assert lines[6] == "| mean |  | 0.312 | 0.500 | 0.375 |  |  |"
    assert "[red]|: tokens a turn: ann 3.0, bob 5.0." in lines
    assert (
        "[red]| with ann silent: 1 of 8 episodes failed and count as wrong; the most frequent reason: no paper" in lines
    )
    assert lines[-5] == "| benchmark | silent | without it | drop | tokens a task |"
    assert lines[-3] == r"| [red]\| | ann | 0.500 [0.000, 1.000] | +0.125 [-1.000, 1.000] | 0.0 |"


def test_a_narrow_terminal_shows_the_largest_k_and_breaks_no_number() -> None:
    rows = [*task("x", "77557755"), *task("y", "777-777-")]
    found = [Result(name="arithmetic", team=make_figures(rows, [1, 2, 4, 8]))]
    for width, columns in ((80, ["pass@8", "maj@8"]), (140, ["pass@2", "pass@4", "pass@8", "maj@2", "maj@4", "maj@8"])):
        out = io.StringIO()
        print_results(PlainConsole(file=out, width=width), found)
        assert [word for word in out.getvalue().split() if "@" in word] == columns
        [line] = [line for line in out.getvalue().splitlines() if line.startswith("arithmetic ")]
        assert "2 × 8" in line
        assert "0.625 [0.000, 1.000]" in line
        assert line.endswith("0.0        8")


def test_the_terminal_shows_the_same() -> None:
    out = io.StringIO()
    print_results(PlainConsole(file=out, width=160), results())
    text = out.getvalue()
    for part in ("[red]|", "0.625 [0.000, 1.000]", "pass@4", "mean", "+0.125 [-1.000, 1.000]"):
        assert part in text
