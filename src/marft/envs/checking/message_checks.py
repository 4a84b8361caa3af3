"""Checks of what agents are shown and what their messages do: also hostile ones, and how long a turn takes."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from statistics import median

from marft.envs.checking.checked_env import CheckedEnv
from marft.envs.checking.finding import Finding
from marft.envs.checking.reward_checks import checked_reward
from marft.envs.checking.sample_messages import AGENT, HOSTILE, make_turn, sample_messages
from marft.envs.checking.state_checks import CHANGED, play_messages

AGENTS = ("planner", AGENT, "majority")  # the last is on no team: it announces a vote's result
SLOW, NOT_LIGHT = 1.0, 0.002  # seconds of a turn that are worth a word; of a light environment's


def check_observe(checked: CheckedEnv) -> Iterator[Finding]:
    """A text, the same for the same state and agent; looking changes nothing."""
    longest = 0
    for task in checked.samples:
        for state in play_messages(checked, task, sample_messages(task)[:3]):
            before = checked.fingerprint(state)
            agent = checked.next_agent(state)
            for name in AGENTS if not checked.decides_turns else () if agent is None else (agent,):
                one, two = (checked.ask("observe", state, name, on=f"a state for {name!r}") for _ in range(2))
                if not isinstance(one, str):
                    text = f'observe gave {type(one).__name__}; return a text, "" for nothing'
                    raise checked.violation("observe", text)
                if one != two:
                    text = "observe shows two things of one state; it may depend on state and agent alone"
                    raise checked.violation("observe", text)
                longest = max(longest, len(one))
            if checked.fingerprint(state) != before:
                raise checked.violation("observe", f"observe {CHANGED}")
    text = f"a text, the same twice; at most {longest:,} characters seen"
    yield Finding(check="observe", ok=True, text=text if checked.overrides_observe else "shows nothing beside the task")


def check_whose_turn(checked: CheckedEnv) -> Iterator[Finding]:
    """Names of agents or None, where the environment decides the order."""
    if not checked.decides_turns:
        yield Finding(check="whose turn", ok=True, text="left to the workflow")
        return
    names = {
        checked.next_agent(state)
        for task in checked.samples
        for state in play_messages(checked, task, sample_messages(task)[:2])
    }
    told = ", ".join(sorted(name for name in names if name is not None)) or "nobody"
    yield Finding(check="whose turn", ok=True, text=f"decided by the environment; seen: {told}")


def check_answer(checked: CheckedEnv) -> Iterator[Finding]:
    """Hashable, and the same for the same text."""
    for text in (text for task in checked.samples for text in sample_messages(task)):
        one, two = (checked.ask("answer", text, on=repr(text[:40])) for _ in range(2))
        if not isinstance(one, Hashable) or one != two:
            wrong = f"answer gave {one!r} for {text[:40]!r}, which cannot be counted"
            remedy = "return a text, a number or a tuple, the same for the same text, or None"
            raise checked.violation("answer", f"{wrong}; {remedy}")
    yield Finding(check="answer", ok=True, text="can be counted in a vote")


def check_hostile_messages(checked: CheckedEnv) -> Iterator[Finding]:
    """Messages that no honest agent writes raise nothing."""
    task = checked.samples[0]
    start = checked.ask("reset", task)
    agent = checked.next_agent(start) or AGENT
    for what, text in HOSTILE.items():
        state = checked.ask("transition", start, make_turn(text, agent=agent), on=what)
        checked_reward(checked, state, f"after {what}")
        if (listener := checked.next_agent(state)) is not None:
            checked.ask("observe", state, listener, on=what)
        checked.ask("answer", text, on=what)
    yield Finding(check="hostile messages", ok=True, text=f"{len(HOSTILE)} of them do no harm")


def check_speed(checked: CheckedEnv) -> Iterator[Finding]:
    """A note where a turn takes longer than the trainer can wait."""
    took = []
    for task in checked.samples:
        state = checked.ask("reset", task)
        agent = checked.next_agent(state) or AGENT
        for text in sample_messages(task):
            began = time.perf_counter()
            checked.ask("reward", checked.ask("transition", state, make_turn(text, agent=agent)))
            took.append(time.perf_counter() - began)
    middle = median(took)
    text = f"{1000 * middle:.2g} ms for a turn and its reward, {1000 * max(took):.2g} ms at most"
    slow = middle > (NOT_LIGHT if checked.env.light else SLOW)
    if slow and checked.env.light:
        text += "; the trainer waits for an environment with light = True: drop light, and it runs beside it"
    yield Finding(check="speed", ok=None if slow else True, text=text)
