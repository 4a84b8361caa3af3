"""An agent as a game knows it: its profile, and what it speaks with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from marft.game.observation import History
from marft.game.thoughts import USUAL_MARKERS, ThoughtMarkers
from marft.game.tool_calls import CallFormat
from marft.game.tools import NO_TOOLS, Tools
from marft.types import PLAIN_CHAT, ChatOptions, Completion, Message, Request, Sampling, Turn


class TextEngine(Protocol):
    """The part of `marft.engines.base.Engine` that an agent needs."""

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """The token ids of a chat prompt, which begin with those of an `earlier` turn where its messages do."""

    async def generate(self, request: Request) -> Completion:
        """One completion; SpeechError where there is none, PromptTooLong where the model cannot read so much."""


@runtime_checkable
class RememberingEngine(Protocol):
    """One that keeps what it has read and said in an episode, for the prompts that go on from it."""

    def forget(self, episode: Hashable) -> None:
        """The episode is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A profile: what an agent is told, whom it sees (None: every predecessor), and what it speaks with."""

    name: str
    prompt: str | None  # None: anonymous; it is told no role, and others' messages come without their names
    sees: tuple[str, ...] | None
    adapter: str | None
    sampling: Sampling
    engine: TextEngine
    tools: Tools = NO_TOOLS
    history: History = "flat"
    chat: ChatOptions = PLAIN_CHAT
    thoughts: ThoughtMarkers = USUAL_MARKERS
    call_format: CallFormat = "hermes"  # of calls of tools, in its model's words

    def limited(self, max_tokens: int | None, stop: Sequence[str]) -> Sampling:
        """Its sampling, with further stop strings and at most so many tokens."""
        own = self.sampling
        most = own.max_tokens if max_tokens is None else max(1, min(own.max_tokens, max_tokens))
        return replace(own, max_tokens=most, stop=tuple(dict.fromkeys((*own.stop, *stop))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOptions:
    """How agents act in one call: whom they see in place of their profiles, what they are told, who hears them."""

    sees: Sequence[str] | None
    note: str
    aside: bool
