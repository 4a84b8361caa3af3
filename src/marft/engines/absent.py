"""The engine of a process that learns and leaves playing to others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from marft.engines.base import Adapters
from marft.models.loading import render
from marft.models.team import TeamModel
from marft.types import Completion, Message, Request


class AbsentEngine:
    """Writes prompts as tokens, which critics read, and generates nothing."""

    tokens = 0

    def __init__(self, team: TeamModel) -> None:
        self._render = lru_cache(maxsize=4096)(partial(render, team.tokenizer))

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt by the model's chat template, as token ids."""
        return self._render(tuple(messages))

    async def generate(self, request: Request) -> Completion:
        """Nobody may ask: who plays has an engine."""
        raise RuntimeError("this process has no engine: its base lies in shards, and workers play")

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """Workers get their adapters with what they are to play."""

    def close(self) -> None:
        """It holds nothing."""
