"""How a run shows itself: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from marft.config import Config


class Terminal:
    """Tells one run's story. Lines scroll; on a terminal a bar stays below them."""

    def __init__(self, console: Console, bar: Progress | None, run: Path) -> None:
        self.console, self.bar, self.run = console, bar, run
        self.started = time.perf_counter()
        self.first: int | None = None  # iteration after which this process began
        self.task: TaskID | None = None

    def introduce(self, config: Config, device: str) -> None:
        agents, what = ", ".join(config.team.agents), f"{config.env.name} with {config.model} on {device}"
        self.say(f"{config.algorithm.name}: {agents}; {what}; run directory: {self.run}")

    def evaluated(self, when: str, row: dict[str, Any]) -> None:
        figure = "accuracy" if "accuracy" in row else "reward"
        interval = "  (95 % {:.3f} to {:.3f})".format(*row["accuracy_ci95"]) if "accuracy_ci95" in row else ""
        self.say(f"{when} training: held-out {figure} {row[figure]:.3f}{interval} on {row['tasks']} tasks")
        self.started = time.perf_counter()

    def iterated(self, row: dict[str, Any], of: int) -> None:
        done = row["iteration"]
        if self.first is None:
            self.first = done - 1
        speed = row["tokens"]["rollout"] / max(row["seconds"]["rollout"], 1e-9)
        left = round((time.perf_counter() - self.started) / (done - self.first) * (of - done))
        agents = "  ".join(f"{name} kl {found['kl']:.4f}" for name, found in row["agents"].items())
        evaluated = f"  held-out {row['eval'].get('accuracy', row['eval']['reward']):.3f}" if "eval" in row else ""
        self.say(
            f"iteration {done:4d}/{of}  reward {row['reward']:.3f}{evaluated}  {agents}  {speed:,.0f} tokens/s  "
            f"{left // 60}:{left % 60:02d} left"
        )
        if self.bar is not None:
            if self.task is None:
                self.task = self.bar.add_task("", total=of, completed=self.first)
            self.bar.update(self.task, completed=done, description=f"reward {row['reward']:.3f}")

    def finished(self, summary: dict[str, Any]) -> None:
        before, after = summary.get("before"), summary.get("after")
        if before and after:
            figure = "accuracy" if "accuracy" in after else "reward"
            self.say(f"held-out {figure} {before[figure]:.3f} → {after[figure]:.3f} in {summary['seconds']:.0f} s")
        self.say(f"see it: tensorboard --logdir {self.run}   watch it play: marft play {self.run}")

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def watcher(run: Path) -> Iterator[Terminal]:
    console = Console()
    if not console.is_terminal:
        yield Terminal(console, None, run)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        yield Terminal(console, bar, run)
