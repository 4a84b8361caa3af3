"""Reward functions of the user's, in our form or in TRL's: each gives a weighted part, and the reward is their sum."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypeAlias

from marft import import_paths
from marft.types import MarftError, Reward
from marft.untrusted_values import kind_of, quoted

Given: TypeAlias = str | Mapping[str, Any]  # one function as a config says it
KEYS = ("function", "weight")
UNSEEN = ("prompt", "completion", "completion_ids")  # columns that TRL's functions are not given
FORM = "package.module:function, or {function: package.module:function, weight: 0.5}, or a list of these"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is judged: a team's last message, and the row of the data that it answers."""

    text: str
    answer: str | None
    prompt: str  # as agents read it
    row: Mapping[str, Any]  # for functions in TRL's form
    asked: Any  # the row's own prompt: a text, or a conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """`function(text, answer, prompt)`, or TRL's `function(prompts, completions, **columns)`, where `batched`."""

    name: str
    function: Callable[..., Any]
    weight: float
    batched: bool

    def judge(self, message: Message) -> Any:
        """What the function says of the message; None, in TRL's form: it does not apply."""
        if not self.batched:
            return awaited(self.function(message.text, message.answer, message.prompt))
        talks = isinstance(message.asked, list)
        batch = {key: [value] for key, value in message.row.items() if key not in UNSEEN} | {
            "prompts": [message.asked if talks else message.prompt],
            "completions": [[{"role": "assistant", "content": message.text}] if talks else message.text],
        }
        values = awaited(self.function(**{key: batch[key] for key in batch if self.takes(key)}))
        if not hasattr(values, "__len__") or len(values) != 1:
            count = f"{len(values)} values" if hasattr(values, "__len__") else kind_of(values)
            raise ValueError(f"env.reward: {self.name} returned {count} for 1 completion")
        return values[0]

    def takes(self, key: str) -> bool:
        """Whether the function has a parameter for it."""
        parameters = inspect.signature(self.function).parameters
        return key in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())

    def missing(self, columns: Iterable[str]) -> list[str]:
        """Parameters that nothing fills."""
        known = {"prompts", "completions", *(name for name in columns if name not in UNSEEN)}
        return [
            p.name
            for p in inspect.signature(self.function).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in known
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunctions:
    """All of them, each by a name of its own."""

    functions: tuple[RewardFunction, ...]

    @property
    def batched(self) -> bool:
        """Whether all are in TRL's form, which needs no column of answers."""
        return all(one.batched for one in self.functions)

    @property
    def need_rows(self) -> bool:
        """Whether one is in TRL's form, which is given the columns of the data."""
        return any(one.batched for one in self.functions)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise a MarftError for a function in TRL's form that asks for what the data does not have."""
        for one in self.functions:
            if one.batched and (missing := one.missing(columns)):
                has = ", ".join(name for name in columns if name not in UNSEEN) or "none"
                raise MarftError(
                    f"env.reward: {one.name} asks for {missing[0]!r}, which is no column of the data; it has {has}"
                )

    def judge(self, message: Message) -> Reward:
        """The sum of the parts; a truth value says also whether the message is right, where only one function gives one."""
        said = {one.name: one.judge(message) for one in self.functions}
        if len(said) == 1 and isinstance(whole := next(iter(said.values())), Reward):
            return weighted(self.functions[0].weight, whole)
        parts = {
            one.name: one.weight * number(one.name, value)
            for one, value in zip(self.functions, said.values(), strict=True)
            if value is not None or not one.batched
        }
        if not parts:
            raise ValueError(f"env.reward: no function applies to this row; {', '.join(said)} gave None")
        verdicts = [value for value in said.values() if isinstance(value, bool)]
        return Reward(team=sum(parts.values()), parts=parts, correct=verdicts[0] if len(verdicts) == 1 else None)


def awaited(value: Any) -> Any:
    """What a function gives, also an async one."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def weighted(weight: float, reward: Reward) -> Reward:
    """A whole Reward, all its numbers times the weight."""
    if weight == 1.0:  # whatever is wrong with it is found where rewards are checked
        return reward
    return replace(
        reward,
        team=weight * reward.team,
        turns={index: weight * value for index, value in reward.turns.items()},
        parts={name: weight * value for name, value in reward.parts.items()},
    )


def number(name: str, value: Any) -> float:
    """A part's own number; ValueError names the function whose it is not."""
    found = value.team if isinstance(value, Reward) else value
    if hasattr(found, "item"):  # a number of numpy's or torch's
        found = found.item()
    if not isinstance(found, Real) or not math.isfinite(found):
        raise ValueError(f"env.reward: {name} gave {quoted(found)}, not a finite number")
    return float(found)


def read_functions(given: Given | Sequence[Given]) -> RewardFunctions:
    """What `env.reward` says; ValueError or MarftError where it names no functions."""
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not listed:
        raise ValueError(f"reward names no function; write {FORM}")
    paths, weights = zip(*map(read_path, listed), strict=True)
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise ValueError(f"reward: {twice[0]} stands there twice; give it once, with the sum of the weights")
    short = [import_paths.last_part(path) for path in paths]
    names = [name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)]
    return RewardFunctions(functions=tuple(map(find_function, names, paths, weights)))


def read_path(given: Given) -> tuple[str, float]:
    """A function's import path and its weight."""
    if isinstance(given, str):
        return given, 1.0
    if not isinstance(given, Mapping) or not set(given) <= set(KEYS) or not isinstance(given.get("function"), str):
        raise ValueError(f"reward must be {FORM}, not {given!r}")
    weight = given.get("weight", 1.0)
    if type(weight) not in (int, float) or not math.isfinite(weight):
        raise ValueError(f"reward: weight of {given['function']} must be a finite number, not {weight!r}")
    return given["function"], float(weight)


def find_function(name: str, path: str, weight: float) -> RewardFunction:
    """The function at an import path; a parameter `completions` says that it is in TRL's form."""
    function = import_paths.find(path, "env.reward")
    if not callable(function):
        raise ValueError(f"reward: {path!r} is not a function; write `def reward(text, answer, prompt): …`")
    batched = "completions" in inspect.signature(function).parameters
    return RewardFunction(name=name, function=function, weight=weight, batched=batched)
