"""What an algorithm is given and what it gives back: flat tensors over the turns and tokens of many episodes.

Axis letters: E episodes, K turns of all episodes in order of play, N tokens of all turns in the same order, A agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from marft.algorithms.advantages import suffix_scan
from marft.algorithms.losses import sum_by_turn

ValuesAt = Literal["token", "turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Turns of agents that learn, after credit: in order of play, one episode after the other.

    Values are the critic's, one a token or one a turn as the algorithm asks. Where every player has a return of its own,
    each one's part of an episode counts as an episode here: E are these parts, and they are interleaved.
    """

    episode_K: Tensor
    agent_K: Tensor
    group_K: Tensor  # equal numbers: turns that are compared (same task, agent and which of its turns; or siblings)
    task_K: Tensor
    play_K: Tensor  # equal numbers: turns whose scores hang together, of one episode; under tree credit all
    length_K: Tensor  # tokens
    reward_K: Tensor  # r_k, earned on the turn's last token
    discount_K: Tensor  # to the episode's next turn in the batch or past its end: γ to the turns between; 0: unchained
    final_E: Tensor  # value after the last turn: 0 where the episode terminated
    values: Tensor | None  # [N] or [K]
    penalty_N: Tensor | None = None  # taken off the reward of each token (KL in the reward)
    noise: float = 0.0  # how far scores may differ by rounding alone
    baseline_A: Tensor | None = None  # running baseline of each agent, for `rae`; NaN: none yet

    @property
    def turn_N(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(len(self.length_K)), self.length_K)

    @property
    def ends_N(self) -> Tensor:
        """True on the last token of each turn."""
        ends = torch.zeros(int(self.length_K.sum()), dtype=torch.bool)
        ends[self.length_K.cumsum(0) - 1] = True
        return ends

    @property
    def turn_reward_K(self) -> Tensor:
        """r_k less the penalties of the turn's tokens."""
        if self.penalty_N is None:
            return self.reward_K
        return self.reward_K - sum_by_turn(self.penalty_N, self.turn_N, len(self.length_K))

    @property
    def token_reward_N(self) -> Tensor:
        """r_k on each turn's last token, less every token's own penalty."""
        rewards_N = self.reward_K.new_zeros(int(self.length_K.sum()))
        rewards_N[self.ends_N] = self.reward_K
        return rewards_N if self.penalty_N is None else rewards_N - self.penalty_N

    @property
    def score_K(self) -> Tensor:
        """c_k, the return-to-go of what turns earn after penalties."""
        return returns_to_go(self.turn_reward_K, self.discount_K, self.episode_K, len(self.final_E))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Advantages of all tokens [N] (equal inside a turn where the algorithm works on turns), what the critic should
    have said ([N] or [K] like its values), the agents' running baselines after this batch, and which turns had nobody in
    their group to be compared with."""

    advantages_N: Tensor
    returns: Tensor | None = None
    baseline_A: Tensor | None = None
    lone_K: Tensor | None = None


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

    def weights(self, length_K: Tensor, agent_K: Tensor, adapter_K: Tensor) -> Tensor:
        """The weight of each token of turn k in a minibatch; each adapter's sum to 1."""

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate: ...


def to_rows(x: Tensor, row: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lay a flat tensor out as one row an episode: x [N], row [N] → grid [E, T], mask [E, T], column [N]. Entries of a row
    keep their order; rows may be interleaved."""
    counts = torch.bincount(row, minlength=rows)
    order = row.argsort(stable=True)
    column = torch.empty_like(row)
    column[order] = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row[order]]
    grid = x.new_zeros(rows, int(counts.max()))
    grid[row, column] = x
    mask = torch.zeros_like(grid, dtype=torch.bool)
    mask[row, column] = True
    return grid, mask, column


def returns_to_go(reward_K: Tensor, discount_K: Tensor, episode_K: Tensor, episodes: int) -> Tensor:
    """c_k = r_k + discount_k · c_{k+1} within each episode; nothing follows its last turn."""
    rewards, _, column = to_rows(reward_K, episode_K, episodes)
    discount, _, _ = to_rows(discount_K, episode_K, episodes)
    return suffix_scan(rewards, discount)[episode_K, column]
