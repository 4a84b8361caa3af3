"""What becomes of failures: those of others are data on the episode, our own are loud, and none can be hidden."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import toys
from voices import TASK, Voice, run, team

import marft
from marft.envs.hosting import InProcess
from marft.game import play as playing
from marft.game.play import Game, play
from marft.game.workflows.built_in import sequential
from marft.game.workflows.built_in import turns as playing_turns
from marft.types import BadTask, Completion, MarftError, Message, Request, Reward, SpeechError


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


@pytest.mark.parametrize("players", [["ann"], {0: 1}, {"0": "ann"}])
def test_players_that_are_no_names_by_turn_fail_the_episode(players: Any) -> None:
    class Plays(toys.Echo):
        def reward(self, state: str) -> Reward:
            return Reward(team=0.0, turns={0: 1.0}, players=players)

    episode = run(team("a"), env=Plays(), ended="failed")
    line = "environment.reward returned a Reward whose `players` is not a mapping of turns' indices to names"
    assert episode.error == line


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

    def encode(self, messages: Sequence[Message], *_: object) -> tuple[int, ...]:
        if self.spelling and "You are B." in messages[0].content:
            raise self.error
        return super().encode(messages)

    async def generate(self, request: Request) -> Completion:
        if request.adapter == "b":
            raise self.error
        return await super().generate(request)


@pytest.mark.parametrize("spelling", [True, False])
def test_an_agent_that_cannot_speak_fails_the_episode(spelling: bool) -> None:
    episode = run(team("a", "b", voice=Mute(SpeechError("the line is dead"), spelling=spelling)), ended="failed")
    assert (episode.error, len(episode.turns)) == ("b: the line is dead", 1)


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


class Unhelpful:
    """Raises whatever is asked of it."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def keys(self) -> Any:
        raise RuntimeError("no keys")


class Wordy(str):
    """A text whose every method lies."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no bytes")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Claims:
    """Says that it is of a class, and then that it is of none."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (Reward(team=10**400), "gave a reward of 1000"),
        (Reward(team=10**5000), "gave a reward of <int>, not a finite number"),
        (Reward(team=-(10**400)), "not a finite number"),
        (Reward(team=1e300), "gave a reward of 1e+300; rewards lie within ±1e+12"),
        (Reward(team=Decimal("NaN")), "gave a reward of Decimal('NaN'), not a finite number"),  # type: ignore[arg-type]
        (Reward(team=1 + 2j), "gave a reward of (1+2j), not a finite number"),  # type: ignore[arg-type]
        (Reward(team=Unhelpful()), "gave a reward of <Unhelpful>, not a finite number"),  # type: ignore[arg-type]
        (Reward(team=Claims()), "returned Reward, which cannot be read: RuntimeError: no class"),  # type: ignore[arg-type]
        (Reward(team=0.0, turns={0: 10**400}), "gave a reward of 1000"),
        (Reward(team=0.0, turns={True: 1.0}), "`turns` is not a mapping"),
        (Reward(team=0.0, turns=dict.fromkeys(range(10000), 0.0)), "`turns` is not a mapping"),
        (Reward(team=0.0, turns=Unhelpful()), "`turns` is not a mapping"),  # type: ignore[arg-type]
        (Reward(team=0.0, correct=Unhelpful()), "`correct` is neither true nor false: ValueError"),  # type: ignore[arg-type]
        (Reward(team=0.0, done=Unhelpful()), "`done` is neither true nor false: ValueError"),  # type: ignore[arg-type]
        (Reward(team=0.0, parts={"a": float("inf")}), "gave a reward of inf, not a finite number"),
        (Reward(team=0.0, parts={1: 1.0}), "`parts` is not a mapping of at most 64 names"),  # type: ignore[dict-item]
        (Reward(team=0.0, parts={f"{i}": 0.0 for i in range(65)}), "`parts` is not a mapping of at most 64 names"),
        (Reward(team=0.0, parts={"\ud800": 1.0}), "returned a text that"),
        (Reward(team=0.0, parts=Unhelpful()), "`parts` is not a mapping"),  # type: ignore[arg-type]
        (Unhelpful(), "returned Unhelpful, not a marft.Reward"),
    ],
)
def test_no_reward_can_do_more_than_fail_its_episode(given: Any, line: str) -> None:
    class Gives(toys.Echo):
        def reward(self, state: str) -> Any:
            return given

    episode = run(team("a"), env=Gives(), ended="failed")
    assert (episode.fault, episode.reward) == ("raised", Reward(team=0.0))
    assert line in str(episode.error)
    assert len(str(episode.error)) < 300


