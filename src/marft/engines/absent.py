"""The engine of a process that learns and leaves playing to others."""

from __future__ import annotations

from marft.engines.base import Adapters
from marft.models.chat import ChatFormat
from marft.models.team import TeamModel
from marft.types import Completion, Request


class AbsentEngine:
    """Writes prompts as tokens, which critics read, and generates nothing."""

    tokens = 0

    def __init__(self, team: TeamModel) -> None:
        self.encode = ChatFormat(team.tokenizer, team.end_ids).encode

    async def generate(self, request: Request) -> Completion:
        """Nobody may ask: who plays has an engine."""
        raise RuntimeError("this process has no engine: its base lies in shards, and workers play")

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """Workers get their adapters with what they are to play."""

    def close(self) -> None:
        """It holds nothing."""
