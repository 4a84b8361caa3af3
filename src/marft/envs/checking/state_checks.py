"""Checks of the states: values that nothing changes, that travel between processes, and that every instance understands."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from marft.envs.checking.checked_env import CheckedEnv
from marft.envs.checking.finding import Finding, Violation, describe_error
from marft.envs.checking.sample_messages import make_turn, sample_messages
from marft.types import Task

LARGE = 1 << 20  # bytes of a state that are worth a word
CHANGED = "changed the state it was given; build a new one, as in (*state, turn.text) or dataclasses.replace(state, …)"


def check_reset(checked: CheckedEnv) -> Iterator[Finding]:
    """Depends on the task alone and does not change it."""
    for task in checked.samples:
        before = checked.fingerprint(task, f"task {task.id!r}")
        one, two = checked.ask("reset", task), checked.ask("reset", deepcopy(task))
        if checked.fingerprint(one) != checked.fingerprint(two):
            raise checked.violation("reset", "reset gives two states for one task; it may depend on the task alone")
        if checked.fingerprint(task, "the task") != before:
            raise checked.violation("reset", "reset changes the task; copy what you need of it")
    yield Finding(check="reset", ok=True, text="equal tasks, equal states")


def check_transition(checked: CheckedEnv) -> Iterator[Finding]:
    """Depends on state and turn alone and changes neither."""
    for task in checked.samples:
        state = checked.ask("reset", task)
        before = checked.fingerprint(state)
        for text in sample_messages(task):
            if (agent := checked.next_agent(state)) is None:
                break
            one = checked.ask("transition", state, make_turn(text, agent=agent), on=repr(text[:40]))
            if checked.fingerprint(state) != before:
                raise checked.violation("transition", f"transition {CHANGED}")
            two = checked.ask("transition", state, make_turn(text, agent=agent), on=repr(text[:40]))
            if checked.fingerprint(one) != checked.fingerprint(two):
                text = (
                    "transition gives two states for one message; it may depend on state and turn alone, so draw with "
                )
                raise checked.violation("transition", f"{text}random.Random(seed) from what they hold")
    yield Finding(check="transition", ok=True, text="changes nothing, and gives equal states for equal messages")


def check_forks(checked: CheckedEnv) -> Iterator[Finding]:
    """Two games that share their first turn do not disturb one another."""
    for task in checked.samples:
        first, second, third, *_ = sample_messages(task)
        game = play_messages(checked, task, [first, second])
        kept = [checked.fingerprint(state) for state in game]
        for fork in next_states(checked, game[min(1, len(game) - 1)], third, 1):
            next_states(checked, fork, first, 2)
        play_messages(checked, task, [third, first])
        if [checked.fingerprint(state) for state in game] != kept:
            text = "games that fork share something that changes: copy lists and dicts before you add to them"
            raise checked.violation("transition", text)
        if [checked.fingerprint(state) for state in play_messages(checked, task, [first, second])] != kept:
            text = "a game played again goes elsewhere when others were played between; keep nothing on self"
            raise checked.violation("transition", text)
    yield Finding(check="forks", ok=True, text="games that fork from one state do not disturb one another")


def check_instances(checked: CheckedEnv) -> Iterator[Finding]:
    """Any worker process may be asked about any state."""
    for task in checked.samples:
        state = play_messages(checked, task, sample_messages(task)[:2])[-1]
        fresh = checked.build()
        agent = checked.next_agent(state)
        questions: list[tuple[str, tuple[Any, ...]]] = [("reward", (state,))]
        if agent is not None:
            questions += [("observe", (state, agent)), ("transition", (state, make_turn("yes", 2, agent)))]
        for method, arguments in questions:
            one = checked.ask(method, *arguments)
            two = checked.ask(method, *arguments, on="a state of another instance", env=fresh)
            if checked.fingerprint(one, f"what {method} gives") != checked.fingerprint(two, f"what {method} gives"):
                text = (
                    f"{method} differs between two instances; all that it needs must lie in the state, nothing on self"
                )
                raise checked.violation(method, text)
    yield Finding(check="instances", ok=True, text="another instance goes on from any state")


def check_pickling(checked: CheckedEnv) -> Iterator[Finding]:
    """Tasks, states and rewards travel between processes by pickle."""
    largest = 0
    for task in checked.samples:
        states = play_messages(checked, task, sample_messages(task)[:2])
        rewards = [checked.ask("reward", state) for state in states]
        for what, value in [("a task", task), *(("a state", s) for s in states), *(("a reward", r) for r in rewards)]:
            try:
                data = pickle.dumps(value)
                back = pickle.loads(data)
            except Exception as error:  # the user's classes decide how they are saved
                raise Violation(f"{what} cannot be pickled: {describe_error(error)}; keep plain values in it") from None
            if checked.fingerprint(back, what) != checked.fingerprint(value, what):
                raise Violation(f"{what} comes back from pickle as something else; keep plain values in it")
            largest = max(largest, len(data) if what == "a state" else 0)
    text = f"tasks, states and rewards can be pickled; the largest state has {largest:,} bytes"
    slow = "; every turn sends it to another process and back: keep large data on self, and its key in the state"
    yield Finding(check="saved", ok=None if largest > LARGE else True, text=text + (slow if largest > LARGE else ""))


def play_messages(checked: CheckedEnv, task: Task, texts: list[str]) -> list[Any]:
    """The states of a game in which these messages are said, from the first on."""
    states = [checked.ask("reset", task)]
    for index, text in enumerate(texts):
        states += next_states(checked, states[-1], text, index)
    return states


def next_states(checked: CheckedEnv, state: Any, text: str, index: int) -> list[Any]:
    """The next state, or none where the game is over."""
    agent = checked.next_agent(state)
    return (
        [] if agent is None else [checked.ask("transition", state, make_turn(text, index, agent), on=repr(text[:40]))]
    )
