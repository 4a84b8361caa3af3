"""The learner: critics' values, and trust-region updates of all agents and critics in common passes.

Every adapter has its own AdamW. A minibatch is some episodes with all their turns; its policy and critic sequences go
through the base together, sorted by adapter, in passes of a limited number of tokens whose gradients add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import AdamW

from marft.algorithms.experience import Algorithm, Estimate
from marft.algorithms.losses import kl_k3, value_loss
from marft.models.attention import ragged
from marft.models.scoring import Span, action_span, hidden_states, logprobs, passes
from marft.models.team import TeamModel
from marft.training.batch import Batch
from marft.types import MarftError


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Everything the learner may be told; from config by the composer."""

    lr: Mapping[str, float]  # of each adapter, critics included
    weight_decay: float
    grad_clip: float
    epochs: int
    minibatches: int
    tokens: int  # of one pass
    entropy: float
    kl: float
    value_clip: float | None
    value_loss: Literal["mse", "huber"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Per-agent sums over the tokens of an update, for the metrics: columns kl, clipped, entropy, tokens."""

    by_agent: Tensor  # [agents, 4]

    def add(self, agent_N: Tensor, kl_N: Tensor, clipped_N: Tensor, entropy_N: Tensor) -> None:
        columns = torch.stack([kl_N, clipped_N.to(kl_N), entropy_N, torch.ones_like(kl_N)], dim=1).detach().cpu()
        self.by_agent.index_add_(0, agent_N, columns)


class Learner:
    def __init__(self, team: TeamModel, algorithm: Algorithm, critic: str | None, settings: LearnerSettings) -> None:
        self.team, self.algorithm, self.critic, self.settings = team, algorithm, critic, settings
        self.optimizers = {
            name: AdamW(team.parameters(name).values(), lr=lr, weight_decay=settings.weight_decay, foreach=True)
            for name, lr in settings.lr.items()
        }
        self.order = [*team.agents, *([critic] if critic else []), None]  # of adapters inside a pass

    def values(self, batch: Batch) -> Tensor | None:
        """The critic's values before the update: V(s_k, a_k^{<t}) a token or V(s_k) a turn."""
        if self.critic is None:
            return None
        return torch.cat(self._judge([self._critic_span(batch, k) for k in range(len(batch.turns))]))

    def final_values(self, batch: Batch) -> Tensor:
        """The value after each episode's last turn: 0 where it terminated, V(s_K) where it was cut off."""
        final_E = torch.zeros(len(batch.episodes))
        if self.critic is not None and batch.cut_states:
            spans = [Span(adapter=self.critic, ids=ids, asked=1) for ids in batch.cut_states.values()]
            final_E[list(batch.cut_states)] = torch.cat(self._judge(spans))
        return final_E

    def _judge(self, spans: Sequence[Span]) -> list[Tensor]:
        """The critic's values at the asked positions of each span."""
        assert self.critic is not None
        found: list[Tensor] = [torch.empty(0)] * len(spans)
        with torch.no_grad():
            for chunk in passes(spans, self.order, self.settings.tokens):
                asked = [spans[i].asked for i in chunk]
                values = self.team.values(self.critic, hidden_states(self.team, [spans[i] for i in chunk])).cpu()
                for i, piece in zip(chunk, values.split(asked), strict=True):
                    found[i] = piece
        return found

    def reference(self, batch: Batch) -> Tensor | None:
        """Log-probs of the untrained base, where a KL term asks for them."""
        if not self.settings.kl:
            return None
        spans = [action_span(None, t.prompt_ids, t.completion.token_ids) for t in batch.turns]
        found = torch.zeros_like(batch.old_N)
        with torch.no_grad():
            for chunk in passes(spans, self.order, self.settings.tokens):
                rows, turn = token_rows(batch, torch.tensor(chunk))
                hidden = hidden_states(self.team, [spans[k] for k in chunk])
                device = self.team.device
                tokens, temperature = batch.tokens_N[rows].to(device), batch.temperature_K[chunk][turn].to(device)
                found[rows] = logprobs(self.team, hidden, tokens, temperature)[0].cpu()
        return found

    def update(
        self,
        batch: Batch,
        estimate: Estimate,
        values: Tensor | None,
        *,
        lr_factor: float,
        policy: bool,
        generator: torch.Generator,
    ) -> dict[str, dict[str, float]]:
        """Some epochs over the batch; `policy` is off while only the critic warms up. Statistics by adapter name."""
        reference_N = self.reference(batch) if policy else None
        sums = Sums(by_agent=torch.zeros(len(batch.agents), 4))
        norms: dict[str, list[float]] = {name: [] for name in self.optimizers}
        value_error, steps = 0.0, 0
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = self.settings.lr[name] * lr_factor
        for _ in range(self.settings.epochs):
            order = torch.randperm(len(batch.episodes), generator=generator)
            for chosen in order.tensor_split(min(self.settings.minibatches, len(order))):
                turns_J = torch.isin(batch.episode_K, chosen).nonzero()[:, 0]
                value_error += self._accumulate(batch, estimate, values, reference_N, turns_J, sums, policy)
                steps += 1
                for name, norm in self._clip(self._present(batch, turns_J, policy)).items():
                    self.optimizers[name].step()
                    self.optimizers[name].zero_grad(set_to_none=True)
                    norms[name].append(norm)
        return self._statistics(batch, sums, norms, value_error / steps)

    def _accumulate(
        self,
        batch: Batch,
        estimate: Estimate,
        values: Tensor | None,
        reference_N: Tensor | None,
        turns_J: Tensor,
        sums: Sums,
        policy: bool,
    ) -> float:
        """Gradients of one minibatch (the turns J), pass by pass; the critic's mean loss."""
        weight_J = self.algorithm.weights(batch.length_K[turns_J], batch.agent_K[turns_J])
        spans: list[Span] = []
        owners: list[int] = []  # position in J of each span's turn
        for j, k in enumerate(turns_J.tolist()):
            turn = batch.turns[k]
            if policy:
                spans.append(action_span(turn.agent, turn.prompt_ids, turn.completion.token_ids))
                owners.append(j)
            if self.critic is not None:
                spans.append(self._critic_span(batch, k))
                owners.append(j)
        value_entries = sum(span.asked for span in spans if span.adapter == self.critic)
        total = 0.0
        for chunk in passes(spans, self.order, self.settings.tokens):
            split = sum(spans[i].adapter != self.critic for i in chunk)  # policy spans first: the order says so
            hidden = hidden_states(self.team, [spans[i] for i in chunk])
            acting = torch.tensor([owners[i] for i in chunk[:split]], dtype=torch.int64)
            judged = torch.tensor([owners[i] for i in chunk[split:]], dtype=torch.int64)
            n_policy = int(batch.length_K[turns_J[acting]].sum())
            loss = hidden.new_zeros((), dtype=torch.float32)
            if len(acting):
                loss = loss + self._policy_loss(
                    batch, estimate, reference_N, turns_J[acting], weight_J[acting], hidden[:n_policy], sums
                )
            if len(judged):
                critic_loss = (
                    self._critic_loss(batch, estimate, values, turns_J[judged], hidden[n_policy:]) / value_entries
                )
                total += float(critic_loss.detach())
                loss = loss + critic_loss
            loss.backward()
        return total

    def _policy_loss(
        self,
        batch: Batch,
        estimate: Estimate,
        reference_N: Tensor | None,
        turns_J: Tensor,
        weight_J: Tensor,
        hidden: Tensor,
        sums: Sums,
    ) -> Tensor:
        device = self.team.device
        rows, turn = token_rows(batch, turns_J)
        old, advantages, weight = (
            x.to(device) for x in (batch.old_N[rows], estimate.advantages_N[rows], weight_J[turn])
        )
        temperature = batch.temperature_K[turns_J][turn].to(device)
        tokens, bonus = batch.tokens_N[rows].to(device), self.settings.entropy > 0
        new, entropy = logprobs(self.team, hidden, tokens, temperature, entropy_trains=bonus)
        words = batch.words_K[turns_J].to(device)
        surrogate = self.algorithm.surrogate(new, old, advantages, weight, turn.to(device), words)
        loss = surrogate.loss
        if self.settings.entropy:
            loss = loss - self.settings.entropy * (weight * entropy).sum()
        if reference_N is not None:
            loss = loss + self.settings.kl * (weight * kl_k3(new, reference_N[rows].to(device))).sum()
        sums.add(batch.agent_K[turns_J][turn], kl_k3(old, new), surrogate.clipped_N, entropy)
        return loss

    def _critic_loss(
        self, batch: Batch, estimate: Estimate, values: Tensor | None, turns_J: Tensor, hidden: Tensor
    ) -> Tensor:
        assert self.critic is not None
        assert values is not None
        assert estimate.returns is not None
        rows = token_rows(batch, turns_J)[0] if self.algorithm.values_at == "token" else turns_J
        returns, old = estimate.returns[rows].to(hidden.device), values[rows].to(hidden.device)
        predicted = self.team.values(self.critic, hidden)
        return value_loss(predicted, returns, old, clip=self.settings.value_clip, kind=self.settings.value_loss).sum()

    def _clip(self, names: Sequence[str]) -> dict[str, float]:
        """Each adapter's gradient norm, cut to the limit. Nobody has stepped yet when one is not finite."""
        norms = {}
        for name in names:
            parameters = self.team.parameters(name).values()
            norms[name] = float(torch.nn.utils.clip_grad_norm_(parameters, self.settings.grad_clip, foreach=True))
            if not math.isfinite(norms[name]):
                raise MarftError(
                    f"the gradient of {name!r} is {norms[name]}: training has diverged. Go back with --resume --at N, "
                    "or start again with a lower optimizer.lr"
                )
        return norms

    def _critic_span(self, batch: Batch, k: int) -> Span:
        if self.algorithm.values_at == "token":
            span = action_span(self.critic, batch.states[k], batch.turns[k].completion.token_ids)
        else:
            span = Span(adapter=self.critic, ids=batch.states[k], asked=1)
        if len(span.ids) > self.team.longest:
            raise MarftError(
                f"the critic's view of an episode has {len(span.ids)} tokens, the model reads {self.team.longest}; "
                "lower max_tokens of the agents or use an algorithm without a critic"
            )
        return span

    def _present(self, batch: Batch, turns_J: Tensor, policy: bool) -> list[str]:
        """Who has samples in this minibatch, and so a gradient."""
        acting = [batch.agents[i] for i in batch.agent_K[turns_J].unique().tolist()] if policy else []
        return [name for name in self.optimizers if name in acting or name == self.critic]

    def _statistics(
        self, batch: Batch, sums: Sums, norms: Mapping[str, Sequence[float]], value_error: float
    ) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for i, agent in enumerate(batch.agents):
            kl, clipped, entropy, tokens = sums.by_agent[i].tolist()
            count = max(tokens, 1.0)
            found[agent] = {"kl": kl / count, "clip_fraction": clipped / count, "entropy": entropy / count}
        if self.critic:
            found[self.critic] = {"loss": value_error}
        for name, seen in norms.items():
            found.setdefault(name, {})["grad_norm"] = sum(seen) / len(seen) if seen else 0.0
        return found


def token_rows(batch: Batch, turns_J: Tensor) -> tuple[Tensor, Tensor]:
    """The flat rows of the tokens of some turns, in their order, and which of those turns each belongs to."""
    turn, offset = ragged(batch.length_K[turns_J])
    return batch.starts_K[turns_J][turn] + offset, turn
