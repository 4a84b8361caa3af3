"""New weights while tokens are drawn: what is under way goes on under them, exactly."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from asking import FREE, RANKS, WILD, ask, check_each_version, publish_between_bursts, random_policy, request
from hypothesis import given, settings
from hypothesis import strategies as st
from teams import team_of

from marft.engines import eager
from marft.engines.local import Entry, LocalEngine
from marft.models.team import TeamModel
from marft.types import Completion, Request

LONG = replace(WILD, max_tokens=32)


@pytest.fixture(scope="module")
def team() -> TeamModel:
    return team_of(RANKS, std=0.01)


def mixed(count: int) -> list[Request]:
    """Agents and the base alone, some with equal prompts, of all lengths."""
    adapters = ("planner", "solver", None)
    return [
        request(i // 2, adapter=adapters[i % 3], seed=i, sampling=replace(LONG, max_tokens=3 + i * 7 % 30))
        for i in range(count)
    ]


@pytest.mark.parametrize("slots", [1, 4, 40])
def test_every_token_is_its_own_versions(team: TeamModel, slots: int) -> None:
    policies = {version: random_policy(team, version) for version in (1, 2, 3)}
    engine = LocalEngine(team, slots)
    publish_between_bursts(engine, policies, {0: 1, 5: 2, 12: 3, 40: 1})
    asked = mixed(24)
    said = ask(engine, *asked)
    assert sum(len(c.versions) > 1 for c in said) > min(slots, 4)
    check_each_version(team, policies, asked, said)


def test_a_swap_in_several_passes(team: TeamModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "PREFILL_TOKENS", 100)
    policies = {version: random_policy(team, version) for version in (1, 2)}
    engine = LocalEngine(team, 16)
    publish_between_bursts(engine, policies, {0: 1, 6: 2})
    asked = mixed(16)
    said = ask(engine, *asked)
    assert {len(c.versions) for c in said} == {1, 2}
    check_each_version(team, policies, asked, said)


def test_greedy_goes_on_as_a_fresh_reading_would(team: TeamModel) -> None:
    """What comes after the swap is what the new policy says to prompt and beginning together."""
    policies = {version: random_policy(team, version) for version in (1, 2)}
    asked = [request(i, sampling=replace(FREE, temperature=0, max_tokens=20)) for i in range(6)]
    engine = LocalEngine(team, 8)
    publish_between_bursts(engine, policies, {0: 1, 4: 2})
    changed = 0
    for r, c in zip(asked, ask(engine, *asked), strict=True):
        if len(c.versions) == 1:
            continue
        (_, before), (_, after) = c.versions
        rest = replace(
            r, prompt_ids=(*r.prompt_ids, *c.token_ids[:before]), sampling=replace(r.sampling, max_tokens=after)
        )
        assert ask(LocalEngine(team, 8), rest)[0].token_ids == c.token_ids[before:]
        changed += 1
    assert changed > 2


def test_a_version_that_is_there_already_is_not_read_again(team: TeamModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(team, 4)
    publish_between_bursts(engine, {0: random_policy(team, 0)}, dict.fromkeys(range(9), 0))
    monkeypatch.setattr(engine, "_read_again", lambda: pytest.fail("read again"))
    assert ask(engine, request(1, sampling=LONG))[0].versions[0][0] == 0


def test_who_is_done_before_the_swap_has_one_version(team: TeamModel) -> None:
    engine = LocalEngine(team, 4)
    publish_between_bursts(engine, {1: random_policy(team, 1)}, {2: 1})
    asked = [request(1, sampling=replace(LONG, max_tokens=most), seed=3) for most in (1, 2, 3, 9)]
    assert [c.versions[0] for c in ask(engine, *asked)] == [(0, 1), (0, 2), (0, 3), (0, 3)]
    assert ask(engine, asked[0])[0].versions == ((1, 1),)


def test_who_has_gone_is_not_read_again(team: TeamModel) -> None:
    engine = LocalEngine(team, 4)

    async def play() -> Completion:
        gone, stays = (asyncio.create_task(engine.generate(request(i, sampling=LONG))) for i in range(2))
        while not engine.live:
            await asyncio.sleep(0)
        gone.cancel()
        engine.publish(1)
        return await stays

    assert asyncio.run(play()).newest == 1
    assert engine.live == []


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=5), first=st.integers(0, 9))
def test_runs_are_what_lies_between_swaps(counts: list[int], first: int) -> None:
    entry = Entry(request=request(), future=asyncio.Future(loop=asyncio.new_event_loop()))
    for i in range(len(counts)):
        entry.policies.append((first + i, sum(counts[:i])))
    assert entry.runs(sum(counts)) == tuple((first + i, count) for i, count in enumerate(counts))
