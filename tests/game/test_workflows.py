"""The built-in workflows, prompt by prompt, and how a workflow is found."""

from __future__ import annotations

import re
from functools import partial

import pytest
import toys
from voices import Voice, in_turn, run, team, views

from marft.envs.arithmetic import Arithmetic
from marft.game.play import Game
from marft.game.workflows import check_workflow, find_workflow
from marft.game.workflows.built_in import debate
from marft.types import MarftError, Request, Reward, Task

CHAIN = Task(id="c", prompt="Start with 17. Add 5.", data={"answer": 22})


# --- finding ----------------------------------------------------------------------------------------------------------
def test_a_workflow_of_ones_own_by_name() -> None:
    episode = run(team("planner", "solver"), find_workflow("toys:both"))
    assert [turn.agent for turn in episode.turns] == ["planner", "solver"]
    assert "<planner>" not in episode.turns[1].observation[1].content


@pytest.mark.parametrize("name", ["toys:nothing", "no_such_module:f", ":f", "..up:f", "toys:TINY"])
def test_a_workflow_that_cannot_be_found_is_one_line(name: str) -> None:
    with pytest.raises(MarftError, match=rf"^team\.workflow: .*{re.escape(name)}"):
        find_workflow(name)


def test_a_workflow_that_is_not_async_is_one_line() -> None:
    with pytest.raises(MarftError, match=r"^team\.workflow: 'toys:files' is not an async function"):
        find_workflow("toys:files")


def test_a_workflow_of_ones_own_takes_no_settings_that_it_does_not_have() -> None:
    with pytest.raises(MarftError, match=r"^team\.options\.rounds: the workflow has no such argument; it has none"):
        find_workflow("toys:both", {"rounds": 2})


def test_the_name_of_a_function_finds_it_again() -> None:
    assert check_workflow(toys.both, "workflow") == "toys:both"
    assert find_workflow(check_workflow(toys.both, "workflow")) is toys.both
    assert check_workflow(debate, "workflow") == "marft.game.workflows.built_in:debate"


def test_what_a_partial_binds_cannot_be_found_by_name() -> None:
    name = check_workflow(partial(debate, rounds=5), "workflow")
    with pytest.raises(MarftError, match=r"was given from Python and lies in no file"):
        find_workflow(name)


@pytest.mark.parametrize(
    ("name", "settings", "turns"),
    [
        ("sequential", {}, "abc"),
        ("debate", {}, "ababc"),
        ("debate", {"rounds": 1}, "abc"),
        ("vote", {}, "abcM"),
        ("vote", {"votes": 3}, "aaabbbcccM"),
        ("rounds", {}, "abcabcabc"),
        ("rounds", {"rounds": 2}, "abcabc"),
    ],
)
def test_settings_reach_the_workflow(name: str, settings: dict[str, int], turns: str) -> None:
    class Endless(toys.Echo):
        def reward(self, state: str) -> Reward:
            return Reward(team=0.0, done=False)

    episode = run(team("a", "b", "c"), find_workflow(name, settings), env=Endless())
    assert "".join(turn.agent for turn in episode.turns).replace("majority", "M") == turns


# --- what each agent is shown, word for word --------------------------------------------------------------------------
def test_sequential_prompt_by_prompt() -> None:
    voice = Voice(in_turn("17+5", "17+5=22\nAnswer: 22"))
    episode = run(team("planner", "solver", voice=voice), find_workflow("sequential"), env=Arithmetic(), task=CHAIN)
    assert views(episode) == [
        ("planner", "Start with 17. Add 5."),
        ("solver", "Start with 17. Add 5.\n\nplanner: 17+5"),
    ]
    assert episode.reward.correct


def test_debate_prompt_by_prompt() -> None:
    voice = Voice(in_turn("Answer: 1", "Answer: 2", "I agree. Answer: 2", "Answer: 3", "Answer: 22"))
    agents = team("pro", "con", "judge", voice=voice, con=("pro",))
    episode = run(agents, find_workflow("debate"), env=Arithmetic(), task=CHAIN)
    first = "\n\npro: Answer: 1\n\ncon: Answer: 2"
    assert views(episode) == [
        ("pro", "Start with 17. Add 5."),
        ("con", "Start with 17. Add 5."),
        ("pro", "Start with 17. Add 5." + first),
        ("con", "Start with 17. Add 5.\n\npro: Answer: 1"),
        ("judge", "Start with 17. Add 5." + first + "\n\npro: I agree. Answer: 2\n\ncon: Answer: 3"),
    ]
    assert episode.reward.correct


