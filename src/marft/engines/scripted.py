"""An engine that says what a function tells it to: team-mates that are plain code, and tests where all is known."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from marft import import_paths
from marft.engines.base import Adapters
from marft.engines.stop_strings import cut_at_stop
from marft.types import (
    PLAIN_CHAT,
    ChatOptions,
    Completion,
    Finish,
    MarftError,
    Message,
    Request,
    SpeechError,
    Stopped,
    Turn,
)
from marft.untrusted_values import described, exact, kind_of

Script = Callable[[Request], str | Awaitable[str]]
END = 256  # after the 256 bytes


class ScriptedEngine:
    """`script(request)` gives the reply, at once or awaited. Tokens, where they are asked for, are UTF-8 bytes, each with
    log-prob 0; a team-mate's words have none, since no model of ours drew them."""

    def __init__(self, script: Script, *, ids: bool = True) -> None:
        self.script, self.ids = script, ids
        self.version = self.tokens = 0
        self.closed = False

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """The messages' bytes."""
        return tuple("\n".join(f"<{m.role}> {m.content}" for m in messages).encode(errors="replace"))

    async def generate(self, request: Request) -> Completion:
        """What the script replies, cut at its limit or stop string."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        ids = spell(await self._reply(request), request.sampling.stop)[: request.sampling.max_tokens]
        text = bytes(ids[:-1] if ids[-1] == END else ids).decode(errors="ignore")
        text, stop = cut_at_stop(text, request.sampling.stop)
        finish: Finish = "length" if stop is None and ids[-1] != END else "stop"
        self.tokens += len(ids) if self.ids else 0
        return Completion(
            text=text,
            token_ids=ids if self.ids else (),
            logprobs=(0.0,) * len(ids) if self.ids else (),
            finish=finish,
            version=self.version,
            stop=stop,
        )

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """A script has no weights: only the number that completions carry changes."""
        self.version = version

    def close(self) -> None:
        """Later requests fail."""
        self.closed = True

    async def _reply(self, request: Request) -> str:
        try:
            said: Any = self.script(request)
            if inspect.isawaitable(said):
                said = await said
        except Stopped:
            raise
        except BaseException as error:  # the user's code: anything may come, SystemExit too
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise SpeechError(f"the script raised {described(error)}") from error
        if not issubclass(type(said), str):
            raise SpeechError(f"the script returned {kind_of(said)}, not str")
        return exact(said)


def spell(text: str, stop: Sequence[str]) -> tuple[int, ...]:
    """The bytes up to the stop string that is complete first, or all of them and the end."""
    ends = [text.find(each) + len(each) for each in stop if each in text]
    said = text[: min(ends)] if ends else text
    return (*said.encode(errors="replace"), *(() if ends else (END,)))  # half a surrogate pair has no bytes


def find_script(name: str) -> Script:
    """The user's own function, `package.module:function`, which sees the messages and gives a text."""
    found = import_paths.find(name, "agents' script")
    if not callable(found):
        raise MarftError(f"agents' script: {name!r} is not a function; write `def script(messages): …`")
    speak: Callable[[Sequence[Message]], str | Awaitable[str]] = found
    return lambda request: speak(request.messages)
