"""The learner: critics' values, and trust-region updates of agents and critics in common passes.

Every adapter has its own AdamW. A minibatch is some tasks with all their episodes; its policy and critic sequences go
through their base together, sorted by adapter, in passes of a limited number of tokens whose gradients add up. What a
step did is seen in the next minibatch's passes, which are needed anyway; the last step has a look of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.optim import AdamW

from marft.algorithms.experience import Algorithm
from marft.algorithms.losses import kl_estimate, value_loss
from marft.algorithms.sequential import sequential_factor
from marft.learners.member import Member
from marft.learners.microbatches import Pass, Work, cut, judge, runs, score, scored, token_rows
from marft.learners.tally import Lesson, NotFinite, Tally, Update
from marft.learners.trust_region import TrustRegion
from marft.models.attention import ragged
from marft.models.scoring import Span, action_span, logprobs
from marft.models.team import TeamModel
from marft.rollouts.batching import Batch
from marft.terminal.status import Status
from marft.training.schedule import Steps
from marft.types import MarftError

MANY = 4  # tasks a minibatch, of which one more or less makes little difference


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Everything the learner may be told; from config by the composer."""

    lr: Mapping[str, float]  # of each adapter that learns, critics included
    weight_decay: float
    eps: float  # Adam's
    grad_clip: float
    epochs: int
    minibatches: int
    tokens: int  # of one pass
    entropy: float
    kl_estimator: Literal["k1", "k2", "k3"]
    trust_region: float | None  # most KL of a turn from the policy that played; None: no limit
    kl_stop: float | None  # KL a token past which an adapter takes no further step on the batch
    factor_clip: float  # most of the factor between sequential steps, and 1/least
    value_clip: float | None
    huber_delta: float | None  # None: squared errors


