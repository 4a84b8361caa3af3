"""A turn ends where its text first holds a stop string: the function, and the local engine that keeps to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from asking import RANKS, WILD, ask, request, same
from teams import team_of
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from marft.engines import batch_state, local
from marft.engines.local import LocalEngine
from marft.engines.stop_strings import cut_at_stop
from marft.models.chat import decode_texts
from marft.models.team import TeamModel
from marft.types import Completion, Request, Sampling

GREEDY = Sampling(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def team() -> TeamModel:
    return team_of(RANKS, std=0.01)


@pytest.fixture(scope="module")
def engine(team: TeamModel) -> LocalEngine:
    return LocalEngine(team, 24)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two", (), ("one two", None)),
        ("one two", ("three",), ("one two", None)),
        ("one two", ("two",), ("one ", "two")),
        ("one two", ("one",), ("", "one")),
        ("one two two", ("two",), ("one ", "two")),
        ("one two", ("two", "e t"), ("on", "e t")),
        ("one two", ("e t", "two"), ("on", "e t")),
        ("naïve → x", ("→",), ("naïve ", "→")),
    ],
)
def test_cut_by_hand(text: str, stop: tuple[str, ...], expected: tuple[str, str | None]) -> None:
    assert cut_at_stop(text, stop) == expected


def stopped(team: TeamModel, free: Completion, stop: Sequence[str]) -> Completion:
    """What a completion that was sampled without stop strings would have been with them, by reading it token by token."""
    for n in range(1, len(free.token_ids) + 1):
        text = team.tokenizer.decode(free.token_ids[:n], skip_special_tokens=True)
        starts = [text.index(each) for each in stop if each in text]
        if starts:
            text, ids, logprobs = text[: min(starts)], free.token_ids[:n], free.logprobs[:n]
            return replace(free, text=text, token_ids=ids, logprobs=logprobs, finish="stop")
    return free


def with_stop(asked: Request, *stop: str) -> Request:
    return replace(asked, sampling=replace(asked.sampling, stop=stop))


def test_rows_end_where_reading_every_token_would_end_them(team: TeamModel, engine: LocalEngine) -> None:
    """Wild texts, full of broken characters, each with one or two stop strings cut out of it or foreign to it; rows of
    all kinds in one batch, and some of them alone."""
    chance = random.Random(0)
    adapters = ("planner", "solver", None)
    asked = [request(i, adapter=adapters[i % 3], seed=i, sampling=replace(WILD, max_tokens=40)) for i in range(60)]
    free = ask(engine, *asked)
    wanted = []
    for each, said in zip(asked, free, strict=True):
        stop = []
        for _ in range(chance.choice([0, 1, 1, 2])):
            start = chance.randrange(max(1, len(said.text) - 1))
            stop.append(said.text[start : start + chance.randint(1, 6)] or "nowhere")
        wanted.append(with_stop(each, *stop, *chance.choice([(), (), ("@@",)])))
    found = ask(engine, *wanted)
    for each, said, completion in zip(wanted, free, found, strict=True):
        same(completion, stopped(team, said, each.sampling.stop))
    kinds = [(c.finish, len(c.token_ids) < len(f.token_ids)) for c, f in zip(found, free, strict=True)]
    assert kinds.count(("stop", True)) > 20
    assert {("stop", False), ("length", False)} < set(kinds)
    for i in range(0, 60, 6):
        same(ask(LocalEngine(team, 1), wanted[i])[0], found[i])


@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        (("3",), "6+", 3),
        ((", -1, ",), "6+3", 6),  # of ', -', '1', ', -'
        (("+3, -1",), "6", 5),
        (("6",), "", 1),  # in the first token
        ((" -",), "6+3,", 4),  # in the middle of a token
        (("-1", "3,"), "6+", 4),  # the earliest wins
        (("3,", "-1"), "6+", 4),
        ((",", "-"), "6+3", 4),  # both in one token
        (("-1, -1, -1",), "6+3, ", 9),  # with the last token before the end of the turn
        (("7",), "6+3, -1, -1, -1", 10),  # never
        (("<|im_end|>",), "6+3, -1, -1, -1", 10),  # the end is no text
    ],
)
def test_stops_by_hand(engine: LocalEngine, stop: tuple[str, ...], text: str, tokens: int) -> None:
    """Greedily nano says '6+3, -1, -1, -1', as the tokens 6 + 3 ', -' 1 ', -' 1 ', -' 1 and the end."""
    [said] = ask(engine, with_stop(request(3, sampling=GREEDY), *stop))
    assert (said.text, len(said.token_ids), said.finish) == (text, tokens, "stop")


def test_the_limit_at_the_same_step_is_a_stop_and_one_before_is_not(engine: LocalEngine) -> None:
    asked = [with_stop(request(3, sampling=replace(GREEDY, max_tokens=limit)), ", -1, ") for limit in (5, 6)]
    short, whole = ask(engine, *asked)
    assert (short.text, short.finish) == ("6+3, -1", "length")
    assert (whole.text, whole.finish) == ("6+3", "stop")


@pytest.fixture
def dictate(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that a lone row draws, whatever the model thinks."""
    tokens: list[int] = []

    def draw(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        assert len(logits) == 1
        return torch.tensor([tokens.pop(0)]), torch.zeros(1)

    monkeypatch.setattr(batch_state, "sample_seeded", draw)
    return tokens


@pytest.mark.parametrize(("stop", "text"), [("→", "a "), (" → b", "a"), ("ï", None), ("b", "a → ")])
def test_characters_of_several_tokens_complete_a_stop(
    team: TeamModel, dictate: list[int], stop: str, text: str | None
) -> None:
    """→ is three bytes, each a token of its own, and none of them says anything alone."""
    spelled = team.tokenizer.encode("a → b", add_special_tokens=False)
    assert len(spelled) > len("a → b")
    dictate += [*spelled, *team.end_ids]
    [said] = ask(LocalEngine(team, 1), with_stop(request(), stop))
    assert said.text == ("a → b" if text is None else text)
    assert (said.token_ids[-1] in team.end_ids) == (text is None)


def test_only_suspicious_tokens_have_a_reply_read(
    team: TeamModel, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(tokenizer: PreTrainedTokenizerBase, sequences: Sequence[Sequence[int]]) -> list[str]:
        read.extend(map(len, sequences))
        return decode_texts(tokenizer, sequences)

    monkeypatch.setattr(local, "decode_texts", counted)
    asked = request(3, sampling=GREEDY)
    ask(engine, asked, with_stop(asked, "7"))
    assert read == [9, 9]  # both once, at their ends
    read.clear()
    ask(engine, asked, with_stop(asked, "+1"))
    assert sorted(read) == [5, 7, 9, 9, 9]  # also at each 1


def test_who_left_is_not_waited_for(team: TeamModel) -> None:
    """A row whose reply nobody awaits has no place to put it; its neighbour's stop still works."""
    engine = LocalEngine(team, 2)
    mine, other = (with_stop(request(3, sampling=GREEDY), stop) for stop in (", -1, ", "7"))

    async def play() -> Completion:
        gone = asyncio.create_task(engine.generate(with_stop(mine, "3")))
        kept = asyncio.create_task(engine.generate(mine))
        await asyncio.sleep(0)
        gone.cancel()
        async with asyncio.timeout(20):
            return await kept

    assert asyncio.run(play()).text == "6+3"
    assert ask(engine, other)[0].finish == "stop"
