"""Metrics on their way to a dashboard: TensorBoard, Weights & Biases or Trackio, each imported only when asked for."""

from __future__ import annotations

import importlib
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any, Protocol

from marft.config import Config
from marft.files import Damaged, is_there, read_text
from marft.runs.disk import explain_write_errors, write_atomically
from marft.runs.transcripts import Transcript
from marft.types import MarftError

MODULES = {"tensorboard": "tensorboard.summary.writer.record_writer", "wandb": "wandb", "trackio": "trackio"}


class Tracker(Protocol):
    """Where the scalars of each iteration go."""

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Scalars of this iteration, by tag."""

    def show(self, iteration: int, transcripts: Sequence[Transcript]) -> None:
        """Episodes of this iteration, as texts."""

    def rewind(self, iteration: int) -> None:
        """The run has gone back: what comes after `iteration` is done again."""

    def close(self) -> None:
        """Write what is still buffered and end the connection."""


def open_trackers(config: Config, run: Path, *, resumed: int | None = None) -> list[Tracker]:
    """What the config asks for. `resumed` is the iteration a resumed run goes on from; what came after is redone."""
    chosen: list[Tracker] = []
    settings, name = config.model_dump(mode="json"), run.absolute().name
    if config.track.tensorboard:
        chosen.append(TensorBoard(run / "tensorboard", purge=None if resumed is None else resumed + 1))
    if config.track.wandb:
        chosen.append(Wandb(config.track.wandb, name, settings, run))
    if config.track.trackio:
        chosen.append(Trackio(config.track.trackio, name, settings, run))
    return chosen


def require_trackers(config: Config) -> None:
    """Ends in one line where a dashboard is asked for whose package is missing: before anything is made or loaded."""
    for name, module in MODULES.items():
        if getattr(config.track, name):
            import_tracker(module, f"track.{name}")


def flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """{"iteration": 3, "agents": {"solver": {"kl": 0.1}}} → {"agents/solver/kl": 0.1}: the iteration is the step."""
    flat: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and (prefix or key != "iteration"):
            flat[f"{prefix}{key}"] = float(value)
    return flat


COLUMNS = ("task", "prompt", "gold", "transcript", "reward", "correct")


def transcript_row(transcript: Transcript) -> list[Any]:
    """For a table with the columns above."""
    said = "\n\n".join(f"{turn.agent}: {turn.text}" for turn in transcript.turns)
    return [transcript.task, transcript.prompt, transcript.gold, said, transcript.reward, transcript.correct]


def transcript_markdown(transcript: Transcript) -> str:
    """Texts are indented, so that what stands in them is shown as it is."""
    verdict = {None: "", True: ", right", False: ", wrong"}[transcript.correct]
    gold = "" if transcript.gold is None else f", gold answer {transcript.gold}"
    parts = [
        (f"task {transcript.task}{gold}", transcript.prompt),
        *((turn.agent, turn.text) for turn in transcript.turns),
    ]
    texts = [f"{head}\n\n{indent(text or '(nothing)', '    ', lambda line: True)}" for head, text in parts]
    return "\n\n".join([*texts, f"reward {transcript.reward:g}{verdict}"])


class TensorBoard:
    """Event files, written at once and without a thread: a kill loses nothing and a full disk is noticed.

    A resumed run continues in the same folder. `purge` is the first step that it redoes; TensorBoard then forgets
    that step and all later ones of the files before.
    """

    def __init__(self, folder: Path, purge: int | None = None) -> None:
        self._events = import_tracker("tensorboard.compat.proto.event_pb2", "track.tensorboard")
        self._summaries = import_tracker("tensorboard.compat.proto.summary_pb2", "track.tensorboard")
        records = import_tracker("tensorboard.summary.writer.record_writer", "track.tensorboard")
        self._run = folder.parent
        # TensorBoard reads the files in the order of their names: microseconds order even a restart within a second.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        with explain_write_errors(self._run):
            folder.mkdir(parents=True, exist_ok=True)
            self._records = records.RecordWriter((folder / name).open("wb"))
        self._write(file_version="brain.Event:2")
        if purge is not None:
            self.rewind(purge - 1)

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Scalars of this iteration, by tag."""
        scalars = [self._summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step=iteration, summary=self._summaries.Summary(value=scalars))

    def show(self, iteration: int, transcripts: Sequence[Transcript]) -> None:
        """Episodes of this iteration, as one text in Markdown."""
        tensors = import_tracker("tensorboard.compat.proto.tensor_pb2", "track.tensorboard")
        types = import_tracker("tensorboard.compat.proto.types_pb2", "track.tensorboard")
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        text = "\n\n---\n\n".join(transcript_markdown(transcript) for transcript in transcripts)
        value = self._summaries.Summary.Value(
            tag="episodes",
            metadata=self._summaries.SummaryMetadata(plugin_data=plugin),
            tensor=tensors.TensorProto(dtype=types.DT_STRING, string_val=[text.encode(errors="replace")]),
        )
        self._write(step=iteration, summary=self._summaries.Summary(value=[value]))

    def rewind(self, iteration: int) -> None:
        """Mark a restart: TensorBoard hides what was logged after `iteration`."""
        session = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(step=iteration + 1, session_log=session)

    def close(self) -> None:
        """Flush and close the event file."""
        with explain_write_errors(self._run):
            self._records.close()

    def _write(self, **content: Any) -> None:
        event = self._events.Event(wall_time=time.time(), **content)
        with explain_write_errors(self._run):
            self._records.write(event.SerializeToString())
            self._records.flush()


