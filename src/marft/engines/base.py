"""The contract of every engine: messages become token ids, and token ids become sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from marft.types import PLAIN_CHAT, ChatOptions, Completion, Message, Request, Turn

if TYPE_CHECKING:
    from torch import Tensor

Adapters = Mapping[str, Mapping[str, "Tensor"]]  # an adapter's tensors by the names of `TeamModel.trainable_parameters`


class Engine(Protocol):
    """Samples completions for any number of coroutines at once. `game.agent.TextEngine` is the part that an agent needs."""

    @property
    def tokens(self) -> int:
        """Sampled so far, by requests that were answered."""
        ...

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """The token ids of the prompt that asks for the next turn; none where the engine reads messages alone.

        A prompt that begins with an `earlier` turn begins with its tokens.
        """
        ...

    async def generate(self, request: Request) -> Completion:
        """One completion; raises SpeechError where there can be none, PromptTooLong among them."""
        ...

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """Requests from now on are answered by policy `version`; the same version is always the same weights.

        Without `adapters` the engine reads the tensors of the team it was made with, which the learner has changed.
        """
        ...

    def close(self) -> None:
        """Frees what the engine holds; may be called again. Later requests fail, and those under way may."""
        ...
