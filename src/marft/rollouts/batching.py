"""From episodes to the flat tensors that algorithms and the learner work on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marft.algorithms.credit import RewardStream, fold
from marft.algorithms.experience import Experience, returns_to_go
from marft.game.observation import central_state
from marft.learners.member import Member
from marft.types import Episode, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All turns that are learnt from, in order of play, and their tokens end to end.

    What frozen, scripted and remote agents say is part of the world: their turns are not here.
    """

    episodes: tuple[Episode, ...]
    turns: tuple[Turn, ...]
    members: tuple[Member, ...]  # agent_K indexes this
    states: tuple[tuple[int, ...], ...]  # s_k as token ids; empty without a critic
    cut_states: Mapping[int, CutState]  # s_K of episodes (by index) that were cut off
    episode_K: Tensor
    return_K: Tensor  # whose return-to-go a turn belongs to: its episode's, or its player's in that episode
    agent_K: Tensor
    adapter_K: Tensor
    group_K: Tensor
    play_K: Tensor
    length_K: Tensor
    words_K: Tensor
    reward_K: Tensor
    discount_K: Tensor
    tokens_N: Tensor
    old_N: Tensor  # log-probs at which the tokens were sampled
    temperature_K: Tensor
    episode_R: Tensor  # of every return

    @property
    def score_K(self) -> Tensor:
        """c_k, what each turn comes to."""
        return returns_to_go(self.reward_K, self.discount_K, self.return_K, len(self.episode_R))

    @property
    def starts_K(self) -> Tensor:
        return self.length_K.cumsum(0) - self.length_K

    @property
    def task_E(self) -> Tensor:
        """Which task each episode plays, tasks being numbered as they come."""
        numbers = {task: i for i, task in enumerate(dict.fromkeys(episode.task.id for episode in self.episodes))}
        return torch.tensor([numbers[episode.task.id] for episode in self.episodes])

    @property
    def mean_lengths(self) -> dict[str, float]:
        """Of each adapter's turns, in tokens."""
        lengths: dict[str, list[int]] = {}
        for k, length in enumerate(self.length_K.tolist()):
            lengths.setdefault(self.member(k).adapter, []).append(length)
        return {adapter: sum(own) / len(own) for adapter, own in lengths.items()}

    def member(self, k: int) -> Member:
        return self.members[int(self.agent_K[k])]

    def held(self) -> list[tuple[int, int]]:
        """Every turn k with each episode that holds it: its own, and the forks that begin with it."""
        forks: dict[tuple[str, int | None], list[int]] = {}
        for e, episode in enumerate(self.episodes):
            forks.setdefault((episode.task.id, episode.trunk), []).append(e)
        pairs: list[tuple[int, int]] = []
        for k, (e, turn) in enumerate(zip(self.episode_K.tolist(), self.turns, strict=True)):
            heirs = forks.get((self.episodes[e].task.id, self.episodes[e].sample), ())
            pairs += [(k, e), *((k, fork) for fork in heirs if turn.index < self.episodes[fork].forked_at)]
        return pairs

    def experience(
        self,
        values: Tensor | None,
        final_E: Tensor,
        *,
        penalty_N: Tensor | None = None,
        noise: float = 0.0,
        baseline_A: Tensor | None = None,
    ) -> Experience:
        return Experience(
            episode_K=self.return_K, agent_K=self.agent_K, group_K=self.group_K,
            task_K=self.task_E[self.episode_K], play_K=self.play_K,
            length_K=self.length_K, reward_K=self.reward_K, discount_K=self.discount_K, final_E=final_E[self.episode_R],
            values=values, penalty_N=penalty_N, noise=noise, baseline_A=baseline_A,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CutState:
    """The state after an episode's last turn, and who judges it."""

    critic: str
    ids: tuple[int, ...]


def build_batch(
    episodes: Sequence[Episode],
    *,
    members: Sequence[Member],
    credit: Callable[[Episode], RewardStream],
    by_branch: bool = False,
) -> Batch:
    """Every turn is its own sample with the prompt it really saw. `by_branch` compares children of one state (tree
    credit) instead of an agent's same turn in all samples of a task.

    Where players have returns of their own, an episode that was cut off is worth what each had earned by then: a critic's
    V(s_K) would be the return of whoever is to act, and of nobody else.
    """
    index = {member.agent: i for i, member in enumerate(members)}
    valued = any(member.critic is not None for member in members)
    adapters = {adapter: i for i, adapter in enumerate(dict.fromkeys(member.adapter for member in members))}
    kept: list[Turn] = []
    owner: list[int] = []
    rewards: list[float] = []
    discounts: list[float] = []
    groups: dict[tuple[str, str | int, int], int] = {}
    group: list[int] = []
    returns: dict[tuple[int, str], int] = {}
    whose: list[int] = []
    shared: set[int] = set()  # episodes with one return for all
    for e, episode in enumerate(episodes):
        learns = [turn.agent in index and turn.index >= episode.forked_at for turn in episode.turns]
        folded = fold(credit(episode), learns)
        if folded.players is None:
            shared.add(e)
            folded = fold(credit(unearned(episode)), learns) if valued else folded
        for k, player in zip(folded.turns, folded.players or ("",) * len(folded.turns), strict=True):
            turn = episode.turns[k]
            whose.append(returns.setdefault((e, player), len(returns)))
            kept.append(turn)
            owner.append(e)
            key = branch_of(episode, turn) if by_branch else (episode.task.id, turn.agent, turn.nth)
            group.append(groups.setdefault(key, len(groups)))
        rewards += folded.rewards
        discounts += folded.discounts
    agent = [index[turn.agent] for turn in kept]
    return Batch(
        episodes=tuple(episodes),
        turns=tuple(kept),
        members=tuple(members),
        states=states_of(episodes, kept, owner, [members[i] for i in agent]),
        cut_states=cut_states_of(episodes, kept, owner, members, shared),
        episode_K=torch.tensor(owner),
        return_K=torch.tensor(whose),
        agent_K=torch.tensor(agent),
        adapter_K=torch.tensor([adapters[members[i].adapter] for i in agent]),
        group_K=torch.tensor(group),
        play_K=torch.tensor([0 if by_branch else e for e in owner]),  # in a tree only siblings are compared
        length_K=torch.tensor([len(turn.completion.token_ids) for turn in kept]),
        words_K=torch.tensor([len(turn.text.split()) for turn in kept]),
        reward_K=torch.tensor(rewards),
        discount_K=torch.tensor(discounts),
        tokens_N=torch.tensor([token for turn in kept for token in turn.completion.token_ids]),
        old_N=torch.tensor([logprob for turn in kept for logprob in turn.completion.logprobs]),
        temperature_K=torch.tensor([members[i].temperature for i in agent]),
        episode_R=torch.tensor([e for e, _ in returns]),
    )


def unearned(episode: Episode) -> Episode:
    """An episode that was cut off has not earned its state's reward yet: the critic's V(s_K) stands for what is to come."""
    return replace(episode, reward=replace(episode.reward, team=0.0)) if episode.cut_before is not None else episode


def branch_of(episode: Episode, turn: Turn) -> tuple[str, str | int, int]:
    """Children of one state share a branch: a fork's first own turn is a sibling of its trunk's turn of that index."""
    shares = episode.trunk is not None and turn.index <= episode.forked_at
    return episode.task.id, episode.trunk if shares and episode.trunk is not None else episode.sample, turn.index


def states_of(
    episodes: Sequence[Episode], turns: Sequence[Turn], owner: Sequence[int], members: Sequence[Member]
) -> tuple[tuple[int, ...], ...]:
    """s_k of every turn, in the tokens of its agent's base."""
    return tuple(
        member.encode(
            central_state(
                task=episodes[e].task, shown=turn.shown, turns=episodes[e].turns[: turn.index], next_agent=turn.agent
            )
        )
        for e, turn, member in zip(owner, turns, members, strict=True)
        if member.critic is not None
    )


def cut_states_of(
    episodes: Sequence[Episode], turns: Sequence[Turn], owner: Sequence[int], members: Sequence[Member],
    shared: Collection[int],
) -> dict[int, CutState]:  # fmt: skip
    """s_K of those `shared` episodes that were cut off, judged by the critic of whoever would have acted, or of the last
    who learns."""
    by_name = {member.agent: member for member in members}
    last = dict(zip(owner, turns, strict=True))  # of each episode
    found: dict[int, CutState] = {}
    for e, episode in enumerate(episodes):
        if episode.cut_before is None or e not in last or e not in shared:
            continue
        judge = by_name.get(episode.cut_before, by_name[last[e].agent])
        if judge.critic is not None:
            state = central_state(
                task=episode.task, shown=episode.cut_shown, turns=episode.turns, next_agent=episode.cut_before
            )
            found[e] = CutState(critic=judge.critic, ids=judge.encode(state))
    return found
