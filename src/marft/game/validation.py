"""What an environment's methods may give, made plain: values of exact types that can do no more harm, or an EnvironmentFault.

Each value is a user's object, whose every method may raise; so each is read once, here, and only its copy goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from itertools import islice
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal

from marft.types import MAX_TURNS, Reward, Stopped
from marft.untrusted_values import described, exact, flaw_of, kind_of, quoted, traced

MOST_NAMES = 64  # of parts of a reward
LARGEST = 1e12  # of a reward; sums of squares of larger ones overflow in float32


class EnvironmentFault(Exception):
    """An environment did not answer: it raised, or it was too late. Carries the traceback, where there is one."""

    def __init__(self, line: str, trace: str = "", kind: Literal["raised", "late"] = "raised") -> None:
        super().__init__(line, trace, kind)
        self.line, self.trace, self.kind = line, trace, kind


def fault_from_exception(error: BaseException) -> EnvironmentFault:
    """What an environment raised; call it where `error` is being handled."""
    return EnvironmentFault(f"raised {described(error)}", traced())


def validate_output(method: str, given: Any) -> Any:
    """What `method` gave, as a value of ours."""
    try:
        return CHECKS[method](given) if method in CHECKS else given
    except (EnvironmentFault, Stopped):
        raise
    except BaseException as error:  # the user's object: anything may come
        line = f"returned {kind_of(given)}, which cannot be read: {described(error)}"
        raise EnvironmentFault(line, traced()) from error


def require_text(given: Any) -> str:
    """A plain str that an agent can be shown."""
    if not issubclass(type(given), str):
        raise EnvironmentFault(f"returned {kind_of(given)}, not str")
    if (flaw := flaw_of(found := exact(given))) is not None:
        raise EnvironmentFault(f"returned a text that {flaw}")
    return found


def require_optional_text(given: Any) -> str | None:
    """A plain str, or None."""
    return None if given is None else require_text(given)


def require_reward(given: Any) -> Reward:
    """A Reward of plain finite numbers and bools."""
    if not issubclass(type(given), Reward):
        raise EnvironmentFault(f"returned {kind_of(given)}, not a marft.Reward")
    turns = require_by_turn("turns", given.turns, object, "numbers")
    return Reward(
        team=require_finite(given.team),
        turns={index: require_finite(value) for index, value in turns.items()},
        correct=None if given.correct is None else require_bool("correct", given.correct),
        done=require_bool("done", given.done),
        itemised=require_bool("itemised", given.itemised),
        players={
            index: require_text(name) for index, name in require_by_turn("players", given.players, str, "names").items()
        },
        parts=require_by_name("parts", given.parts),
    )


def require_by_name(name: str, given: Any) -> dict[str, float]:
    """Finite numbers by name, which the Reward's field `name` holds."""
    found: dict[Any, Any] = dict(islice(given.items(), MOST_NAMES + 1)) if isinstance(given, Mapping) else {None: None}
    if len(found) > MOST_NAMES or not all(issubclass(type(key), str) for key in found):
        raise EnvironmentFault(
            f"returned a Reward whose `{name}` is not a mapping of at most {MOST_NAMES} names to numbers"
        )
    return {require_text(key): require_finite(value) for key, value in found.items()}


def require_by_turn(name: str, given: Any, kind: type, what: str) -> dict[int, Any]:
    """Values of a `kind` by the index of a turn, which the Reward's field `name` holds."""
    found: dict[Any, Any] = dict(islice(given.items(), MAX_TURNS + 1)) if isinstance(given, Mapping) else {None: None}
    if len(found) > MAX_TURNS or not all(
        type(index) is int and issubclass(type(value), kind) for index, value in found.items()
    ):
        raise EnvironmentFault(f"returned a Reward whose `{name}` is not a mapping of turns' indices to {what}")
    return found


def require_finite(given: Any) -> float:
    """A float within ±LARGEST."""
    try:
        found = float(given) if isinstance(given, Real) else math.nan
    except OverflowError:  # an int that no float holds
        found = math.inf
    if not math.isfinite(found):
        raise EnvironmentFault(f"gave a reward of {quoted(given)}, not a finite number")
    if abs(found) > LARGEST:
        raise EnvironmentFault(f"gave a reward of {found:g}; rewards lie within ±{LARGEST:g}")
    return found


def require_bool(name: str, given: Any) -> bool:
    """A plain bool."""
    try:
        return bool(given)
    except Exception as error:
        raise EnvironmentFault(f"gave a Reward whose `{name}` is neither true nor false: {described(error)}") from error


def require_hashable(given: Any) -> Hashable:
    """The value itself; a subclass of str as a plain str."""
    try:
        hash(given)
    except Exception:
        raise EnvironmentFault(f"returned {kind_of(given)}, which cannot be counted") from None
    return exact(given) if issubclass(type(given), str) else given


CHECKS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "observe": require_text,
        "whose_turn": require_optional_text,
        "reward": require_reward,
        "answer": require_hashable,
        "gold": require_optional_text,
    }
)
