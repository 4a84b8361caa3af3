"""What becomes of failures: those of others are data on the episode, our own are loud, and none can be hidden."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import toys
from voices import Voice, run, team

import marft
from marft.game import play as playing
from marft.game.play import Game
from marft.types import Completion, MarftError, Message, PromptTooLong, Request, Reward, SpeechError


@pytest.mark.parametrize(
    ("method", "after"),
    [("reset", 0), ("observe", 0), ("observe", 1), ("transition", 0), ("transition", 1), ("reward", 0)],
)
def test_an_environment_that_raises_fails_the_episode(method: str, after: int) -> None:
    episode = run(team("a", "b"), env=toys.Breaks(method, after, "oh no"), ended="failed")
    assert episode.error == f"environment.{method} raised RuntimeError: oh no"
    assert episode.reward == Reward(team=0.0)
    assert len(episode.turns) == (2 if method == "reward" else after)


def test_a_cut_off_episode_whose_reward_fails_is_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "MAX_TURNS", 1)
    episode = run(team("a", "b"), env=toys.Breaks("reward", 0, "oh no"), ended="failed")
    assert (episode.error, episode.cut_before) == ("environment.reward raised RuntimeError: oh no", None)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), None, "1"])
def test_a_reward_that_is_no_number_fails_the_episode(number: Any) -> None:
    class Team(toys.Echo):
        def reward(self, state: str) -> Reward:
            return Reward(team=number)

    class OfATurn(toys.Echo):
        def reward(self, state: str) -> Reward:
            return Reward(team=0.0, turns={1: number})

    for env in (Team(), OfATurn()):
        episode = run(team("a", "b"), env=env, ended="failed")
        assert episode.error == f"environment.reward gave a reward of {number!r}, not a finite number"


@pytest.mark.parametrize(("method", "given"), [("reward", "float"), ("observe", "NoneType")])
def test_a_wrong_kind_of_answer_fails_the_episode(method: str, given: str) -> None:
    episode = run(team("a"), env=toys.Returns(method), ended="failed")
    assert episode.error is not None
    assert episode.error.startswith(f"environment.{method} returned {given}")


class Mute(Voice):
    """Fails for `b`, when its prompt is spelled or when it should speak."""

    def __init__(self, error: Exception, *, spelling: bool = False) -> None:
        super().__init__()
        self.error, self.spelling = error, spelling

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        if self.spelling and "You are B." in messages[0].content:
            raise self.error
        return super().encode(messages)

    async def generate(self, request: Request) -> Completion:
        if request.adapter == "b":
            raise self.error
        return await super().generate(request)


@pytest.mark.parametrize("spelling", [True, False])
@pytest.mark.parametrize("error", [PromptTooLong("too long"), SpeechError("the line is dead")])
def test_an_agent_that_cannot_speak_fails_the_episode(error: Exception, spelling: bool) -> None:
    episode = run(team("a", "b", voice=Mute(error, spelling=spelling)), ended="failed")
    assert (episode.error, len(episode.turns)) == (f"b: {error}", 1)


def test_one_of_many_that_cannot_speak_fails_the_episode() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", "b", "c")

    episode = run(team("a", "b", "c", voice=Mute(SpeechError("away"))), workflow, ended="failed")
    assert (episode.error, episode.turns) == ("b: away", ())


def test_a_workflow_that_raises_fails_the_episode() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        raise KeyError("plan")

    episode = run(team("a"), workflow, ended="failed")
    assert (episode.error, len(episode.turns)) == ("the workflow raised KeyError: 'plan'", 1)
    assert episode.reward == Reward(team=0.0)


def test_a_workflow_may_say_what_is_the_users_mistake() -> None:
    async def workflow(game: Game) -> None:
        raise MarftError("this team needs a planner")

    with pytest.raises(MarftError, match="needs a planner"):
        run(team("a"), workflow)


def test_our_own_bugs_are_not_caught() -> None:
    with pytest.raises(KeyError, match="a bug"):
        run(team("a", "b", voice=Mute(KeyError("a bug"))))


async def swallow_and_return(game: Game) -> None:
    try:
        await game.act("b")
    except BaseException:
        return


async def swallow_and_raise(game: Game) -> None:
    try:
        await game.act("b")
    except Exception as error:
        raise ValueError("something else") from error


async def in_a_task_group(game: Game) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(game.act("b"))


async def for_ever(game: Game) -> None:
    while True:
        with contextlib.suppress(Exception):
            await game.act("b")


async def saying_for_ever(game: Game) -> None:
    while True:
        with contextlib.suppress(Exception):
            if len(game.turns) < 3:
                await game.act("b")
            await game.say("tool", "again")


Hiding = pytest.mark.parametrize(
    "workflow", [swallow_and_return, swallow_and_raise, in_a_task_group, for_ever, saying_for_ever]
)


@Hiding
def test_a_workflow_cannot_hide_our_bugs(workflow: Callable[[Game], Any]) -> None:
    with pytest.raises(KeyError, match="a bug"):
        run(team("a", "b", voice=Mute(KeyError("a bug"))), workflow)


@Hiding
def test_a_workflow_cannot_hide_its_own_mistakes(workflow: Callable[[Game], Any]) -> None:
    with pytest.raises(MarftError, match="names 'b'"):
        run(team("a"), workflow)


@Hiding
def test_defect_16_a_failing_workflow_is_not_retried_for_ever(workflow: Callable[[Game], Any]) -> None:
    """Whatever a workflow makes of a failure, the first one ends the episode and is recorded."""
    voice = Mute(SpeechError("away"))
    assert run(team("a", "b", voice=voice), workflow, ended="failed").error == "b: away"
    episode = run(team("a", "b"), workflow, env=toys.Breaks("transition", 0, "oh no"), ended="failed")
    assert episode.error == "environment.transition raised RuntimeError: oh no"


@pytest.mark.parametrize("workflow", [for_ever, saying_for_ever])
def test_defect_16_a_workflow_does_not_outlive_the_limit(
    monkeypatch: pytest.MonkeyPatch, workflow: Callable[[Game], Any]
) -> None:
    monkeypatch.setattr(playing, "MAX_TURNS", 4)
    episode = run(team("a", "b"), workflow, ended="cut_off")
    assert len(episode.turns) == 4


def test_nothing_can_be_asked_of_a_game_that_is_over() -> None:
    tried: list[str] = []

    async def workflow(game: Game) -> None:
        with contextlib.suppress(BaseException):
            await game.act("b")
        asks: list[Callable[[], Awaitable[object]]] = [
            game.done, game.whose_turn, lambda: game.shown("b"), lambda: game.say("tool", "x")
        ]  # fmt: skip
        for ask in asks:
            try:
                await ask()
            except BaseException as error:
                tried.append(str(error))

    run(team("b", voice=Mute(SpeechError("away"))), workflow, ended="failed")
    assert tried == ["b: away"] * 4


def test_a_time_limit_of_the_workflows_own_does_not_end_the_game() -> None:
    class Stuck(Voice):
        async def generate(self, request: Request) -> Completion:
            await asyncio.sleep(30 if request.adapter == "b" else 0)
            return await super().generate(request)

    async def workflow(game: Game) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(game.act("b"), 0.01)
        await game.act("a")

    assert [turn.agent for turn in run(team("a", "b", voice=Stuck()), workflow).turns] == ["a"]


@pytest.mark.parametrize("turns", [[0.5], {"a": 0.5}, {0: "much"}, {0: float("nan")}])
def test_rewards_of_single_turns_are_numbers_by_index(turns: Any) -> None:
    class Wrong(toys.Echo):
        def reward(self, state: str) -> marft.Reward:
            return marft.Reward(team=0.0, turns=turns)

    episode = run(team("a"), env=Wrong(), ended="failed")
    assert (episode.fault, "reward" in str(episode.error).lower()) == ("raised", True)
