"""What is written down of an iteration: the metrics row and the sampled episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from marft.algorithms.experience import Estimate
from marft.models.attention import ragged
from marft.training.batch import Batch
from marft.types import Episode


def agent_metrics(
    episodes: Sequence[Episode],
    batch: Batch,
    estimate: Estimate,
    values: Tensor | None,
    statistics: Mapping[str, Mapping[str, float]],
    version: int,
) -> dict[str, Any]:
    """The team's reward and accuracy, each agent's figures, the critic's. `version` is the policy the update began with."""
    played = [episode for episode in episodes if episode.ended != "failed"]
    graded = [episode.reward.correct for episode in played if episode.reward.correct is not None]
    row: dict[str, Any] = {"reward": sum(e.reward.team for e in played) / len(played)}
    if graded:
        row["accuracy"] = sum(graded) / len(graded)
    row["failed"] = len(episodes) - len(played)
    turn_N, _ = ragged(batch.length_K)
    row["agents"] = {}
    for i, agent in enumerate(batch.agents):
        own = batch.agent_K == i
        if not own.any():
            continue
        lag = [version - turn.completion.version for turn, mine in zip(batch.turns, own.tolist(), strict=True) if mine]
        row["agents"][agent] = {
            "reward": float(batch.score_K[own].mean()),
            "advantage_std": float(estimate.advantages_N[own[turn_N]].std(correction=0)),
            "length": float(batch.length_K[own].float().mean()),
            "staleness": sum(lag) / len(lag),
            **statistics.get(agent, {}),
        }
    critics = {name: dict(found) for name, found in statistics.items() if name not in batch.agents}
    if values is not None and estimate.returns is not None:
        spread = estimate.returns.var(correction=0)
        residual = (estimate.returns - values).var(correction=0)
        for found in critics.values():
            found["explained_variance"] = float(1 - residual / spread) if spread > 0 else 0.0
    if critics:
        row["critics"] = critics
    return row


def failed_rows(episodes: Sequence[Episode], iteration: int, count: int) -> Iterator[dict[str, Any]]:
    """The first `count` failed episodes: what was said until then, and why they failed."""
    for episode in [episode for episode in episodes if episode.ended == "failed"][:count]:
        yield {
            "iteration": iteration,
            "task": episode.task.id,
            "prompt": episode.task.prompt,
            "sample": episode.sample,
            "ended": episode.ended,
            "error": episode.error,
            "turns": [{"agent": turn.agent, "text": turn.text} for turn in episode.turns],
        }


def episode_rows(batch: Batch, advantages_N: Tensor, iteration: int, count: int) -> Iterator[dict[str, Any]]:
    """The first `count` episodes whole: what every agent saw and said, and what came of it."""
    starts, k = batch.starts_K.tolist(), 0
    for episode in batch.episodes[:count]:
        turns = []
        for turn in episode.turns:
            tokens = slice(starts[k], starts[k] + len(turn.completion.token_ids))
            turns.append(
                {
                    "agent": turn.agent,
                    "saw": [{"role": m.role, "content": m.content} for m in turn.observation],
                    "text": turn.text,
                    "token_ids": list(turn.completion.token_ids),
                    "logprobs": list(turn.completion.logprobs),
                    "reward": float(batch.reward_K[k]),
                    "advantages": advantages_N[tokens].tolist(),
                    "finish": turn.completion.finish,
                    "version": turn.completion.version,
                }
            )
            k += 1
        yield {
            "iteration": iteration,
            "task": episode.task.id,
            "prompt": episode.task.prompt,
            "sample": episode.sample,
            "reward": episode.reward.team,
            "ended": episode.ended,
            "turns": turns,
        }
