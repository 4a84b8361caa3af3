"""Answers come in the order of the questions, together, whoever was faster."""

from __future__ import annotations

import asyncio
import random

import pytest

from marft.game import lockstep as lockstep_module
from marft.game.lockstep import Lockstep, Patience


async def late(seconds: float, value: int) -> int:
    await asyncio.sleep(seconds)
    return value


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_answers_is_that_of_the_questions(seed: int) -> None:
    luck = random.Random(seed)
    told: list[int] = []

    async def ask(lockstep: Lockstep, number: int) -> None:
        for round_ in range(3):
            value = await lockstep.reply(late(luck.random() / 50, 10 * round_ + number))
            told.append(value)

    async def story() -> None:
        lockstep = Lockstep()
        await asyncio.gather(*(ask(lockstep, number) for number in range(5)))

    asyncio.run(story())
    assert told == [10 * round_ + number for round_ in range(3) for number in range(5)]


def test_settled_waits_for_all_of_them_and_for_those_who_ask_again() -> None:
    happened: list[str] = []

    async def ask(lockstep: Lockstep) -> None:
        await lockstep.reply(late(0.01, 1))
        await lockstep.reply(late(0.01, 2))
        happened.append("answered")

    async def story() -> None:
        lockstep = Lockstep()
        await lockstep.settled()  # nothing to wait for
        asking = [asyncio.create_task(ask(lockstep)) for _ in range(3)]
        await asyncio.sleep(0)
        await lockstep.settled()
        happened.append("settled")
        await asyncio.gather(*asking)

    asyncio.run(story())
    assert happened == ["answered"] * 3 + ["settled"]


def test_what_comes_before_a_step_comes_when_all_is_settled() -> None:
    happened: list[str] = []

    async def ask(lockstep: Lockstep) -> None:
        await lockstep.reply(late(0.01, 1))
        happened.append("answered")

    async def story() -> None:
        lockstep = Lockstep(before_step=lambda: happened.append("before a step"))
        asking = asyncio.create_task(ask(lockstep))
        await asyncio.sleep(0)
        await lockstep.settled()
        await lockstep.settled()
        await asking

    asyncio.run(story())
    assert happened == ["answered", "before a step", "before a step"]


def test_a_question_that_fails_or_is_given_up_holds_nobody_back() -> None:
    async def fail() -> int:
        await asyncio.sleep(0.01)
        raise RuntimeError("lost")

    async def story() -> list[object]:
        lockstep = Lockstep()
        given_up = asyncio.create_task(lockstep.reply(late(60, 0)))
        others = [asyncio.create_task(lockstep.reply(question)) for question in (fail(), late(0.02, 7))]
        await asyncio.sleep(0.05)
        given_up.cancel()
        found = await asyncio.gather(*others, given_up, return_exceptions=True)
        await lockstep.settled()
        return list(found)

    failed, answer, cancelled = asyncio.run(asyncio.wait_for(story(), 10))
    assert isinstance(failed, RuntimeError)
    assert answer == 7
    assert isinstance(cancelled, asyncio.CancelledError)


def test_engines_wait_for_a_quick_tool_and_go_on_without_one_that_was_slow_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lockstep_module, "PATIENCE_S", 0.1)
    happened: list[str] = []

    async def ask(patience: Patience, seconds: float, name: str) -> None:
        await patience.reply(late(seconds, 1))
        happened.append(name)

    async def generate(lockstep: Lockstep) -> None:
        await asyncio.sleep(0.01)
        await lockstep.settled()
        happened.append("generated")

    async def story() -> None:
        lockstep = Lockstep()
        patience = Patience(lockstep)
        for seconds, name in ((0.05, "quick"), (0.4, "slow"), (0.05, "afterwards")):
            await asyncio.gather(ask(patience, seconds, name), generate(lockstep))

    asyncio.run(story())
    assert happened == ["quick", "generated", "generated", "slow", "generated", "afterwards"]


def test_a_call_that_is_given_up_ends() -> None:
    ended: list[bool] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def story() -> None:
        lockstep = Lockstep()
        asking = asyncio.ensure_future(Patience(lockstep).reply(endless()))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.sleep(0.05)
        assert ended == [True]  # before the loop ends everything

    asyncio.run(story())
