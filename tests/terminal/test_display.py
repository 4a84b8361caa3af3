"""What is being done is shown from the first second, with counts, on a terminal and elsewhere, and changes no result."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from quick import models_in_memory, settings_of, start
from toys import TINY, rows

from marft.commands.train import start_run
from marft.config import parse
from marft.terminal.console import PlainConsole
from marft.terminal.display import Display


class Recorded(Display):
    """Remembers what was begun, and how far it came."""

    def __init__(self) -> None:
        super().__init__(PlainConsole(file=io.StringIO()))
        self.seen: list[tuple[str, int, int, str]] = []

    def begin(self, what: str, **named: Any) -> None:
        self.note()
        super().begin(what, **named)

    def rest(self) -> None:
        self.note()
        super().rest()

    def note(self) -> None:
        if self.what:
            self.seen.append((self.what, self.done, self.total, self.unit))


def shown(path: Path, **changes: Any) -> list[tuple[str, int, int, str]]:
    with models_in_memory(), Recorded() as display:
        start_run(parse(settings_of(**changes)), path, display=display)
    return display.seen


def test_a_run_tells_what_it_does_and_how_far_it_is(tmp_path: Path) -> None:
    model = settings_of()["model"]
    seen = shown(tmp_path / "run", train={"iterations": 2}, eval={"tasks": 3, "every": 2}, checkpoint={"every": 9})
    one = [
        ("rollout", 4, 4, "episodes"),  # 2 tasks × 2 samples
        ("credit", 0, 0, ""),
        ("update", 2, 2, "minibatches"),
    ]
    assert seen == [
        ("preparing the environment toys:Echo", 0, 0, ""),
        ("reading the tasks of toys:Echo (test)", 0, 0, ""),
        ("reading the tasks of toys:Echo (train)", 0, 0, ""),
        (f"loading the model {model}", 0, 0, ""),
        ("checking that the team can play", 2, 2, ""),
        ("looking for held-out tasks in the training data", 0, 0, ""),
        ("evaluating before training", 3, 3, "episodes"),
        ("saving a checkpoint", 0, 0, ""),
        *((f"iteration 1: {phase}", done, total, unit) for phase, done, total, unit in one),
        ("iteration 1: eval", 0, 0, "episodes"),
        *((f"iteration 2: {phase}", done, total, unit) for phase, done, total, unit in one),
        ("iteration 2: eval", 3, 3, "episodes"),
        ("saving a checkpoint", 0, 0, ""),
        ("evaluating after training", 3, 3, "episodes"),
    ]


def test_play_outs_are_counted_as_they_come(tmp_path: Path) -> None:
    seen = shown(tmp_path / "run", train={"iterations": 1}, credit="difference")
    assert ("iteration 1: rollout", 12, 12, "episodes") in seen  # 4, and again without each of 2 turns


def test_being_watched_changes_nothing(tmp_path: Path) -> None:
    shown(tmp_path / "watched")
    start(tmp_path / "alone")
    assert rows(tmp_path / "watched" / "metrics.jsonl") == rows(tmp_path / "alone" / "metrics.jsonl")


# --- elsewhere: plain lines -------------------------------------------------------------------------------------------
def plain(**named: Any) -> tuple[Display, io.StringIO]:
    file = io.StringIO()
    return Display(PlainConsole(file=file, width=40), **named), file


def test_a_stage_is_told_at_once_and_a_phase_only_when_it_lasts() -> None:
    display, file = plain(beat=0.2)
    with display:
        display.begin("loading the model [red]x[/] :smile:")
        display.begin("evaluating", total=1200, unit="episodes")
        display.begin("iteration 1: rollout", unit="episodes", announce=False)
        display.expect(3)
        display.advance()
        display.advance()
        assert file.getvalue().splitlines() == ["loading the model [red]x[/] :smile:", "evaluating: 1,200 episodes"]
        time.sleep(0.7)
    told = file.getvalue().splitlines()[2:]
    assert 2 <= len(told) <= 4
    assert set(told) <= {"iteration 1: rollout 2/3 episodes, 0 s", "iteration 1: rollout 2/3 episodes, 1 s"}


def test_nothing_is_told_of_nothing_and_after_the_end() -> None:
    display, file = plain(beat=0.05)
    with display:
        display.begin("loading")
        display.rest()
        time.sleep(0.3)
    assert file.getvalue() == "loading\n"
    assert "marft-display" not in [thread.name for thread in threading.enumerate()]


def test_a_total_that_was_said_stays() -> None:
    display, _ = plain()
    display.begin("evaluating", total=9, unit="episodes")
    display.expect(4)
    display.advance(4)
    assert (display.done, display.total) == (4, 9)


@pytest.mark.parametrize(
    ("command", "stream"),
    [
        (["train"], "stdout"), (["train", "--plan"], "stderr"), (["train", "--dry-run"], "stderr"), (["eval"], "stdout"),
        (["eval", "--json"], "stderr"), (["compare"], "stdout"), (["compare", "--json"], "stderr"), (["play"], "stderr"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given),
)  # fmt: skip
def test_the_first_line_comes_before_anything_heavy_is_loaded(tmp_path: Path, command: list[str], stream: str) -> None:
    """A torch that ends the process as soon as it is imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import os\nos._exit(7)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "marft.cli", *command], capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "PYTHONPATH": path}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 7
    told = {"stdout": "", "stderr": "", stream: "loading torch and transformers\n"}
    assert {"stdout": done.stdout, "stderr": done.stderr} == told


# --- a terminal -------------------------------------------------------------------------------------------------------
def test_a_terminal_is_never_silent_for_long(tmp_path: Path) -> None:
    """In a pseudo-terminal: something is drawn at least every 3 s, the counts are there, and no line is left half."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "marft.cli", "train", *TINY, "train.iterations=1", "--run", str(tmp_path / "run")]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    )
    os.close(theirs)
    text, last, longest = b"", time.monotonic(), 0.0
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        now = time.monotonic()
        if text:
            longest = max(longest, now - last)
        text, last = text + piece, now
    os.close(ours)
    assert process.wait() == 0
    screen = text.decode()
    for part in ("loading torch and transformers, 0 s", "loading the model nano, 0 s", "evaluating before training"):
        assert part in screen
    assert "iteration 1: " in screen
    assert "iteration    1/1" in screen
    assert longest < 5  # 3 s, and some patience with a machine that does other things
