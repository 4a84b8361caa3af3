"""Hand-made columns of a batch and its scores, for tests of estimators: what they do not read is left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import NOBODY, Batch, Estimate, Member, Scores, flat_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Turns after credit, in order of play; an episode has one return."""

    episode_K: Tensor
    agent_K: Tensor
    group_K: Tensor
    task_K: Tensor
    play_K: Tensor
    length_K: Tensor
    reward_K: Tensor
    discount_K: Tensor
    final_E: Tensor
    values: Tensor | None
    penalty_N: Tensor | None = None
    noise: float = 0.0
    baseline_A: Tensor | None = None

    @property
    def batch(self) -> Batch:
        turns, episodes = len(self.length_K), len(self.final_E)
        none_K, none_E = torch.zeros(turns, dtype=torch.int64), torch.zeros(episodes, dtype=torch.int64)
        tokens = int(self.length_K.sum())
        return Batch(
            members=tuple(Member(agent=str(i), adapter=str(i)) for i in range(int(self.agent_K.max()) + 1)),
            episode_K=self.episode_K, index_K=none_K, return_K=self.episode_K, agent_K=self.agent_K, group_K=self.group_K,
            play_K=self.play_K, reward_K=self.reward_K, discount_K=self.discount_K, temperature_K=torch.ones(turns),
            version_K=none_K, truncated_K=none_K.bool(), words_K=none_K + 1, length_K=self.length_K,
            prompt_length_K=none_K, state_length_K=none_K, tokens_N=torch.zeros(tokens, dtype=torch.int64),
            old_N=torch.zeros(tokens), prompt_ids=flat_ids([]), state_ids=flat_ids([]),
            task_E=none_E.scatter(0, self.episode_K, self.task_K), trunk_E=none_E + NOBODY, forked_at_E=none_E,
            cut_critic_E=none_E + NOBODY, cut_length_E=none_E, cut_ids=flat_ids([]), episode_R=torch.arange(episodes),
        )  # fmt: skip

    @property
    def scores(self) -> Scores:
        return Scores(
            final_E=self.final_E,
            values=self.values,
            penalty_N=self.penalty_N,
            noise=self.noise,
            baseline_A=self.baseline_A,
        )

    @property
    def turn_N(self) -> Tensor:
        return self.batch.turn_N

    @property
    def ends_N(self) -> Tensor:
        return self.batch.ends_N

    @property
    def turn_reward_K(self) -> Tensor:
        return self.batch.turn_rewards(self.penalty_N)

    @property
    def token_reward_N(self) -> Tensor:
        return self.batch.token_rewards(self.penalty_N)

    @property
    def score_K(self) -> Tensor:
        return self.batch.returns_to_go(self.penalty_N)


def estimated(method: Algorithm, experience: Experience) -> Estimate:
    return method.estimate(experience.batch, experience.scores)
