"""Every broken promise is found by its own check, in one line that says what to do; a good environment has none."""

from __future__ import annotations

import inspect
from typing import Any

import faulty
import pytest

from marft.envs.checking import Finding
from marft.envs.checking.check_process import CHECKS, run_all_checks


def findings(name: str, **settings: Any) -> list[Finding]:
    """What the checks find, in this very process: none of these environments hangs."""
    events: list[Any] = []
    run_all_checks(name, settings, [], events.append)
    return [Finding(**event["finding"]) for event in events if "finding" in event]


def failures(name: str, **settings: Any) -> dict[str, str]:
    return {finding.check: finding.text for finding in findings(f"faulty:{name}", **settings) if finding.ok is False}


def notes(name: str) -> dict[str, str]:
    return {finding.check: finding.text for finding in findings(f"faulty:{name}") if finding.ok is None}


def test_a_good_environment_passes_every_check() -> None:
    found = findings("faulty:Good")
    assert [finding.check for finding in found] == ["class", "methods", "constructor", *CHECKS]
    assert all(finding.ok for finding in found), "\n".join(map(str, found))
    said = {finding.check: str(finding) for finding in found}
    assert said["tasks"] == "ok    tasks: 3 for training, 2 held out"
    assert said["reward"] == "ok    reward: finite and the same twice; rewards seen: 0 … 1"


@pytest.mark.parametrize("level", [1, 8])
def test_built_in_arithmetic_passes(level: int) -> None:
    found = findings("arithmetic", level=level, feedback=True)
    assert [str(finding) for finding in found if not finding.ok] == []
    assert "rewards of single turns are always given" in {finding.text for finding in found}
    assert "100,000 for training, 5,000 held out (the first 500 of each were read)" in {f.text for f in found}


@pytest.mark.parametrize(
    ("name", "check", "expected"),
    [
        ("Nothing", "class", "AttributeError: module 'faulty' has no attribute 'Nothing'"),
        ("Forgetful", "class", "write `class Forgetful(marft.Environment):`"),
        ("", "class", "names no class; write MODULE:CLASS"),
        ("NoReward", "methods", "NoReward has no method reward; add `def reward(self, state):`"),
        ("OldObserve", "methods", "write `def observe(self, state, agent):` (faulty.py, line "),
        ("Async", "methods", "without async or yield; write `def transition(self, state, turn):` (faulty.py, line "),
        ("NotAMethod", "methods", "NotAMethod.observe is not a method"),
        ("BadSetting", "constructor", "level must be at least 1 (faulty.py, line "),
        ("Exits", "constructor", "it ends the process: SystemExit: 3 (faulty.py, line "),
        ("Empty", "tasks", "tasks('test') is empty"),
        ("Yields", "tasks", "tasks('train') gave generator; return a list of marft.Task"),
        ("NotTasks", "tasks", "task 0 of 'train' is a dict; make it a marft.Task"),
        ("NumberIds", "tasks", "has the id 0; give it a text"),
        ("Blank", "tasks", "has the prompt '  '"),
        ("ListData", "tasks", "has a list as data"),
        ("Twins", "tasks", "two tasks of 'train' have the id 'plan'"),
        ("LazyBroken", "tasks", "reading tasks('train') raised OSError: disk gone (faulty.py, line "),
        ("NeedsData", "tasks", "tasks raised env.path: name the folder"),
        ("SharedIds", "splits", "train and test share 1 of their ids, such as 'a'"),
        ("SharedPrompts", "splits", "train and test share 1 of their prompts, such as 'the same'"),
        ("Draws", "same tasks", "a second instance has other tasks for 'train'; draw with random.Random(seed)"),
        ("NumberGold", "gold", "gold gave int; return a text, or None where there is none to show (faulty.py, line "),
        ("TwoGolds", "gold", "gold gave two answers for one task"),
        ("NoGold", "gold", "gold on task 'plan' raised KeyError: 'solution' (faulty.py, line "),
        ("CountsGames", "reset", "reset gives two states for one task"),
        ("Mutates", "transition", "transition changed the state it was given; build a new one"),
        ("Chance", "transition", "transition gives two states for one message"),
        ("SharesList", "forks", "games that fork share something that changes"),
        ("CountsTurns", "forks", "a game played again goes elsewhere"),
        ("KeepsOnSelf", "instances", "reward differs between two instances; all that it needs must lie in the state"),
        ("OpenFile", "reset", "the state cannot be saved: TypeError: cannot pickle"),
        ("Changes", "saved", "a state comes back from pickle as something else"),
        ("Float", "reward", "reward gave float before anybody has spoken; return marft.Reward(team=…)"),
        ("Nan", "reward", "the reward after 'yes' is nan; it must be a finite number"),
        ("TurnNan", "reward", "the reward after 'yes' is inf"),
        ("TurnList", "reward", "Reward.turns is a list after 'yes'; give a dict {turn.index: number}"),
        ("Maybe", "reward", "Reward.correct is 'yes' after 'yes'"),
        ("DoneText", "reward", "Reward.done is 'no' after 'yes'"),
        ("Dice", "reward", "reward gives two rewards for one state"),
        ("SpoilsInReward", "reward", "reward changed the state it was given"),
        ("ItemisedText", "reward", "Reward.itemised is 'no' after 'yes'; give True or False"),
        ("NumberedPlayers", "reward", "Reward.players is {0: 1} after 'yes'; give a dict {turn.index: name}"),
        ("TurnOne", "turn rewards", "Reward.turns holds 1 when only the turns [0] were heard; use turn.index"),
        ("Sometimes", "turn rewards", "Reward.turns is given in some states and empty in others"),
        ("ShowsNone", "observe", 'observe gave NoneType; return a text, "" for nothing'),
        ("ShowsTime", "observe", "observe shows two things of one state"),
        ("OnlySolver", "observe", "observe on a state for 'planner' raised KeyError: 'planner' (faulty.py, line "),
        ("NumbersTurns", "whose turn", "whose_turn gave int; return an agent's name, or None"),
        ("ListAnswer", "answer", "answer gave ['yes'] for 'yes', which cannot be counted"),
        ("Brittle", "hostile messages", "transition on half a surrogate pair raised UnicodeEncodeError"),
        ("Boxed", "hostile messages", "answer on JSON raised IndexError: list index out of range (faulty.py, line "),
    ],
)
def test_a_broken_promise_is_found(name: str, check: str, expected: str) -> None:
    found = failures(name)
    assert expected in found.get(check, f"not found; {found}")
    assert all("\n" not in text for text in found.values())


