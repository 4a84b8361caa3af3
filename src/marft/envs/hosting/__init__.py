"""Where an environment runs: in worker processes that can be cut off, or in this one, if it is light or has no other place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.envs import BUILT_IN, make_env
from marft.envs.hosting.host import NO_DEADLINES, Deadlines, Host, InProcess
from marft.envs.hosting.pool import Pool
from marft.game.lockstep import Lockstep
from marft.import_paths import is_importable
from marft.types import MarftError

__all__ = ["Host", "InProcess", "Pool", "deadlines_of", "open_env"]

TASKS_DEADLINE = 5  # times that of a call, unless the config says it


def open_env(
    name: str, settings: Mapping[str, Any], *, deadline: float, workers: int | None, lockstep: Lockstep,
    tasks_deadline: float | None = None,
) -> Host:  # fmt: skip
    """The environment of a config, ready to be played in; whoever opens it closes it.

    A class that no other process can import stays in this one: without a deadline, for nobody could cut it off.
    """
    env, deadlines = make_env(name, settings), deadlines_of(name, deadline, tasks_deadline)
    if env.light or not is_importable(name):
        return InProcess(env, deadlines=deadlines)
    if deadline <= env.patience:
        raise MarftError(f"env.deadline: {name} may rightly take {env.patience:g} s for a call; give it more than that")
    return Pool(env, name, settings, deadline=deadline, workers=workers, lockstep=lockstep, deadlines=deadlines)


def deadlines_of(name: str, deadline: float, tasks_deadline: float | None) -> Deadlines:
    """Of what an environment does in this process. Built-in ones download data, which takes as long as it takes."""
    if name in BUILT_IN:
        return NO_DEADLINES
    return Deadlines(tasks=tasks_deadline or TASKS_DEADLINE * deadline, call=deadline)
