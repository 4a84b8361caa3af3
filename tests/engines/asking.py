"""Questions to a local engine on the nano model, and how two answers are compared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
import torch

from marft.engines.base import Adapters
from marft.engines.local import LocalEngine
from marft.models.chat import render
from marft.models.loading import load
from marft.models.scoring import action_span, hidden_states, logprobs
from marft.models.team import TeamModel
from marft.types import Completion, Message, Request, Sampling

RANKS = {"planner": 4, "solver": 7}
FREE = Sampling(temperature=1.0, max_tokens=24)
WILD = Sampling(temperature=3.0, max_tokens=24)  # nano is sure of itself
STRANGE = 5e-5  # rounding of log-probs of texts that nano has never read the like of
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


def tokens_read(team: TeamModel, engine: LocalEngine, *requests: Request) -> tuple[list[int], list[Completion]]:
    """How many tokens each pass over the base reads, and what is said."""
    seen: list[int] = []
    forward = team.forward

    def counted(ids: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(ids.numel())
        return forward(ids, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "forward", counted)
        return seen, ask(engine, *requests)


def flat(said: Sequence[Completion]) -> torch.Tensor:
    return torch.tensor([logprob for completion in said for logprob in completion.logprobs])


def same(one: Completion, other: Completion, rounding: float = 1e-5) -> None:
    assert one.token_ids == other.token_ids
    assert one.text == other.text
    assert one.finish == other.finish
    assert one.logprobs == pytest.approx(other.logprobs, abs=rounding)


def recomputed(team: TeamModel, asked: Sequence[Request], said: Sequence[Completion]) -> torch.Tensor:
    """Log-probs of what was said, by the scoring that training uses, one by one."""
    found = []
    with torch.no_grad():
        for r, c in zip(asked, said, strict=True):
            hidden = hidden_states(team, [action_span(r.adapter, r.prompt_ids, c.token_ids)])
            temperature = torch.full((len(c.token_ids),), r.sampling.temperature)
            found.append(logprobs(team, hidden, torch.tensor(c.token_ids), temperature)[0])
    return torch.cat(found)


def random_policy(team: TeamModel, seed: int) -> Adapters:
    """Adapters that speak quite differently from those of another seed."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: {
            key: torch.randn(parameter.shape, generator=generator) * 0.1
            for key, parameter in team.trainable_parameters(name).items()
        }
        for name in RANKS
    }


def publish_between_bursts(engine: LocalEngine, policies: Mapping[int, Adapters], at: Mapping[int, int]) -> None:
    """Before burst b of the engine version `at[b]` is published."""
    burst = -1

    async def publish() -> None:
        nonlocal burst
        burst += 1
        if burst in at:
            engine.publish(at[burst], policies[at[burst]])

    engine.settled = publish


def check_each_version(
    team: TeamModel, policies: Mapping[int, Adapters], asked: Sequence[Request], said: Sequence[Completion]
) -> None:
    """Each token's log-prob is what a fresh computation gives under the version that drew it."""
    drawn_by = torch.tensor([version for c in said for version, count in c.versions for _ in range(count)])
    for version in drawn_by.unique().tolist():
        team.load_adapters(policies[version])
        own = drawn_by == version
        torch.testing.assert_close(flat(said)[own], recomputed(team, asked, said)[own], atol=1e-5, rtol=0)