class Learner:
    def __init__(
        self, members: Sequence[Member], algorithm: Algorithm, settings: LearnerSettings, status: Status | None = None
    ) -> None:
        self.status = status or Status()
        self.members, self.algorithm, self.settings = tuple(members), algorithm, settings
        self.homes = {name: m.team for m in members for name in (m.adapter, m.critic) if name is not None}
        self.critics = frozenset(m.critic for m in members if m.critic is not None)
        self.optimizers = {
            name: AdamW(
                self.homes[name].trainable_parameters(name).values(),
                lr=lr,
                eps=settings.eps,
                weight_decay=settings.weight_decay,
                foreach=True,
            )
            for name, lr in settings.lr.items()
        }
        self.region = TrustRegion(self.optimizers, self.members, settings.trust_region, kl_stop=settings.kl_stop)

    @property
    def adapters(self) -> list[str]:
        """Of the agents that learn, in the team's order."""
        return list(dict.fromkeys(member.adapter for member in self.members))

    # --- what a batch is worth ---------------------------------------------------------------------------------------
    def values(self, batch: Batch) -> Tensor | None:
        """The critics' values before the update: V(s_k, a_k^{<t}) a token or V(s_k) a turn."""
        if not self.critics:
            return None
        work = [self.judging(batch, k, k) for k in range(len(batch.turns))]
        found = judge(work, self.settings.tokens)
        values = torch.cat(found)
        if not values.isfinite().all():
            first = next(one for one, own in zip(work, found, strict=True) if not own.isfinite().all())
            raise NotFinite(str(first.span.adapter), "the value")
        return values

    def final_values(self, batch: Batch) -> Tensor:
        """The value after each episode's last turn: 0 where it terminated, V(s_K) where it was cut off."""
        final_E = torch.zeros(len(batch.episodes))
        if batch.cut_states:
            work = [
                readable(Work(span=Span(adapter=c.critic, ids=c.ids, asked=1), team=self.homes[c.critic], turn=i))
                for i, c in enumerate(batch.cut_states.values())
            ]
            final_E[list(batch.cut_states)] = torch.cat(judge(work, self.settings.tokens))
        return final_E

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs of the agents as they are, read by the same code as those of the reference."""
        adapters = {k: batch.member(k).adapter for k in range(len(batch.turns))}
        return scored(batch, adapters, self.settings.tokens)

    def reference(self, batch: Batch) -> Tensor:
        """Log-probs of the untrained base."""
        return scored(batch, dict.fromkeys(range(len(batch.turns))), self.settings.tokens)

    # --- updates -----------------------------------------------------------------------------------------------------
    def update(self, lesson: Lesson, steps: Steps, *, rates: Mapping[str, float], generator: torch.Generator) -> Update:
        """The steps one after another; critics learn in the first. `rates` are factors of the learning rates.

        Between steps each episode's advantages are multiplied by how much likelier its turns became in the steps before
        (HAPPO's factor), so that an agent learns against its team-mates as they now are.
        """
        batch, region = lesson.batch, self.region
        tally, final = Tally(len(batch.members)), Tally(len(batch.members))
        norms: dict[str, list[float]] = {name: [] for name in self.optimizers}
        factor_E = torch.ones(len(batch.episodes))
        before_N = self._before(lesson) if len(steps) > 1 else batch.old_N
        region.begin(batch.mean_lengths)
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = self.settings.lr[name] * rates[name]
        self.status.expect(len(steps) * self.settings.epochs * self.settings.minibatches)
        for number, step in enumerate(steps):
            learning = set(step) | (self.critics if number == 0 else set())
            last: dict[str, Tensor] = {}  # the turns of each one's last step
            for turns_J in self.minibatches(batch, generator):
                look = partial(self._look, lesson, turns_J)
                found = self._accumulate(lesson, factor_E, turns_J, learning - region.resting)
                found = region.hold(found, self._bearable_losses(lesson, turns_J), look)
                region.stop(found)
                for name, norm in self._clip(self._present(batch, turns_J, learning - region.resting)).items():
                    norms[name].append(norm)
                    if norm == 0:
                        continue  # nothing to learn here, and Adam's momentum alone would go on moving it
                    region.step(name, found)
                    last[name] = turns_J
                for optimizer in self.optimizers.values():
                    optimizer.zero_grad(set_to_none=True)
                tally.add_all(found)
                self.status.advance()
            if region.limit is None:
                self._check_weights(last)
            for turns_J, names in self._last_looks(last) if region.limit is not None else ():
                look = partial(self._look, lesson, turns_J)
                final.add_all(region.hold(look(names), self._bearable_losses(lesson, turns_J), look))
            if number + 1 < len(steps):
                factor_E = self._factor(batch, factor_E, step & set(last), before_N)
        return Update(
            statistics=self._with_paces(statistics(lesson, tally, final, norms)),
            factor_E=factor_E if len(steps) > 1 else None,
            excess=dict(region.excess),
            tokens=tally.tokens,
        )

    def _with_paces(self, figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Also at which learning rate each stepped, and which share of its last step the trust region let it keep."""
        names = {member.agent: member.adapter for member in self.members} | {critic: critic for critic in self.critics}
        for name, row in figures.items():
            row["lr"] = self.optimizers[names[name]].param_groups[0]["lr"]
            if names[name] in self.region.kept:
                row["kept"] = self.region.kept[names[name]]
        return figures

    def work(self, batch: Batch, turns_J: Tensor, learning: Collection[str]) -> list[Work]:
        """What is read for one step on the turns J: by each agent that learns its own turns, by each critic its states."""
        found: list[Work] = []
        for j, k in enumerate(turns_J.tolist()):
            turn, member = batch.turns[k], batch.member(k)
            if member.adapter in learning:
                span = action_span(member.adapter, turn.prompt_ids, turn.completion.token_ids)
                found.append(Work(span=span, team=member.team, turn=j))
            if member.critic is not None and member.critic in learning:
                found.append(self.judging(batch, k, j))
        return found

    def minibatches(self, batch: Batch, generator: torch.Generator) -> Iterator[Tensor]:
        """The turns of each minibatch of every epoch; one without turns to learn from is left out.

        Tasks stay whole, so that what their samples' prompts have in common is computed once. Minibatches weigh the same
        whatever their size: where tasks would make them very uneven, episodes go their own ways.
        """
        count, unit_E = self.settings.minibatches, batch.task_E
        tasks = len(unit_E.unique())
        if tasks % count and tasks < MANY * count:
            unit_E = torch.arange(len(batch.episodes))
        for _ in range(self.settings.epochs):
            order = torch.randperm(int(unit_E.max()) + 1, generator=generator)
            for chosen in order.tensor_split(min(count, len(order))):
                turns_J = torch.isin(unit_E[batch.episode_K], chosen).nonzero()[:, 0]
                if len(turns_J):
                    yield turns_J

    def _accumulate(self, lesson: Lesson, factor_E: Tensor, turns_J: Tensor, learning: Collection[str]) -> Tally:
        """Gradients of one minibatch (the turns J), pass by pass; where none are kept, its figures alone."""
        batch, tally = lesson.batch, Tally(len(lesson.batch.members))
        weight_J = self.algorithm.weights(batch.length_K[turns_J], batch.agent_K[turns_J], batch.adapter_K[turns_J])
        work = self.work(batch, turns_J, learning)
        entries: Counter[str | None] = Counter()  # values that each critic is asked for
        for each in work:
            entries[each.span.adapter] += each.span.asked
        for one in cut(work, self.settings.tokens):
            acting, judging = one.split()
            hidden = one.hidden()
            n_policy = sum(span.asked for span in acting.spans)
            loss = hidden.new_zeros((), dtype=torch.float32)
            if acting.work:
                own = acting.turns
                loss = loss + self._policy_loss(
                    lesson, factor_E, one.team, turns_J[own], weight_J[own], hidden[:n_policy], tally
                )
            for critic, part in self._critic_losses(lesson, judging, turns_J, hidden[n_policy:]):
                critic_loss = part / entries[critic]
                tally.critics[critic] = tally.critics.get(critic, 0.0) + float(critic_loss.detach())
                loss = loss + critic_loss
            if loss.requires_grad:
                loss.backward()
            tally.tokens += sum(len(span.ids) for span in one.spans)
        return tally

    def _look(self, lesson: Lesson, turns_J: Tensor, learning: Collection[str]) -> Tally:
        """What the turns J show of adapters as they are now."""
        with torch.no_grad():
            return self._accumulate(lesson, torch.ones(len(lesson.batch.episodes)), turns_J, learning)

    def _check_weights(self, names: Collection[str]) -> None:
        """What a step without limit may have done: nobody can play with weights that are no numbers."""
        for name in names:
            norms = torch._foreach_norm([p.detach() for p in self.homes[name].trainable_parameters(name).values()])
            if not torch.stack(norms).isfinite().all():
                raise NotFinite(name, "a weight")

    def _last_looks(self, last: Mapping[str, Tensor]) -> list[tuple[Tensor, list[str]]]:
        """Who stepped last on which turns: mostly all on the same."""
        groups: dict[int, tuple[Tensor, list[str]]] = {}
        for name, turns_J in last.items():
            groups.setdefault(id(turns_J), (turns_J, []))[1].append(name)
        return list(groups.values())

    def _bearable_losses(self, lesson: Lesson, turns_J: Tensor) -> dict[str, float]:
        """What each critic's loss on the turns J may be: as before the update, or a constant guess's of all its returns."""
        if self.region.limit is None or lesson.values is None or lesson.estimate.returns is None:
            return {}
        batch, values, returns = lesson.batch, lesson.values, lesson.estimate.returns
        by_token = self.algorithm.values_at == "token"
        judge_K = [self.members[i].critic for i in batch.agent_K.tolist()]
        turn = ragged(batch.length_K)[0] if by_token else torch.arange(len(judge_K))
        here = torch.zeros(len(judge_K), dtype=torch.bool)
        here[turns_J] = True
        found = {}
        for critic in self.critics:
            own = torch.tensor([name == critic for name in judge_K])
            if not (own & here).any():
                continue
            now, all_returns = (own & here)[turn], returns[own[turn]]
            guess = all_returns.mean().expand_as(all_returns)
            error = partial(value_loss, clip=None, huber_delta=self.settings.huber_delta)
            losses = error(values[now], returns[now], values[now]), error(guess, all_returns, guess)
            found[critic] = max(float(loss.mean()) for loss in losses)
        return found

    def _policy_loss(
        self,
        lesson: Lesson,
        factor_E: Tensor,
        team: TeamModel,
        turns_J: Tensor,
        weight_J: Tensor,
        hidden: Tensor,
        tally: Tally,
    ) -> Tensor:
        batch, device = lesson.batch, team.device
        rows, turn = token_rows(batch, turns_J)
        advantages = lesson.estimate.advantages_N[rows] * factor_E[batch.episode_K[turns_J]][turn]
        old, advantages, weight = (x.to(device) for x in (batch.old_N[rows], advantages, weight_J[turn]))
        temperature = batch.temperature_K[turns_J][turn].to(device)
        tokens, bonus = batch.tokens_N[rows].to(device), self.settings.entropy > 0
        new, entropy = logprobs(team, hidden, tokens, temperature, entropy_trains=bonus)
        words = batch.words_K[turns_J].to(device)
        surrogate = self.algorithm.surrogate(new, old, advantages, weight, turn.to(device), words)
        loss, agent_N, reference_kl = surrogate.loss, batch.agent_K[turns_J][turn], torch.zeros_like(new)
        if self.settings.entropy:
            loss = loss - self.settings.entropy * (weight * entropy).sum()
        if lesson.reference_N is not None:
            reference_kl = kl_estimate(new, lesson.reference_N[rows].to(device), self.settings.kl_estimator)
            loss = loss + (weight * lesson.kl_weight_A[agent_N].to(device) * reference_kl).sum()
        tally.add(agent_N, old, new.detach(), surrogate.clipped_N, entropy, reference_kl)
        return loss

    def _critic_losses(
        self, lesson: Lesson, judging: Pass, turns_J: Tensor, hidden: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """Each critic's summed loss over its sequences."""
        if not judging.work:
            return
        assert lesson.values is not None
        assert lesson.estimate.returns is not None
        turns = turns_J[judging.turns]
        rows = token_rows(lesson.batch, turns)[0] if self.algorithm.values_at == "token" else turns
        returns, old = (x[rows].to(hidden.device) for x in (lesson.estimate.returns, lesson.values))
        clip, delta = self.settings.value_clip, self.settings.huber_delta
        for critic, own in runs(judging.spans):
            predicted = judging.team.values(critic, hidden[own])
            yield critic, value_loss(predicted, returns[own], old[own], clip=clip, huber_delta=delta).sum()

    def _before(self, lesson: Lesson) -> Tensor:
        """The agents' log-probs before the update, by our own code: over the tokens of a long turn an engine's rounding would
        add up to a factor of its own."""
        return self.logprobs(lesson.batch) if lesson.own_N is None else lesson.own_N

    def _factor(self, batch: Batch, factor_E: Tensor, moved: Collection[str], before_N: Tensor) -> Tensor:
        """The factor after the adapters in `moved` have."""
        names = {k: batch.member(k).adapter for k in range(len(batch.turns))}
        own: dict[int, str | None] = {k: name for k, name in names.items() if name in moved}
        log_ratio_N = torch.zeros_like(batch.old_N)
        for rows, new in score(batch, own, self.settings.tokens):
            log_ratio_N[rows] = new - before_N[rows]
        held = [pair for pair in batch.held() if pair[0] in own]
        if not held:
            return factor_E
        turns_J, episode_J = torch.tensor(held).unbind(1)
        rows, turn = token_rows(batch, turns_J)
        return sequential_factor(factor_E, log_ratio_N[rows], episode_J[turn], clip=self.settings.factor_clip)

    def _clip(self, names: Sequence[str]) -> dict[str, float]:
        """Each adapter's gradient norm, cut to the limit. Nobody has stepped yet when one is not finite."""
        norms = {}
        for name in names:
            parameters = self.homes[name].trainable_parameters(name).values()
            norms[name] = float(torch.nn.utils.clip_grad_norm_(parameters, self.settings.grad_clip, foreach=True))
            if not math.isfinite(norms[name]):
                raise NotFinite(name, "the gradient")
        return norms

    def judging(self, batch: Batch, k: int, position: int) -> Work:
        """What turn k's critic reads."""
        member, state = batch.member(k), batch.states[k]
        if self.algorithm.values_at == "token":
            span = action_span(member.critic, state, batch.turns[k].completion.token_ids)
        else:
            span = Span(adapter=member.critic, ids=state, asked=1)
        return readable(Work(span=span, team=member.team, turn=position))

    def _present(self, batch: Batch, turns_J: Tensor, learning: Collection[str]) -> list[str]:
        """Who learns and has samples in this minibatch, and so a gradient."""
        members = [batch.members[i] for i in batch.agent_K[turns_J].unique().tolist()]
        present = {name for member in members for name in (member.adapter, member.critic)}
        return [name for name in self.optimizers if name in learning and name in present]


def readable(work: Work) -> Work:
    if len(work.span.ids) > work.team.longest:
        raise MarftError(
            f"the critic's view of an episode has {len(work.span.ids)} tokens, the model reads {work.team.longest}; "
            "lower max_tokens of the agents or use an algorithm without a critic"
        )
    return work


def statistics(
    lesson: Lesson, tally: Tally, final: Tally, norms: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, float]]:
    """Of each agent and critic: means over the tokens of all minibatches, each seen before its step; `final` after the last."""
    found: dict[str, dict[str, float]] = {}
    for i, member in enumerate(lesson.batch.members):
        kl, _, clipped, entropy, reference_kl, tokens = tally.by_agent[i].tolist()
        count, seen, last = max(tokens, 1.0), norms.get(member.adapter, ()), final.moved([i])
        found[member.agent] = {
            "kl": kl / count,
            **({"kl_final": last} if last is not None else {}),
            "clip_fraction": clipped / count,
            "entropy": entropy / count,
            **({"reference_kl": reference_kl / count} if lesson.reference_N is not None and tokens else {}),
            "grad_norm": sum(seen) / len(seen) if seen else 0.0,
            "steps": len(seen),
        }
    for critic, loss in tally.critics.items():
        seen = norms[critic]
        found[critic] = {"loss": loss / tally.looks[critic], "grad_norm": sum(seen) / len(seen)}
    return found
