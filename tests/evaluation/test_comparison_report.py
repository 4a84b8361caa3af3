"""A comparison's statistics with numbers worked out by hand, its words, its table, its plot and its folder."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from marft.config import load_config
from marft.evaluation.comparison.folder import Cell, Comparison, Question
from marft.evaluation.comparison.plot import draw_plot
from marft.evaluation.comparison.report import (
    describe_intervals,
    describe_lead,
    make_report,
    report_grid,
    report_markdown,
)
from marft.evaluation.intervals import (
    T975,
    IntervalEstimate,
    mean_estimate,
    newcombe_interval,
    paired_difference,
    t_interval,
    wilson_interval,
)
from marft.types import MarftError


def plain(*values: float) -> list[IntervalEstimate]:
    """Seeds whose own intervals are wide, and must not be used where there are several."""
    return [IntervalEstimate(value=value, interval=(value - 0.5, value + 0.5)) for value in values]


def question(seeds: int = 3, **changes: object) -> Question:
    asked = Question(config=load_config("duo"), seeds=seeds, single="Solve it.", frozen=("planner",))
    return replace(asked, **changes)  # type: ignore[arg-type]


def cell(name: str, seed: int, accuracy: float | None, **more: object) -> Cell:
    found = Cell(
        name=name, seed=seed, tasks=100, failed=0, reward=0.5 if accuracy is None else accuracy, accuracy=accuracy,
        accuracy_ci95=None if accuracy is None else wilson_interval(round(100 * accuracy), 100), tokens_per_task=10.0,
        tokens_generated=1000, tokens_trained=20000, iterations=12, seconds=1.5,
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


def cells(**by_name: Sequence[float | None]) -> list[Cell]:
    """`frozen_planner=[0.5]` is the cell "frozen planner"; what is left out is the vote or the team before training."""
    given = {"untuned": [0.3] * len(by_name["team"]), "vote": by_name["single"], "frozen_planner": by_name["single"]}
    return [
        cell(name.replace("_", " "), seed, value, votes=3 + seed if name == "vote" else None)
        for name, values in (given | by_name).items()
        for seed, value in enumerate(values)
    ]


# --- statistics -------------------------------------------------------------------------------------------------------
def below(t: float, freedom: int) -> float:
    """Student's distribution function by Simpson's rule."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    steps = 2000
    xs = [t * i / steps for i in range(steps + 1)]
    weights = [1, *([4, 2] * (steps // 2))[:-1], 1]
    area = sum(w * (1 + x * x / freedom) ** (-(freedom + 1) / 2) for w, x in zip(weights, xs, strict=True))
    return 0.5 + scale * area * t / steps / 3


def test_the_quantiles_are_students() -> None:
    for freedom, t in enumerate(T975, start=1):
        assert below(t, freedom) == pytest.approx(0.975, abs=4e-5)


def test_t_interval_by_hand() -> None:
    """s = 0.02, √3 = 1.7321: 4.303 · 0.02 / 1.7321 = 0.04969. s = √0.02, √2: 12.706 · 0.1 = 1.2706."""
    assert t_interval([0.90, 0.92, 0.94]) == pytest.approx((0.87031, 0.96969), abs=1e-5)
    assert t_interval([0.5, 0.7]) == pytest.approx((-0.6706, 1.8706), abs=1e-6)


def test_many_seeds_take_the_last_quantile() -> None:
    values = [0.0, 1.0] * 50  # s = √(25 / 99)
    half = 2.042 * math.sqrt(25 / 99) / 10
    assert t_interval(values) == pytest.approx((0.5 - half, 0.5 + half))


def test_the_mean_over_seeds_stays_within_what_is_possible() -> None:
    assert mean_estimate(plain(0.5, 0.7), within=(0, 1)) == IntervalEstimate(value=pytest.approx(0.6), interval=(0, 1))
    free = mean_estimate(plain(0.5, 0.7)).interval
    assert free == pytest.approx((-0.6706, 1.8706), abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_spread_the_interval_is_that_on_the_tasks(count: int) -> None:
    assert mean_estimate(plain(*[0.9] * count)) == IntervalEstimate(value=pytest.approx(0.9), interval=(0.4, 1.4))
    assert mean_estimate([IntervalEstimate(value=0.9)] * count).interval is None


def test_differences_are_paired_by_seed() -> None:
    """Gaps 0.05, 0.04, 0.06: s = 0.01, 4.303 · 0.01 / 1.7321 = 0.02484. Seeds that scatter together do no harm."""
    found = paired_difference(plain(0.96, 0.75, 0.57), plain(0.91, 0.71, 0.51))
    assert found.value == pytest.approx(0.05)
    assert found.interval == pytest.approx((0.02516, 0.07484), abs=1e-5)
    assert paired_difference(plain(0.0, 1.0), plain(1.0, 0.5), within=(-1, 1)).interval == (-1, 1)


def test_the_difference_of_two_proportions() -> None:
    """Newcombe 1998, table II: 56/70 and 48/80 give 0.2 [0.0524, 0.3339] by method 10."""
    one, two = (IntervalEstimate(value=k / n, interval=wilson_interval(k, n)) for k, n in ((56, 70), (48, 80)))
    assert newcombe_interval(one, two) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert paired_difference([one], [two]).interval == newcombe_interval(one, two)
    assert paired_difference([one, one], [two, two]).interval == newcombe_interval(
        one, two
    )  # seeds that agree say no more than one
    assert paired_difference([one], [IntervalEstimate(value=0.5)]).interval is None


# --- words ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        (IntervalEstimate(value=0.05, interval=(0.04, 0.06)), "the team is better by 0.050 [0.040, 0.060]"),
        (IntervalEstimate(value=-0.05, interval=(-0.06, -0.04)), "the team is worse by 0.050 [0.040, 0.060]"),
        (IntervalEstimate(value=0.05, interval=(-0.01, 0.11)), "no difference can be told (+0.050 [-0.010, 0.110])"),
        (IntervalEstimate(value=-0.05, interval=(-0.1, 0.0)), "no difference can be told (-0.050 [-0.100, 0.000])"),
        (IntervalEstimate(value=0.0, interval=(0.0, 0.0)), "no difference can be told (+0.000 [0.000, 0.000])"),
        (IntervalEstimate(value=0.5), "no difference can be told from one seed; give --seeds 3"),
    ],
)
def test_only_what_the_interval_supports(lead: IntervalEstimate, expected: str) -> None:
    assert describe_lead(lead) == expected


def test_the_verdict_over_seeds() -> None:
    found = make_report(question(), cells(team=[0.95, 0.96, 0.97], single=[0.90, 0.92, 0.91], vote=[0.95, 0.97, 0.96]))
    assert found.verdict == (
        "team 0.960 [0.935, 0.985] vs single 0.910 [0.885, 0.935]: the team is better by 0.050 [0.025, 0.075]; "
        "vs vote×3–5 0.960 [0.935, 0.985]: no difference can be told (+0.000 [-0.025, 0.025])"
    )
    assert found.basis == "Means of 3 seeds on the same 100 held-out tasks; intervals are 95 % over seeds."


def test_the_verdict_of_one_seed() -> None:
    """Wilson: 96 of 100 gives [0.902, 0.984], 50 of 100 [0.404, 0.596]; Newcombe joins them."""
    found = make_report(question(seeds=1), cells(team=[0.96], single=[0.50], vote=[0.95]))
    assert found.verdict == (
        "team 0.960 [0.902, 0.984] vs single 0.500 [0.404, 0.596]: the team is better by 0.460 [0.348, 0.559]; "
        "vs vote×3 0.950 [0.888, 0.978]: no difference can be told (+0.010 [-0.055, 0.076])"
    )
    assert "say nothing of other seeds" in found.basis


def test_without_right_and_wrong_the_reward_counts() -> None:
    found = make_report(
        question(seeds=2), [replace(c, reward=c.seed * 3.0) for c in cells(team=[None] * 2, single=[0.5] * 2)]
    )
    assert found.figure == "reward"
    assert found.lines[0].score is not None
    assert found.lines[0].score.interval == pytest.approx(
        (1.5 - 12.706 * 1.5, 1.5 + 12.706 * 1.5)
    )  # not cut at 0 and 1
    [line] = [line for line in found.lines if line.name == "single"]
    assert line.lead == IntervalEstimate(value=0.0)
    assert "held-out reward" in report_grid(found).header


def test_failed_episodes_are_told() -> None:
    assert describe_intervals(
        [cell("team", 0, 0.5)], [cell("team", 0, 0.5, failed=2), cell("vote", 0, 0.5, failed=1)]
    ).endswith("3 held-out episodes failed and count as wrong.")


def collapsed(one: Cell) -> Cell:
    return replace(one, reward=None, accuracy=None, accuracy_ci95=None, collapsed=True)


def test_a_collapsed_seed_is_left_out_of_the_means_and_told() -> None:
    """The lead is over the seeds that both have: 0.9 - 0.5 and 0.9 - 0.7."""
    given = cells(team=[0.9, 0.9, 0.9], single=[0.5, 0.7, 0.1])
    given = [collapsed(c) if (c.name, c.seed) == ("single", 2) else c for c in given]
    found = make_report(question(), given)
    [line] = [line for line in found.lines if line.name == "single"]
    assert (line.seeds, line.collapsed) == ((0.5, 0.7), 1)
    assert line.score is not None
    assert line.lead is not None
    assert (line.score.value, line.lead.value) == (pytest.approx(0.6), pytest.approx(0.3))
    assert found.figure == "accuracy"
    assert "vs single 0.600 [0.000, 1.000] (1 of 3 collapsed): no difference can be told" in found.verdict
    assert found.basis.endswith("Collapsed, and left out of the means: single (seed 2).")
    assert draw_plot(found, "duo").startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["team", "single"])
def test_where_all_seeds_collapsed_there_is_no_figure(name: str) -> None:
    given = [collapsed(c) if c.name == name else c for c in cells(team=[0.9], single=[0.5])]
    found = make_report(question(seeds=1), given)
    row = report_grid(found).rows[0 if name == "team" else 2]
    assert row[:3] == [name, "collapsed", ""]
    assert ("team collapsed vs" if name == "team" else "vs single collapsed: they cannot be compared") in found.verdict
    assert draw_plot(found, "duo").startswith(b"\x89PNG")


# --- table and plot ---------------------------------------------------------------------------------------------------
def test_the_table() -> None:
    given = cells(team=[0.9, 0.9], single=[0.5, 0.7])
    given = [replace(c, iterations=12 + c.seed, tokens_generated=1000 + c.seed) for c in given]
    lines = report_markdown(make_report(question(seeds=2), list(reversed(given))), "duo").splitlines()
    assert lines[0] == "# duo"
    assert lines[2:6] == [
        "| cell | held-out accuracy | team minus it | tokens a task | tokens generated in training | tokens trained | "
        "iterations | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| team | 0.900 [0.826, 0.945] |  | 10.0 | 1,001 | 20,000 | 12.5 | 2 |",
        "| untuned | 0.300 [0.219, 0.396] | +0.600 [0.479, 0.693] | 10.0 | 1,001 | 20,000 | 12.5 | 2 |",
    ]
    assert lines[7].startswith("| vote×3–4 | 0.600 [0.000, 1.000] | +0.300 [-0.971, 1.000] |")
    assert lines[8].startswith("| frozen planner | ")


def test_the_plot_is_a_picture_that_grows_with_the_cells() -> None:
    def height(frozen: Sequence[str]) -> int:
        asked = question(frozen=tuple(frozen))
        given = [cell(name, seed, 0.5 + 0.1 * seed) for name in asked.cells for seed in range(3)]
        data = draw_plot(make_report(asked, given), "duo")
        assert data.startswith(b"\x89PNG")
        return int(struct.unpack(">I", data[20:24])[0])

    assert height([]) < height(["planner"]) < height(["planner", "solver"])


# --- the folder -------------------------------------------------------------------------------------------------------
def test_cells_come_back_as_they_were(tmp_path: Path) -> None:
    comparison = Comparison.begin(tmp_path / "a b", question())
    kept = [cell("team", 0, 0.5), cell("vote", 0, None, votes=4), cell("frozen planner", 2, 1.0)]
    for one in kept:
        comparison.add(one)
    again = Comparison.begin(tmp_path / "a b", question())
    assert again.cells == kept
    assert again.find("vote", 0) == kept[1]
    assert again.find("vote", 1) is None
    assert again.run_path("frozen planner", 2) == tmp_path / "a b" / "cells" / "frozen-planner-seed2"


def test_more_seeds_may_follow(tmp_path: Path) -> None:
    Comparison.begin(tmp_path, question(seeds=3)).add(cell("team", 0, 0.5))
    more = Comparison.begin(tmp_path, question(seeds=4))
    more.add(cell("team", 3, 0.5))
    with pytest.raises(MarftError, match="compares over 4 seeds already; give --seeds 4 or more"):
        Comparison.begin(tmp_path, question(seeds=3))


def test_a_folder_killed_at_its_beginning_begins_again(tmp_path: Path) -> None:
    Comparison.begin(tmp_path, question())
    (tmp_path / "compare.yaml").unlink()
    assert Comparison.begin(tmp_path, question(single="Another.")).cells == []
    assert json.loads((tmp_path / "compare.json").read_text())["question"]["single"] == "Another."


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"config": load_config("duo", ["optimizer.lr=0.5"])}, "optimizer.lr is 0.003 there and 0.5 here"),
        ({"single": "Do it."}, '--single is "Solve it." there and "Do it." here'),
        ({"frozen": ("planner", "solver")}, '--frozen is ["planner"] there and ["planner", "solver"] here'),
    ],
)
def test_another_question_is_refused(tmp_path: Path, other: dict[str, object], expected: str) -> None:
    Comparison.begin(tmp_path, question())
    with pytest.raises(MarftError) as error:
        Comparison.begin(tmp_path, question(**other))  # type: ignore[arg-type]
    assert str(error.value) == f"{tmp_path} compares something else: {expected}; choose another --run"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("config.yaml", "", "is a run, not a comparison"),
        ("compare.json", "{", "holds no comparison of this version"),
        ("compare.json", "[]", "holds no comparison of this version"),
        ("compare.json", '{"question": {}, "cells": [{"name": "team"}]}', "holds no comparison of this version"),
        ("compare.yaml", "tema: {}", "holds no comparison of this version"),
    ],
)
def test_another_folder_is_refused(tmp_path: Path, name: str, text: str, expected: str) -> None:
    Comparison.begin(tmp_path, question())
    (tmp_path / name).write_text(text)
    with pytest.raises(MarftError, match=f"{expected}.*choose another --run"):
        Comparison.begin(tmp_path, question())


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"cannot make /proc/nowhere/at/all: .*; choose another --run"):
        Comparison.begin(Path("/proc/nowhere/at/all"), question())
    comparison = Comparison.begin(tmp_path / "gone", question())
    (tmp_path / "gone" / "compare.json").unlink()
    (tmp_path / "gone" / "compare.json").mkdir()
    with pytest.raises(MarftError, match=r"cannot write .*compare\.json: .*nothing already written is lost"):
        comparison.add(cell("team", 0, 0.5))
