"""What is written down of an iteration: the metrics row and the sampled episodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from marft.algorithms.batch import TrainingBatch
from marft.algorithms.decoupled import Mismatch, combine_plays
from marft.learners.base import Update
from marft.rollouts.call_counts import call_figures
from marft.rollouts.source import Rollout
from marft.types import Episode, Message, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One play of an iteration, what was learnt from it, and who learnt."""

    rollout: Rollout
    data: TrainingBatch
    update: Update
    learning: frozenset[str]  # adapters
    version: int  # of the policy that the update began with
    mismatch: Mismatch | None = None  # of the log-probs at the draw, where they were compared with the learner's own


def iteration_row(plays: Sequence[Play]) -> dict[str, Any]:
    """The team's reward and accuracy over all plays; each agent's figures from the play in which it learnt."""
    episodes = [episode for play in plays for episode in play.rollout.episodes]
    played = [episode for episode in episodes if episode.ended != "failed"]
    graded = [episode.reward.correct for episode in played if episode.reward.correct is not None]
    row: dict[str, Any] = reward_figures(played)
    if graded:
        row["accuracy"] = sum(graded) / len(graded)
    if parts := mean_parts(played):
        row["reward_parts"] = parts
    row["failed"] = len(episodes) - len(played)
    if overflows := sum(episode.ended == "overflow" for episode in episodes):
        row["overflow"] = overflows
    row["faults"] = dict(sorted(Counter(e.fault for e in episodes if e.fault is not None).items()))
    counts: Counter[str] = Counter()
    for episode in played:
        counts.update(episode.counts)
    if counts:
        row["counts"] = dict(sorted(counts.items()))
    row["calls"] = call_figures(played)
    row["agents"], row["critics"] = {}, {}
    for play in plays:
        learnt = {member.agent for member in play.data.batch.members if member.adapter in play.learning}
        for agent, found in agent_figures(play).items():
            if agent in learnt or agent not in row["agents"]:
                row["agents"][agent] = found
        row["critics"] |= critic_figures(play)
        if (factor_E := play.update.factor_E) is not None:
            row["factor"] = {"mean": float(factor_E.mean()), "std": float(factor_E.std(correction=0))}
    if compared := [play.mismatch for play in plays if play.mismatch is not None]:
        row["mismatch"] = combine_plays(compared)
    return {key: value for key, value in row.items() if value != {} or key == "agents"}


def reward_figures(played: Sequence[Episode]) -> dict[str, float | None]:
    """The mean reward of the episodes, its standard error over tasks (None: one alone), and the rewards' bounds."""
    rewards = [episode.reward.team for episode in played]
    tasks: dict[str, list[float]] = {}
    for episode, reward in zip(played, rewards, strict=True):
        tasks.setdefault(episode.task.id, []).append(reward)
    means = torch.tensor([sum(own) / len(own) for own in tasks.values()], dtype=torch.float64)
    return {
        "reward": sum(rewards) / len(rewards),
        "reward_error": float(means.std(correction=0)) / (len(means) - 1) ** 0.5 if len(means) > 1 else None,
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "episodes": len(rewards),
    }


def mean_parts(played: Sequence[Episode]) -> dict[str, float]:
    """By its name, what each part of the reward came to, on average over the episodes to which it applies."""
    parts: dict[str, list[float]] = {}
    for episode in played:
        for name, value in episode.reward.parts.items():
            parts.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in sorted(parts.items())}


def agent_figures(play: Play) -> dict[str, dict[str, Any]]:
    """By learning agent that acted: its rewards, advantages, lengths and the learner's statistics."""
    batch, estimate, found = play.data.batch, play.data.estimate, {}
    score_K, lone_K, staleness_K = batch.returns_to_go(), estimate.lone_K, turn_staleness(play)
    for i, member in enumerate(batch.members):
        own = batch.agent_K == i
        if not own.any():
            continue
        found[member.agent] = {
            "reward": float(score_K[own].mean()),
            "score_min": float(score_K[own].min()),
            "score_max": float(score_K[own].max()),
            "advantage_std": float(estimate.advantages_N[own[batch.turn_N]].std(correction=0)),
            "length": float(batch.length_K[own].float().mean()),
            "truncated": int(batch.truncated_K[own].sum()) / int(own.sum()),
            **(
                {"no_spread": share}
                if (share := share_without_spread(score_K[own], batch.group_K[own])) is not None
                else {}
            ),
            **({"lone": float(lone_K[own].float().mean())} if lone_K is not None else {}),
            "staleness": float(staleness_K[own].mean()),
            **mismatch_figures(play, member.agent),
            **play.update.statistics.get(member.agent, {}),
        }
    return found


def turn_staleness(play: Play) -> Tensor:
    """[K] By how many versions the policy that drew a turn's tokens was behind the one that learns, on average."""
    batch, learnt = play.data.batch, play.rollout.learnt
    said = {(e, turn.index): turn.completion for e, episode in enumerate(learnt) for turn in episode.turns}
    turns = [said[key] for key in zip(batch.episode_K.tolist(), batch.index_K.tolist(), strict=True)]
    behind = [sum((play.version - version) * count for version, count in one.versions) for one in turns]
    return torch.tensor(behind, dtype=torch.float64) / batch.length_K


