"""What algorithms that compare a task's samples share: turns that have nobody to be compared with.

Late in episodes of different lengths a group (task, agent, which of its turns) may hold a single turn. An advantage of 0
would starve such turns, so they are compared with all that the agent scored in other plays of the task, or else of the
batch: a poorer baseline, and as unbiased.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marft.algorithms.advantages import group_mean, group_relative, less_other_plays
from marft.algorithms.batch import Batch, Estimate, Scores


def relative_estimate(batch: Batch, scores: Scores, *, std_floor: float) -> Estimate:
    """GRPO's: scores less their group's mean, over its deviation, which counts from `std_floor` and from the noise on."""
    floor = max(std_floor, scores.noise)
    score_K = batch.returns_to_go(scores.penalty_N)
    relative_K = group_relative(score_K, batch.group_K, std_floor=floor)
    return estimate_from_groups(batch, score_K, relative_K, std_floor=floor)


def estimate_from_groups(
    batch: Batch, score_K: Tensor, relative_K: Tensor, *, std_floor: float | None = None
) -> Estimate:
    """`relative_K` where the group has two turns or more. Elsewhere c less the agent's mean in other plays, which with a
    floor is divided by the deviation of the agent's scores, as a group's advantages are by its own."""
    _, group, count = batch.group_K.unique(return_inverse=True, return_counts=True)
    lone_K = count[group] == 1
    fallback_K = less_other_plays(score_K, batch.agent_K, batch.play_K, batch.task_K)
    if std_floor is not None:
        distance = score_K.double() - group_mean(score_K.double(), batch.agent_K)
        std_K = group_mean(distance.square(), batch.agent_K).sqrt()
        fallback_K = (fallback_K.double() / std_K.clamp(min=std_floor)).to(score_K)
    advantages_K = torch.where(lone_K, fallback_K, relative_K)
    return Estimate(advantages_N=advantages_K[batch.turn_N], lone_K=lone_K)
