"""Environments by name: what is found, and one line for what is not."""

from __future__ import annotations

from typing import Any

import pytest
import toys

from marft.envs import make_env
from marft.envs.arithmetic import Arithmetic
from marft.envs.base import Environment
from marft.envs.gymnasium import Gymnasium
from marft.envs.openenv import OpenEnv
from marft.envs.pettingzoo import PettingZoo
from marft.envs.task_validation import load_tasks
from marft.envs.textarena import TextArena
from marft.envs.verifiers import Verifiers
from marft.types import MarftError


@pytest.mark.parametrize(
    ("kind", "takes"),
    [
        (Arithmetic, True),
        (Gymnasium, False),
        (OpenEnv, False),
        (PettingZoo, False),
        (TextArena, False),
        (Verifiers, False),
    ],
)
def test_where_a_task_is_what_its_prompt_says(kind: type[Environment[Any]], takes: bool) -> None:
    assert kind.takes_prompts == takes


def test_built_in_and_ones_own() -> None:
    env = make_env("arithmetic", {"level": 3})
    assert isinstance(env, Arithmetic)
    assert env.level == 3
    mine = make_env("toys:Echo", {"size": 2})
    assert isinstance(mine, toys.Echo)
    assert [task.id for task in load_tasks(mine, "train")] == ["train/0", "train/1"]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        (
            "arithmetics",
            {},
            "unknown environment 'arithmetics'; did you mean 'arithmetic'?; use arithmetic, math, code, ",
        ),
        ("", {}, "unknown environment ''"),
        ("no_such_module:Env", {}, "env.name: cannot import 'no_such_module:Env'"),
        ("toys:Nothing", {}, "env.name: cannot import 'toys:Nothing'"),
        ("toys:", {}, "env.name: cannot import 'toys:'"),
        (":Echo", {}, "env.name: cannot import ':Echo'"),
        ("..toys:Echo", {}, "env.name: cannot import '..toys:Echo'"),
        ("toys:NotAnEnvironment", {}, "env.name: 'toys:NotAnEnvironment' is not a marft.Environment"),
        ("toys:TINY", {}, "env.name: 'toys:TINY' is not a marft.Environment"),
        ("toys:both", {}, "env.name: 'toys:both' is not a marft.Environment"),
        ("builtins:int", {}, "env.name: 'builtins:int' is not a marft.Environment"),
        ("marft:Environment", {}, "env: Can't instantiate abstract class Environment"),
        ("arithmetic", {"levl": 3}, "unknown key 'env.levl'; did you mean 'env.level'?; settings of arithmetic: level"),
        (
            "toys:NoTasks",
            {"sizes": 3},
            "unknown key 'env.sizes'; did you mean 'env.size'?; settings of toys:NoTasks: size",
        ),
        ("arithmetic", {"level": 99}, "env: level must be a whole number in 1…8, not 99"),
        ("math", {}, "env.data is missing; math needs it, as in env.data=gsm8k"),
        ("toys:NeedsFile", {}, "env: the data is missing"),
    ],
)
def test_mistakes(name: str, settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(MarftError) as caught:
        make_env(name, settings)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_tasks_that_cannot_be_had() -> None:
    with pytest.raises(MarftError, match=r"environment\.tasks\('test'\) is empty"):
        load_tasks(toys.NoTasks(), "test")
    with pytest.raises(MarftError, match=r"environment\.tasks\('train'\) raised RuntimeError: no"):
        load_tasks(toys.Breaks("tasks", message="no"), "train")
