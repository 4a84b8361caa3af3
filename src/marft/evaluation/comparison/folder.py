"""A comparison's folder: what was asked, what came out cell by cell, and a run for every cell that was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marft.config import Config, to_yaml
from marft.config.reading import read_config
from marft.files import Count, Finite, Truth, check_file, check_folder, is_there, read_json
from marft.runs.config_diff import Difference, first_difference, format_value
from marft.runs.directory import json_bytes
from marft.runs.disk import explain_file_error, make_folder, write_atomically
from marft.types import MarftError

CONFIG, RESULTS, TABLE, PLOT, CELLS = "compare.yaml", "compare.json", "compare.md", "compare.png", "cells"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedQuestion:
    """What `compare.json` has of a question: over how many seeds, and compared with whom."""

    seeds: Count
    single: str  # what the agent that works alone is told
    frozen: tuple[str, ...]  # agents kept untrained, a cell each


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(SavedQuestion):
    """Is this team worth it?"""

    config: Config

    @property
    def cells(self) -> list[str]:
        """The names of the compared teams, in the order in which they are run."""
        return ["team", "untuned", "single", "vote", *(f"frozen {name}" for name in self.frozen)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One of the compared, under one seed: how well it does on held-out tasks, and what it cost."""

    name: str
    seed: Count
    tasks: Count
    failed: Count  # of the tasks' episodes; they count as wrong
    reward: Finite | None  # None: its run collapsed
    accuracy: Finite | None  # None: it collapsed, or the environment does not say what is right
    accuracy_ci95: tuple[Finite, Finite] | None  # on these tasks
    tokens_per_task: Finite  # generated in evaluation
    tokens_generated: Count  # in training
    tokens_trained: Count
    iterations: Count
    seconds: Finite
    votes: Count | None = None  # answers a task
    collapsed: Truth = False  # its run stopped itself: it has no figures, and `tokens_per_task` is from before training


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What is read again of `compare.json`."""

    question: SavedQuestion
    cells: list[Cell]


class Comparison:
    """`compare.yaml` is the config, `compare.json` the rest of the question and the cells so far, `cells/` the runs."""

    def __init__(self, path: Path, question: Question, cells: Sequence[Cell] = ()) -> None:
        self.path, self.question, self.cells = path, question, list(cells)

    @classmethod
    def begin(cls, path: Path, question: Question) -> Comparison:
        """A new comparison, or the one that this folder holds, if it was asked the same. More seeds may be asked for."""
        if is_there(path / "config.yaml"):
            raise MarftError(f"{path} is a run, not a comparison; choose another --run")
        for name in (RESULTS, TABLE, PLOT):
            check_file(path / name)
        if is_there(path / CONFIG):
            return cls(path, question, read_cells(path, question))
        check_folder(path / CELLS)
        if any(is_there(run / "config.yaml") for run in (path / CELLS).glob("*")):
            raise MarftError(
                f"{path} holds {CELLS} of a comparison that has lost its {CONFIG}; nothing was changed: put it back from a "
                "copy, or choose another --run"
            )
        comparison = cls(path, question)
        make_folder(path)
        comparison.save()
        # Last, because it is what makes the folder a comparison.
        comparison.write(CONFIG, to_yaml(question.config).encode())
        return comparison

    def find(self, name: str, seed: int) -> Cell | None:
        """The finished cell, or None."""
        return next((cell for cell in self.cells if (cell.name, cell.seed) == (name, seed)), None)

    def get(self, name: str, seed: int) -> Cell:
        """One that is known to be there."""
        cell = self.find(name, seed)
        assert cell is not None
        return cell

    def run_path(self, name: str, seed: int) -> Path:
        """The run directory of a cell."""
        return self.path / CELLS / f"{name.replace(' ', '-')}-seed{seed}"

    def add(self, cell: Cell) -> None:
        """Record a finished cell in `compare.json`."""
        self.cells.append(cell)
        self.save()

    def save(self, report: Mapping[str, Any] | None = None) -> None:
        """Write the question and the cells so far, with the report where there is one."""
        asked = {key: getattr(self.question, key) for key in ("seeds", "single", "frozen")}
        found = {"question": asked, "cells": [asdict(cell) for cell in self.cells]}
        self.write(RESULTS, json_bytes({**found, "report": report} if report else found))

    def write(self, name: str, data: bytes) -> None:
        """Replace a file of the folder; raises a MarftError where the disk refuses."""
        with explain_file_error(self.path / name):
            write_atomically(self.path / name, data)


def read_cells(path: Path, question: Question) -> list[Cell]:
    """What a folder already knows of this question; another question is refused."""
    try:
        old, results = read_config(path / CONFIG), read_json(path / RESULTS, Results)
    except MarftError as error:
        raise MarftError(f"{path} holds no comparison of this version: {error}; choose another --run") from error
    asked = results.question
    different = first_difference(old, question.config)
    for key in ("single", "frozen"):
        there, here = getattr(asked, key), getattr(question, key)
        if there != here and different is None:
            different = Difference(key=f"--{key}", old=format_value(there), new=format_value(here))
    if different is not None:
        raise MarftError(f"{path} compares something else: {different}; choose another --run")
    if asked.seeds > question.seeds:
        raise MarftError(f"{path} compares over {asked.seeds} seeds already; give --seeds {asked.seeds} or more")
    return results.cells
