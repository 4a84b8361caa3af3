"""An orchestrator: which decisions are understood, what becomes of the others, and what its workers are shown."""

from __future__ import annotations

import time

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from voices import TASK, Voice, in_turn, run, team, views

from marft.envs.arithmetic import Arithmetic
from marft.game.workflows import find_workflow
from marft.game.workflows.orchestrated import Decision, decide
from marft.types import Episode, Task

WORKERS = ["planner", "solver", "verifier"]
DONE = Decision(agent=None)
SOLVER = Decision(agent="solver")


# --- the grammar ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("Done", DONE),
        ("Done.", DONE),
        ("  done \n", DONE),
        ("DONE.", DONE),
        ("Next: solver", SOLVER),
        ("\n next:solver ", SOLVER),
        ("NEXT:   solver", SOLVER),
        ("Next: solver sees planner", Decision(agent="solver", sees=("planner",))),
        ("Next: solver sees planner, verifier", Decision(agent="solver", sees=("planner", "verifier"))),
        ("next: solver SEES  planner ,verifier", Decision(agent="solver", sees=("planner", "verifier"))),
        ("Next: solver sees solver", Decision(agent="solver", sees=("solver",))),
        ("Next: solver sees nobody", Decision(agent="solver", sees=())),
        ("Next: solver sees Everyone", Decision(agent="solver", sees=("planner", "solver", "verifier"))),
    ],
)
def test_decisions(text: str, decision: Decision) -> None:
    assert decide(text, WORKERS) == decision


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Done..",
        "Done!",
        "I am done",
        "Done Next: solver",
        "Done\nNext: solver",
        "Next: solver\nDone",
        "Next: solver\n\nNext: planner",
        "Next: solver\rDone",
        "Next:\nsolver",
        "Next: solver\nsees planner",
        "Next: solver sees planner,\u2028verifier",
        "Next: solver\u2028Done",
        "Next:",
        "Next: ",
        "Next solver",
        "solver",
        "Next: Solver",  # names are names
        "Next: solver.",
        "Next: solver, planner",
        "Next: solver planner",
        "Next: stranger",
        "Next: orchestrator",
        "Next: nobody",
        "Next: __class__",
        "Next: solver sees",
        "Next: solver sees ",
        "Next: solver sees ,",
        "Next: solver sees planner,",
        "Next: solver sees planner,,verifier",
        "Next: solver sees stranger",
        "Next: solver sees planner, stranger",
        "Next: solver sees planner verifier",
        "Next: solver sees nobody, planner",
        "Next: solver sees everyone, planner",
        "Next: solver sees planner sees verifier",
        "Next: solver \u017fee\u017f planner",  # ſeeſ
        "N\u0435xt: solver",  # a Cyrillic е
        "Next: sol\u200bver",
        "Next: solver\x00",
        "Next: {workers[0]}",
        "Next: " + "solver" * 100_000,
        "Next: solver" + " " * 100_000 + "sees" + " " * 100_000 + ",",
        "Next: " * 100_000,
    ],
)
def test_malformed_decisions(text: str) -> None:
    start = time.perf_counter()
    assert decide(text, WORKERS) is None
    assert time.perf_counter() - start < 1


@given(st.text() | st.text(alphabet="Nextdonsrvpla:., \nyEQ").map("Next: {}".format))
def test_a_decision_names_workers_or_there_is_none(text: str) -> None:
    decision = decide(text, WORKERS)
    if decision is not None:
        assert decision.agent is None or decision.agent in WORKERS
        assert all(name in WORKERS for name in decision.sees or ())


# --- the play ---------------------------------------------------------------------------------------------------------
def directed(
    *texts: str, steps: int | None = None, env: object = None, task: Task = TASK, **sees: tuple[str, ...]
) -> Episode:
    agents = team("boss", "planner", "solver", voice=Voice(in_turn(*texts)), **sees)
    return run(agents, find_workflow("orchestrated", {"steps": steps} if steps else {}), env=env, task=task)


