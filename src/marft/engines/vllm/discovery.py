"""Whether vLLM servers answer, and whether what they serve can be learnt from."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import httpx2

from marft.engines.checked import ROUNDING
from marft.engines.connections import (
    HttpAnswer,
    NoAnswerError,
    error_message,
    one_line,
    request_headers,
    send_request,
)
from marft.engines.secret import Secret
from marft.engines.vllm.protocol import ALWAYS, LARGEST, read_completion, read_model_card
from marft.types import MarftError

KEY = "VLLM_API_KEY"  # where vLLM itself looks for the key
START = f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 {KEY}=… vllm serve MODEL --host 127.0.0.1"
SHORT = 60.0  # seconds, for all that is asked of a server before requests go there
LISTING = 15.0  # of these, to say what it serves: whatever else has the port may say nothing
CERTAIN = -1e-6  # log-prob of the only choice, up to rounding


class ServerAbsent(MarftError):
    """No server answers at a URL; one may later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What runs at a URL: the base model's name there, and the most tokens of a sequence."""

    url: str  # without /v1
    model: str
    longest: int
    secret: Secret
    answers: bool = True  # False: nobody does yet, and what is served there will have to be this


def read_secret(url: str) -> Secret:
    """The key, if there is one. It goes to no other machine in clear text."""
    secret = Secret(KEY if os.environ.get(KEY, "").strip() else None, url, "engine.url")
    secret.scrub_logs("httpx2", "httpcore2.http11")
    address = httpx2.URL(url)
    if secret and address.scheme != "https" and not is_loopback(address.host):
        raise MarftError(
            f"engine.url: the key in {KEY} would go to {address.host} in clear text; give http://127.0.0.1:PORT, or https"
        )
    return secret


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def describe_refusal(answer: HttpAnswer, secret: Secret) -> str:
    """Why a request was refused, in one line without the key."""
    if answer.status in (401, 403):
        return f"HTTP {answer.status}: it asks for another key; set {KEY} to the one it was started with"
    return f"HTTP {answer.status}: {one_line(secret.scrub(error_message(answer.body)))}"


def find_servers(urls: Sequence[str]) -> list[ServedModel]:
    """What is served at `urls`. One server at least must answer; those that do must serve the same."""
    with ThreadPoolExecutor(1) as other:  # in this thread, as in a notebook's, an event loop may be running
        found = other.submit(asyncio.run, examine_all(urls)).result()
    answering = [each for each in found if isinstance(each, ServedModel)]
    for each in found:
        if isinstance(each, BaseException) and not (answering and isinstance(each, ServerAbsent)):
            raise each
    for each in answering:
        check_same(each, answering[0])
    absent = replace(answering[0], answers=False)
    return [
        each if isinstance(each, ServedModel) else replace(absent, url=base_url(url), secret=read_secret(base_url(url)))
        for url, each in zip(urls, found, strict=True)
    ]


async def examine_all(urls: Sequence[str]) -> list[ServedModel | BaseException]:
    """What `examine` gives or raises, of all URLs at once."""
    return await asyncio.gather(*map(examine, urls), return_exceptions=True)


async def examine(url: str) -> ServedModel:
    """The server at `url`, which must answer, and give log-probs of the distribution it draws from."""
    base = base_url(url)
    secret = read_secret(base)
    try:
        served, logprob = await probe(base, secret)
    except NoAnswerError as error:
        reason = one_line(secret.scrub(str(error)))
        line = f"engine.url: no vLLM server answers at {url} ({reason}); start one with {START}, and set {KEY} here too"
        raise (ServerAbsent if error.passing else MarftError)(line) from None
    except ValueError:
        raise MarftError(f"engine.url: what answers at {url} is no vLLM server of a known version") from None
    if not -math.inf < logprob <= ROUNDING:
        raise MarftError(f"engine.url: the server at {url} gives {logprob:g} for a log-prob, which no probability has")
    if logprob < CERTAIN:
        raise MarftError(
            f"engine.url: the server at {url} gives log-probs before temperature, top_k and top_p; start it with "
            "--logprobs-mode processed_logprobs"
        )
    return served


def check_same(served: ServedModel, first: ServedModel) -> None:
    """Raise a MarftError where two servers do not serve the same model with the same limit."""
    if (served.model, served.longest) != (first.model, first.longest):
        raise MarftError(
            f"engine.url: {served.url} serves {one_line(served.model)} with {served.longest} tokens, and the first server "
            f"{one_line(first.model)} with {first.longest}; start all with the same model and --max-model-len"
        )


def base_url(url: str) -> str:
    """Without /v1."""
    return url.rstrip("/").removesuffix("/v1")


async def probe(base: str, secret: Secret) -> tuple[ServedModel, float]:
    """What is served, and the log-prob of a token that is the only choice."""

    async def ask(method: str, path: str, body: object = None, *, patience: float = SHORT) -> bytes:
        answer = await send_request(client, method, f"{base}{path}", body, patience=patience, largest=LARGEST)
        if answer.status != 200:
            raise NoAnswerError(describe_refusal(answer, secret))
        return answer.body

    async with httpx2.AsyncClient(timeout=SHORT, trust_env=False, headers=request_headers(secret)) as client:
        try:
            async with asyncio.timeout(SHORT):  # of both answers
                model, longest = read_model_card(await ask("GET", "/v1/models", patience=LISTING))
                only = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 1.0, "top_k": 1, **ALWAYS}
                [logprob] = read_completion(await ask("POST", "/v1/completions", only), ()).logprobs
        except TimeoutError:
            raise NoAnswerError(f"no whole answer within {SHORT:g} s", passing=True) from None
    return ServedModel(url=base, model=model, longest=longest, secret=secret), logprob
