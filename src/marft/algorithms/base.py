"""What an algorithm is: its settings, an estimator of advantages and a policy loss, in one class.

A config names one of the table in `config/algorithm.py`, or the user's own as `package.module:Class`. Configs are read
without torch, so files of algorithms import tensor code inside their methods.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from marft.config.algorithm import AlgorithmConfig

if TYPE_CHECKING:
    from torch import Tensor

    from marft.algorithms.batch import Batch, Estimate, Scores, Surrogate


class Algorithm(AlgorithmConfig):
    """Advantages by `estimate`; unless it says otherwise, one ratio a token, clipped."""

    @abstractmethod
    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """What every token of the batch was worth."""

    def weights(self, length_K: Tensor, agent_K: Tensor, adapter_K: Tensor) -> Tensor:
        """The weight of each token of turn k in a minibatch; each adapter's sum to 1."""
        from marft.algorithms.losses import turn_weights

        return turn_weights(length_K, agent_K, adapter_K, self.aggregation)

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate:
        """The policy loss of some turns."""
        from marft.algorithms.batch import Surrogate
        from marft.algorithms.losses import token_surrogate

        loss, clipped_N = token_surrogate(
            logprobs_N, old_N, advantages_N, weight_N, low=self.clip_low, high=self.clip_high, dual=self.dual_clip
        )
        return Surrogate(loss=loss, clipped_N=clipped_N)

    def ratio(self, log_ratio_N: Tensor, turn_N: Tensor, words_K: Tensor) -> Tensor:
        """The ratio of two policies at each token [N], as `surrogate` forms it: also stale samples are weighted with it."""
        return log_ratio_N.exp()


class ActionLevel(Algorithm):
    """One ratio a turn, divided by the turn's tokens or words, and clipped."""

    @property
    def normalised_by(self) -> Literal["sum", "token", "word"]:
        """What the log-ratio of a turn is divided by."""
        return "token"

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate:
        """A turn's advantage is the mean of its tokens', its weight is n_k times their mean weight: at a ratio of 1 every
        token then pulls with its own weight, whatever the ratio is divided by."""
        import torch

        from marft.algorithms.batch import Surrogate
        from marft.algorithms.losses import action_ratio, clipped_surrogate, is_clipped, sum_by_turn

        tokens = sum_by_turn(torch.ones_like(logprobs_N), turn_N, len(words_K))
        n_K = self._divisor(tokens, words_K)
        ratio_K = action_ratio(logprobs_N - old_N, turn_N, n_K)
        advantages_K = sum_by_turn(advantages_N, turn_N, len(words_K)) / tokens
        loss_K = clipped_surrogate(ratio_K, advantages_K, low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        clipped_K = is_clipped(ratio_K, advantages_K, low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        weight_K = n_K * sum_by_turn(weight_N, turn_N, len(words_K)) / tokens
        return Surrogate(loss=(loss_K * weight_K).sum(), clipped_N=clipped_K[turn_N])

    def ratio(self, log_ratio_N: Tensor, turn_N: Tensor, words_K: Tensor) -> Tensor:
        """Its turn's ratio, at each token."""
        import torch

        from marft.algorithms.losses import action_ratio, sum_by_turn

        tokens = sum_by_turn(torch.ones_like(log_ratio_N), turn_N, len(words_K))
        return action_ratio(log_ratio_N, turn_N, self._divisor(tokens, words_K))[turn_N]

    def _divisor(self, tokens_K: Tensor, words_K: Tensor) -> Tensor:
        """n_k: what a turn's log-ratio is divided by."""
        match self.normalised_by:
            case "sum":
                return tokens_K.new_ones(len(tokens_K))
            case "token":
                return tokens_K
            case "word":
                return words_K.clamp(min=1).to(tokens_K)