class Service:
    """What W&B and Trackio have in common: a run that takes scalars and tables by step."""

    _service: ModuleType
    _run: Any

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Scalars of this iteration, by tag."""
        self._run.log(dict(values), step=iteration)

    def show(self, iteration: int, transcripts: Sequence[Transcript]) -> None:
        """Episodes of this iteration, as a table."""
        table = self._service.Table(columns=list(COLUMNS), data=[transcript_row(each) for each in transcripts])
        self._run.log({"episodes": table}, step=iteration)

    def rewind(self, iteration: int) -> None:
        """Steps that it already has stay as they are."""

    def close(self) -> None:
        """Mark the run as finished and upload the rest."""
        self._run.finish()


class Wandb(Service):
    """A run on Weights & Biases; resuming continues it, and the steps it already has stay as they are."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any], folder: Path) -> None:
        wandb = self._service = import_tracker("wandb", "track.wandb")
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                id=tracking_id(folder),
                resume="allow",
                config=dict(config),
                allow_val_change=True,  # a resumed run may have another train.iterations
                dir=str(folder.absolute()),
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise MarftError(f"track.wandb: {reason}; fix it or drop track.wandb") from error
        self._newest = int(getattr(self._run, "step", 0) or 0)  # of a run that goes on

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Scalars of this iteration, by tag. W&B drops what comes after a later step: what does stands at that one, and has
        its own iteration beside it."""
        if iteration < self._newest:
            values = {**values, "eval/iteration": float(iteration)}
        self._newest = max(self._newest, iteration)
        super().log(self._newest, values)


class Trackio(Service):
    """A run of Trackio, which knows runs by name only: the name carries the run's identity."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any], folder: Path) -> None:
        trackio = self._service = import_tracker("trackio", "track.trackio")
        self._run = trackio.init(
            project=project, name=f"{name}-{tracking_id(folder)}", config=dict(config), resume="allow"
        )


def import_tracker(module: str, key: str) -> ModuleType:
    """Import a tracker's module; raises a MarftError that says how to install its package."""
    package = module.partition(".")[0]
    try:
        found = importlib.import_module(module)
        if found.__spec__ is not None and found.__spec__.origin is None:  # a folder of that name, as wandb leaves here
            raise ImportError(f"{module} is a folder")
        return found
    except ImportError:
        raise MarftError(f"{key} needs the package {package}: pip install 'marft[track]'") from None


def tracking_id(folder: Path) -> str:
    """The run's name for the services, kept in its folder: two folders of one name are two runs, a moved one is one."""
    path = folder / "tracking.id"
    if not is_there(path):
        with explain_write_errors(folder):
            write_atomically(path, uuid.uuid4().hex[:8].encode())
    found = read_text(path, 1 << 20)
    if not re.fullmatch(r"[0-9a-zA-Z_-]{1,64}", found):
        raise Damaged(path, "is damaged: it holds no identity of a run")
    return found
