"""An evaluation's folder: what was asked, every episode that was played for it, and the figures."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from marft.config import Config, to_yaml
from marft.config.reading import read_config
from marft.files import check_file, is_there, read_json, read_rows
from marft.runs.config_diff import first_difference
from marft.runs.directory import json_bytes
from marft.runs.disk import append_whole, explain_file_error, make_folder, write_atomically
from marft.runs.file_schemas import EvalManifest, Evaluated
from marft.runs.transcripts import Transcript
from marft.types import MarftError

CONFIG, MANIFEST, EPISODES, RESULTS, TABLE = (
    "eval.yaml",
    "manifest.json",
    "episodes.jsonl",
    "results.json",
    "results.md",
)
FREE = ("train.failures", "track")  # what an evaluation may go on with though it differs: it changes no episode
OTHERS = {"config.yaml": "a run", "compare.yaml": "a comparison"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """How good are these weights on these tasks, played as this config says?"""

    config: Config
    weights: str  # a hash of all adapters and of the base below them
    tasks: Mapping[str, str]  # of each benchmark, a hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Which episode: who is silent in it, and which sample of which task it is."""

    benchmark: str
    silent: str | None
    task: str
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode, as far as figures need it."""

    slot: Slot
    reward: float
    correct: bool | None  # None: the environment does not say, or it failed
    answer: str | None  # what the team's last message answers, as text: equal answers have equal texts
    tokens: Mapping[str, int]  # generated, by agent
    turns: Mapping[str, int]  # taken, by agent
    error: str | None  # why it failed
    seconds: float  # its share of the time that it and those beside it took


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of `episodes.jsonl`: what figures need, and what was said. Only the former is held in memory."""

    played: Played
    transcript: Transcript


class Evaluation:
    """`eval.yaml` is the config, `manifest.json` the rest of the request, `episodes.jsonl` what was played so far."""

    def __init__(self, path: Path, request: EvalRequest) -> None:
        self.path, self.request = path, request

    @classmethod
    def begin(cls, path: Path, request: EvalRequest) -> Evaluation:
        """A new evaluation, or the one that this folder holds, if it was asked the same."""
        for name, what in OTHERS.items():
            if is_there(path / name):
                raise MarftError(f"{path} is {what}, not an evaluation; choose another --run")
        evaluation = cls(path, request)
        if is_there(path / CONFIG):
            check_same(path, request)
            for name in (EPISODES, RESULTS, TABLE):  # what is written before it is read
                check_file(path / name)
            return evaluation
        if taken := [name for name in (EPISODES, MANIFEST, RESULTS, TABLE) if is_there(path / name)]:
            raise MarftError(f"{path} holds a {taken[0]} of something else; choose another --run")
        make_folder(path)
        evaluation.write(EPISODES, b"")
        evaluation.write(MANIFEST, json_bytes({"weights": request.weights, "tasks": dict(request.tasks)}))
        # Last, because it is what makes the folder an evaluation.
        evaluation.write(CONFIG, to_yaml(request.config).encode())
        return evaluation

    @property
    def is_done(self) -> bool:
        """Whether it has figures: everything was played."""
        return is_there(self.path / RESULTS)

    def keep_whole_chunks(self, chunks: Sequence[Sequence[Slot]]) -> int:
        """How many of the chunks, which are played in this order, are there whole; what is there of the next is dropped.

        A chunk that is played anew as a whole is computed in the same batches, and so comes out the same to the bit.
        """
        found = [row.slot for row in self.read_played()]
        whole = end = 0
        for chunk in chunks:
            if found[end : end + len(chunk)] != list(chunk):
                break
            whole, end = whole + 1, end + len(chunk)
        left = found[end:]
        if left != list(chunks[whole] if whole < len(chunks) else ())[: len(left)]:
            raise MarftError(f"{self.path / EPISODES} is damaged: line {end + 1} is out of place; choose another --run")
        self.truncate(end)
        return whole

    def truncate(self, count: int) -> None:
        """Drop all but the first `count` episodes."""
        path = self.path / EPISODES
        size = sum(len(row.line) + 1 for row in islice(read_rows(path, Evaluated), count))
        with explain_file_error(path):
            if size > path.stat().st_size:  # the last line lacks its end
                append_whole(path, b"\n")
            os.truncate(path, size)

    def append(self, rows: Sequence[Record]) -> None:
        """Append records to `episodes.jsonl`, all or none."""
        data = b"".join(json.dumps(record_row(row), allow_nan=False).encode() + b"\n" for row in rows)
        with explain_file_error(self.path / EPISODES):
            append_whole(self.path / EPISODES, data)

    def read_played(self) -> list[Played]:
        """All episodes in `episodes.jsonl`, as far as figures need them; raises Damaged for a broken line."""
        return [played_from_row(row.data) for row in read_rows(self.path / EPISODES, Evaluated)]

    def write(self, name: str, data: bytes) -> None:
        """Replace a file of the folder; raises a MarftError where the disk refuses."""
        with explain_file_error(self.path / name):
            write_atomically(self.path / name, data)


def check_same(path: Path, request: EvalRequest) -> None:
    """An evaluation goes on with the request it began with; another is refused."""
    try:
        old, asked = read_config(path / CONFIG), read_json(path / MANIFEST, EvalManifest)
    except MarftError as error:
        raise MarftError(f"{path} holds no evaluation of this version: {error}; choose another --run") from error
    if found := first_difference(old, request.config, free=FREE):
        raise MarftError(f"{path} evaluates something else: {found}; choose another --run")
    if asked.weights != request.weights:
        raise MarftError(f"{path} evaluates other weights: the team has changed since; choose another --run")
    if changed := [name for name, digest in request.tasks.items() if asked.tasks.get(name) != digest]:
        raise MarftError(f"{path} evaluates other tasks: those of {changed[0]!r} have changed; choose another --run")


def record_row(row: Record) -> dict[str, Any]:
    """One flat object a line; its turns are those that were spoken."""
    played, transcript = asdict(row.played), asdict(row.transcript)
    slot: dict[str, Any] = played.pop("slot")
    return {**slot, **transcript, **played, "turns": transcript["turns"]}


def played_from_row(row: Mapping[str, Any]) -> Played:
    """What figures need of a line."""
    slot = Slot(**{key: row[key] for key in Slot.__slots__})
    own = {key: row[key] for key in Played.__slots__ if key not in ("slot", "turns")}
    return Played(slot=slot, turns=Counter(turn["agent"] for turn in row["turns"]), **own)
