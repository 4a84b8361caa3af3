"""Invalid values fail where they are made, and say which field it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from marft import types
from marft.types import Completion, Episode, MarftError, Message, PromptTooLong, Reward, Sampling, SpeechError, Task


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("max_tokens", 0),
    ],
)
def test_sampling_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must"):
        Sampling(**{field: value})


def test_sampling_takes_its_limits() -> None:
    Sampling(temperature=0.0, top_p=1.0, top_k=0, max_tokens=1)


def test_no_turn_ends_at_an_empty_stop_string() -> None:
    Sampling(stop=("\n",))
    with pytest.raises(ValueError, match=r"^stop holds an empty text"):
        Sampling(stop=("\n", ""))


def test_a_completion_has_a_logprob_for_each_token() -> None:
    with pytest.raises(ValueError, match="2 token ids but 1 log-probs"):
        Completion(text="", token_ids=(1, 2), logprobs=(0.0,), finish="stop", version=0)


def test_a_completion_has_runs_of_versions() -> None:
    said = Completion(text="", token_ids=(5, 6, 7), logprobs=(0.0,) * 3, finish="stop", version=3)
    assert (said.versions, said.newest) == (((3, 3),), 3)
    assert dataclasses.replace(said, versions=((3, 1), (5, 2))).newest == 5
    with pytest.raises(ValueError, match=r"3 token ids, and versions .* say who drew how many"):
        dataclasses.replace(said, versions=((3, 1), (5, 1)))
    with pytest.raises(ValueError, match="version 3 is not the oldest"):
        dataclasses.replace(said, versions=((2, 1), (3, 2)))


def test_text_that_no_model_of_ours_sampled_has_no_ids() -> None:
    assert Completion(text="7", token_ids=(), logprobs=(), finish="stop", version=0).token_ids == ()


def test_whoever_records_that_an_agent_could_not_speak_records_long_prompts_too() -> None:
    assert issubclass(PromptTooLong, SpeechError)
    assert not issubclass(SpeechError, MarftError)  # which would end the run instead


@pytest.mark.parametrize("kind", [c for c in vars(types).values() if dataclasses.is_dataclass(c)])
def test_all_data_is_frozen_slotted_and_keyword_only(kind: Any) -> None:
    parameters = kind.__dataclass_params__
    assert parameters.frozen
    assert hasattr(kind, "__slots__")
    assert all(field.kw_only for field in dataclasses.fields(kind))


def test_data_never_changes() -> None:
    message = Message(role="user", content="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.content = "b"  # type: ignore[misc]


def test_defaults_are_not_shared_dictionaries() -> None:
    task = Task(id="a", prompt="b")
    assert task.data is not Task(id="a", prompt="b").data
    reward = Reward(team=0.0)
    assert reward.turns is not Reward(team=0.0).turns
    assert Episode(task=task, sample=0, turns=(), reward=reward).ended == "terminated"
