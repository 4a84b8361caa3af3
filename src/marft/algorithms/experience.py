"""What an algorithm is given and what it gives back: flat tensors over the turns and tokens of many episodes.

Axis letters: E episodes, K turns of all episodes in order of play, N tokens of all turns in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

ValuesAt = Literal["token", "turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Episodes after credit. Values are the critic's, one a token or one a turn as the algorithm asks."""

    episode_K: Tensor
    agent_K: Tensor
    group_K: Tensor  # equal numbers: the same task, agent and which of its turns
    length_K: Tensor  # tokens
    reward_K: Tensor  # r_k, earned on the turn's last token
    score_K: Tensor  # c_k
    gamma: float  # between turns
    final_E: Tensor  # value after the last turn: 0 where the episode terminated
    values: Tensor | None  # [N] or [K]

    @property
    def turn_N(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(self.length_K)), self.length_K)

    @property
    def ends_N(self) -> Tensor:
        """True on the last token of each turn."""
        ends = torch.zeros(int(self.length_K.sum()), dtype=torch.bool)
        ends[self.length_K.cumsum(0) - 1] = True
        return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Advantages of all tokens [N] (equal inside a turn where the algorithm works on turns), and what the critic should
    have said ([N] or [K] like its values)."""

    advantages_N: Tensor
    returns: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """Policy loss of some turns, already weighted, and per-token marks of where it was clipped."""

    loss: Tensor
    clipped_N: Tensor


class Algorithm(Protocol):
    """An estimator of advantages and a policy loss."""

    @property
    def values_at(self) -> ValuesAt | None:
        """Where it needs the critic; None: it needs none."""

    def estimate(self, experience: Experience) -> Estimate: ...

    def weights(self, length_K: Tensor, agent_K: Tensor) -> Tensor:
        """The weight of each token of turn k in a minibatch; each agent's sum to 1."""

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate: ...


def to_rows(x: Tensor, row: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lay a flat tensor out as one row an episode: x [N], row [N] ascending → grid [E, T], mask [E, T], column [N]."""
    counts = torch.bincount(row, minlength=rows)
    column = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    grid = x.new_zeros(rows, int(counts.max()))
    grid[row, column] = x
    mask = torch.zeros_like(grid, dtype=torch.bool)
    mask[row, column] = True
    return grid, mask, column