@pytest.mark.parametrize("number", [True, Fraction(1, 2), 3, np.float32(0.5), np.int64(2)])
def test_a_reward_of_another_kind_of_number_is_a_plain_one(number: Any) -> None:
    class Gives(toys.Echo):
        def reward(self, state: str) -> Any:
            return Reward(team=number, turns={0: number}, correct=np.bool_(True))  # type: ignore[arg-type]

    reward = run(team("a"), env=Gives()).reward
    assert (reward.team, reward.turns, reward.correct) == (float(number), {0: float(number)}, True)
    assert {type(reward.team), type(reward.turns[0]), type(reward.correct)} == {float, bool}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("half \ud800", "returned a text that holds half of a surrogate pair (\\ud800, character 5)"),
        ("x" * 100_000_000, "returned a text that is 100,000,000 characters long; the most is 4,000,000"),
        (b"bytes", "returned bytes, not str"),
        (Unhelpful(), "returned Unhelpful, not str"),
        (Claims, "returned Claims, not str"),
        ((x for x in "abc"), "returned generator, not str"),
    ],
)
@pytest.mark.parametrize("method", ["observe", "whose_turn"])
def test_what_is_shown_is_a_text(method: str, given: Any, line: str) -> None:
    class Gives(toys.Echo):
        def observe(self, state: str, agent: str) -> Any:
            return self.whose_turn(state) if method == "observe" else ""

        def whose_turn(self, state: str) -> Any:
            return Claims() if given is Claims else given

    workflow = playing_turns if method == "whose_turn" else sequential
    episode = run(team("a"), workflow, env=Gives(), ended="failed")
    assert str(episode.error).startswith(f"environment.{method} {line}")


def test_a_text_of_a_class_of_its_own_is_a_plain_one() -> None:
    class Gives(toys.Echo):
        def observe(self, state: str, agent: str) -> str:
            return Wordy("words")

    [turn] = run(team("a"), env=Gives()).turns
    assert (turn.shown, type(turn.shown)) == ("words", str)


def test_an_environment_that_names_somebody_unknown_fails_the_episode() -> None:
    class Names(toys.Echo):
        def whose_turn(self, state: str) -> str:
            return "zed"

    episode = run(team("a"), playing_turns, env=Names(), ended="failed")
    assert episode.error == "environment.whose_turn names 'zed'; the team has a"


@pytest.mark.parametrize("given", [[], Unhelpful()])
def test_an_answer_that_cannot_be_counted_fails_the_episode(given: Any) -> None:
    class Gives(toys.Echo):
        def answer(self, text: str) -> Any:
            return given

    async def workflow(game: Game) -> None:
        await game.answer((await game.act("a"))[0])

    episode = run(team("a"), workflow, env=Gives(), ended="failed")
    assert "which cannot be counted" in str(episode.error)


@pytest.mark.parametrize(
    "error",
    [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), BaseException("odd"), StopIteration()],
)  # fmt: skip
def test_whatever_an_environment_in_this_process_raises_fails_the_episode(error: BaseException) -> None:
    class Raises(toys.Echo):
        def transition(self, state: str, turn: marft.Turn) -> str:
            raise error

    episode = run(team("a"), env=Raises(), ended="failed")
    assert str(episode.error).startswith(f"environment.transition raised {type(error).__name__}")


class Mumbles(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [ValueError("x" * 10_000_000), ValueError("\ud800"), Mumbles()])
def test_what_an_error_says_is_quoted_shortly(error: Exception) -> None:
    class Raises(toys.Echo):
        def transition(self, state: str, turn: marft.Turn) -> str:
            raise error

    async def workflow(game: Game) -> None:
        raise error

    for episode in (run(team("a"), env=Raises(), ended="failed"), run(team("a"), workflow, ended="failed")):
        f"{episode.error}{episode.trace}".encode()
        assert len(str(episode.error)) < 700
        assert len(episode.trace) < 30_000


