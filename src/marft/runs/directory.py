"""A run's folder: its config, manifest, metrics, episodes and summary, readable while the run goes on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from marft.config import Config, to_yaml
from marft.config.reading import read_config
from marft.files import Damaged, Row, check_folder, is_ended, is_there, read_object, read_rows
from marft.import_paths import NotImportable
from marft.runs.config_diff import first_difference
from marft.runs.disk import FULL, append_whole, explain_write_errors, require_space, write_atomically
from marft.runs.file_schemas import Event, HeldOut, Line, Manifest, Summary, When
from marft.runs.transcripts import Transcript
from marft.types import MarftError

# What may change from one part of a run to the next: how long it lasts, what is watched, how much memory it takes, who
# plays, what is done about a collapse, and how fast it learns after one; never from what it learns, or how. Some of it
# changes the order of sums, and so the last bits.
FREE = (
    "train.iterations", "train.budget", "track", "eval", "checkpoint",
    "train.tokens", "train.recompute", "train.failures", "engine.slots", "engine.memory", "engine.keep",
    "rollout.workers", "rollout.shards", "rollout.threads", "rollout.gpus", "rollout.patience", "rollout.replay",
    "learner", "cluster", "train.on_collapse", "optimizer.lr",
)  # fmt: skip


CONFIG, MANIFEST, SUMMARY = "config.yaml", "manifest.json", "summary.json"
METRICS, EPISODES, HELD_OUT, EVENTS = "metrics.jsonl", "episodes.jsonl", "held_out.jsonl", "events.jsonl"
LINES = {METRICS: Line, EPISODES: Line, HELD_OUT: HeldOut}  # those of iterations, which a resumed run may forget
FOLDERS = ("checkpoints", "tensorboard", "failures")


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
                raise MarftError(run.taken_message(config))
            path.mkdir(parents=True, exist_ok=True)
            run.check_free()
            write_atomically(path / MANIFEST, json_bytes(manifest))
            # Last, because it is what makes the folder a run.
            write_atomically(path / CONFIG, to_yaml(config).encode())
        except OSError as error:
            remedy = "free space or choose" if error.errno in FULL else "choose"
            raise MarftError(f"cannot make the run {path}: {error.strerror}; {remedy} another --run") from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """A run that was started before."""
        run = cls(path)
        if not run.exists():
            run.check_free()
            raise MarftError(
                f"{path} is not a run: it has no config.yaml; start one with `marft train --run {shlex.quote(str(path))}`"
            )
        return run

    def exists(self) -> bool:
        """Whether it has a config, be it damaged."""
        return is_there(self.path / CONFIG)

    def check_free(self) -> None:
        """Where no config says that there is a run, no part of one may be left: it would be overwritten."""
        for name in (*LINES, EVENTS, SUMMARY, "checkpoints"):
            if is_there(self.path / name):
                raise MarftError(
                    f"{self.path} holds {name} of a run that has lost its {CONFIG}; nothing was changed: put {CONFIG} back "
                    "from a copy, or choose another --run"
                )

    def check_whole(self) -> None:
        """Raise where a file that a resumed run reads or writes is damaged. Checkpoints have hashes and are not read."""
        for name in FOLDERS:
            check_folder(self.path / name)
        self.manifest()
        self.summary()
        for name, shape in {**LINES, EVENTS: Event}.items():
            for _ in read_rows(self.path / name, shape):
                pass

    def last_iteration(self) -> int:
        """The last iteration that any file tells of: from the first on, there has been a checkpoint."""
        told: list[int] = [(self.summary() or {}).get("iterations", 0)]
        for name, shape in {**LINES, EVENTS: Event}.items():
            told += [row.data["iteration"] for row in read_rows(self.path / name, shape)]
        return max(told)

    def taken_message(self, config: Config) -> str:
        """Why no new run with this config can start here."""
        difference = first_difference(self.config(), config)
        if difference is None:
            return f"the run {self.path} exists already; continue it with --resume or choose another --run"
        return f"{self.path} belongs to a run with another config: {difference}; choose another --run"

    # --- config ------------------------------------------------------------------------------------------------------
    def config(self) -> Config:
        """The run's config; raises a MarftError where `config.yaml` cannot be read."""
        try:
            return read_config(self.path / CONFIG)
        except (Damaged, NotImportable):
            raise
        except MarftError as error:
            raise MarftError(f"{error}; put it back from a copy, or choose another --run") from error

    def manifest(self) -> dict[str, Any]:
        """What `manifest.json` holds; raises Damaged where it cannot be read."""
        return read_object(self.path / MANIFEST, Manifest)

    def check_same(self, config: Config) -> None:
        """A resumed run goes on with `config`, which may differ from the old one only in what is `FREE`."""
        old = self.config()
        if difference := first_difference(old, config, free=FREE, moved=True):
            raise MarftError(
                f"cannot resume {self.path} with another {difference.key}: it is {difference.old} there and "
                f"{difference.new} here; drop the override or choose another --run"
            )
        if config.rollout.swap == "token" and config.shards != old.shards:
            raise MarftError(
                f"cannot resume {self.path} in {config.shards} shards: its log of swaps is by shard, of which there are "
                f"{old.shards} so far; give rollout.shards={old.shards}"
            )

    def write_config(self, config: Config) -> None:
        """The config that a resumed run goes on with."""
        if first_difference(self.config(), config):
            with explain_write_errors(self.path):
                write_atomically(self.path / CONFIG, to_yaml(config).encode())

    # --- what happens, line by line ----------------------------------------------------------------------------------
    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append an iteration's row to `metrics.jsonl`."""
        self._append(METRICS, [row])

    def add_evaluation(self, iteration: int, figures: Mapping[str, Any]) -> None:
        """Add the figures of an evaluation to the row of its iteration, which has been written before they were known."""
        lines = (
            row_bytes({**row.data, "eval": figures}) if row.data["iteration"] == iteration else row.line + b"\n"
            for row in self.metric_rows()
        )
        with explain_write_errors(self.path):
            write_atomically(self.path / METRICS, b"".join(lines))

    def append_episodes(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append transcripts to `episodes.jsonl`."""
        self._append(EPISODES, rows)

    def append_event(self, event: str, iteration: int, **details: Any) -> None:
        """What happened beside the iterations: one object an event. Resuming forgets none."""
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        self._drop_torn(EVENTS, Event)
        self._append(EVENTS, [{"iteration": iteration, "event": event, "time": moment, **details}])

    def events(self) -> list[dict[str, Any]]:
        """All lines of `events.jsonl`, oldest first."""
        return [row.data for row in read_rows(self.path / EVENTS, Event)]

    def append_held_out(
        self, iteration: int, when: When, benchmark: str | None, transcripts: Iterable[Transcript]
    ) -> None:
        """Episodes of an evaluation; those of the run's own tasks have no benchmark."""
        head = {"iteration": iteration, "when": when, "benchmark": benchmark}
        self._append(HELD_OUT, [{**head, **asdict(transcript)} for transcript in transcripts])

    def held_out(self) -> Iterator[dict[str, Any]]:
        """The episodes of evaluations that were kept, in the order in which they were played."""
        return (row.data for row in read_rows(self.path / HELD_OUT, HeldOut))

    def metrics(self) -> list[dict[str, Any]]:
        """All rows of `metrics.jsonl`, oldest first."""
        return [row.data for row in self.metric_rows()]

    def metric_rows(self) -> Iterator[Row]:
        """The rows of `metrics.jsonl` with their line numbers, read one by one."""
        return read_rows(self.path / METRICS, Line)

    def truncate(self, iteration: int, valid: Collection[When] = ("before", "during", "after")) -> None:
        """Forget what came after `iteration`, so that the files end like those of a run never interrupted.

        Of evaluations, those stay that are `valid`; of those during training, those whose figures have been written.
        """
        evaluated = {row.data["iteration"] for row in self.metric_rows() if "eval" in row.data}

        def stays(row: Mapping[str, Any]) -> bool:
            when = row.get("when")
            whole = when != "during" or row["iteration"] in evaluated
            return row["iteration"] <= iteration and when in (*valid, None) and whole

        for name, shape in LINES.items():
            path = self.path / name
            if not is_there(path):
                continue
            kept = b"".join(row.line + b"\n" for row in read_rows(path, shape) if stays(row.data))
            with explain_write_errors(self.path):
                write_atomically(path, kept)

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        data = b"".join(row_bytes(row) for row in rows)
        if data:
            with explain_write_errors(self.path):
                append_whole(self.path / name, data)

    def _drop_torn(self, name: str, shape: type[Any]) -> None:
        """What is appended to a line that a kill has torn would be no line either."""
        path = self.path / name
        if is_there(path) and not is_ended(path):
            with explain_write_errors(self.path):
                write_atomically(path, b"".join(row.line + b"\n" for row in read_rows(path, shape)))

    # --- summary -----------------------------------------------------------------------------------------------------
    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace `summary.json`."""
        with explain_write_errors(self.path):
            write_atomically(self.path / SUMMARY, json_bytes(summary))

    def summary(self) -> dict[str, Any] | None:
        """None as long as the run has written none."""
        path = self.path / SUMMARY
        return read_object(path, Summary) if is_there(path) else None


def row_bytes(row: Mapping[str, Any]) -> bytes:
    """A row as one line of JSON; ValueError where it has no iteration or a number is not finite."""
    if "iteration" not in row:
        raise ValueError("a row needs its iteration: resuming drops rows by it")
    return json.dumps(dict(row), allow_nan=False).encode() + b"\n"


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """Indented JSON with a final line break, as all small files of a run are written."""
    return json.dumps(dict(data), allow_nan=False, indent=2).encode() + b"\n"
