"""The embedded model: small, and a beginner at its three roles, so that there is something to learn in minutes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
import torch

from marft.config import load_config
from marft.evaluation.benchmarks import eval_settings
from marft.evaluation.held_out import evaluate_held_out
from marft.game.lockstep import Lockstep
from marft.models.loading import load
from marft.models.registry import NANO
from marft.training.build import Assembly, assemble
from marft.types import Message, Request, Sampling

PLANNER, SOLVER = (
    "You are the planner. List the steps.",
    'You are the solver. Follow the plan and end with "Answer: N".',
)
ORCHESTRATOR = 'You are the orchestrator. Say "Next: NAME" or "Done".'
TASKS = (
    "Start with 12. Add 7. Subtract 4.",
    "Start with 20. Add 5. Add 9.",
    "Start with 9. Multiply by 3. Add 10.",
    "Start with 50. Subtract 6. Add 3.",
)


@pytest.fixture(scope="module")
def duo() -> Iterator[Assembly]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield assemble(load_config("duo", ["device=cpu", "dtype=float32", "eval.tasks=256", "env.level=2"]))
    torch.set_num_threads(before)


def replies(duo: Assembly, system: str, users: list[str]) -> list[str]:
    """What the untrained base answers, taking the likeliest token."""

    engine = duo.bases["nano"].engine

    async def ask() -> list[str]:
        requests = [
            Request(
                adapter=None,
                prompt_ids=engine.encode([Message(role="system", content=system), Message(role="user", content=user)]),
                sampling=Sampling(temperature=0.0, max_tokens=48),
                seed=0,
            )
            for user in users
        ]
        return [done.text for done in await asyncio.gather(*map(engine.generate, requests))]

    return asyncio.run(ask())


def test_it_is_small() -> None:
    loaded = load("nano", "cpu", "float32")
    assert sum(p.numel() for p in loaded.model.parameters()) <= 4_000_000
    assert sum(f.stat().st_size for f in NANO.iterdir()) <= 8_000_000
    assert json.loads((NANO / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.tokenizer.chat_template


def test_the_untrained_duo_is_neither_helpless_nor_good(duo: Assembly) -> None:
    config = load_config("duo", ["eval.tasks=256"])
    row = evaluate_held_out(duo.runner, eval_settings(config), seed=0, lockstep=Lockstep())
    assert row["failed"] == 0
    assert 0.2 <= row["accuracy"] <= 0.5


def test_roles_speak_differently(duo: Assembly) -> None:
    plans = replies(duo, PLANNER, list(TASKS))
    assert all(re.match(r"\d+[-+*]\d+", plan) and "=" not in plan and "Answer" not in plan for plan in plans), plans
    with_plans = [f"{task}\n\nplanner: {plan}" for task, plan in zip(TASKS, plans, strict=True)]
    solved = replies(duo, SOLVER, with_plans)
    assert all(re.search(r"Answer: -?\d+$", text) for text in solved), solved
    asked = replies(duo, ORCHESTRATOR, [f"{task}\n\nTeam: planner, solver" for task in TASKS])
    assert all(re.fullmatch(r"Next: (planner|solver)|Done", text) for text in asked), asked


def test_the_same_plan_with_other_numbers_gives_other_results(duo: Assembly) -> None:
    numbers = range(8, 32, 2)
    users = [f"Start with {n}. Add 5. Subtract 2.\n\nplanner: {n}+5, -2" for n in numbers]
    solved = replies(duo, SOLVER, users)
    right = [text.endswith(f"Answer: {n + 3}") for n, text in zip(numbers, solved, strict=True)]
    assert sum(right) >= len(right) // 2, solved  # it reads the numbers; now and then it guesses
