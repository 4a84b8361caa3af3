"""What an engine that is not ours says, checked before anybody learns from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marft.engines.base import Adapters, Engine
from marft.types import PLAIN_CHAT, ChatOptions, Completion, Message, Request, SpeechError, Turn

ROUNDING = 1e-3  # a log-prob above 0 by so much is a probability of 1, rounded


def check_sampled(token_ids: Sequence[int], logprobs: Sequence[float], *, limit: int, words: int, who: str) -> None:
    """What is learnt from must be what a model of `words` tokens can have said, with probabilities that there are."""
    if not 0 < len(token_ids) <= limit or len(logprobs) != len(token_ids):
        raise SpeechError(f"{who} gives {len(token_ids)} tokens with {len(logprobs)} log-probs, of {limit}")
    if odd := [token for token in token_ids if not 0 <= token < words]:
        raise SpeechError(f"{who} gives the token {odd[0]}, and the model has {words}")
    if odd_ones := [each for each in logprobs if not -math.inf < each <= ROUNDING]:
        raise SpeechError(f"{who} gives {odd_ones[0]:g} for the log-prob of a token, which no probability has")


class CheckedEngine:
    """An engine of the user's own; a completion that cannot be learnt from fails its episode."""

    def __init__(self, engine: Engine, words: int, name: str) -> None:
        self.engine, self.words, self.name = engine, words, name

    @property
    def tokens(self) -> int:
        """As the engine counts them."""
        return self.engine.tokens

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """The engine's own token ids."""
        return self.engine.encode(messages, options, earlier)

    async def generate(self, request: Request) -> Completion:
        """The engine's completion, if it is one."""
        said = await self.engine.generate(request)
        limit = request.sampling.max_tokens
        check_sampled(said.token_ids, said.logprobs, limit=limit, words=self.words, who=self.name)
        return said

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """Passed on."""
        self.engine.publish(version, adapters)

    def close(self) -> None:
        """Passed on."""
        self.engine.close()
