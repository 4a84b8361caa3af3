"""Checks of what agents are shown and what their messages do: also hostile ones, and how long a turn takes."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from statistics import median

from marft.envs.checking.about_rewards import judged
from marft.envs.checking.about_states import CHANGED, walk
from marft.envs.checking.finding import Breach, Finding
from marft.envs.checking.probes import AGENT, HOSTILE, sayings, turn
from marft.envs.checking.subject import Subject

AGENTS = ("planner", AGENT, "majority")  # the last is on no team: it announces a vote's result
SLOW, NOT_LIGHT = 1.0, 0.002  # seconds of a turn that are worth a word; of a light environment's


def observe(subject: Subject) -> Iterator[Finding]:
    longest, where = 0, subject.where("observe")
    for task in subject.samples:
        for state in walk(subject, task, sayings(task)[:3]):
            before = subject.mark(state, "the state")
            agent = subject.speaker(state)
            for name in AGENTS if not subject.decides_turns else () if agent is None else (agent,):
                one, two = (subject.ask("observe", state, name, on=f"a state for {name!r}") for _ in range(2))
                if not isinstance(one, str):
                    raise Breach(f'observe gave {type(one).__name__}; return a text, "" for nothing{where}')
                if one != two:
                    raise Breach(
                        f"observe shows two things of one state; it may depend on state and agent alone{where}"
                    )
                longest = max(longest, len(one))
            if subject.mark(state, "the state") != before:
                raise Breach(f"observe {CHANGED}{where}")
    text = f"a text, the same twice; at most {longest:,} characters seen"
    yield Finding(check="observe", ok=True, text=text if subject.shows_more else "shows nothing beside the task")


def whose_turn(subject: Subject) -> Iterator[Finding]:
    if not subject.decides_turns:
        yield Finding(check="whose turn", ok=True, text="left to the workflow")
        return
    names = {subject.speaker(state) for task in subject.samples for state in walk(subject, task, sayings(task)[:2])}
    told = ", ".join(sorted(name for name in names if name is not None)) or "nobody"
    yield Finding(check="whose turn", ok=True, text=f"decided by the environment; seen: {told}")


def answer(subject: Subject) -> Iterator[Finding]:
    for text in (text for task in subject.samples for text in sayings(task)):
        one, two = (subject.ask("answer", text, on=repr(text[:40])) for _ in range(2))
        if not isinstance(one, Hashable) or one != two:
            raise Breach(
                f"answer gave {one!r} for {text[:40]!r}, which cannot be counted; return a text, a number or a tuple, the "
                f"same for the same text, or None{subject.where('answer')}"
            )
    yield Finding(check="answer", ok=True, text="can be counted in a vote")


def hostile(subject: Subject) -> Iterator[Finding]:
    task = subject.samples[0]
    start = subject.ask("reset", task)
    agent = subject.speaker(start) or AGENT
    for what, text in HOSTILE.items():
        state = subject.ask("transition", start, turn(text, agent=agent), on=what)
        judged(subject, state, f"after {what}")
        if (listener := subject.speaker(state)) is not None:
            subject.ask("observe", state, listener, on=what)
        subject.ask("answer", text, on=what)
    yield Finding(check="hostile messages", ok=True, text=f"{len(HOSTILE)} of them do no harm")


def speed(subject: Subject) -> Iterator[Finding]:
    took = []
    for task in subject.samples:
        state = subject.ask("reset", task)
        agent = subject.speaker(state) or AGENT
        for text in sayings(task):
            began = time.perf_counter()
            subject.ask("reward", subject.ask("transition", state, turn(text, agent=agent)))
            took.append(time.perf_counter() - began)
    middle = median(took)
    text = f"{1000 * middle:.2g} ms for a turn and its reward, {1000 * max(took):.2g} ms at most"
    slow = middle > (NOT_LIGHT if subject.env.light else SLOW)
    if slow and subject.env.light:
        text += "; the trainer waits for an environment with light = True: drop light, and it runs beside it"
    yield Finding(check="speed", ok=None if slow else True, text=text)