# --- workflows ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "error",
    [SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), BaseException("odd"), StopIteration()],
)  # fmt: skip
@pytest.mark.parametrize("after", [0, 1])
def test_whatever_a_workflow_raises_fails_the_episode(error: BaseException, after: int) -> None:
    async def workflow(game: Game) -> None:
        for _ in range(after):
            await game.act("a")
        raise error

    episode = run(team("a"), workflow, ended="failed")
    assert (episode.fault, len(episode.turns)) == ("workflow", after)
    assert str(episode.error).startswith("the workflow raised ")


def test_a_cancelled_episode_is_cancelled() -> None:
    async def workflow(game: Game) -> None:
        await asyncio.sleep(60)

    async def story() -> None:
        host = InProcess(toys.Echo())
        await asyncio.wait_for(
            play(task=TASK, sample=0, team=team("a"), host=host, workflow=workflow, seed="0"), timeout=0.05
        )

    with pytest.raises(TimeoutError):
        asyncio.run(story())


async def swallowing_all(game: Game) -> None:
    while True:
        with contextlib.suppress(BaseException):
            await game.act("b")


async def asking_for_ever(game: Game) -> None:
    while True:
        with contextlib.suppress(BaseException):
            await game.act("b")
            await game.done()


@pytest.mark.parametrize("workflow", [swallowing_all, asking_for_ever])
def test_a_workflow_that_swallows_every_end_is_left_behind(
    workflow: Callable[[Game], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    voice = Mute(SpeechError("away"))
    assert run(team("a", "b", voice=voice), workflow, ended="failed").error == "b: away"
    with pytest.raises(KeyError, match="a bug"):
        run(team("a", "b", voice=Mute(KeyError("a bug"))), workflow)
    monkeypatch.setattr(playing, "MAX_TURNS", 4)
    assert len(run(team("a", "b"), workflow, ended="cut_off").turns) == 4


async def swallowing_within(game: Game) -> None:
    await swallowing_all(game)


def test_one_that_is_left_behind_is_heard_of_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", lambda loop, context: heard.append(context))
    run(team("a", "b", voice=Mute(SpeechError("away"))), swallowing_within, ended="failed")
    gc.collect()
    assert heard == []


@pytest.mark.parametrize("method", ["say", "note", "name"])
@pytest.mark.parametrize(
    ("text", "line"), [("\udfff", "holds half of a surrogate pair"), ("x" * 5_000_000, "is 5,000,000 characters long")]
)
def test_a_text_of_the_workflows_that_nobody_can_be_shown_fails_the_episode(method: str, text: str, line: str) -> None:
    async def workflow(game: Game) -> None:
        match method:
            case "say":
                await game.say("tool", text)
            case "name":
                await game.say(text, "fine")
            case "note":
                await game.act("a", note=text)

    episode = run(team("a"), workflow, ended="failed")
    assert (episode.fault, episode.turns) == ("workflow", ())
    assert line in str(episode.error)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"note": 5}, "gives game.act a note int, not str"),
        ({"sees": 5}, "calls game.act with sees=5"),
        ({"sees": "a"}, "calls game.act with sees='a'"),
        ({"sees": [Unhelpful()]}, "names <Unhelpful> in game.act"),
    ],
)
def test_wrong_arguments_are_the_users_mistake(arguments: dict[str, Any], line: str) -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", **arguments)

    with pytest.raises(MarftError, match=line.replace("[", r"\[")):
        run(team("a"), workflow)


def test_what_is_counted_can_be_written() -> None:
    async def workflow(game: Game) -> None:
        game.count("\ud800")
        await game.act("a")

    assert run(team("a"), workflow).counts == {"\\ud800": 1}


def test_a_bad_task_fails_its_episode() -> None:
    task = BadTask(id="t", prompt="", flaw="holds nothing")
    episode = run(team("a"), task=task, ended="failed")
    assert (episode.error, episode.fault) == ("the task 't' holds nothing", "raised")
