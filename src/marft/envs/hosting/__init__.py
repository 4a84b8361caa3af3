"""Where an environment runs: in worker processes that can be cut off, or in this one, if it is light or has no other place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.envs import make_env
from marft.envs.hosting.host import Host, InProcess
from marft.envs.hosting.pool import Pool
from marft.game.lockstep import Lockstep
from marft.references import is_importable
from marft.types import MarftError

__all__ = ["Host", "InProcess", "Pool", "open_env"]


def open_env(
    name: str, settings: Mapping[str, Any], *, deadline: float, workers: int | None, lockstep: Lockstep
) -> Host:
    """The environment of a config, ready to be played in; whoever opens it closes it.

    A class that no other process can import stays in this one: without a deadline, for nobody could cut it off.
    """
    env = make_env(name, settings)
    if env.light or not is_importable(name):
        return InProcess(env)
    if deadline <= env.patience:
        raise MarftError(f"env.deadline: {name} may rightly take {env.patience:g} s for a call; give it more than that")
    return Pool(env, name, settings, deadline=deadline, workers=workers, lockstep=lockstep)