def test_the_line_is_the_users_own() -> None:
    lines, first = inspect.getsourcelines(faulty.Brittle.transition)
    guilty = first + next(i for i, line in enumerate(lines) if ".encode()" in line)
    assert failures("Brittle")["hostile messages"].endswith(f"(faulty.py, line {guilty})")
    _, header = inspect.getsourcelines(faulty.OldObserve.observe)
    assert failures("OldObserve")["methods"].endswith(f"(faulty.py, line {header})")


def test_where_nothing_can_be_looked_at_the_rest_is_left_out() -> None:
    assert [finding.check for finding in findings("faulty:NoReward")] == ["class", "methods"]
    assert [finding.check for finding in findings("faulty:Empty")] == ["class", "methods", "constructor", "tasks"]
    assert set(failures("Nan")) == {"reward", "hostile messages"}  # and the others are still looked at


@pytest.mark.parametrize(
    ("name", "check", "expected"),
    [
        ("Leaks", "hidden answers", "data['answer'] stands in the prompt of 3 of 3 tasks"),
        ("SharedRules", "splits", "fine where tasks differ in what observe shows"),
        ("SlowThoughLight", "speed", "drop light"),
        ("Constant", "reward", "every message tried earned 0.5"),
        ("Generous", "reward", "rewards beyond ±10"),
        ("LikesEcho", "reward", "the prompt said back earns 1"),
        ("Huge", "saved", "keep large data on self"),
    ],
)
def test_what_is_only_worth_a_word(name: str, check: str, expected: str) -> None:
    assert expected in notes(name)[check]
    assert failures(name) == {}


def test_an_environment_may_decide_who_acts() -> None:
    said = {finding.check: finding for finding in findings("faulty:Alternates")}
    assert said["whose turn"].text == "decided by the environment; seen: ann, bob"
    assert all(finding.ok for finding in said.values())


def test_settings_reach_the_constructor() -> None:
    assert failures("BadSetting", level=2) == {}
    assert "unknown key 'env.levle'" in failures("BadSetting", levle=2)["constructor"]
