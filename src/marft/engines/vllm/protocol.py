"""What a vLLM server is told in every request, and how its answers are read: they may hold anything."""

from __future__ import annotations

import json
from typing import Any

from marft.engines.vllm.engine import SampledTokens

LARGEST = 64 << 20  # bytes of an answer: of each token its id, text and log-prob
# said in every request: the server may have defaults of its own, which the model's files bring along
ALWAYS = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,  # a turn ends at stop_token_ids
    "logprobs": 0,  # of the drawn tokens alone
    "return_token_ids": True,
}


def read_completion(body: bytes, stop: tuple[str, ...]) -> SampledTokens:
    """What a completion says; ValueError, with a few words, where that is not all of it."""
    match parse_json(body):
        case {"choices": [{"token_ids": [*ids], "logprobs": {"token_logprobs": [*logprobs]}} as choice, *_]}:
            pass
        case _:
            raise ValueError("it lacks token ids or log-probs")
    if choice.get("finish_reason") not in ("stop", "length") or not ids or len(ids) != len(logprobs):
        raise ValueError("it is cut short")
    if not all(type(token) is int for token in ids) or not all(type(each) in (int, float) for each in logprobs):
        raise ValueError("a token id or a log-prob is no number")
    reason = choice.get("stop_reason")
    return SampledTokens(
        token_ids=tuple(ids),
        logprobs=tuple(map(float, logprobs)),
        stop=reason if isinstance(reason, str) and reason in stop else None,
    )


def read_model_card(body: bytes) -> tuple[str, int]:
    """The name of the base model, and the most tokens of a sequence."""
    match parse_json(body):
        case {"data": [*cards]}:
            for card in cards:
                match card:
                    case {"id": str(name), "max_model_len": int(longest)} if not card.get("parent") and longest > 0:
                        return name, longest
    raise ValueError("no base model")


def read_names(body: bytes) -> set[str]:
    """Of all that is served, adapters included."""
    match parse_json(body):
        case {"data": [*cards]}:
            return {name for card in cards if isinstance(card, dict) and isinstance(name := card.get("id"), str)}
    raise ValueError("no list of models")


def parse_json(body: bytes) -> Any:
    """JSON from a stranger: ValueError for whatever Python cannot read."""
    try:
        return json.loads(body, parse_int=parse_bounded_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_bounded_int(digits: str) -> int:
    """An integer of at most 20 digits."""
    if len(digits) > 20:
        raise ValueError("a number of more digits than any has")
    return int(digits)
