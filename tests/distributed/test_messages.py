"""What crosses to workers and back is the same on the other side, to the last bit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marft.distributed import messages
from marft.rollouts.players import Assignment, Key, Played
from marft.types import Completion, Episode, Message, Reward, Task, Turn

TASK = Task(id="t/1", prompt="2 + 2?", data={"gold": object()})
FLOATS = st.floats(width=64)


def episode_of(text: str, logprob: float, reward: float) -> Episode:
    said = Completion(
        text=text, token_ids=(5, 7), logprobs=(logprob, -0.1), finish="stop", version=3, versions=((3, 1), (4, 1))
    )
    saw = (Message(role="user", content=text),)
    turn = Turn(agent="ann", index=0, nth=0, shown=text, observation=saw, prompt_ids=(1, 2), completion=said)
    given = Reward(team=reward, turns={0: reward, 12: 1.5}, correct=True, players={0: "x"})
    return Episode(task=TASK, sample=2, turns=(turn,), reward=given, counts={"calls": 1}, credits=(reward,), trunk=0)


@given(text=st.text(), logprob=FLOATS, reward=FLOATS)
def test_episodes_come_back_as_they_were(text: str, logprob: float, reward: float) -> None:
    sent = Played(episodes=[episode_of(text, logprob, reward)], tokens=2**40)
    got = messages.unpack_played(messages.pack_played(sent)[1:], [TASK])
    assert repr(got) == repr(sent)  # nan is not itself
    assert got.episodes[0].task is TASK


def test_failed_episodes_come_back_as_they_were() -> None:
    episode = replace(
        episode_of("hm", -math.inf, 0.0), ended="failed", error="late", fault="late", trace="line 1\nline 2"
    )
    got = messages.unpack_played(messages.pack_played(Played(episodes=[episode], tokens=0))[1:], [TASK])
    assert got.episodes == [episode]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_come_back_bit_by_bit(dtype: torch.dtype) -> None:
    sent = {
        "ann": {"layers.0.a": torch.randn(3, 2).to(dtype), "b": torch.zeros(0)},
        "b.c": {"b": torch.tensor(math.nan)},
    }
    version, got = messages.unpack_adapters(messages.pack_adapters(7, sent)[1:])
    assert version == 7
    assert {name: set(own) for name, own in got.items()} == {name: set(own) for name, own in sent.items()}
    for name, own in sent.items():
        for key, tensor in own.items():
            assert torch.equal(got[name][key].nan_to_num(), tensor.nan_to_num())
            assert got[name][key].dtype == tensor.dtype


def test_assignments_come_back_as_they_were() -> None:
    training = Assignment(
        key=Key(False, 4, 0, 1), version=3, seed="0/train/4", tasks=(9, 2), first_samples=(0, 4), samples=4
    )
    held_out = replace(training, key=Key(True, 4, 1, 0), samples=1, benchmark="a b")
    for sent in (training, held_out):
        got = messages.ASSIGNMENTS.validate_json(messages.pack_assignment(sent)[1:])
        assert got == sent
        assert isinstance(got.key, Key)
    assert (training.split, training.episodes, held_out.split, held_out.episodes) == ("train", 8, "test", 2)
