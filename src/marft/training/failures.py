"""What an update that failed was given: its batch and the adapters it failed with, for replay and inspection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from marft.algorithms.batch import TrainingBatch
from marft.models.peft_format import save_adapter
from marft.models.team import TeamModel
from marft.rollouts.source import Rollout
from marft.runs.disk import write_atomically
from marft.training.checkpoint import adapter_folder


def save_failure(
    folder: Path, teams: Sequence[TeamModel], rollout: Rollout, data: TrainingBatch | None, line: str
) -> None:
    """`batch.safetensors` holds every turn's prompt, tokens and log-probs and what they were worth; `batch.json` the names."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(failure_tensors(rollout, data), folder / "batch.safetensors")
    names = {
        "error": line,
        "agents": [member.agent for member in rollout.batch.members],
        "adapters": [member.adapter for member in rollout.batch.members],
        "critics": [member.critic for member in rollout.batch.members],
        "tasks": [episode.task.id for episode in rollout.learnt],
        "samples": [episode.sample for episode in rollout.learnt],
        "rewards": [episode.reward.team for episode in rollout.learnt],
    }
    write_atomically(folder / "batch.json", json.dumps(names, indent=2).encode() + b"\n")
    for team in teams:
        for name in team.adapters:
            save_adapter(team, name, adapter_folder(folder, team, name))


def failure_tensors(rollout: Rollout, data: TrainingBatch | None) -> dict[str, Tensor]:
    """Axis letters: K turns, N tokens of all turns, P tokens of all prompts, S tokens of all central states, E episodes."""
    batch = rollout.batch if data is None else data.batch
    found: dict[str, Tensor | None] = {
        "episode_K": batch.episode_K, "agent_K": batch.agent_K, "group_K": batch.group_K, "length_K": batch.length_K,
        "return_K": batch.return_K,
        "reward_K": batch.reward_K, "discount_K": batch.discount_K, "temperature_K": batch.temperature_K,
        "tokens_N": batch.tokens_N, "logprobs_N": batch.old_N,
        "prompt_length_K": batch.prompt_length_K, "prompts_P": batch.prompt_ids,
        "state_length_K": batch.state_length_K, "states_S": batch.state_ids,
    }  # fmt: skip
    if data is not None:
        found |= {
            "advantages_N": data.estimate.advantages_N, "returns": data.estimate.returns,
            "values": data.scores.values, "reference_N": data.scores.reference_N,
        }  # fmt: skip
    return {key: tensor.clone() for key, tensor in found.items() if tensor is not None}  # none may share memory
