"""The environment under examination: found, built, and asked one question at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

from marft import import_paths
from marft.envs import BUILT_IN, make_env
from marft.envs.base import Environment, Split
from marft.envs.checking.finding import Violation, describe_error, error_location
from marft.envs.checking.fingerprint import fingerprint
from marft.envs.checking.sample_messages import AGENT
from marft.types import MarftError, Task

SPLITS: tuple[Split, ...] = ("train", "test")
READ = 500  # tasks of each split that are looked at
METHODS: Mapping[str, tuple[str, ...]] = {
    "tasks": ("split",),
    "reset": ("task",),
    "transition": ("state", "turn"),
    "reward": ("state",),
    "observe": ("state", "agent"),
    "whose_turn": ("state",),
    "answer": ("text",),
    "gold": ("task",),
}


class CheckedEnv:
    """`doing` is told each question before it is asked, so that somebody else can cut off one that is never answered."""

    def __init__(self, name: str, settings: Mapping[str, Any], doing: Callable[[str], None]) -> None:
        self._name, self._settings, self._doing = name, settings, doing
        self._read: dict[Split, tuple[int, list[Task]]] = {}
        self.env = self.build()

    def build(self) -> Environment[Any]:
        """One more instance, as every worker process has its own."""
        self._doing("the constructor")
        try:
            return make_env(self._name, deepcopy(dict(self._settings)))
        except MarftError as error:
            raise Violation(f"{error}{error_location(error.__cause__) if error.__cause__ else ''}") from None
        except SystemExit as error:
            raise Violation(f"it ends the process: {describe_error(error)}; raise ValueError instead") from None

    def ask(self, method: str, *arguments: Any, on: str = "", env: Environment[Any] | None = None) -> Any:
        """What the method returns; `on` says what it was asked about, should it fail."""
        about = f"{method}{f' on {on}' if on else ''}"
        self._doing(about)
        try:
            return getattr(env or self.env, method)(*arguments)
        except (Exception, SystemExit) as error:  # the user's code: anything may come
            raise Violation(f"{about} raised {describe_error(error)}") from None

    def fingerprint(self, value: object, what: str = "the state") -> str:
        """Equal for equal values; Violation where `what` cannot be saved."""
        try:
            return fingerprint(value)
        except Exception as error:  # the user's classes decide how they are saved
            raise Violation(f"{what} cannot be saved: {describe_error(error)}; keep plain values in it") from None

    def violation(self, method: str, text: str) -> Violation:
        """What is wrong with a method, and where it begins: `… (guess.py, line 14)`."""
        return Violation(f"{text}{definition_line(getattr(type(self.env), method))}")

    @property
    def decides_turns(self) -> bool:
        """Whether `whose_turn` is the environment's own."""
        return type(self.env).whose_turn is not Environment.whose_turn

    @property
    def overrides_observe(self) -> bool:
        """Than the prompt: `observe` is the environment's own."""
        return type(self.env).observe is not Environment.observe

    def next_agent(self, state: Any) -> str | None:
        """Who speaks next; None where the environment says that nobody does."""
        if not self.decides_turns:
            return AGENT
        name = self.ask("whose_turn", state)
        if name is not None and not isinstance(name, str):
            raise self.violation(
                "whose_turn", f"whose_turn gave {type(name).__name__}; return an agent's name, or None"
            )
        return name

    def tasks(self, split: Split) -> tuple[int, list[Task]]:
        """How many there are, and the first of them."""
        if split not in self._read:
            self._read[split] = self.read(split, self.env)
        return self._read[split]

    def read(self, split: Split, env: Environment[Any]) -> tuple[int, list[Task]]:
        """The number of tasks that `env` has in a split, and the first READ of them."""
        found = self.ask("tasks", split, env=env)
        if not (hasattr(found, "__len__") and hasattr(found, "__getitem__")) or isinstance(found, str | Mapping):
            raise self.violation("tasks", f"tasks({split!r}) gave {type(found).__name__}; return a list of marft.Task")
        try:
            return len(found), [self._item(found, i, split) for i in range(min(len(found), READ))]
        except (Exception, SystemExit) as error:  # a sequence that makes its tasks on demand
            raise Violation(f"reading tasks({split!r}) raised {describe_error(error)}") from None

    def _item(self, found: Any, i: int, split: Split) -> Any:
        self._doing(f"reading task {i} of {split!r}")  # each may be made only now, and takes its time
        return found[i]

    @cached_property
    def samples(self) -> list[Task]:
        """The tasks that are played: first, middle and last of those read for training, and the first held-out one."""
        train, test = self.tasks("train")[1], self.tasks("test")[1]
        chosen = [train[0], train[len(train) // 2], train[-1], test[0]]
        return list({task.id: task for task in chosen}.values())


def find_class(name: str) -> type[Environment[Any]]:
    """The environment class of that name; Violation where there is none."""
    target = BUILT_IN.get(name, name)
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise Violation(f"{name!r} names no class; write MODULE:CLASS, or one of {', '.join(BUILT_IN)}")
    try:
        kind = import_paths.look_up(target)
    except ModuleNotFoundError as error:
        hint = f"; is {module}.py in this folder?" if error.name == module else error_location(error)
        raise Violation(f"cannot import {target!r}: {error}{hint}") from None
    except (Exception, SystemExit) as error:  # the user's module: anything may come
        raise Violation(f"cannot import {target!r}: {describe_error(error)}") from None
    if not isinstance(kind, type) or not issubclass(kind, Environment):
        raise Violation(f"{target} is not an environment; write `class {attribute}(marft.Environment):`")
    return kind


def check_methods(kind: type[Environment[Any]]) -> None:
    """All there, plain functions, and callable as play will call them."""
    for method, parameters in METHODS.items():
        header = f"`def {method}({', '.join(('self', *parameters))}):`"
        function = getattr(kind, method)
        if method in kind.__abstractmethods__:
            raise Violation(f"{kind.__name__} has no method {method}; add {header}")
        if not callable(function):
            raise Violation(f"{kind.__name__}.{method} is not a method; write {header}")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise Violation(
                f"{method} must return its value at once, without async or yield; write {header}{definition_line(function)}"
            )
        static = isinstance(inspect.getattr_static(kind, method), staticmethod | classmethod)
        try:
            inspect.signature(function).bind(*(() if static else (None,)), *parameters)
        except TypeError:
            raise Violation(
                f"{method}{inspect.signature(function)} cannot be called with {', '.join(parameters)}; write {header}"
                f"{definition_line(function)}"
            ) from None


def definition_line(function: Any) -> str:
    """` (guess.py, line 14)`: where a function begins; empty where it is not Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else ""