def mismatch_figures(play: Play, agent: str) -> dict[str, float]:
    """How far the policy that spoke for an agent was from the one that learns; `truncated` is taken, by turns cut short."""
    if play.mismatch is None:
        return {}
    names = {"kl": "behaviour_kl", "weight": "weight", "truncated": "weight_truncated"}
    own = play.mismatch.agents[agent]
    return {name: own[key] for key, name in names.items() if key in own}


def share_without_spread(score_K: Tensor, group_K: Tensor) -> float | None:
    """Of the groups in which something can be compared, those in which nothing differs; None: no group has two turns."""
    _, group, count = group_K.unique(return_inverse=True, return_counts=True)
    low, high = (
        torch.zeros(len(count)).scatter_reduce(0, group, score_K, kind, include_self=False) for kind in ("amin", "amax")
    )
    compared = count > 1
    return float((low == high)[compared].float().mean()) if compared.any() else None


def critic_figures(play: Play) -> dict[str, dict[str, float | None]]:
    """Each critic's loss, and the share of the returns' variance that its values explained before the update."""
    batch, values, returns = play.data.batch, play.data.scores.values, play.data.estimate.returns
    critics = {member.critic for member in batch.members if member.critic is not None}
    known = sorted(critics & play.update.statistics.keys())
    found: dict[str, dict[str, float | None]] = {critic: {**play.update.statistics[critic]} for critic in known}
    if values is not None and returns is not None:
        critic_K = [batch.members[i].critic for i in batch.agent_K.tolist()]
        judges = critic_K if len(values) == len(critic_K) else [critic_K[k] for k in batch.turn_N]
        for critic, row in found.items():
            own = torch.tensor([name == critic for name in judges])
            row["explained_variance"] = explained_variance(values[own], returns[own])
    return found


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """1 − Var(returns − values) / Var(returns); None where the returns differ by no more than the values' rounding."""
    values, returns = values.double(), returns.double()
    if float(returns.std(correction=0)) <= 1e-8 + 1e-5 * float(torch.maximum(values.abs(), returns.abs()).max()):
        return None
    return float(1 - (returns - values).var(correction=0) / returns.var(correction=0))


Gold = Callable[[Task], str | None]  # the right answer of a task, where there is one to show


def failed_rows(
    episodes: Sequence[Episode], iteration: int, count: int, gold: Gold = lambda task: None
) -> Iterator[dict[str, Any]]:
    """The first `count` failed episodes: what was said until then, and why they failed."""
    for episode in [episode for episode in episodes if episode.ended == "failed"][:count]:
        yield {
            "iteration": iteration,
            "task": episode.task.id,
            "prompt": episode.task.prompt,
            "gold": gold(episode.task),
            "sample": episode.sample,
            "ended": episode.ended,
            "error": episode.error,
            "fault": episode.fault,
            "trace": episode.trace,
            "turns": [{"agent": turn.agent, "text": turn.text} for turn in episode.turns],
        }


def episode_rows(
    rollout: Rollout, data: TrainingBatch, iteration: int, count: int, gold: Gold = lambda task: None
) -> Iterator[dict[str, Any]]:
    """The first `count` episodes whole: what every agent saw and said, and what came of it."""
    batch, advantages_N = data.batch, data.estimate.advantages_N
    keys = zip(batch.episode_K.tolist(), batch.index_K.tolist(), strict=True)
    learnt, starts = {key: k for k, key in enumerate(keys)}, batch.starts_K.tolist()
    for e, episode in enumerate(rollout.learnt[:count]):
        turns = []
        for turn in episode.turns:
            row: dict[str, Any] = {
                "agent": turn.agent,
                "saw": [message_row(message) for message in turn.observation],
                "text": turn.text,
                "token_ids": list(turn.completion.token_ids),
                "logprobs": list(turn.completion.logprobs),
                "finish": turn.completion.finish,
                "version": turn.completion.version,
            }
            if turn.to is not None:  # a call of a tool, or its answer
                row["to"] = turn.to
            if turn.chat.tools:
                row["tools"] = [json.loads(tool) for tool in turn.chat.tools]
            if len(turn.completion.versions) > 1:
                row["versions"] = turn.completion.versions
            if (k := learnt.get((e, turn.index))) is not None:
                tokens = slice(starts[k], starts[k] + len(turn.completion.token_ids))
                row |= {"reward": float(batch.reward_K[k]), "advantages": advantages_N[tokens].tolist()}
            turns.append(row)
        yield {
            "iteration": iteration,
            "task": episode.task.id,
            "prompt": episode.task.prompt,
            "gold": gold(episode.task),
            "sample": episode.sample,
            "reward": episode.reward.team,
            **({"parts": dict(episode.reward.parts)} if episode.reward.parts else {}),
            "correct": episode.reward.correct,
            "ended": episode.ended,
            "turns": turns,
        }


def message_row(message: Message) -> dict[str, Any]:
    """A message, and the calls in it where there are some."""
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.calls]
    return {"role": message.role, "content": message.content, **({"calls": calls} if calls else {})}
