"""The story of a run, line by line."""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import Any

from marft.config import Config
from marft.terminal.display import Display


class Terminal:
    """Tells one run's story on a display."""

    def __init__(self, display: Display, run: Path) -> None:
        self.display, self.run = display, run
        self.started = time.perf_counter()
        self.first: float | None = None  # how much of the run was done when this process began
        self.of = ""  # how many iterations there will be, where that is known

    def introduce(self, config: Config, device: str) -> None:
        """The run's first line: algorithm, agents, environment, model, device and directory."""
        self.of = "" if config.train.budget else f"/{config.train.iterations}"
        agents, what = ", ".join(config.team.agents), f"{config.env.name} with {config.model} on {device}"
        self.say(f"{config.algorithm.name}: {agents}; {what}; run directory: {self.run}")

    def evaluated(self, when: str, row: dict[str, Any]) -> None:
        """The held-out figures of an evaluation; the time that is left is counted from those before and after training."""
        figure = "accuracy" if "accuracy" in row else "reward"
        interval = "  (95 % {:.3f} to {:.3f})".format(*row["accuracy_ci95"]) if "accuracy_ci95" in row else ""
        moment = f"after iteration {row['iteration']}" if when == "during" else f"{when} training"
        self.say(f"{moment}: held-out {figure} {row[figure]:.3f}{interval} on {row['tasks']} tasks")
        if when != "during":
            self.started = time.perf_counter()

    def iterated(self, row: dict[str, Any], before: float, progress: float) -> None:
        """`before` and `progress`: how much of the run was done before this iteration, and now."""
        if self.first is None:
            self.first = before
        speed = row["tokens"]["rollout"] / max(row["seconds"]["rollout"], 1e-9)
        left = round((time.perf_counter() - self.started) / (progress - self.first) * max(0.0, 1 - progress))
        agents = "  ".join(f"{name} kl {found['kl']:.4f}" for name, found in row["agents"].items())
        calls = "".join(f"  {name} calls {found['share']:.0%}" for name, found in row.get("calls", {}).items())
        gap = f"  mismatch {row['mismatch']['kl']:.1e}" if "mismatch" in row else ""
        evaluated = f"  held-out {row['eval'].get('accuracy', row['eval']['reward']):.3f}" if "eval" in row else ""
        faults = ", ".join(f"{count} {fault}" for fault, count in row.get("faults", {}).items())
        failed = f"  {row['failed']} episodes failed ({faults})" if faults else ""
        failed += f"  {row['overflow']} outgrew what an agent reads" if "overflow" in row else ""
        self.say(
            f"iteration {row['iteration']:4d}{self.of}  reward {row['reward']:.3f}{evaluated}{failed}  {agents}{calls}{gap}  "
            f"{speed:,.0f} tokens/s  {left // 60}:{left % 60:02d} left"
        )
        self.display.share = min(1.0, progress)

    def warned(self, line: str) -> None:
        """A warning, as a line of its own."""
        self.say(line)

    def finished(self, summary: dict[str, Any]) -> None:
        """The held-out figures before and after, and what to do with the run now."""
        self.display.rest()
        self.display.share = None
        before, after = summary.get("before"), summary.get("after")
        if before and after:
            figure = "accuracy" if "accuracy" in before and "accuracy" in after else "reward"
            self.say(f"held-out {figure} {before[figure]:.3f} → {after[figure]:.3f} in {summary['seconds']:.0f} s")
        run = quote(str(self.run))
        self.say(f"see it: tensorboard --logdir {run}   watch it play: marft play {run}")

    def say(self, line: str) -> None:
        """A line that stays."""
        self.display.say(line)
