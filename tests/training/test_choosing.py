"""Every algorithm and every credit that a config can name becomes the thing it names, with its settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from quick import config_of

from marft.config import ALGORITHMS, CREDITS
from marft.training.registry import make_algorithm, make_credit
from marft.types import Completion, Episode, Reward, Task, Turn

CLIPPED = {"clip_low": 0.11, "clip_high": 0.33, "dual_clip": 2.5}
GAE = {**CLIPPED, "lam": 0.44, "whiten": False}
GIVEN: dict[str, dict[str, Any]] = {
    "marft-token": {**GAE, "aggregation": "agent", "token_gamma": 0.55, "token_lam": 0.66},
    "marft-action": {**GAE, "aggregation": "agent", "normalise": "word"},
    "grpo": {**CLIPPED, "aggregation": "token", "std_floor": 0.77},
    "dr_grpo": {**CLIPPED, "aggregation": "agent"},
    "rloo": {**CLIPPED, "aggregation": "token"},
    "gspo": {**CLIPPED, "aggregation": "agent", "std_floor": 0.77},
    "reinforce++": {**CLIPPED, "aggregation": "agent"},
    "rae": {**CLIPPED, "aggregation": "token", "decay": 0.88},
}
KINDS = {
    "marft-token": "MarftToken", "marft-action": "MarftAction", "grpo": "Grpo", "dr_grpo": "DrGrpo", "rloo": "Rloo",
    "gspo": "Gspo", "reinforce++": "ReinforcePP", "rae": "Rae",
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_made_with_its_settings(name: str) -> None:
    made: Any = make_algorithm(config_of(algorithm={"name": name, **GIVEN[name]}).algorithm)
    assert type(made).__name__ == KINDS[name]
    fixed = {"values_at": made.values_at, **({"normalise": "token"} if name == "gspo" else {})}
    assert asdict(made) == {**GIVEN[name], **fixed}
    assert made.values_at == {"marft-token": "token", "marft-action": "turn"}.get(name)


# a turn each, worth 1 and 2 in itself, and 4 to the team; played on, they were worth ¼ and ½
EPISODE = Episode(
    task=Task(id="t", prompt=""),
    sample=0,
    turns=tuple(
        Turn(
            agent=name, index=k, nth=0, shown="", observation=(), prompt_ids=(),
            completion=Completion(text="", token_ids=(5,), logprobs=(0.0,), finish="stop", version=0),
        )
        for k, name in enumerate("ab")
    ),
    reward=Reward(team=4.0, turns={0: 1.0, 1: 2.0}),
    credits=(0.25, 0.5),
)  # fmt: skip
STREAMS: dict[str, tuple[dict[str, Any], tuple[float, ...], float]] = {
    "equal": ({}, (0, 4), 1),
    "step_discounted": ({"beta": 0.5}, (0, 4), 0.5),
    "per_step": ({"gamma": 0.25}, (1, 6), 0.25),
    "per_player": ({"gamma": 0.25}, (5, 6), 0.25),
    "difference": ({}, (0.25, 0.5), 0),
    "tree": ({}, (0.25, 0.5), 0),
}


@pytest.mark.parametrize("name", CREDITS)
def test_every_credit_is_made_with_its_settings(name: str) -> None:
    settings, rewards, gamma = STREAMS[name]
    stream = make_credit(config_of(credit={"name": name, **settings}).credit)(EPISODE)
    assert (stream.rewards, stream.discounts) == (rewards, (gamma, gamma))
