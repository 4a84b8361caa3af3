"""A real training run with somebody watching the clock: `Trainer` as the command line makes it, plus a stopwatch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from marft.commands.progress import Terminal
from marft.commands.train import disk_needed, make_manifest, needed_splits
from marft.config import Config
from marft.envs.hosting import InProcess
from marft.runs.directory import RunDirectory
from marft.terminal.display import Display
from marft.training.build import Assembly, assemble
from marft.training.loading import load_initial_adapters
from marft.training.metrics import Play
from marft.training.trainer import Trainer

P = ParamSpec("P")
T = TypeVar("T")


class Stopwatch:
    """Seconds by what they were spent on since it was last read, and when each iteration ended.

    A tracker as TensorBoard's is: it is told of every iteration as soon as that is recorded.
    """

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.ends: list[tuple[float, float]] = []  # by the wall's clock, and by the processor's

    def timing(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        def timed(*arguments: P.args, **named: P.kwargs) -> T:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.spent[name] += time.perf_counter() - start

        return timed

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        self.ends.append((time.perf_counter(), time.process_time()))

    def close(self) -> None:
        pass


class TimedTrainer(Trainer):
    """Also knows what each iteration spent on the side: writing its records and checkpoints."""

    def __init__(self, watch: Stopwatch, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.watch, self.sides = watch, list[dict[str, float]]()

    def record(self, row: dict[str, Any], plays: Sequence[Play]) -> None:
        self.watch.timing("record", super().record)(row, plays)
        self.sides.append(dict(self.watch.spent))
        self.watch.spent.clear()

    def save(self) -> None:
        """After an iteration has been recorded; it counts for that one."""
        self.watch.timing("checkpoint", super().save)()
        if self.sides:
            self.sides[-1]["checkpoint"] = self.watch.spent.pop("checkpoint")


class TimedEnv:
    """An environment whose answers are timed."""

    def __init__(self, env: Any, watch: Stopwatch) -> None:
        self.env, self.watch = env, watch

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.env, name)
        return self.watch.timing("env", value) if callable(value) else value


def timed_run(config: Config, path: Path, watch: Stopwatch) -> TimedTrainer:
    """Train from the beginning; the trainer as it is afterwards."""
    parts = assemble(config, reads=needed_splits(config))
    load_initial_adapters(config, parts)
    run = RunDirectory.create(path, config, make_manifest(config, parts), needed=disk_needed(config, parts))
    listen(parts, watch)
    with parts.runner.host, Display() as display:
        trainer = TimedTrainer(watch, config, parts, run, [watch], Terminal(display, path))
        trainer.train()
    return trainer


def listen(parts: Assembly, watch: Stopwatch) -> None:
    """Time what a rollout does beside generating: rendering prompts, and the environment where it runs in this process."""
    for base in parts.bases.values():
        engine: Any = base.engine
        engine.encode = watch.timing("rendering", engine.encode)
    host: Any = parts.runner.host
    if isinstance(host, InProcess):
        host.env = TimedEnv(host.env, watch)
