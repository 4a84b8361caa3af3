"""An engine that says what a function tells it to: for tests, where the team must be known and instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from marft.types import Completion, Finish, Message, Request

END = 256  # after the 256 bytes


class ScriptedEngine:
    """Tokens are UTF-8 bytes. `script(adapter, prompt)` gives the reply; every token has log-prob 0."""

    def __init__(self, script: Callable[[str | None, str], str]) -> None:
        self.script = script
        self.version = 0

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple("\n".join(f"<{m.role}> {m.content}" for m in messages).encode())

    async def generate(self, request: Request) -> Completion:
        text = self.script(request.adapter, bytes(request.prompt_ids).decode())
        ids = (*text.encode(), END)[: request.sampling.max_tokens]
        said = bytes(ids[:-1] if ids[-1] == END else ids).decode(errors="ignore")
        finish: Finish = "stop" if ids[-1] == END else "length"
        return Completion(text=said, token_ids=ids, logprobs=(0.0,) * len(ids), finish=finish, version=self.version)
