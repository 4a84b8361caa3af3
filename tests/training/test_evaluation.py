"""Evaluation: how held-out tasks are played, and the figures that come of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import toys
from quick import config_of

from marft.engines.scripted import ScriptedEngine
from marft.game.play import Agent
from marft.game.workflows import find_workflow
from marft.training.evaluation import EvalSettings, eval_settings, evaluate, summarise, wilson, with_settings
from marft.training.table import Table
from marft.types import Completion, Episode, Request, Reward, Sampling, Task, Turn

OWN = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=11, stop=("!",))
ASIS = EvalSettings(tasks=3, temperature=None, top_p=None, top_k=None)


def table(asked: list[Request], env: Any = None) -> Table:
    def speak(request: Request) -> str:
        asked.append(request)
        return f"{len(request.messages[-1].content)}"

    agent = Agent(name="a", prompt="", sees=None, adapter="a", sampling=OWN, voice=ScriptedEngine(speak))
    return Table(team={"a": agent}, env=env or toys.Echo(), workflow=find_workflow("sequential"))


def episode(**more: Any) -> Episode:
    correct = more.pop("correct", None)
    lengths = more.pop("lengths", ())
    turns = tuple(
        Turn(
            agent="ab"[k % 2], index=k, nth=k // 2, shown="", observation=(), prompt_ids=(),
            completion=Completion(text="", token_ids=(5,) * n, logprobs=(0.0,) * n, finish="stop", version=0),
        )
        for k, n in enumerate(lengths)
    )  # fmt: skip
    reward = Reward(team=more.pop("reward", 0.0), correct=correct)
    return Episode(task=Task(id="t", prompt=""), sample=0, turns=turns, reward=reward, **more)


# --- how --------------------------------------------------------------------------------------------------------------
def test_what_is_not_given_is_each_agent_s_own() -> None:
    asked: list[Request] = []
    agent = table(asked).team["a"]
    assert with_settings(agent, ASIS) == agent
    changes: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 0}]
    for change in changes:
        assert with_settings(agent, replace(ASIS, **change)) == replace(agent, sampling=replace(OWN, **change))
    evaluate(table(asked), replace(ASIS, temperature=0.0, top_p=1.0), seed=0)
    assert {request.sampling for request in asked} == {replace(OWN, temperature=0.0, top_p=1.0)}


def test_the_config_decides() -> None:
    assert eval_settings(config_of()) == EvalSettings(tasks=0, temperature=None, top_p=None, top_k=None)
    given = {"tasks": 7, "temperature": 0.25, "top_p": 0.5, "top_k": 3}
    assert eval_settings(config_of(eval=given)) == EvalSettings(tasks=7, temperature=0.25, top_p=0.5, top_k=3)


def test_the_first_held_out_tasks_are_played_once_each_with_the_same_luck() -> None:
    asked: list[Request] = []
    first, second = (evaluate(table(asked), ASIS, seed=0) for _ in range(2))
    assert first == second
    assert first["tasks"] == 3
    held_out = toys.Echo().tasks("test")
    assert [request.messages[-1].content for request in asked] == [task.prompt for task in held_out[:3]] * 2
    assert [request.seed for request in asked[:3]] == [request.seed for request in asked[3:]]
    assert len({request.seed for request in asked}) == 3
    evaluate(table(asked), ASIS, seed=1)
    assert len({request.seed for request in asked}) == 6
    assert evaluate(table(asked), replace(ASIS, tasks=100), seed=0)["tasks"] == 5  # all that there are


# --- figures ----------------------------------------------------------------------------------------------------------
def test_figures_by_hand() -> None:
    row = summarise(
        [
            episode(reward=1.0, correct=True, lengths=(2, 4, 4)),
            episode(reward=0.5, correct=False, lengths=(6,)),
            episode(ended="failed", error="no paper"),
            episode(ended="failed", error="no ink"),
        ]
    )
    assert row["tasks"] == 4
    assert row["reward"] == 1.5 / 4
    assert (row["failed"], row["first_error"]) == (2, "no paper")
    assert row["accuracy"] == 1 / 4  # a failure is no success
    assert row["accuracy_ci95"] == list(wilson(1, 4))
    assert row["tokens"] == {"a": 4.0, "b": 4.0}


def test_without_right_answers_there_is_no_accuracy() -> None:
    row = summarise([episode(reward=1.0), episode(ended="failed", error="no")])
    assert "accuracy" not in row
    assert row["reward"] == 0.5


def test_wilson_by_hand() -> None:
    """1 of 4 with z² = 4: centre (¼ + ½) / 2, half-width √(3/64 + 1/16) · 2 / 2 = √(7/64)."""
    low, high = wilson(1, 4, z=2.0)
    assert (low, high) == pytest.approx((3 / 8 - math.sqrt(7) / 8, 3 / 8 + math.sqrt(7) / 8))
    assert wilson(0, 9)[0] == 0
    assert wilson(9, 9)[1] == 1
    assert wilson(9, 9)[0] == pytest.approx(1 - wilson(0, 9)[1])
