"""A backend in vLLM's place, and a server that speaks its protocol, both without a model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from marft.engines.vllm.adapter_versions import AdapterVersion
from marft.engines.vllm.engine import SampledTokens
from marft.types import Request, SpeechError


class Backend:
    """Says token 19 as often as it may, at −1.5 each, once `gate` is open; `log` is what it was told."""

    longest = 100

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.requests: list[tuple[Request, AdapterVersion | None, int]] = []
        self.gate: asyncio.Event | None = None
        self.broken = False
        self.clinging = False
        self.answer: SampledTokens | None = None
        self.closed = 0

    async def load(self, adapter_version: AdapterVersion) -> None:
        self.log.append(("load", short(adapter_version)))
        await asyncio.sleep(0.001)
        if self.broken:
            raise SpeechError("no")

    async def drop(self, adapter_version: AdapterVersion) -> None:
        self.log.append(("drop", short(adapter_version)))
        if self.clinging:
            raise SpeechError("not now")

    async def complete(self, request: Request, adapter_version: AdapterVersion | None, limit: int) -> SampledTokens:
        self.requests.append((request, adapter_version, limit))
        if self.gate is not None:
            await self.gate.wait()
        return self.answer or SampledTokens(token_ids=(19,) * limit, logprobs=(-1.5,) * limit, stop=None)

    def close(self) -> None:
        self.closed += 1


class Speaker(Backend):
    """Says a text that the request decides, as vLLM would: up to its limit, or to where a stop string is complete."""

    def __init__(self, tokenizer: Any, end: int) -> None:
        super().__init__()
        self.tokenizer, self.end = tokenizer, end

    async def complete(self, request: Request, adapter_version: AdapterVersion | None, limit: int) -> SampledTokens:
        await super().complete(request, adapter_version, limit)
        await asyncio.sleep(0.001 * (request.seed % 3))  # answers come in another order than questions
        text = f"Answer: {request.seed * 7 + len(request.prompt_ids)}; Answer: 8"
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.end)
        for count in range(1, min(limit, len(ids)) + 1):
            so_far = self.tokenizer.decode(ids[:count], skip_special_tokens=True)
            ended = next((stop for stop in request.sampling.stop if stop in so_far), None)
            if ended is not None:
                break
        return SampledTokens(token_ids=ids[:count], logprobs=tuple(-0.25 * token for token in ids[:count]), stop=ended)


def short(adapter_version: AdapterVersion) -> str:
    """The name without what makes it this run's own."""
    return adapter_version.name.split("-", 3)[3]


@dataclass(kw_only=True)
class Fake:
    """`seen`: paths and bodies in order; `refuses`: the status for a path, where it is not 200."""

    url: str = ""
    seen: list[tuple[str, Any]] = field(default_factory=list)
    refuses: dict[str, int] = field(default_factory=dict)
    choice: dict[str, Any] = field(
        default_factory=lambda: {
            "token_ids": [19, 2],
            "logprobs": {"token_logprobs": [-0.5, -0.25]},
            "finish_reason": "stop",
            "stop_reason": 2,
        }
    )
    certain: Any = 0.0  # what it says of the only choice
    key: str | None = None  # that it asks for
    authorizations: list[str | None] = field(default_factory=list)  # headers that came
    raw: bytes | None = None  # what it says instead of a completion
    quoted: str = ""  # what its refusals quote
    drip: float = 0.0  # seconds between the bytes of an answer
    model: str = "m"
    longest: int = 64
    loaded: list[str] = field(default_factory=list)  # adapters; a completion by another name is refused
    speaks: threading.Event | None = None  # completions wait for it
    mute: threading.Event | None = None  # whatever is asked waits for it, as on a machine that hangs
    echoes: bool = False  # a completion is the token of its request's seed
    sockets: set[socket.socket] = field(default_factory=set)
    kill: Callable[[], None] = lambda: None  # it loses its connections and its adapters
    revive: Callable[[], None] = lambda: None  # at the same address

    @property
    def base(self) -> str:
        return self.url.removesuffix("/v1")

    def cards(self) -> object:
        base = {"id": self.model, "parent": None, "max_model_len": self.longest}
        return {"data": [*({"id": name, "parent": "m", "max_model_len": None} for name in ("m@1", *self.loaded)), base]}

    def bodies(self, path: str) -> list[Any]:
        return [body for seen, body in self.seen if seen == path]


@contextmanager
def faking() -> Iterator[Fake]:
    fake = Fake()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if fake.mute is not None:
                fake.mute.wait()
            if self.is_welcome():
                self.answer(fake.cards())

        def setup(self) -> None:
            super().setup()
            fake.sockets.add(self.connection)

        def finish(self) -> None:
            fake.sockets.discard(self.connection)
            with suppress(OSError):  # it was killed
                super().finish()

        def is_welcome(self) -> bool:
            given = self.headers["Authorization"]
            fake.authorizations.append(given)
            if fake.key is None or given == f"Bearer {fake.key}":
                return True
            self.answer({"error": f"Unauthorized: {given}"}, 401)
            return False

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.is_welcome():
                return
            fake.seen.append((self.path, body))
            if self.path == "/v1/completions" and fake.raw is not None and body.get("top_k") != 1:
                self.send(fake.raw)
                return
            probing = body.get("top_k") == 1
            for event in () if probing else (fake.speaks, fake.mute):
                if event is not None and self.path == "/v1/completions":
                    event.wait()
            choice = fake.choice
            if probing:
                choice = {**choice, "token_ids": [5], "logprobs": {"token_logprobs": [fake.certain]}}
            elif fake.echoes and "seed" in body:
                choice = {**choice, "token_ids": [echo_of(body["seed"]), 2]}
            status = fake.refuses.get(self.path, 200 if self.knows(body.get("model", fake.model)) else 404)
            if status == 200 and self.path == "/v1/load_lora_adapter":
                fake.loaded.append(body["lora_name"])
            if status == 200 and self.path == "/v1/unload_lora_adapter" and body["lora_name"] in fake.loaded:
                fake.loaded.remove(body["lora_name"])
            self.answer(
                {"choices": [choice]} if status == 200 else {"error": {"message": f"no such\nthing {fake.quoted}"}},
                status,
            )

        def knows(self, name: str) -> bool:
            return name in (fake.model, *fake.loaded)

        def answer(self, data: object, status: int = 200) -> None:
            self.send(json.dumps(data).encode(), status)

        def send(self, raw: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            with suppress(OSError):  # whoever asked has gone
                for i in range(len(raw)) if fake.drip else ():
                    self.wfile.write(raw[i : i + 1])
                    time.sleep(fake.drip)
                if not fake.drip:
                    self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    running: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(port: int = 0) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))

    def stop() -> None:
        server, thread = running.pop()
        server.shutdown()
        thread.join()
        server.server_close()

    def kill() -> None:
        stop()
        for each in list(fake.sockets):
            with suppress(OSError):  # whoever asked has gone
                each.shutdown(socket.SHUT_RDWR)
        fake.loaded.clear()

    fake.kill, fake.revive = kill, lambda: start(int(fake.base.rpartition(":")[2]))
    start()
    try:
        yield fake
    finally:
        for event in (fake.speaks, fake.mute):
            if event is not None:
                event.set()
        if running:
            stop()


def echo_of(seed: int) -> int:
    """The token that stands for a seed."""
    return 3 + seed % 60