def test_orchestrated_prompt_by_prompt() -> None:
    """As `nano` was taught: the orchestrator reads the team and what it said; a worker reads nothing of orders."""
    chain = Task(id="c", prompt="Start with 17. Add 5.", data={"answer": 22})
    episode = directed(
        "Next: planner", "17+5", "Next: solver", "17+5=22\nAnswer: 22", "Done", env=Arithmetic(), task=chain
    )
    team_line = "Start with 17. Add 5.\n\nTeam: planner, solver"
    assert views(episode) == [
        ("boss", team_line),
        ("planner", "Start with 17. Add 5."),
        ("boss", team_line + "\n\nplanner: 17+5"),
        ("solver", "Start with 17. Add 5.\n\nplanner: 17+5"),
        ("boss", team_line + "\n\nplanner: 17+5\n\nsolver: 17+5=22\nAnswer: 22"),
    ]
    assert [turn.aside for turn in episode.turns] == [True, False, True, False, True]
    assert episode.reward.correct  # "Done" is not the team's answer
    assert episode.counts == {}


def test_the_orchestrator_decides_who_sees_whom_from_step_to_step() -> None:
    episode = directed(
        "Next: planner", "p1", "Next: solver sees nobody", "s1", "Next: solver sees solver", "s2",
        "Next: solver sees everyone", "s3", "Next: solver sees planner", "s4", "Next: solver", "s5", "Done",
        solver=("planner",),
    )  # fmt: skip
    seen = [text.removeprefix(TASK.prompt) for name, text in views(episode) if name == "solver"]
    everyone = "\n\nplanner: p1\n\nsolver: s1\n\nsolver: s2"
    assert seen == [
        "",
        "\n\nsolver: s1",
        everyone,
        "\n\nplanner: p1",
        "\n\nplanner: p1",
    ]  # the last as its profile says


def test_profiles_may_show_the_decisions() -> None:
    episode = directed("Next: planner", "p", "Done", boss=("boss",), planner=("boss", "planner"))
    assert views(episode) == [
        ("boss", "What is 2 + 2?\n\nTeam: planner, solver"),
        ("planner", "What is 2 + 2?\n\nboss: Next: planner"),
        ("boss", "What is 2 + 2?\n\nTeam: planner, solver\n\nboss: Next: planner"),
    ]


def test_a_malformed_decision_is_asked_again_once() -> None:
    episode = directed("Well, well.", "Next: solver", "s", "Done")
    assert [turn.agent for turn in episode.turns] == ["boss", "boss", "solver", "boss"]
    assert episode.counts == {"malformed": 1}
    assert episode.turns[0].observation == episode.turns[1].observation


def test_after_two_malformed_decisions_the_next_in_the_list_acts() -> None:
    episode = directed("?", "?", "p", "?", "?", "s", "?", "?")
    assert [turn.agent for turn in episode.turns] == [
        "boss", "boss", "planner", "boss", "boss", "solver", "boss", "boss",
    ]  # fmt: skip
    assert episode.counts == {"malformed": 6}
    assert views(episode)[5] == ("solver", "What is 2 + 2?\n\nplanner: p")


def test_the_next_in_the_list_is_the_first_who_has_not_acted() -> None:
    episode = directed("Next: solver", "s", "?", "?", "p", "Done")
    assert [turn.agent for turn in episode.turns] == ["boss", "solver", "boss", "boss", "planner", "boss"]
    assert episode.counts == {"malformed": 2}


def test_workers_act_at_most_so_many_times() -> None:
    episode = directed(*["Next: solver", "s"] * 9, steps=3)
    assert [turn.agent for turn in episode.turns] == ["boss", "solver"] * 3
    assert [turn.agent for turn in directed(*["Next: solver", "s"] * 9).turns] == ["boss", "solver"] * 8


def test_an_orchestrator_may_be_done_at_once() -> None:
    episode = directed("Done")
    assert [(turn.agent, turn.text) for turn in episode.turns] == [("boss", "Done")]
    assert episode.reward == toys.Echo().reward("")


def test_hostile_decisions_still_end() -> None:
    for text in ["Next: boss", "Next: stranger", "", "Done\n" * 1000]:
        episode = directed(*[text] * 8)
        assert len(episode.turns) == 8
        assert episode.counts == {"malformed": 6}
