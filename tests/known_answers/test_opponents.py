"""Opponents: what each credit teaches in a zero-sum game of three moves, exactly and by the real trainer.

All plays of the game are enumerated with their probabilities, played by the real game, credited and estimated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest
import torch
from known_answers.games import Duel
from known_answers.test_learning import rows_of, settings
from lessons import Seat, make_batch

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Scores
from marft.config import parse
from marft.envs.hosting import InProcess
from marft.game.agent import Agent
from marft.game.play import play
from marft.game.workflows import find_workflow
from marft.rollouts.credit import Credit
from marft.types import Completion, Episode, Message, Request, Sampling

Play = tuple[int, ...]
POLICY: Mapping[Play, float] = {  # the probability of "1" after what was said
    (): 0.4, (0,): 0.3, (1,): 0.6, (0, 0): 0.7, (0, 1): 0.2, (1, 0): 0.55, (1, 1): 0.35,
}  # fmt: skip
MOVER = ("ann", "bob", "ann")
PLAYS: list[Play] = list(product((0, 1), repeat=3))


def chance(play: Play, policy: Mapping[Play, float] = POLICY) -> float:
    return math.prod(policy[play[:k]] if word else 1 - policy[play[:k]] for k, word in enumerate(play))


def own_return(play: Play, k: int, gamma: float) -> float:
    """What the player of turn k earns from it on, worked out from the table: `bob` has one turn, `ann` her first and last."""
    a, b, c = play
    bait, won = Duel.BAIT * a, Duel.WON[a][b][c]
    return (bait + gamma * (won - bait), -won, won - bait)[k]


def gradient(gamma: float) -> dict[Play, float]:
    """∂E[own return from a turn on] / ∂ the logit of its word, by differences."""
    found = {}
    for said in POLICY:
        k, slopes = len(said), []
        for by in (1e-4, -1e-4):
            logit = math.log(POLICY[said] / (1 - POLICY[said])) + by
            moved = {**POLICY, said: 1 / (1 + math.exp(-logit))}
            slopes.append(sum(chance(play, moved) * own_return(play, k, gamma) for play in PLAYS))
        found[said] = (slopes[0] - slopes[1]) / 2e-4
    return found


def expected_return(said: Play, gamma: float) -> float:
    """V(s_k): of whoever acts after `said`."""
    going_on = [play for play in PLAYS if play[: len(said)] == said]
    return sum(chance(play) * own_return(play, len(said), gamma) for play in going_on) / sum(map(chance, going_on))


class Reads:
    """Says the next word of a play."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def encode(self, messages: Sequence[Message], *_: object) -> tuple[int, ...]:
        return (0,)

    async def generate(self, request: Request) -> Completion:
        said = tuple(map(int, request.messages[-1].content.split()))
        word = self.play[len(said)]
        return Completion(text=str(word), token_ids=(word,), logprobs=(-1.0,), finish="stop", version=0)


def episode_of(words: Play, sample: int) -> Episode:
    env = Duel()
    team = {
        name: Agent(name=name, prompt=name, sees=None, adapter=name, sampling=Sampling(), engine=Reads(words))
        for name in ("ann", "bob")
    }
    return asyncio.run(
        play(
            task=env.tasks("train")[0], sample=sample, team=team, host=InProcess(env), workflow=find_workflow("turns"),
            seed="0",
        )
    )  # fmt: skip


def batch_of(plays: Sequence[Play], credit: Mapping[str, Any], critic: str | None = None) -> Batch:
    members = [
        Seat(agent=name, adapter=name, critic=critic, team=cast(Any, None), encode=lambda _: (), temperature=1.0)
        for name in ("ann", "bob")
    ]
    return make_batch(members, [episode_of(words, i) for i, words in enumerate(plays)], credit_of(credit))


def credit_of(credit: str | Mapping[str, Any]) -> Credit:
    given = credit if isinstance(credit, str) else dict(credit)
    found = parse({"team": {"agents": {"ann": "", "bob": ""}}, "algorithm": "rae", "credit": given}).credit
    assert isinstance(found, Credit)
    return found


