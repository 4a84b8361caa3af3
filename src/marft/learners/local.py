"""The learner of one process, alone or a rank of several: critics' values, and trust-region updates in common passes.

Every adapter has its own AdamW. A minibatch is some tasks with all their episodes; its policy and critic sequences go
through their base together, sorted by adapter, in microbatches of a limited number of tokens whose gradients add up.
What a step did is seen in the next minibatch's passes, which are needed anyway; the last step has a look of its own.

Each rank of a group computes the passes of its own tasks. What comes of them (values, log-probs, gradients, figures) is
added up over the group, and all that follows from it every rank does alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Size, Tensor
from torch.optim import AdamW

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Member, Scores, TrainingBatch
from marft.algorithms.losses import kl_estimate, value_loss
from marft.algorithms.sequential import sequential_factor
from marft.learners.base import NotFinite, State, Update, UpdatePlan
from marft.learners.group import Alone, Group
from marft.learners.microbatches import Passes, Sample, critic_values, token_logprobs
from marft.learners.tally import Tally, statistics
from marft.learners.trust_region import MOMENTS, TrustRegion
from marft.models.scoring import Span, action_span, logprobs
from marft.models.team import TeamModel
from marft.terminal.status import Status
from marft.types import MarftError

MANY = 4  # tasks a minibatch, of which one more or less makes little difference


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """Everything the learner may be told; `training/build.py` makes it from the config."""

    lr: Mapping[str, float]  # of each adapter that learns, critics included
    weight_decay: float
    beta1: float  # Adam's momentum
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


class LocalLearner:
    """Adapters, critics and optimizers in this process. `teams` says which base each adapter and critic lies on, `group`
    who shares the work."""

    def __init__(
        self,
        members: Sequence[Member],
        teams: Mapping[str, TeamModel],
        algorithm: Algorithm,
        settings: LearnerSettings,
        status: Status | None = None,
        group: Group | None = None,
    ) -> None:
        self.members, self.teams, self.algorithm, self.settings = tuple(members), teams, algorithm, settings
        self.group: Group = group or Alone()
        self.status = status or Status()
        self.critics = frozenset(member.critic for member in members if member.critic is not None)
        self.optimizers = {
            name: AdamW(
                self.parameters(name).values(),
                lr=lr,
                betas=(settings.beta1, 0.999),
                eps=settings.eps,
                weight_decay=settings.weight_decay,
                foreach=True,
            )
            for name, lr in settings.lr.items()
        }
        self.region = TrustRegion(self.optimizers, self.members, settings.trust_region, kl_stop=settings.kl_stop)

    @property
    def rates(self) -> Mapping[str, float]:
        """The configured learning rate of every adapter and critic."""
        return self.settings.lr

    @property
    def bases(self) -> Sequence[TeamModel]:
        """The base models that adapters lie on, in the same order on all ranks."""
        return list(dict.fromkeys(self.teams.values()))

    def parameters(self, name: str) -> Mapping[str, Tensor]:
        """What an adapter or a critic learns with."""
        return self.teams[name].trainable_parameters(name)

    def adapters(self) -> State:
        """The weights of everything that learns."""
        return {name: self.parameters(name) for name in self.optimizers}

    def start(self) -> None:
        """Nothing has to be started in this process."""

    def close(self) -> None:
        """Nothing has to be ended."""

    # --- state -------------------------------------------------------------------------------------------------------
    def state_dict(self) -> State:
        """Adam's state of every adapter, by `PARAMETER.PART`; a parameter that has not stepped yet has none."""
        return {
            name: {
                f"{key}.{part}": value.detach().cpu().contiguous()
                for key, parameter in self.parameters(name).items()
                for part, value in optimizer.state.get(parameter, {}).items()
            }
            for name, optimizer in self.optimizers.items()
        }

    def state_shapes(self) -> Mapping[str, Mapping[str, Size]]:
        """The shapes of Adam's state once every parameter has stepped."""
        return {
            name: {
                f"{key}.{part}": parameter.shape if part in MOMENTS else Size()
                for key, parameter in self.parameters(name).items()
                for part in ("step", *MOMENTS)
            }
            for name in self.optimizers
        }

    def load_state_dict(self, state: State) -> None:
        """Adam's state as it was."""
        for name, optimizer in self.optimizers.items():
            optimizer.state.clear()
            for key, parameter in self.parameters(name).items():
                if f"{key}.step" in state[name]:
                    moments = {part: state[name][f"{key}.{part}"].to(parameter.device) for part in MOMENTS}
                    optimizer.state[parameter] = {"step": state[name][f"{key}.step"], **moments}

    # --- what a batch is worth ---------------------------------------------------------------------------------------
    def score(self, batch: Batch, *, reference: bool = False, proximal: bool = False) -> Scores:
        """The critics' values; on demand log-probs of the untrained base, and of the agents as they are."""
        return Scores(
            values=self.values(batch),
            final_E=self.final_values(batch),
            reference_N=self.reference(batch) if reference else None,
            proximal_N=self.logprobs(batch) if proximal else None,
        )

    def values(self, batch: Batch) -> Tensor | None:
        """The critics' values before the update: V(s_k, a_k^{<t}) a token or V(s_k) a turn."""
        if not self.critics:
            return None
        samples = [self._critic_sample(batch, k, k) for k in range(len(batch.length_K))]
        found = self._critic_values(samples, batch.task_K)
        values = torch.cat(found)
        if not values.isfinite().all():
            first = next(one for one, own in zip(samples, found, strict=True) if not own.isfinite().all())
            raise NotFinite(str(first.span.adapter), "the value")
        return values

    def final_values(self, batch: Batch) -> Tensor:
        """The value after each episode's last turn: 0 where it terminated, V(s_K) where it was cut off."""
        final_E = torch.zeros(len(batch.task_E))
        if cut := batch.cut_states:
            samples = [
                check_fits(Sample(span=Span(adapter=critic, ids=ids, asked=1), team=self.teams[critic], turn=i))
                for i, (critic, ids) in enumerate(cut.values())
            ]
            final_E[list(cut)] = torch.cat(self._critic_values(samples, batch.task_E[list(cut)]))
        return final_E

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs of the agents as they are, read by the same code as those of the reference."""
        adapters = {k: batch.member(k).adapter for k in range(len(batch.length_K))}
        return self._token_logprobs(batch, adapters)

    def reference(self, batch: Batch) -> Tensor:
        """Log-probs of the untrained base."""
        return self._token_logprobs(batch, dict.fromkeys(range(len(batch.length_K))))

    def _critic_values(self, samples: Sequence[Sample], task_I: Tensor) -> list[Tensor]:
        """The critics' values at the asked positions; samples[i].turn must be i, and `task_I` are the samples' tasks."""
        found = critic_values(self._share(samples, task_I), self._passes)
        asked = [sample.span.asked for sample in samples]
        values = torch.cat([found.get(i, torch.zeros(count)) for i, count in enumerate(asked)])
        self.group.add([values])
        return list(values.split(asked))

    def _token_logprobs(self, batch: Batch, adapters: Mapping[int, str | None]) -> Tensor:
        """Log-probs of some turns' tokens under an adapter each (None: the base alone); 0 where a turn was not asked for."""
        turns = list(adapters)
        read_K, task_K = batch.prompt_length_K + batch.length_K, batch.task_K
        own = (turns[i] for i in self.group.share(task_K[turns].tolist(), read_K[turns].tolist()))
        found_N = token_logprobs(batch, {k: adapters[k] for k in own}, self.teams, self._passes)
        self.group.add([found_N])
        return found_N

    @property
    def _passes(self) -> Passes:
        """How samples are read here."""
        return Passes(self.bases, self.group, self.settings.tokens)

    def _share(self, samples: Sequence[Sample], task_I: Tensor) -> list[Sample]:
        """Those of the samples that are computed here."""
        own = self.group.share(task_I.tolist(), [len(sample.span.ids) for sample in samples])
        return [samples[i] for i in own]

    # --- updates -----------------------------------------------------------------------------------------------------
    def update(self, data: TrainingBatch, plan: UpdatePlan) -> Update:
        """The steps one after another; critics learn in the first.

        Between steps each episode's advantages are multiplied by how much likelier its turns became in the steps before
        (HAPPO's factor), so that an agent learns against its team-mates as they now are.
        """
        batch, region = data.batch, self.region
        tally, final = Tally(len(batch.members)), Tally(len(batch.members))
        norms: dict[str, list[float]] = {name: [] for name in self.optimizers}
        generator = torch.Generator().manual_seed(plan.seed)
        factor_E = torch.ones(len(batch.task_E))
        before_N = self._before(data) if len(plan.steps) > 1 else batch.old_N
        region.begin(batch.mean_lengths)
        for name, optimizer in self.optimizers.items():
            optimizer.param_groups[0]["lr"] = self.settings.lr[name] * plan.rates[name]
            optimizer.zero_grad(set_to_none=True)  # what an update left that was cut short
        self.status.expect(len(plan.steps) * self.settings.epochs * self.settings.minibatches)
        for number, step in enumerate(plan.steps):
            learning = set(step) | (self.critics if number == 0 else set())
            last: dict[str, Tensor] = {}  # the turns of each one's last step
            for turns_J in self.minibatches(batch, generator):
                look = partial(self._look, data, plan, turns_J)
                found = self._accumulate(data, plan, factor_E, turns_J, learning - region.resting)
                found = region.hold(found, self._bearable_losses(data, turns_J), look)
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
                look = partial(self._look, data, plan, turns_J)
                final.add_all(region.hold(look(names), self._bearable_losses(data, turns_J), look))
            if number + 1 < len(plan.steps):
                factor_E = self._factor(batch, factor_E, step & set(last), before_N)
        figures = statistics(batch.members, tally, final, norms, referenced=data.scores.reference_N is not None)
        return Update(
            statistics=self._with_paces(figures),
            factor_E=factor_E if len(plan.steps) > 1 else None,
            excess=dict(region.excess),
            tokens=tally.tokens,
        )

    def minibatches(self, batch: Batch, generator: torch.Generator) -> Iterator[Tensor]:
        """The turns of each minibatch of every epoch; one without turns to learn from is left out.

        Tasks stay whole, so that what their samples' prompts have in common is computed once. Minibatches weigh the same
        whatever their size: where tasks would make them very uneven, episodes go their own ways.
        """
        count, unit_E = self.settings.minibatches, batch.task_E
        tasks = len(unit_E.unique())
        if tasks % count and tasks < MANY * count:
            unit_E = torch.arange(len(batch.task_E))
        for _ in range(self.settings.epochs):
            order = torch.randperm(int(unit_E.max()) + 1, generator=generator)
            for chosen in order.tensor_split(min(count, len(order))):
                turns_J = torch.isin(unit_E[batch.episode_K], chosen).nonzero()[:, 0]
                if len(turns_J):
                    yield turns_J

    def samples(self, batch: Batch, turns_J: Tensor, learning: Collection[str]) -> list[Sample]:
        """What is read for one step on the turns J: by each agent that learns its own turns, by each critic its states."""
        found: list[Sample] = []
        for j, k in enumerate(turns_J.tolist()):
            member = batch.member(k)
            if member.adapter in learning:
                span = action_span(member.adapter, batch.prompts[k], batch.completions[k])
                found.append(Sample(span=span, team=self.teams[member.adapter], turn=j))
            if member.critic is not None and member.critic in learning:
                found.append(self._critic_sample(batch, k, j))
        return found

    def _accumulate(
        self, data: TrainingBatch, plan: UpdatePlan, factor_E: Tensor, turns_J: Tensor, learning: Collection[str]
    ) -> Tally:
        """Gradients of one minibatch (the turns J), microbatch by microbatch; where none are kept, its figures alone."""
        batch, scores, settings = data.batch, data.scores, self.settings
        tally = Tally(len(batch.members))
        weight_J = self.algorithm.weights(batch.length_K[turns_J], batch.agent_K[turns_J], batch.adapter_K[turns_J])
        kl_weight_A = torch.tensor([plan.kl_weights.get(member.agent, 0.0) for member in batch.members])
        samples = self.samples(batch, turns_J, learning)
        asked: Counter[str | None] = Counter()  # values that each critic is asked for
        for sample in samples:
            asked[sample.span.adapter] += sample.span.asked
        task_I = batch.task_K[turns_J[[sample.turn for sample in samples]]]
        for micro in self._passes.over(self._share(samples, task_I)):
            self.group.check()
            acting, judging = micro.split()
            hidden, device = micro.hidden(), micro.team.device
            said = sum(span.asked for span in acting.spans)
            loss = hidden.new_zeros((), dtype=torch.float32)
            if acting.samples:
                own_J = turns_J[acting.turns]
                rows, turn = batch.token_rows(own_J)
                agent_N, tokens = batch.agent_K[own_J][turn], batch.tokens_N[rows].to(device)
                old, weight = batch.old_N[rows].to(device), weight_J[acting.turns][turn].to(device)
                advantages = (data.estimate.advantages_N[rows] * factor_E[batch.episode_K[own_J]][turn]).to(device)
                temperature = batch.temperature_K[own_J][turn].to(device)
                new, entropy = logprobs(
                    micro.team, hidden[:said], tokens, temperature, entropy_trains=settings.entropy > 0
                )
                surrogate = self.algorithm.surrogate(
                    new, old, advantages, weight, turn.to(device), batch.words_K[own_J].to(device)
                )
                policy_loss, reference_kl = surrogate.loss, torch.zeros_like(new)
                if settings.entropy:
                    policy_loss = policy_loss - settings.entropy * (weight * entropy).sum()
                if scores.reference_N is not None:
                    reference_kl = kl_estimate(new, scores.reference_N[rows].to(device), settings.kl_estimator)
                    policy_loss = policy_loss + (weight * kl_weight_A[agent_N].to(device) * reference_kl).sum()
                loss = loss + policy_loss
                tally.add(agent_N, old, new.detach(), surrogate.clipped_N, entropy, reference_kl)
            if judging.samples:
                assert scores.values is not None
                assert data.estimate.returns is not None
                judged = turns_J[judging.turns]
                rows = batch.token_rows(judged)[0] if self.algorithm.values_at == "token" else judged
                returns, values = (x[rows].to(device) for x in (data.estimate.returns, scores.values))
                clip, delta = settings.value_clip, settings.huber_delta
                for critic, own in judging.critics():
                    predicted = micro.team.values(critic, hidden[said:][own])
                    errors = value_loss(predicted, returns[own], values[own], clip=clip, huber_delta=delta)
                    critic_loss = errors.sum() / asked[critic]
                    tally.critics[critic] = tally.critics.get(critic, 0.0) + float(critic_loss.detach())
                    loss = loss + critic_loss
            if loss.requires_grad:
                loss.backward()
            tally.tokens += sum(len(span.ids) for span in micro.spans)
        self._add_up(tally, [name for name in self.optimizers if asked[name]])
        return tally

    def _add_up(self, tally: Tally, present: Sequence[str]) -> None:
        """Figures of all ranks' passes, and the gradients of whoever is read in any of them."""
        critics = [name for name in present if name in self.critics]
        figures = tally.to_vector(critics)
        self.group.add([figures])
        tally.read_vector(figures, critics)
        if not torch.is_grad_enabled():
            return
        gradients: list[Tensor] = []
        for name in present:
            for parameter in self.parameters(name).values():
                if parameter.grad is None:  # nobody of this rank's share has it
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        self.group.add(gradients)

    def _look(self, data: TrainingBatch, plan: UpdatePlan, turns_J: Tensor, learning: Collection[str]) -> Tally:
        """What the turns J show of adapters as they are now."""
        with torch.no_grad():
            return self._accumulate(data, plan, torch.ones(len(data.batch.task_E)), turns_J, learning)

    def _critic_sample(self, batch: Batch, k: int, turn: int) -> Sample:
        """What turn k's critic reads."""
        critic = batch.member(k).critic
        assert critic is not None
        if self.algorithm.values_at == "token":
            span = action_span(critic, batch.states[k], batch.completions[k])
        else:
            span = Span(adapter=critic, ids=batch.states[k], asked=1)
        return check_fits(Sample(span=span, team=self.teams[critic], turn=turn))

    def _clip(self, names: Sequence[str]) -> dict[str, float]:
        """Each adapter's gradient norm, cut to the limit. Nobody has stepped yet when one is not finite."""
        norms = {}
        for name in names:
            parameters = self.parameters(name).values()
            norms[name] = float(torch.nn.utils.clip_grad_norm_(parameters, self.settings.grad_clip, foreach=True))
            if not math.isfinite(norms[name]):
                raise NotFinite(name, "the gradient")
        return norms

    def _present(self, batch: Batch, turns_J: Tensor, learning: Collection[str]) -> list[str]:
        """Who learns and has samples in this minibatch, and so a gradient."""
        members = [batch.members[i] for i in batch.agent_K[turns_J].unique().tolist()]
        present = {name for member in members for name in (member.adapter, member.critic)}
        return [name for name in self.optimizers if name in learning and name in present]

    def _check_weights(self, names: Collection[str]) -> None:
        """What a step without limit may have done: nobody can play with weights that are no numbers."""
        for name in names:
            norms = torch._foreach_norm([p.detach() for p in self.parameters(name).values()])
            if not torch.stack(norms).isfinite().all():
                raise NotFinite(name, "a weight")

    def _last_looks(self, last: Mapping[str, Tensor]) -> list[tuple[Tensor, list[str]]]:
        """Who stepped last on which turns: mostly all on the same."""
        groups: dict[int, tuple[Tensor, list[str]]] = {}
        for name, turns_J in last.items():
            groups.setdefault(id(turns_J), (turns_J, []))[1].append(name)
        return list(groups.values())

    def _bearable_losses(self, data: TrainingBatch, turns_J: Tensor) -> dict[str, float]:
        """What each critic's loss on the turns J may be: as before the update, or a constant guess's of all its returns."""
        if self.region.limit is None or data.scores.values is None or data.estimate.returns is None:
            return {}
        batch, values, returns = data.batch, data.scores.values, data.estimate.returns
        critic_K = [batch.members[i].critic for i in batch.agent_K.tolist()]
        turn = batch.turn_N if self.algorithm.values_at == "token" else torch.arange(len(critic_K))
        here = torch.zeros(len(critic_K), dtype=torch.bool)
        here[turns_J] = True
        found = {}
        for critic in self.critics:
            own = torch.tensor([name == critic for name in critic_K])
            if not (own & here).any():
                continue
            now, all_returns = (own & here)[turn], returns[own[turn]]
            guess = all_returns.mean().expand_as(all_returns)
            error = partial(value_loss, clip=None, huber_delta=self.settings.huber_delta)
            losses = error(values[now], returns[now], values[now]), error(guess, all_returns, guess)
            found[critic] = max(float(loss.mean()) for loss in losses)
        return found

    def _before(self, data: TrainingBatch) -> Tensor:
        """The agents' log-probs before the update, by our own code: over the tokens of a long turn an engine's rounding would
        add up to a factor of its own."""
        return self.logprobs(data.batch) if data.scores.proximal_N is None else data.scores.proximal_N

    def _factor(self, batch: Batch, factor_E: Tensor, moved: Collection[str], before_N: Tensor) -> Tensor:
        """The factor after the adapters in `moved` have."""
        names = {k: batch.member(k).adapter for k in range(len(batch.length_K))}
        own: dict[int, str | None] = {k: name for k, name in names.items() if name in moved}
        holders = [pair for pair in batch.holders() if pair[0] in own]
        if not holders:
            return factor_E
        # what was not scored is no ratio, and is not read below
        log_ratio_N = self._token_logprobs(batch, own) - before_N
        turns_J, episode_J = torch.tensor(holders).unbind(1)
        rows, turn = batch.token_rows(turns_J)
        return sequential_factor(factor_E, log_ratio_N[rows], episode_J[turn], clip=self.settings.factor_clip)

    def _with_paces(self, figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Also at which learning rate each stepped, and which share of its last step the trust region let it keep."""
        names = {member.agent: member.adapter for member in self.members} | {critic: critic for critic in self.critics}
        for name, row in figures.items():
            row["lr"] = self.optimizers[names[name]].param_groups[0]["lr"]
            if names[name] in self.region.kept:
                row["kept"] = self.region.kept[names[name]]
        return figures


def check_fits(sample: Sample) -> Sample:
    """The same, unless the base cannot read it."""
    if len(sample.span.ids) > sample.team.longest:
        raise MarftError(
            f"the critic's view of an episode has {len(sample.span.ids)} tokens, the model reads {sample.team.longest}; "
            "lower max_tokens of the agents or use an algorithm without a critic"
        )
    return sample
