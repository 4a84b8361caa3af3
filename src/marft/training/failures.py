"""What an update that failed was given: its batch and the adapters it failed with, for replay and inspection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from marft.learners.tally import Lesson
from marft.models.peft_format import save_adapter
from marft.models.team import TeamModel
from marft.rollouts.batching import Batch
from marft.runs.atomic import write_atomically
from marft.training.checkpoint import adapter_folder


def save_failure(folder: Path, teams: Sequence[TeamModel], batch: Batch, lesson: Lesson | None, line: str) -> None:
    """`batch.safetensors` holds every turn's prompt, tokens and log-probs and what they were worth; `batch.json` the names."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors_of(batch, lesson), folder / "batch.safetensors")
    names = {
        "error": line,
        "agents": [member.agent for member in batch.members],
        "adapters": [member.adapter for member in batch.members],
        "critics": [member.critic for member in batch.members],
        "tasks": [episode.task.id for episode in batch.episodes],
        "samples": [episode.sample for episode in batch.episodes],
        "rewards": [episode.reward.team for episode in batch.episodes],
    }
    write_atomically(folder / "batch.json", json.dumps(names, indent=2).encode() + b"\n")
    for team in teams:
        for name in team.adapters:
            save_adapter(team, name, adapter_folder(folder, team, name))


def tensors_of(batch: Batch, lesson: Lesson | None) -> dict[str, Tensor]:
    """Axis letters: K turns, N tokens of all turns, P tokens of all prompts, S tokens of all central states, E episodes."""
    prompts, states = [turn.prompt_ids for turn in batch.turns], batch.states
    found: dict[str, Tensor | None] = {
        "episode_K": batch.episode_K, "agent_K": batch.agent_K, "group_K": batch.group_K, "length_K": batch.length_K,
        "return_K": batch.return_K,
        "reward_K": batch.reward_K, "discount_K": batch.discount_K, "temperature_K": batch.temperature_K,
        "tokens_N": batch.tokens_N, "logprobs_N": batch.old_N,
        "prompt_length_K": lengths(prompts), "prompts_P": flat(prompts),
        "state_length_K": lengths(states), "states_S": flat(states),
    }  # fmt: skip
    if lesson is not None:
        found |= {
            "advantages_N": lesson.estimate.advantages_N, "returns": lesson.estimate.returns, "values": lesson.values,
            "reference_N": lesson.reference_N,
        }  # fmt: skip
    return {key: tensor.contiguous() for key, tensor in found.items() if tensor is not None}


def lengths(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int64)


def flat(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([token for row in rows for token in row], dtype=torch.int64)
