"""Who learns: each such agent's base model, adapter and critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marft.models.team import TeamModel
from marft.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An agent that learns. Agents may share an adapter and a critic; both lie on the agent's own base model."""

    agent: str
    adapter: str
    critic: str | None
    team: TeamModel
    encode: Callable[[Sequence[Message]], tuple[int, ...]]  # with that base's tokenizer
    temperature: float
