"""Checks of the rewards: their kinds, their range, and the rewards of single turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

from marft.envs.checking.checked_env import CheckedEnv
from marft.envs.checking.finding import Finding
from marft.envs.checking.sample_messages import ORDINARY, sample_messages
from marft.envs.checking.state_checks import CHANGED, next_states
from marft.types import Reward

LARGE = 10.0  # advantages of many algorithms are not normalised
GAPS = (0, 2, 3)  # indices of turns: those said aside are not heard


def check_reward(checked: CheckedEnv) -> Iterator[Finding]:
    """Finite, repeatable rewards; notes where all messages earn the same, or the echoed prompt earns most."""
    echoed: list[float] = []
    others: list[float] = []
    for task in checked.samples:
        start = checked.ask("reset", task)
        others.append(checked_reward(checked, start, "before anybody has spoken"))
        for text in sample_messages(task):
            for state in next_states(checked, start, text, 0):
                worth = checked_reward(checked, state, f"after {text[:40]!r}")
                (echoed if text == task.prompt else others).append(worth)
    low, high = min(echoed + others), max(echoed + others)
    yield Finding(check="reward", ok=True, text=f"finite and the same twice; rewards seen: {low:g} … {high:g}")
    if low == high:
        text = f"every message tried earned {low:g}; nothing can be learnt where all earn the same"
        yield Finding(check="reward", ok=None, text=text)
    elif echoed and min(echoed) == high:
        yield Finding(
            check="reward", ok=None, text=f"the prompt said back earns {high:g}, the most seen; a team will find that"
        )
    if max(-low, high) > LARGE:
        text = f"rewards beyond ±{LARGE:g} make for large steps; scale them to about 1"
        yield Finding(check="reward", ok=None, text=text)


def checked_reward(checked: CheckedEnv, state: Any, when: str) -> float:
    """The team's reward of a state, which must be a proper one and stay so."""
    before = checked.fingerprint(state)
    found, again = (checked.ask("reward", state, on=f"a state {when}") for _ in range(2))
    flaw = reward_flaw(found, when)
    if flaw is None and checked.fingerprint(again, "the reward") != checked.fingerprint(found, "the reward"):
        flaw = "reward gives two rewards for one state; it may depend on the state alone"
    if flaw is None and checked.fingerprint(state) != before:
        flaw = f"reward {CHANGED}"
    if flaw is not None:
        raise checked.violation("reward", flaw)
    return float(found.team)


def reward_flaw(found: object, when: str) -> str | None:
    """What is wrong with what `reward` gave, and the remedy; None where nothing is."""
    if not isinstance(found, Reward):
        return f"reward gave {type(found).__name__} {when}; return marft.Reward(team=…)"
    if not isinstance(found.turns, Mapping):
        return f"Reward.turns is a {type(found.turns).__name__} {when}; give a dict {{turn.index: number}}"
    for number in (found.team, *found.turns.values()):
        if not isinstance(number, Real) or not math.isfinite(number):
            return f"the reward {when} is {number!r}; it must be a finite number"
    if not isinstance(found.correct, bool | None):
        return f"Reward.correct is {found.correct!r} {when}; give True, False, or None where no answer is right"
    for name in ("done", "itemised"):
        if not isinstance(getattr(found, name), bool):
            return f"Reward.{name} is {getattr(found, name)!r} {when}; give True or False"
    if not isinstance(found.players, Mapping) or not all(isinstance(name, str) for name in found.players.values()):
        return f"Reward.players is {found.players!r} {when}; give a dict {{turn.index: name}}"
    return None


def check_turn_rewards(checked: CheckedEnv) -> Iterator[Finding]:
    """Of single turns, by index: only of turns that were heard, and always or never."""
    given = []
    for task in checked.samples:
        for texts in (ORDINARY, sample_messages(task)[-3:]):
            state, heard = checked.ask("reset", task), set[int]()
            for index, text in zip(GAPS, texts, strict=False):
                for after in next_states(checked, state, text, index):
                    state = after
                    heard.add(index)
                    found = checked.ask("reward", state)
                    turns = found.turns if isinstance(found, Reward) and isinstance(found.turns, Mapping) else {}
                    if strangers := [key for key in turns if key not in heard]:
                        wrong = f"Reward.turns holds {strangers[0]!r} when only the turns {sorted(heard)} were heard"
                        remedy = "use turn.index, which need not begin at 0 nor be without gaps"
                        raise checked.violation("reward", f"{wrong}; {remedy}")
                    given.append(bool(turns))
    if any(given) and not all(given):
        text = "Reward.turns is given in some states and empty in others; give every turn heard its number"
        raise checked.violation("reward", text)
    text = "rewards of single turns are always given" if any(given) else "no rewards of single turns"
    yield Finding(check="turn rewards", ok=True, text=text)
