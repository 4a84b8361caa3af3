"""A game in words: what a player observes, what it may do, and which action a message means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from marft.types import MarftError

WHOLE = re.compile(r"\s*(-?\d{1,9})(?!\d)")
MAX_LISTED_ACTIONS = 64  # legal actions that are listed one by one
MAX_NUMBERS = 2_000  # of an observation, at most, put down one by one


def observation_text(observation: Any) -> str:
    """A text as it is, boards as rows of characters, other arrays as rows of numbers."""
    import numpy

    if isinstance(observation, str):
        return observation
    if isinstance(observation, dict):
        shown = {key: value for key, value in observation.items() if key != "action_mask"}
        if set(shown) == {"observation"}:
            return observation_text(shown["observation"])
        return "\n".join(f"{key}: {observation_text(value)}" for key, value in shown.items())
    if isinstance(observation, tuple) and any(isinstance(part, str | dict | tuple) for part in observation):
        return "\n".join(map(observation_text, observation))
    array = numpy.asarray(observation)
    if array.ndim == 3 and array.shape[2] == 2 and numpy.isin(array, (0, 1)).all():
        board = ["".join("X" if x else "O" if o else "." for x, o in row) for row in array]
        return "\n".join(["X: yours, O: the other player's, .: empty", *board])
    if array.dtype.kind not in "iufb" or array.size > MAX_NUMBERS:
        raise ValueError(
            f"no words for {array.size} values of type {array.dtype}; name a function in env.text that has"
        )
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    return "\n".join(" ".join(f"{number:g}" for number in row) for row in rows)


def move_form(spaces: Sequence[Any], game: str) -> str:
    """How to write a move where actions are of these spaces; MarftError where words cannot say them."""
    import gymnasium

    kinds = {type(space) for space in spaces}
    if kinds == {gymnasium.spaces.Discrete}:
        return 'Write your move as "Action: N".'
    if kinds == {gymnasium.spaces.Text}:
        return 'Write your move as "Action: …".'
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise MarftError(f"{game} has actions of kind {found}; Discrete or Text can be played in words")


def mask_of(observation: Any, info: Any) -> Any | None:
    """The array that says which actions are legal, where the game gives one."""
    for holder in (observation, info):
        if isinstance(holder, dict) and "action_mask" in holder:
            return holder["action_mask"]
    return None


def legal_actions(space: Any, mask: Any | None) -> list[int]:
    """The numbers of a discrete action space that are legal now."""
    return [int(space.start) + i for i in range(int(space.n)) if mask is None or mask[i]]


def legal_actions_text(legal: list[int], names: Sequence[str] = (), first: int = 0) -> str:
    """All of them, by `names` where actions have them, or their number and range where they are many."""
    if len(legal) > MAX_LISTED_ACTIONS:
        return f"Legal actions: {len(legal)} numbers in {legal[0]}…{legal[-1]}"
    return "Legal actions: " + ", ".join(names[action - first] if names else str(action) for action in legal)


def action_text(text: str) -> str:
    """What follows the last "Action:" of a message on its line, or all of it where it holds none."""
    _, marked, last = text.rpartition("Action:")
    return (last.partition("\n")[0] if marked else text).strip()


def parse_action(text: str, space: Any, mask: Any | None) -> int | str | None:
    """What stands after the last "Action:" of a message, or all of it where it holds none: a legal number, or a text that
    the game takes; else None."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Text):
        said = action_text(text)
        return said if space.contains(said) else None
    _, marked, last = text.rpartition("Action:")
    number = WHOLE.match(last) if marked else WHOLE.fullmatch(text.strip())
    if number is None:
        return None
    action = int(number[1])
    return action if action in legal_actions(space, mask) else None
