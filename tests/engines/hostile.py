"""A real HTTP server on this machine that answers as it is told to, and often badly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as it came; `port` tells connections apart."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    port: int


@dataclass(kw_only=True)
class Endpoint:
    """`todo`: how the next requests are answered; the last one stays."""

    url: str
    todo: list[Behaviour]
    seen: list[Seen] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    endpoint: Endpoint
    body: dict[str, Any]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        todo, seen = self.endpoint.todo, self.endpoint.seen
        seen.append(Seen(path=self.path, headers=headers, body=body, port=self.client_address[1]))
        self.body = body
        behave = todo.pop(0) if len(todo) > 1 else todo[0]
        try:
            behave(self)
        except OSError:  # whoever asked has hung up
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def reply(
    body: bytes | object, status: int = 200, reason: str | None = None, headers: dict[str, str] | None = None
) -> Behaviour:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def behave(handler: Handler) -> None:
        handler.send_response(status, reason)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return behave


def says(text: object, finish: object = "stop") -> Behaviour:
    return reply({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]})


def hangs(handler: Handler) -> None:
    handler.endpoint.over.wait(20)
    handler.close_connection = True


def hangs_up(handler: Handler) -> None:
    handler.close_connection = True


def breaks_off(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def babbles(what: bytes) -> Behaviour:
    """No HTTP at all."""

    def behave(handler: Handler) -> None:
        handler.wfile.write(what + b"\r\n\r\n")
        handler.close_connection = True

    return behave


def drips(handler: Handler) -> None:
    """A byte now and then, for ever."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.endpoint.over.wait(0.02):
        handler.wfile.write(b" ")


def floods(handler: Handler) -> None:
    """White space for ever, which JSON takes."""
    handler.send_response(200)
    handler.end_headers()
    while not handler.endpoint.over.is_set():
        handler.wfile.write(b" " * (1 << 20))


def slowly(behave: Behaviour, seconds: float) -> Behaviour:
    def later(handler: Handler) -> None:
        time.sleep(seconds)
        behave(handler)

    return later


@contextmanager
def serving(*todo: Behaviour) -> Iterator[Endpoint]:
    class Told(Handler):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        server.daemon_threads = True
        endpoint = Endpoint(url=f"http://127.0.0.1:{server.server_address[1]}/v1", todo=list(todo))
        Told.endpoint = endpoint
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint.over.set()
            server.shutdown()
            thread.join()
