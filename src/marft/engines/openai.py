"""Frozen team-mates behind any OpenAI-compatible endpoint of chat completions.

The endpoint is hostile: it may be slow, away or broken, and it may quote our key. What may pass is tried again; what
remains is a SpeechError of one line, which the episode records.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx2

from marft.engines.base import Adapters
from marft.engines.connections import Connections, NoAnswerError, error_message, one_line, request_headers, send_request
from marft.engines.secret import Secret
from marft.engines.stop_strings import cut_at_stop
from marft.types import (
    PLAIN_CHAT,
    ChatOptions,
    Completion,
    Finish,
    MarftError,
    Message,
    Request,
    Sampling,
    SpeechError,
    Turn,
)

LARGEST = 8 << 20  # bytes of an answer
LONGEST_PAUSE = 60.0  # seconds, whatever a Retry-After says
REDIRECTS = frozenset({301, 302, 303, 307, 308})
PASSING = frozenset({408, 409, 429})  # and all from 500: these answers may be others next time


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no completion. `again`: the seconds to wait before another try, None where it would fail too."""

    reason: str
    again: float | None = None


class OpenAIEngine:
    """`generate` from any number of coroutines, of any event loop, one loop after the other. There are no tokens."""

    def __init__(
        self,
        url: str,
        model: str,
        key_env: str | None,
        timeout: float = 60.0,
        retries: int = 4,
        *,
        pause: float = 0.5,
        at_once: int = 32,
    ) -> None:
        self.url, self.model = check_url(url, model), model
        self.timeout, self.retries, self.pause = timeout, retries, pause
        self._secret = Secret(key_env, self.url)
        self._secret.scrub_logs("httpx2", "httpcore2.http11")  # which write down what the server says
        self._chance = random.Random()  # its own: the jitter draws nothing from anybody's seeded numbers
        self._tls = httpx2.create_ssl_context()  # once: it reads all certificates of the machine
        self._connections = Connections(self._make_client, at_once)
        self.version = self.tokens = 0

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """No ids: the endpoint reads messages."""
        return ()

    async def generate(self, request: Request) -> Completion:
        """The endpoint's answer, asked for again where a failure may pass."""
        if request.sampling.top_k:
            raise MarftError(f"agents: {self.url} takes no top_k; leave it at 0 for the agents of model {self.model}")
        question = request_body(self.model, request)
        connection, version = await self._connections.get(), self.version
        tried = 0
        while True:
            async with connection.permits:
                answer = await self._post(connection.client, question)
            completion = answer if isinstance(answer, Failure) else self._read(answer, request.sampling, version)
            if isinstance(completion, Completion):
                return completion
            tried += 1
            if completion.again is None or tried > self.retries:
                # from no exception: the library's ones know the request with its headers
                raise SpeechError(f"{self.url}: {one_line(self._secret.scrub(completion.reason))} (tried {tried}×)")
            await asyncio.sleep(max(completion.again, self._backoff(tried)))

    async def _post(self, client: httpx2.AsyncClient, question: object) -> bytes | Failure:
        url = f"{self.url}/chat/completions"
        try:
            answer = await send_request(client, "POST", url, question, patience=self.timeout, largest=LARGEST)
        except NoAnswerError as error:
            return Failure(reason=str(error), again=0.0 if error.passing else None)
        if 200 <= answer.status < 300:
            return answer.body
        if answer.status in REDIRECTS:
            reason = "it redirects, which is not followed; give the address it leads to"
            return Failure(reason=f"HTTP {answer.status}: {reason}")
        passing = answer.status in PASSING or answer.status >= 500
        again = retry_delay(answer.headers.get("retry-after", "")) if passing else None
        return Failure(reason=f"HTTP {answer.status}: {error_message(answer.body)}", again=again)

    def _read(self, answer: bytes, sampling: Sampling, version: int) -> Completion | Failure:
        try:
            data = json.loads(answer)
        except (ValueError, RecursionError) as error:
            return Failure(reason=f"its answer is not JSON: {error}")
        match data:
            case {"choices": [{"message": {"content": str(said)}} as choice, *_]}:
                pass
            case _:
                return Failure(reason=f"its answer has no text in choices[0].message.content: {error_message(answer)}")
        text = said.encode(errors="replace").decode()  # JSON may spell half a surrogate pair, which no tokenizer takes
        text = self._secret.scrub_speech(text)
        text, stop = cut_at_stop(text, sampling.stop)  # some servers hand the stop string over
        finish: Finish = "length" if stop is None and choice.get("finish_reason") == "length" else "stop"
        if stop is None and finish == "stop":
            stop = reported_stop(choice.get("stop_reason"), sampling.stop) or unclosed_tag(text, sampling.stop)
        return Completion(text=text, token_ids=(), logprobs=(), finish=finish, version=version, stop=stop)

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """The endpoint's model stays as it is: only the number that completions carry changes."""
        self.version = version

    def close(self) -> None:
        """Closes the connections."""
        self._connections.close()

    def _make_client(self, limits: httpx2.Limits) -> httpx2.AsyncClient:
        headers = request_headers(self._secret)
        return httpx2.AsyncClient(
            headers=headers, verify=self._tls, timeout=None, limits=limits, follow_redirects=False
        )

    def _backoff(self, tried: int) -> float:
        return min(LONGEST_PAUSE, self.pause * 2.0 ** (tried - 1) * self._chance.uniform(0.5, 1.5))


def check_url(url: str, model: str) -> str:
    """The base URL without a slash at its end; MarftError where it is none."""
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise MarftError(f"agents: the url of model {model} is no address: {error}") from None
    if parts.userinfo or parts.query:  # it is shown in errors
        raise MarftError(f"agents: the url of model {model} holds a login or a query; give the key by key_env alone")
    if parts.scheme not in ("http", "https") or not parts.host or (parts.port or 0) > 65535:
        raise MarftError(f"agents: the url {url!r} is no address; give a base such as https://api.openai.com/v1")
    return url.rstrip("/")


def request_body(model: str, request: Request) -> dict[str, object]:
    """The JSON of a chat completion request."""
    sampling = request.sampling
    question: dict[str, object] = {
        "model": model,
        "messages": [plain_message(message) for message in request.messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": request.seed & 0x7FFFFFFF,  # servers keep it in 32 bits
    }
    if sampling.stop:
        question["stop"] = list(sampling.stop)
    return question


def plain_message(message: Message) -> dict[str, object]:
    """A message in the protocol's form. An answer that names no call of a tool is a user's: servers refuse it otherwise."""
    if message.role == "tool" and message.answers is None:
        return {"role": "user", "content": message.content}
    plain: dict[str, object] = {"role": message.role, "content": message.content}
    if message.answers is not None:
        plain["tool_call_id"] = message.answers
    if message.calls:
        plain["tool_calls"] = [call.plain() for call in message.calls]
    return plain


def retry_delay(retry_after: str) -> float:
    """A Retry-After is a number of seconds or a date; 0 where it makes no sense."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return min(LONGEST_PAUSE, seconds) if seconds > 0 else 0.0


def reported_stop(reason: object, stop: Sequence[str]) -> str | None:
    """The stop string that ended an answer, as vLLM's server tells it."""
    return reason if isinstance(reason, str) and reason in stop else None


def unclosed_tag(text: str, stop: Sequence[str]) -> str | None:
    """The same, where the endpoint does not tell: a closing tag, such as `</python>`, whose tag was left open."""
    opened = {each: text.rfind(each.replace("</", "<", 1)) for each in stop if each.startswith("</")}
    last = max(opened, key=opened.__getitem__, default=None)
    return last if last is not None and opened[last] >= 0 else None
