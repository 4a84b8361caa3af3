"""A prompt that is too long: for what the team has said it is a failure of the team's, to be learnt from; for the task
alone it is nobody's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import toys
from test_tools import armed
from voices import Voice, in_turn, run, team

from marft.game.play import Game
from marft.types import Completion, Episode, PromptTooLong, Request, Reward, Task

LONGEST = 180  # bytes of a prompt, an answer of one included
LONG = "bla " * 40


class Small(Voice):
    """Reads no more than `LONGEST`."""

    async def generate(self, request: Request) -> Completion:
        if len(request.prompt_ids) >= LONGEST:
            raise PromptTooLong(len(request.prompt_ids), LONGEST)
        completion = await super().generate(request)
        return replace(completion, stop="</mirror>") if "<mirror>" in completion.text else completion


class Judges(toys.Echo):
    """Whatever was said is right, and every turn is worth something; `shows` is what the environment shows from turn 1 on."""

    def __init__(self, team: float = 1.0, correct: bool | None = True, shows: str = "") -> None:
        self.team, self.correct, self.shows = team, correct, shows

    def observe(self, state: str, agent: str) -> str:
        return self.shows.format(state=state) if state else ""

    def reward(self, state: str) -> Reward:
        return Reward(team=self.team, turns={0: 0.25}, correct=self.correct)


def told(*texts: str, names: str = "ab", env: Any = None, **others: Any) -> Episode:
    return run(team(*names, voice=Small(in_turn(*texts))), env=env or Judges(), **others)


@pytest.mark.parametrize(
    ("team_reward", "correct", "expected"),
    [(1.0, True, (0.0, False)), (0.0, False, (0.0, False)), (-2.0, None, (-2.0, None)), (3.0, None, (0.0, None))],
)
def test_what_the_team_said_is_a_failure_of_the_team(
    team_reward: float, correct: bool | None, expected: tuple[float, bool | None]
) -> None:
    episode = told(LONG, env=Judges(team_reward, correct), ended="overflow")
    assert (episode.reward.team, episode.reward.correct) == expected
    assert episode.reward.turns == {0: 0.25}  # earned, whatever came after
    assert (episode.error, episode.fault) == ("b: the prompt has 206 tokens, the model reads 180", None)
    assert [turn.agent for turn in episode.turns] == ["a"]


def test_ones_own_words_count_as_well() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.act("a")

    assert told(LONG, workflow=workflow, names="a", ended="overflow").reward.team == 0


def test_so_does_what_a_tool_answered() -> None:
    voice = Small(in_turn("<mirror>" + "x" * 60))
    episode = run(armed(team("a", voice=voice), "a"), env=Judges(), ended="overflow", task=Task(id="t", prompt="?"))
    assert [turn.agent for turn in episode.turns] == ["a", "mirror"]


def test_words_that_the_environment_or_the_workflow_repeats_are_the_teams() -> None:
    async def unseen(game: Game) -> None:
        await game.act("a")
        await game.act("b", sees=())

    async def repeated(game: Game) -> None:
        [turn] = await game.act("a")
        await game.say("majority", turn.text)
        await game.act("b", sees=["majority"])

    echo = Judges(shows="So far: {state}")
    assert told(LONG, env=echo, workflow=unseen, ended="overflow").turns
    assert len(told(LONG, workflow=repeated, ended="overflow").turns) == 2


@pytest.mark.parametrize(
    ("task", "shows"),
    [
        (LONG, ""),  # too long from the beginning
        ("short", "board " * 40),  # the environment's own words
    ],
)
def test_a_prompt_that_nobody_made_too_long_fails_the_episode(task: str, shows: str) -> None:
    """Also where somebody has spoken: without a word of it the prompt would be too long."""

    async def workflow(game: Game) -> None:
        if shows:
            await game.act("a")
        await game.act("b", sees=())

    episode = told(LONG, env=Judges(shows=shows), workflow=workflow, task=Task(id="t", prompt=task), ended="failed")
    assert episode.fault == "speech"
    assert episode.error is not None
    assert episode.error.startswith("b: the prompt has ")
    assert episode.error.endswith("tokens, the model reads 180, and it is as long if nobody speaks")
    assert episode.reward == Reward(team=0.0)


def test_a_short_word_is_not_taken_out_wherever_its_letters_stand() -> None:
    """`a` has said "b": what the environment shows does not become short without its many b's."""
    episode = told("b", env=Judges(shows="b" * 200), ended="failed")
    assert episode.fault == "speech"


def test_a_workflow_cannot_hide_it() -> None:
    async def workflow(game: Game) -> None:
        try:
            await game.act("a")
            await game.act("b")
        except BaseException:
            return

    assert told(LONG, workflow=workflow, ended="overflow").error is not None
