"""Checks of the states: values that nothing changes, that travel between processes, and that every instance understands."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from marft.envs.checking.finding import Breach, Finding, explain
from marft.envs.checking.probes import sayings, turn
from marft.envs.checking.subject import Subject
from marft.types import Task

LARGE = 1 << 20  # bytes of a state that are worth a word
CHANGED = "changed the state it was given; build a new one, as in (*state, turn.text) or dataclasses.replace(state, …)"


def reset(subject: Subject) -> Iterator[Finding]:
    for task in subject.samples:
        before = subject.mark(task, f"task {task.id!r}")
        one, two = subject.ask("reset", task), subject.ask("reset", deepcopy(task))
        if subject.mark(one, "the state") != subject.mark(two, "the state"):
            raise Breach(
                f"reset gives two states for one task; it may depend on the task alone{subject.where('reset')}"
            )
        if subject.mark(task, "the task") != before:
            raise Breach(f"reset changes the task; copy what you need of it{subject.where('reset')}")
    yield Finding(check="reset", ok=True, text="equal tasks, equal states")


def transition(subject: Subject) -> Iterator[Finding]:
    for task in subject.samples:
        state = subject.ask("reset", task)
        before = subject.mark(state, "the state")
        for text in sayings(task):
            if (agent := subject.speaker(state)) is None:
                break
            one = subject.ask("transition", state, turn(text, agent=agent), on=repr(text[:40]))
            if subject.mark(state, "the state") != before:
                raise Breach(f"transition {CHANGED}{subject.where('transition')}")
            two = subject.ask("transition", state, turn(text, agent=agent), on=repr(text[:40]))
            if subject.mark(one, "the state") != subject.mark(two, "the state"):
                raise Breach(
                    "transition gives two states for one message; it may depend on state and turn alone, so draw with "
                    f"random.Random(seed) from what they hold{subject.where('transition')}"
                )
    yield Finding(check="transition", ok=True, text="changes nothing, and gives equal states for equal messages")


def forks(subject: Subject) -> Iterator[Finding]:
    """Two games that share their first turn do not disturb one another."""
    for task in subject.samples:
        first, second, third, *_ = sayings(task)
        game = walk(subject, task, [first, second])
        kept = [subject.mark(state, "the state") for state in game]
        for fork in following(subject, game[min(1, len(game) - 1)], third, 1):
            following(subject, fork, first, 2)
        walk(subject, task, [third, first])
        if [subject.mark(state, "the state") for state in game] != kept:
            raise Breach(
                "games that fork share something that changes: copy lists and dicts before you add to them"
                f"{subject.where('transition')}"
            )
        if [subject.mark(state, "the state") for state in walk(subject, task, [first, second])] != kept:
            raise Breach(
                f"a game played again goes elsewhere when others were played between; keep nothing on self"
                f"{subject.where('transition')}"
            )
    yield Finding(check="forks", ok=True, text="games that fork from one state do not disturb one another")


def instances(subject: Subject) -> Iterator[Finding]:
    """Any worker process may be asked about any state."""
    for task in subject.samples:
        state = walk(subject, task, sayings(task)[:2])[-1]
        fresh = subject.build()
        agent = subject.speaker(state)
        questions: list[tuple[str, tuple[Any, ...]]] = [("reward", (state,))]
        if agent is not None:
            questions += [("observe", (state, agent)), ("transition", (state, turn("yes", 2, agent)))]
        for method, arguments in questions:
            one = subject.ask(method, *arguments)
            two = subject.ask(method, *arguments, on="a state of another instance", env=fresh)
            if subject.mark(one, f"what {method} gives") != subject.mark(two, f"what {method} gives"):
                raise Breach(
                    f"{method} differs between two instances; all that it needs must lie in the state, nothing on self"
                    f"{subject.where(method)}"
                )
    yield Finding(check="instances", ok=True, text="another instance goes on from any state")


def saved(subject: Subject) -> Iterator[Finding]:
    """Tasks, states and rewards travel between processes by pickle."""
    largest = 0
    for task in subject.samples:
        states = walk(subject, task, sayings(task)[:2])
        rewards = [subject.ask("reward", state) for state in states]
        for what, value in [("a task", task), *(("a state", s) for s in states), *(("a reward", r) for r in rewards)]:
            try:
                data = pickle.dumps(value)
                back = pickle.loads(data)
            except Exception as error:  # the user's classes decide how they are saved
                raise Breach(f"{what} cannot be pickled: {explain(error)}; keep plain values in it") from None
            if subject.mark(back, what) != subject.mark(value, what):
                raise Breach(f"{what} comes back from pickle as something else; keep plain values in it")
            largest = max(largest, len(data) if what == "a state" else 0)
    text = f"tasks, states and rewards can be pickled; the largest state has {largest:,} bytes"
    slow = "; every turn sends it to another process and back: keep large data on self, and its key in the state"
    yield Finding(check="saved", ok=None if largest > LARGE else True, text=text + (slow if largest > LARGE else ""))


def walk(subject: Subject, task: Task, texts: list[str]) -> list[Any]:
    """The states of a game in which these messages are said, from the first on."""
    states = [subject.ask("reset", task)]
    for index, text in enumerate(texts):
        states += following(subject, states[-1], text, index)
    return states


def following(subject: Subject, state: Any, text: str, index: int) -> list[Any]:
    """The next state, or none where the game is over."""
    agent = subject.speaker(state)
    return [] if agent is None else [subject.ask("transition", state, turn(text, index, agent), on=repr(text[:40]))]
