"""From episodes to a batch: every turn is a sample of its own, with the prompt it really saw."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from marft.algorithms.batch import NOBODY, Batch, Member, flat_ids
from marft.algorithms.credit import fold
from marft.game.agent import Agent
from marft.game.observation import central_state
from marft.rollouts.credit import Credit
from marft.types import Episode, Turn


@dataclass(slots=True, kw_only=True)
class Columns:
    """What is collected of the turns that are learnt from, in order of play."""

    turns: list[Turn] = field(default_factory=list)
    episode: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)  # of the return that a turn belongs to
    group: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    discounts: list[float] = field(default_factory=list)
    returns: dict[tuple[int, str], int] = field(default_factory=dict)  # of each player in each episode
    shared: set[int] = field(default_factory=set)  # episodes with one return for all


def build_batch(
    episodes: Sequence[Episode], *, members: Sequence[Member], agents: Mapping[str, Agent], credit: Credit
) -> Batch:
    """All turns of `members` in the episodes, as flat tensors.

    Where players have returns of their own, an episode that was cut off is worth what each had earned by then: a critic's
    V(s_K) would be the return of whoever is to act, and of nobody else.
    """
    found = collect_turns(episodes, members, credit)
    number = {member.agent: i for i, member in enumerate(members)}
    agent = [number[turn.agent] for turn in found.turns]
    states = states_of(episodes, found, members, agents)
    judges, cut_states = cut_states_of(episodes, found, members, agents)
    trunks = {(episode.task.id, episode.sample): e for e, episode in enumerate(episodes) if episode.trunk is None}
    tasks = {task: i for i, task in enumerate(dict.fromkeys(episode.task.id for episode in episodes))}
    said = [turn.completion for turn in found.turns]
    return Batch(
        members=tuple(members),
        episode_K=torch.tensor(found.episode),
        index_K=torch.tensor([turn.index for turn in found.turns]),
        return_K=torch.tensor(found.owner),
        agent_K=torch.tensor(agent),
        group_K=torch.tensor(found.group),
        play_K=torch.tensor([0 if credit.siblings_only else e for e in found.episode]),
        reward_K=torch.tensor(found.rewards),
        discount_K=torch.tensor(found.discounts),
        temperature_K=torch.tensor([agents[turn.agent].sampling.temperature for turn in found.turns]),
        version_K=torch.tensor([completion.version for completion in said]),
        truncated_K=torch.tensor([completion.finish == "length" for completion in said]),
        words_K=torch.tensor([len(completion.text.split()) for completion in said]),
        length_K=torch.tensor([len(completion.token_ids) for completion in said]),
        prompt_length_K=torch.tensor([len(turn.prompt_ids) for turn in found.turns]),
        state_length_K=torch.tensor([len(state) for state in states]),
        tokens_N=torch.tensor([token for completion in said for token in completion.token_ids]),
        old_N=torch.tensor([logprob for completion in said for logprob in completion.logprobs]),
        prompt_ids=flat_ids([turn.prompt_ids for turn in found.turns]),
        state_ids=flat_ids(states),
        task_E=torch.tensor([tasks[episode.task.id] for episode in episodes]),
        trunk_E=torch.tensor(
            [NOBODY if e.trunk is None else trunks.get((e.task.id, e.trunk), NOBODY) for e in episodes]
        ),
        forked_at_E=torch.tensor([episode.forked_at for episode in episodes]),
        cut_critic_E=torch.tensor(judges),
        cut_length_E=torch.tensor([len(state) for state in cut_states]),
        cut_ids=flat_ids(cut_states),
        episode_R=torch.tensor([e for e, _ in found.returns]),
    )


def collect_turns(episodes: Sequence[Episode], members: Sequence[Member], credit: Credit) -> Columns:
    """The turns of those who learn, and what they earn."""
    learning = {member.agent for member in members}
    valued = any(member.critic is not None for member in members)
    found = Columns()
    groups: dict[Hashable, int] = {}
    for e, episode in enumerate(episodes):
        learns = [
            turn.agent in learning and turn.step != "none" and turn.index >= episode.forked_at for turn in episode.turns
        ]
        stream = credit.assign(episode)
        if stream.players is None:
            found.shared.add(e)
            stream = (
                credit.assign(without_team_reward(episode)) if valued and episode.cut_before is not None else stream
            )
        folded = fold(stream, learns)
        for k, player in zip(folded.turns, folded.players or ("",) * len(folded.turns), strict=True):
            turn = episode.turns[k]
            found.turns.append(turn)
            found.episode.append(e)
            found.owner.append(found.returns.setdefault((e, player), len(found.returns)))
            found.group.append(groups.setdefault(credit.group(episode, turn), len(groups)))
        found.rewards += folded.rewards
        found.discounts += folded.discounts
    return found


def without_team_reward(episode: Episode) -> Episode:
    """An episode that was cut off has not earned its state's reward yet: the critic's V(s_K) stands for what is to come."""
    return replace(episode, reward=replace(episode.reward, team=0.0))


def states_of(
    episodes: Sequence[Episode], found: Columns, members: Sequence[Member], agents: Mapping[str, Agent]
) -> list[tuple[int, ...]]:
    """s_k of every turn, in the tokens of its agent's base; nothing where no critic reads it."""
    judged = {member.agent for member in members if member.critic is not None}
    states: list[tuple[int, ...]] = []
    for e, turn in zip(found.episode, found.turns, strict=True):
        before = episodes[e].turns[: turn.index]
        state = central_state(task=episodes[e].task, shown=turn.shown, turns=before, next_agent=turn.agent)
        states.append(agents[turn.agent].engine.encode(state) if turn.agent in judged else ())
    return states


def cut_states_of(
    episodes: Sequence[Episode], found: Columns, members: Sequence[Member], agents: Mapping[str, Agent]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Of each episode with one return that was cut off: s_K, and who judges it: whoever would have acted, or the last who
    learns."""
    number = {member.agent: i for i, member in enumerate(members)}
    last = dict(zip(found.episode, found.turns, strict=True))
    judges = [NOBODY] * len(episodes)
    states: list[tuple[int, ...]] = [()] * len(episodes)
    for e, episode in enumerate(episodes):
        if episode.cut_before is None or e not in last or e not in found.shared:
            continue
        judge = number.get(episode.cut_before, number[last[e].agent])
        if members[judge].critic is not None:
            state = central_state(
                task=episode.task, shown=episode.cut_shown, turns=episode.turns, next_agent=episode.cut_before
            )
            judges[e], states[e] = judge, agents[members[judge].agent].engine.encode(state)
    return judges, states
