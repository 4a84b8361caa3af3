"""Episodes of different lengths: what a turn is taught does not depend on how many others got that far.

A worker says "0" or "1", each half of the time. After each word the episode ends half of the time, after the fourth always.
The last word pays: 1 for "1". So the slope of the mean reward in the logit of "1", where a turn is the last, is ¼.
"""

from __future__ import annotations

import random

import pytest
import torch
from experience import Experience, estimated

from marft.algorithms.base import Algorithm
from marft.config import parse

TASKS, SAMPLES, LONGEST, BATCHES = 4, 4, 4, 400


def play(luck: random.Random) -> list[int]:
    words = [luck.randrange(2)]
    while len(words) < LONGEST and luck.random() < 0.5:
        words.append(luck.randrange(2))
    return words


def batch(luck: random.Random) -> tuple[Experience, list[list[int]]]:
    """Groups are (task, which turn), as an orchestrated worker's are."""
    episodes = [play(luck) for _ in range(TASKS * SAMPLES)]
    turns = [(e, nth) for e, words in enumerate(episodes) for nth in range(len(words))]
    last = [nth == len(episodes[e]) - 1 for e, nth in turns]
    played = torch.tensor([e for e, _ in turns])
    return Experience(
        episode_K=played, agent_K=torch.zeros_like(played),
        group_K=torch.tensor([e // SAMPLES * LONGEST + nth for e, nth in turns]), play_K=played,
        task_K=played // SAMPLES,
        length_K=torch.ones_like(played),
        reward_K=torch.tensor([float(episodes[e][-1]) if end else 0.0 for (e, _), end in zip(turns, last, strict=True)]),
        discount_K=torch.ones(len(turns)), final_E=torch.zeros(len(episodes)), values=None,
    ), episodes  # fmt: skip


def slope(algorithm: Algorithm, nth: int) -> float:
    """The mean of A · ∂ log π(word) over all turns of that number that are their episode's last."""
    luck, found = random.Random(7), []
    for _ in range(BATCHES):
        data, episodes = batch(luck)
        advantages = estimated(algorithm, data).advantages_N.tolist()
        turns = [(words, k) for words in episodes for k in range(len(words))]
        found += [
            advantage * (words[k] - 0.5)
            for advantage, (words, k) in zip(advantages, turns, strict=True)
            if k == nth == len(words) - 1
        ]
    assert len(found) > 300
    return sum(found) / len(found)


@pytest.mark.parametrize("nth", range(LONGEST))
@pytest.mark.parametrize("name", ["rloo", "reinforce++", "dr_grpo", "grpo", "gspo"])
def test_a_late_turn_is_taught_as_much_as_an_early_one(name: str, nth: int) -> None:
    """`dr_grpo` loses a part in small groups, and those that divide by a deviation of about ½ gain the double."""
    algorithm = parse({"team": {"agents": {"worker": {"prompt": "x"}}}, "algorithm": {"name": name}}).algorithm
    assert isinstance(algorithm, Algorithm)
    low, high = {"rloo": (0.23, 0.27), "dr_grpo": (0.15, 0.25)}.get(name, (0.3, 0.55))
    assert low < slope(algorithm, nth) < high