def expected_step(
    credit: Mapping[str, Any], algorithm: Mapping[str, Any], samples: int = 1, wrong_by: float = 0.0
) -> dict[Play, float]:
    """The mean of Σ_k A_k ∂ log π(a_k) / ∂ logit over all luck of `samples` episodes, for each logit; their mean over them."""
    config = parse({"team": {"agents": {"ann": "", "bob": ""}}, "algorithm": dict(algorithm)})
    method, step = config.algorithm, dict.fromkeys(POLICY, 0.0)
    assert isinstance(method, Algorithm)
    for plays in product(PLAYS, repeat=samples):
        batch = batch_of(plays, credit)
        places = list(zip(batch.episode_K.tolist(), batch.index_K.tolist(), strict=True))
        said = [plays[e][:index] for e, index in places]
        values = torch.tensor([expected_return(known, credit["gamma"]) + wrong_by * (1 + len(known)) for known in said])
        scores = Scores(values=values, final_E=torch.zeros(samples), baseline_A=torch.tensor([0.3, -0.2]))
        advantages = method.estimate(batch, scores).advantages_N.tolist()
        for known, (e, index), advantage in zip(said, places, advantages, strict=True):
            step[known] += math.prod(map(chance, plays)) * advantage * (plays[e][index] - POLICY[known]) / samples
    return step


METHODS: Mapping[str, tuple[dict[str, Any], int, float]] = {  # samples, and how wrong the critic is
    "rae": ({"name": "rae"}, 1, 0.0),
    "rloo": ({"name": "rloo"}, 2, 0.0),
    "dr_grpo": ({"name": "dr_grpo"}, 2, 0.0),
    "token, right critic": ({"name": "marft-token", "lam": 0.3, "whiten": False}, 1, 0.0),
    "token, lam 1": ({"name": "marft-token", "lam": 1.0, "whiten": False}, 1, 0.4),
    "action, right critic": ({"name": "marft-action", "lam": 0.3, "whiten": False}, 1, 0.0),
    "action, lam 1": ({"name": "marft-action", "lam": 1.0, "whiten": False}, 1, 0.4),
}


@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_the_mean_step_is_the_gradient_of_each_players_own_return(method: str, gamma: float) -> None:
    algorithm, samples, wrong_by = METHODS[method]
    found = expected_step({"name": "per_player", "gamma": gamma}, algorithm, samples, wrong_by)
    share = 0.5 if method == "dr_grpo" else 1.0  # of two, centred on their own mean
    assert found == pytest.approx({said: share * slope for said, slope in gradient(gamma).items()}, abs=2e-6)
    assert all(abs(slope) > 0.005 for slope in found.values())


def test_what_follows_cancels_in_a_return_that_opponents_share() -> None:
    """`ann`'s first word decides most of what she gets, and neither γ of `per_step` says so."""
    assert gradient(1.0)[()] < -0.05
    assert expected_step({"name": "per_step", "gamma": 1.0}, {"name": "rae"})[()] == pytest.approx(0, abs=1e-6)
    greedy = expected_step({"name": "per_step", "gamma": 0.0}, {"name": "rae"})
    assert greedy[()] == pytest.approx(Duel.BAIT * POLICY[()] * (1 - POLICY[()]), abs=1e-6)  # the wrong way


def test_a_critic_is_asked_nothing_about_the_end_of_a_game_that_was_cut_off() -> None:
    """Whose return V(s_K) would be is known of the next player alone, and so each is worth what it had earned."""
    cut = replace(episode_of((1, 0, 0), 0), ended="cut_off", cut_before="bob")
    members = [
        Seat(agent=n, adapter=n, critic="critic", team=cast(Any, None), encode=lambda _: (), temperature=1.0)
        for n in ("ann", "bob")
    ]
    batch = make_batch(members, [cut], credit_of("per_player"))
    assert batch.cut_states == {}
    assert batch.returns_to_go().tolist() == pytest.approx([0.1, -0.1, -0.2])
    assert torch.ones(1)[batch.episode_R].tolist() == [1.0, 1.0]  # as the learner gives it: 0


# --- learnt -----------------------------------------------------------------------------------------------------------
def solved(credit: dict[str, Any], algorithm: str) -> float:
    """How often the last iterations' players play the line of backward induction. Small steps, and a bonus for trying all
    words: whoever is sure too early of what was best against a beginner does not learn what came of it."""
    chosen = settings(
        "Duel", algorithm={"name": algorithm, "entropy": 0.1, "trust_region": 0.1}, credit=credit,
        optimizer={"lr": 0.01}, train={"iterations": 40, "samples": 64},
    )  # fmt: skip
    chosen["team"] = {**chosen["team"], "workflow": "turns"}
    rows = rows_of(chosen)
    assert rows[0]["accuracy"] < 0.35
    return sum(float(row["accuracy"]) for row in rows[-5:]) / 5


@pytest.mark.parametrize("algorithm", ["rae", "grpo", "marft-action", "marft-token"])
def test_opponents_find_the_line_of_backward_induction(algorithm: str) -> None:
    assert solved({"name": "per_player"}, algorithm) > 0.85


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_with_a_return_that_they_share_they_do_not(gamma: float) -> None:
    assert solved({"name": "per_step", "gamma": gamma}, "grpo") < 0.6
