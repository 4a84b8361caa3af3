"""Figures of calls, by agent."""

from __future__ import annotations

from marft.rollouts.call_counts import call_figures
from marft.types import Episode, Reward, Task


def episode(**calls: dict[str, int]) -> Episode:
    return Episode(task=Task(id="t", prompt="?"), sample=0, turns=(), reward=Reward(team=0.0), calls=calls)


def test_calls_failures_and_the_share_of_episodes() -> None:
    played = [
        episode(ann={"calls": 2, "late_calls": 1}),
        episode(ann={"calls": 1}, bob={"calls": 1}),
        episode(),
        episode(),
    ]
    assert call_figures(played) == {
        "ann": {"calls": 3, "late_calls": 1, "share": 0.5},
        "bob": {"calls": 1, "share": 0.25},
    }


def test_a_team_that_calls_nothing_has_no_figures() -> None:
    assert call_figures([episode()]) == call_figures([]) == {}
