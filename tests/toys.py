"""Small environments and workflows that tests name as `toys:Class`, and settings that make a run take a second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marft
from marft.envs.base import Split
from marft.game.play import Game

TINY = (
    "team.agents.planner.max_tokens=5", "team.agents.solver.max_tokens=5", "lora.rank=2", "lora.targets=[q_proj]",
    "train.tasks=3", "train.samples=2", "train.minibatches=2", "train.iterations=2", "eval.tasks=4", "engine.slots=16",
    "device=cpu", "track.tensorboard=false",
)  # fmt: skip
ECHO = (*TINY, "env.name=toys:Echo")


class Echo(marft.Environment[str]):
    """Any text earns something, so that a few tokens are enough to have advantages."""

    light = True

    def __init__(self, size: int = 5) -> None:
        self.size = size

    def tasks(self, split: Split) -> Sequence[marft.Task]:
        return [marft.Task(id=f"{split}/{i}", prompt=f"Start with {i + 2}. Add {i + 1}.") for i in range(self.size)]

    def reset(self, task: marft.Task) -> str:
        return ""

    def transition(self, state: str, turn: marft.Turn) -> str:
        return state + turn.text

    def reward(self, state: str) -> marft.Reward:
        score = sum(state.encode()) % 7 / 6
        return marft.Reward(team=score, correct=score > 0.5)


class Seeded(Echo):
    """Its tasks are more than their prompts."""

    takes_prompts = False


class Golden(Echo):
    """Says what a right answer is, and hosts of any kind are asked."""

    light = False

    def gold(self, task: marft.Task) -> str:
        if task.id.endswith("/4"):
            raise LookupError("no such answer")
        return f"gold of {task.id}"


class Breaks(Echo):
    """Raises in `method` from its call number `after` on."""

    def __init__(self, method: str = "reward", after: int = 0, message: str = "out of\npaper") -> None:
        super().__init__()
        self.method, self.after, self.message, self.calls = method, after, message, 0

    def count(self, method: str) -> None:
        if method == self.method:
            self.calls += 1
            if self.calls > self.after:
                raise RuntimeError(self.message)

    def tasks(self, split: Split) -> Sequence[marft.Task]:
        self.count("tasks")
        return super().tasks(split)

    def reset(self, task: marft.Task) -> str:
        self.count("reset")
        return super().reset(task)

    def observe(self, state: str, agent: str) -> str:
        self.count("observe")
        return super().observe(state, agent)

    def transition(self, state: str, turn: marft.Turn) -> str:
        self.count("transition")
        return super().transition(state, turn)

    def reward(self, state: str) -> marft.Reward:
        self.count("reward")
        return super().reward(state)


class TurnsConstant(Echo):
    """After `after` episodes of training every text earns the same."""

    def __init__(self, after: int = 8, constant: float = 0.25) -> None:
        super().__init__()
        self.after, self.constant, self.judged = after, constant, 0

    def reward(self, state: str) -> marft.Reward:
        self.judged += 1
        return super().reward(state) if self.judged <= self.after else marft.Reward(team=self.constant)


class Alternates(Echo):
    """One episode in two wins, whatever is said."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0

    def reward(self, state: str) -> marft.Reward:
        self.judged += 1
        return marft.Reward(team=float(self.judged % 2))


class Flaky(Echo):
    """One state in five cannot be judged."""

    def reward(self, state: str) -> marft.Reward:
        if sum(state.encode()) % 5 == 0:
            raise RuntimeError("illegible")
        return super().reward(state)


class Nan(Echo):
    def reward(self, state: str) -> marft.Reward:
        return marft.Reward(team=float("nan"))


class Returns(Echo):
    """Gives a wrong kind of thing where a Reward or a text is expected."""

    def __init__(self, method: str = "reward") -> None:
        super().__init__()
        self.method = method

    def reward(self, state: str) -> Any:
        return 1.0 if self.method == "reward" else super().reward(state)

    def observe(self, state: str, agent: str) -> Any:
        return None if self.method == "observe" else super().observe(state, agent)


class NoTasks(Echo):
    def tasks(self, split: Split) -> Sequence[marft.Task]:
        return []


class NeedsFile(Echo):
    def __init__(self) -> None:
        raise FileNotFoundError("the data is missing")


class NotAnEnvironment:
    pass


async def both(game: Game) -> None:
    await game.act("planner", "solver")


async def nobody(game: Game) -> None:
    pass


async def stranger(game: Game) -> None:
    await game.act("stranger")


def without_progress(text: str) -> list[str]:
    """The lines of a command's stderr but those that tell what it is doing."""
    doing = (
        "checking that the team can play",
        "loading ",
        "preparing ",
        "reading ",
        "playing",
        "evaluating",
        "timing ",
        "laying out ",
        "measuring ",
    )
    return [line for line in text.splitlines() if not line.startswith(doing)]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's jsonl file, without the times."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]
