"""Questions to a local engine on the nano model, and how two answers are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch

from marft.engines.local import LocalEngine
from marft.models.loading import load, render
from marft.types import Completion, Message, Request, Sampling

RANKS = {"planner": 4, "solver": 7}
FREE = Sampling(temperature=1.0, max_tokens=24)
WILD = Sampling(temperature=3.0, max_tokens=24)  # nano is sure of itself
TOKENIZER = load("nano", "cpu", "float32").tokenizer


def request(number: int = 0, *, adapter: str | None = "planner", sampling: Sampling = FREE, seed: int = 7) -> Request:
    text = f"Start with {number + 3}. Add {number % 9}." + " Subtract 1." * (number % 4)
    ids = render(TOKENIZER, [Message(role="user", content=text)])
    return Request(adapter=adapter, prompt_ids=ids, sampling=sampling, seed=seed)


def ask(engine: LocalEngine, *requests: Request) -> list[Completion]:
    async def all_at_once() -> list[Completion]:
        async with asyncio.timeout(30):
            return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(all_at_once())


def flat(said: Sequence[Completion]) -> torch.Tensor:
    return torch.tensor([logprob for completion in said for logprob in completion.logprobs])


def same(one: Completion, other: Completion) -> None:
    assert one.token_ids == other.token_ids
    assert one.text == other.text
    assert one.finish == other.finish
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
