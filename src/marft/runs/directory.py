"""A run's folder: its config, manifest, metrics, episodes and summary, readable while the run goes on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from marft.config import Config, parse, parse_yaml, to_yaml
from marft.runs.atomic import append_whole, write_atomically
from marft.runs.difference import first_difference
from marft.runs.disk import FULL, require_space, writing
from marft.runs.transcripts import Transcript
from marft.types import MarftError

# What may change from one part of a run to the next: how long it lasts, what is watched, how much memory it takes, what is
# done about a collapse, and how fast it learns after one; never from what it learns, or how.
FREE = (
    "train.iterations", "train.budget", "track", "eval", "checkpoint",
    "train.tokens", "train.recompute", "train.failures", "engine.slots", "engine.memory",
    "train.on_collapse", "optimizer.lr",
)  # fmt: skip


HELD_OUT = "held_out.jsonl"
When = Literal["before", "during", "after"]  # of training


class RunDirectory:
    """The files of one run. One process writes them; any number may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Config, manifest: Mapping[str, Any], *, needed: int = 0) -> RunDirectory:
        """A new run, if the disk has `needed` bytes free and the folder holds no run yet."""
        require_space(path, needed)
        run = cls(path)
        try:
            if run.exists():
                raise MarftError(run.taken(config))
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / "manifest.json", pretty(manifest))
            # Last, because it is what makes the folder a run.
            write_atomically(path / "config.yaml", to_yaml(config).encode())
        except OSError as error:
            remedy = "free space or choose" if error.errno in FULL else "choose"
            raise MarftError(f"cannot make the run {path}: {error.strerror}; {remedy} another --run") from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A run that was started before."""
        run = cls(path)
        try:
            found = run.exists()
        except OSError as error:
            raise MarftError(f"cannot read {path}: {error.strerror}; make it readable") from error
        if not found:
            raise MarftError(
                f"{path} is not a run: it has no config.yaml; start one with `marft train --run {shlex.quote(str(path))}`"
            )
        return run

    def exists(self) -> bool:
        return (self.path / "config.yaml").is_file()

    def taken(self, config: Config) -> str:
        """Why no new run with this config can start here."""
        difference = first_difference(self.config(), config)
        if difference is None:
            return f"the run {self.path} exists already; continue it with --resume or choose another --run"
        return (
            f"{self.path} belongs to a run with another config: {difference.key} is {difference.old} there and "
            f"{difference.new} here; choose another --run"
        )

    # --- config ------------------------------------------------------------------------------------------------------
    def config(self) -> Config:
        path = self.path / "config.yaml"
        # Not through `load_config`: it would refuse a prompt that holds "${".
        try:
            return parse(parse_yaml(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise MarftError(f"cannot read {path}: {error}; choose another --run") from error
        except MarftError as error:
            raise MarftError(f"{path} is not a config of this version: {error}; choose another --run") from error

    def manifest(self) -> dict[str, Any]:
        path = self.path / "manifest.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MarftError(f"cannot read {path}: {error}; choose another --run") from error
        return found

    def check_same(self, config: Config) -> None:
        """A resumed run goes on with `config`, which may differ from the old one only in what is `FREE`."""
        old = self.config()
        if difference := first_difference(old, config, free=FREE, moved=True):
            raise MarftError(
                f"cannot resume {self.path} with another {difference.key}: it is {difference.old} there and "
                f"{difference.new} here; drop the override or choose another --run"
            )

    def write_config(self, config: Config) -> None:
        """The config that a resumed run goes on with."""
        if first_difference(self.config(), config):
            with writing(self.path):
                write_atomically(self.path / "config.yaml", to_yaml(config).encode())

    # --- what happens, line by line ----------------------------------------------------------------------------------
    def append_metrics(self, row: Mapping[str, Any]) -> None:
        self._append("metrics.jsonl", [row])

    def append_episodes(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._append("episodes.jsonl", rows)

    def append_event(self, event: str, iteration: int, **details: Any) -> None:
        """What happened beside the iterations: one object an event. Resuming forgets none."""
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        self._append("events.jsonl", [{"iteration": iteration, "event": event, "time": moment, **details}])

    def events(self) -> list[dict[str, Any]]:
        return [row for _, row in lines(self.path / "events.jsonl")]

    def append_held_out(
        self, iteration: int, when: When, benchmark: str | None, transcripts: Iterable[Transcript]
    ) -> None:
        """Episodes of an evaluation; those of the run's own tasks have no benchmark."""
        head = {"iteration": iteration, "when": when, "benchmark": benchmark}
        self._append(HELD_OUT, [{**head, **asdict(transcript)} for transcript in transcripts])

    def held_out(self) -> Iterator[dict[str, Any]]:
        """The episodes of evaluations that were kept, in the order in which they were played."""
        return (row for _, row in lines(self.path / HELD_OUT))

    def metrics(self) -> list[dict[str, Any]]:
        return [row for _, row in lines(self.path / "metrics.jsonl")]

    def truncate(self, iteration: int, valid: Collection[When] = ("before", "during", "after")) -> None:
        """Forget what came after `iteration`, so that the files end like those of a run never interrupted.

        Of evaluations, those stay that are `valid`.
        """
        for name in ("metrics.jsonl", "episodes.jsonl", HELD_OUT):
            path = self.path / name
            if not path.exists():
                continue
            found = lines(path)
            kept = b"".join(
                line + b"\n"
                for line, row in found
                if row["iteration"] <= iteration and row.get("when") in (*valid, None)
            )
            with writing(self.path):
                write_atomically(path, kept)

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        data = b"".join(encode(row) for row in rows)
        if data:
            with writing(self.path):
                append_whole(self.path / name, data)

    # --- summary -----------------------------------------------------------------------------------------------------
    def write_summary(self, summary: Mapping[str, Any]) -> None:
        with writing(self.path):
            write_atomically(self.path / "summary.json", pretty(summary))

    def summary(self) -> dict[str, Any] | None:
        """None as long as the run has written none."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        summary: dict[str, Any] = json.loads(path.read_bytes())
        return summary


def encode(row: Mapping[str, Any]) -> bytes:
    if "iteration" not in row:
        raise ValueError("a row needs its iteration: resuming drops rows by it")
    return json.dumps(dict(row), allow_nan=False).encode() + b"\n"


def pretty(data: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(data), allow_nan=False, indent=2).encode() + b"\n"


def lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line with what it says. The last may be torn by a kill in the middle of its writing, and is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:  # line by line: transcripts may be larger than memory
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                if not file.read(1):
                    return
                raise MarftError(f"{path} is damaged: line {number} is not JSON; delete that line") from None
            yield line.removesuffix(b"\n"), row