def test_rounds_stop_when_the_task_is_done() -> None:
    voice = Voice(in_turn("17+5", "Answer: 12", "17+5", "17+5=22\nAnswer: 22", "never", "asked"))
    agents = team("planner", "solver", voice=voice)
    episode = run(agents, find_workflow("rounds"), env=Arithmetic(feedback=True), task=CHAIN)
    wrong = "Start with 17. Add 5.\n\n12 is wrong.\n\nplanner: 17+5\n\nsolver: Answer: 12"
    assert views(episode) == [
        ("planner", "Start with 17. Add 5."),
        ("solver", "Start with 17. Add 5.\n\nplanner: 17+5"),
        ("planner", wrong),
        ("solver", wrong + "\n\nplanner: 17+5"),
    ]
    assert episode.reward.turns == {0: 0.0, 1: -0.1, 2: 0.0, 3: 0.0}
    assert (episode.reward.team, episode.reward.done) == (1.0, True)


def test_rounds_without_feedback_are_one_round() -> None:
    voice = Voice(in_turn("17+5", "Answer: 12"))
    assert len(run(team("a", "b", voice=voice), find_workflow("rounds"), env=Arithmetic(), task=CHAIN).turns) == 2


# --- votes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ballots", "winner"),
    [
        (["Answer: 3", "Answer: 22", "20+2=22\nAnswer: 22"], "Answer: 22"),  # the first who said so
        (["Answer: 3", "Answer: 22", "?"], "Answer: 3"),  # a tie: first come, first served
        (["Answer: 22", "Answer: 3", "Answer: 5"], "Answer: 22"),
        (["?", "?", "Answer: 3"], "Answer: 3"),  # no answer is no vote
        (["Answer: 3", "Answer: 022", "Answer:22"], "Answer: 022"),  # the same number in other words
        (["?", "Answer: 1. Answer: 2", ""], "?"),  # nobody answers
    ],
)
def test_votes(ballots: list[str], winner: str) -> None:
    agents = team("a", "b", "c", voice=Voice(in_turn(*ballots)))
    episode = run(agents, find_workflow("vote"), env=Arithmetic(), task=CHAIN)
    assert views(episode) == [(name, "Start with 17. Add 5.") for name in "abc"] + [("majority", "")]
    assert [turn.text for turn in episode.turns] == [*ballots, winner]
    assert episode.reward.correct == (winner in ("Answer: 22", "Answer: 022"))


def test_equal_votes_go_to_whoever_comes_first_in_the_team() -> None:
    """Ballots are drawn at once; the team's order decides, not whose came first."""
    answers = {"z": "Answer: 22", "a": "Answer: 3"}

    def script(request: Request) -> str:
        return answers[str(request.adapter)]

    workflow = find_workflow("vote", {"votes": 2})
    episode = run(team("z", "a", voice=Voice(script)), workflow, env=Arithmetic(), task=CHAIN)
    assert [turn.agent for turn in episode.turns] == ["z", "z", "a", "a", "majority"]
    assert episode.turns[-1].text == "Answer: 22"


def test_voters_see_nobody_even_after_a_discussion() -> None:
    async def discuss_and_vote(game: Game) -> None:
        await game.act("a")
        await find_workflow("vote")(game)

    voice = Voice(lambda request: "4")
    assert views(run(team("a", "b", voice=voice), discuss_and_vote))[1:3] == [
        ("a", "What is 2 + 2?"),
        ("b", "What is 2 + 2?"),
    ]


def test_every_vote_has_its_own_luck() -> None:
    voice = Voice(lambda request: "x")
    run(team("a", voice=voice), find_workflow("vote", {"votes": 5}))
    assert len({request.seed for request in voice.requests}) == 5
