"""What was probably meant by a name that is no environment: a data set, a puzzle, a game, a file of the user's."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

from marft.config.section import form, nearest


def hint_for_env(name: str, built_in: Collection[str]) -> str:
    """`; …` with the words that were probably meant, or nothing. Loads libraries of tasks, where they are installed."""
    if form(name) in map(form, built_in):
        return nearest(name, list(built_in))
    words = suggest_data_set(name) or suggest_reasoning_task(name) or suggest_game(name) or suggest_own_file(name)
    return f"; did you mean {words!r}?" if words else nearest(name, list(built_in))


def suggest_data_set(name: str) -> str | None:
    """`env=math env.data=gsm8k` for the name of a known set, a set on the hub or a file."""
    from marft.envs.data import KNOWN
    from marft.envs.data.files import is_data_file

    for known in KNOWN.values():
        if form(name) == form(known.name):
            return f"env={known.kind} env.data={known.name}"
    for known in KNOWN.values():  # aime: aime-2024; the hub's own name of a set
        if form(known.name).startswith(f"{form(name)}_") or name == known.hub:
            return f"env={known.kind} env.data={known.name}"
    return f"env=math env.data={name}" if "/" in name or is_data_file(Path(name)) else None


def suggest_reasoning_task(name: str) -> str | None:
    """`env=reasoning env.task=NAME` for one of reasoning-gym's tasks."""
    if form(name) == "reasoning_gym":
        return "env=reasoning env.task=chain_sum"
    if find_spec("reasoning_gym") is None:
        return None
    from marft.envs.reasoning.library import task_names

    return next((f"env=reasoning env.task={task}" for task in task_names() if form(task) == form(name)), None)


def suggest_game(name: str) -> str | None:
    """`tictactoe` and `tictactoe_v3` of PettingZoo's classic games."""
    spec = find_spec("pettingzoo")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "classic"
    for path in sorted(folder.glob("*_v*.py")):
        if form(name) in (form(path.stem), form(path.stem.rpartition("_v")[0])):
            return f"env=pettingzoo env.game=pettingzoo.classic.{path.stem}"
    return None


def suggest_own_file(name: str) -> str | None:
    """A module of the user's without its class."""
    module = name.removesuffix(".py")
    return f"env={module}:CLASS" if Path(f"{module.replace('.', '/')}.py").is_file() else None
