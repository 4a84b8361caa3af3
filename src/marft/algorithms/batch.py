"""What learning is about, as plain data: a batch of turns, what they are scored with, and what is made of them.

Flat tensors and a small table of names: no model, no episode. A part of a batch is a batch, and it can be written down
or sent to another process (`transport.py`), where it gives the same update.

Axis letters: A agents, E episodes, R returns (of an episode, or of each player in it), K turns of all episodes in order
of play, N tokens of all turns in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from marft.algorithms.advantages import suffix_scan
from marft.algorithms.losses import sum_by_turn
from marft.types import MarftError

NOBODY = -1  # in columns of indices
OF_TURNS = (  # columns of a batch that mean the same in a part of it
    "index_K", "agent_K", "group_K", "play_K", "reward_K", "discount_K", "temperature_K", "version_K", "truncated_K",
    "words_K", "length_K", "prompt_length_K", "state_length_K",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An agent that learns: its name, its adapter's and its critic's. Agents may share both."""

    agent: str
    adapter: str
    critic: str | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """All turns that are learnt from, after credit, one episode after the other.

    What frozen, scripted and remote agents say is part of the world: their turns are not here.
    """

    members: tuple[Member, ...]  # [A]
    # turns
    episode_K: Tensor
    index_K: Tensor  # which turn of its episode
    return_K: Tensor  # whose return-to-go it belongs to
    agent_K: Tensor
    group_K: Tensor  # equal numbers: turns that are compared (same task, agent and which of its turns; or siblings)
    play_K: Tensor  # equal numbers: turns whose scores hang together, of one episode; under tree credit all
    reward_K: Tensor  # r_k, earned on the turn's last token
    discount_K: Tensor  # to the return's next turn in the batch or past its end: γ to the turns between; 0: unchained
    temperature_K: Tensor
    version_K: Tensor  # of the policy that spoke
    truncated_K: Tensor  # whether it was cut at its limit of tokens
    words_K: Tensor
    length_K: Tensor  # tokens said
    prompt_length_K: Tensor
    state_length_K: Tensor  # 0 without a critic
    # tokens
    tokens_N: Tensor
    old_N: Tensor  # log-probs at which the tokens were sampled
    prompt_ids: Tensor  # of all turns, end to end
    state_ids: Tensor  # s_k of all turns: what their critics read before what was said
    # episodes
    task_E: Tensor  # which task an episode plays, numbered as they come
    trunk_E: Tensor  # the episode that it forked from
    forked_at_E: Tensor  # and at which turn
    cut_critic_E: Tensor  # whose critic (index of members) judges the state after an episode that was cut off
    cut_length_E: Tensor
    cut_ids: Tensor  # those states, end to end
    episode_R: Tensor  # of every return

    # --- views -------------------------------------------------------------------------------------------------------
    @cached_property
    def turn_N(self) -> Tensor:
        """Which turn each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.length_K)), self.length_K)

    @cached_property
    def starts_K(self) -> Tensor:
        """Where each turn's tokens begin among the N."""
        return self.length_K.cumsum(0) - self.length_K

    @property
    def ends_N(self) -> Tensor:
        """True on the last token of each turn."""
        ends = torch.zeros(int(self.length_K.sum()), dtype=torch.bool)
        ends[self.length_K.cumsum(0) - 1] = True
        return ends

    @cached_property
    def adapter_K(self) -> Tensor:
        """Adapters, numbered as they come among the members."""
        numbers = {name: i for i, name in enumerate(dict.fromkeys(member.adapter for member in self.members))}
        return torch.tensor([numbers[member.adapter] for member in self.members])[self.agent_K]

    @property
    def task_K(self) -> Tensor:
        """Each turn's task, numbered as in `task_E`."""
        return self.task_E[self.episode_K]

    @cached_property
    def prompts(self) -> list[tuple[int, ...]]:
        """Each turn's prompt as token ids."""
        return split_ids(self.prompt_ids, self.prompt_length_K)

    @cached_property
    def completions(self) -> list[tuple[int, ...]]:
        """Each turn's generated token ids."""
        return split_ids(self.tokens_N, self.length_K)

    @cached_property
    def states(self) -> list[tuple[int, ...]]:
        """Each turn's central state as token ids; empty where no critic reads it."""
        return split_ids(self.state_ids, self.state_length_K)

    @property
    def cut_states(self) -> dict[int, tuple[str, tuple[int, ...]]]:
        """By episode that was cut off: the critic that judges the state after its last turn, and that state."""
        states = split_ids(self.cut_ids, self.cut_length_E)
        judges = ((e, self.members[i].critic) for e, i in enumerate(self.cut_critic_E.tolist()) if i != NOBODY)
        return {e: (critic, states[e]) for e, critic in judges if critic is not None}

    def member(self, k: int) -> Member:
        """Who took turn `k`."""
        return self.members[int(self.agent_K[k])]

    @property
    def mean_lengths(self) -> dict[str, float]:
        """Of each adapter's turns, in tokens."""
        lengths: dict[str, list[int]] = {}
        for k, length in enumerate(self.length_K.tolist()):
            lengths.setdefault(self.member(k).adapter, []).append(length)
        return {adapter: sum(own) / len(own) for adapter, own in lengths.items()}

    def token_rows(self, turns_J: Tensor) -> tuple[Tensor, Tensor]:
        """The flat rows of the tokens of some turns, in their order, and which of those turns each belongs to."""
        length_J = self.length_K[turns_J]
        turn = torch.repeat_interleave(torch.arange(len(length_J)), length_J)
        offset = torch.arange(len(turn)) - (length_J.cumsum(0) - length_J)[turn]
        return self.starts_K[turns_J][turn] + offset, turn

    def holders(self) -> list[tuple[int, int]]:
        """Every turn k with each episode that holds it: its own, and the forks that begin with it."""
        forks: dict[int, list[tuple[int, int]]] = {}
        for e, (trunk, at) in enumerate(zip(self.trunk_E.tolist(), self.forked_at_E.tolist(), strict=True)):
            if trunk != NOBODY:
                forks.setdefault(trunk, []).append((e, at))
        pairs: list[tuple[int, int]] = []
        for k, (e, index) in enumerate(zip(self.episode_K.tolist(), self.index_K.tolist(), strict=True)):
            pairs += [(k, e), *((k, fork) for fork, at in forks.get(e, ()) if index < at)]
        return pairs

    # --- what turns earn ---------------------------------------------------------------------------------------------
    def turn_rewards(self, penalty_N: Tensor | None = None) -> Tensor:
        """r_k less the penalties of the turn's tokens."""
        if penalty_N is None:
            return self.reward_K
        return self.reward_K - sum_by_turn(penalty_N, self.turn_N, len(self.length_K))

    def token_rewards(self, penalty_N: Tensor | None = None) -> Tensor:
        """r_k on each turn's last token, less every token's own penalty."""
        rewards_N = self.reward_K.new_zeros(int(self.length_K.sum()))
        rewards_N[self.ends_N] = self.reward_K
        return rewards_N if penalty_N is None else rewards_N - penalty_N

    def returns_to_go(self, penalty_N: Tensor | None = None) -> Tensor:
        """c_k = r_k + discount_k · c_{k+1} within each return; nothing follows its last turn."""
        rewards, _, column = to_rows(self.turn_rewards(penalty_N), self.return_K, len(self.episode_R))
        discount, _, _ = to_rows(self.discount_K, self.return_K, len(self.episode_R))
        return suffix_scan(rewards, discount)[self.return_K, column]

    # --- parts -------------------------------------------------------------------------------------------------------
    def of_tasks(self, tasks: Sequence[int]) -> Batch:
        """The episodes of some tasks alone, numbered anew from 0; groups and plays keep their numbers."""
        episodes = torch.isin(self.task_E, torch.tensor(tasks)).nonzero()[:, 0]
        turns = torch.isin(self.episode_K, episodes).nonzero()[:, 0]
        returns = torch.isin(self.episode_R, episodes).nonzero()[:, 0]
        rows, cut = self.token_rows(turns)[0], split_ids(self.cut_ids, self.cut_length_E)
        columns: dict[str, Any] = {name: getattr(self, name)[turns] for name in OF_TURNS}
        return replace(
            self,
            **columns,
            episode_K=renumbered(self.episode_K[turns], episodes),
            return_K=renumbered(self.return_K[turns], returns),
            tokens_N=self.tokens_N[rows],
            old_N=self.old_N[rows],
            prompt_ids=flat_ids([self.prompts[k] for k in turns.tolist()]),
            state_ids=flat_ids([self.states[k] for k in turns.tolist()]),
            task_E=renumbered(self.task_E[episodes], self.task_E[episodes].unique()),
            trunk_E=renumbered(self.trunk_E[episodes], episodes),
            forked_at_E=self.forked_at_E[episodes],
            cut_critic_E=self.cut_critic_E[episodes],
            cut_length_E=self.cut_length_E[episodes],
            cut_ids=flat_ids([cut[e] for e in episodes.tolist()]),
            episode_R=renumbered(self.episode_R[returns], episodes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What models say of a batch before the update, and what else an estimator may take into account."""

    final_E: Tensor  # value after the last turn: 0 where the episode terminated
    values: Tensor | None = None  # the critics', [N] or [K] as the algorithm asks
    reference_N: Tensor | None = None  # log-probs of the untrained base
    proximal_N: Tensor | None = None  # log-probs of the agents as they are, by the learner's own code
    penalty_N: Tensor | None = None  # taken off the reward of each token (KL in the reward)
    noise: float = 0.0  # how far scores may differ by rounding alone
    baseline_A: Tensor | None = None  # running baseline of each agent, for `rae`; NaN: none yet


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
class TrainingBatch:
    """All that an update learns from."""

    batch: Batch
    scores: Scores
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """Policy loss of some turns, already weighted, and per-token marks of where it was clipped."""

    loss: Tensor
    clipped_N: Tensor


def check_estimate(estimate: Estimate, batch: Batch, scores: Scores, name: str) -> None:
    """Raise a MarftError where an algorithm of the user's own gives what cannot be learnt from."""
    if estimate.advantages_N.shape != batch.tokens_N.shape:
        given, wanted = tuple(estimate.advantages_N.shape), tuple(batch.tokens_N.shape)
        raise MarftError(f"algorithm {name!r} gives advantages of shape {given}, and the batch has {wanted} tokens")
    if scores.values is not None and (estimate.returns is None or estimate.returns.shape != scores.values.shape):
        raise MarftError(
            f"algorithm {name!r} has a critic (values_at), and gives no returns of the shape of its values"
        )


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


def flat_ids(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Token ids of all sequences, end to end."""
    return torch.tensor([token for ids in sequences for token in ids], dtype=torch.int64)


def split_ids(ids: Tensor, lengths: Tensor) -> list[tuple[int, ...]]:
    """The sequences again."""
    flat, ends = ids.tolist(), lengths.cumsum(0).tolist()
    return [tuple(flat[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]


def renumbered(x: Tensor, known: Tensor) -> Tensor:
    """Each entry's place among `known`, which is sorted; what is not there is nobody."""
    place = torch.searchsorted(known, x).clamp(max=max(len(known) - 1, 0))
    return torch.where(known[place] == x, place, NOBODY)
