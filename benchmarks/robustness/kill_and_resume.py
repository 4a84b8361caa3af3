"""Kill a command at random moments, go on with it, and compare its end, byte for byte, with one that was never interrupted.

    python benchmarks/robustness/kill_and_resume.py [--trials 20] [--seed 0] [--algorithm marft-token]

Trials take turns over `marft train`, `eval`, `compare` and `workers`: training with lag, whose workers are killed too, at
random moments. Each kills the command (SIGKILL) one to three times, at moments spread over the whole of it and its
start-up, then lets it end. All the while another process tries for the same folder: it
must be refused as long as the first lives, and nobody may notice it. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marft.processes import descendants
from marft.runs.lock import Lock
from marft.types import MarftError

TINY = ["train.tasks=8", "train.samples=4", "train.minibatches=2", "checkpoint.every=1", "eval.tasks=16"]
SETTINGS = {
    "train": [*TINY, "train.iterations=6"],
    "eval": ["eval.tasks=96", "eval.samples=4", "engine.slots=16"],
    "compare": [*TINY, "train.iterations=2", "--seeds", "1"],
    "workers": [*TINY, "train.iterations=8", "train.lag=1", "rollout.workers=2", "rollout.threads=1"],
}
COMMAND = {"workers": "train"}  # where it is not its kind
MARK = {"train": "config.yaml", "eval": "eval.yaml", "compare": "compare.yaml"}  # what makes a folder one of these
RIVAL_S = 0.05  # between two tries of the rival for the lock
WORKER = b"marft.distributed.worker"
WORKER_LIFE_S = 12.0  # mean time until one of them is killed


def command(kind: str, run: Path, algorithm: str) -> list[str]:
    """What begins, or goes on with, what is in the folder."""
    name = COMMAND.get(kind, kind)
    if name == "train" and (run / MARK[name]).exists():
        words = ["--resume"]
    else:
        words = [f"algorithm={algorithm}", *SETTINGS[kind]]
    return [sys.executable, "-m", "marft.cli", name, *words, "--run", str(run)]


# --- what must not depend on interruptions ----------------------------------------------------------------------------
def outcome(kind: str, run: Path) -> dict[str, Any]:
    match kind:
        case "train" | "workers":
            return outcome_of_run(run)
        case "eval":
            return {name: timeless(read(run / name)) for name in ("episodes.jsonl", "results.json", "manifest.json")}
    cells = {cell.name: outcome_of_run(cell) for cell in sorted((run / "cells").iterdir())}
    return {"cells": cells, "compare.json": timeless(read(run / "compare.json"))}


def outcome_of_run(run: Path) -> dict[str, Any]:
    """The newest checkpoint's bytes, metrics and episodes, evaluations; no lock is left."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {
        "checkpoint": {str(f.relative_to(newest)): f.read_bytes() for f in sorted(newest.rglob("*")) if f.is_file()},
        "metrics": timeless(read(run / "metrics.jsonl")),
        "episodes": (run / "episodes.jsonl").read_bytes(),
        "summary": timeless(read(run / "summary.json")),
        "names": sorted(path.name for path in run.iterdir()),
    }


def read(path: Path) -> Any:
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def timeless(found: Any) -> Any:
    match found:
        case dict():
            return {key: timeless(value) for key, value in found.items() if key != "seconds"}
        case list():
            return [timeless(each) for each in found]
    return found


# --- who harms it ------------------------------------------------------------------------------------------------------
class Saboteur:
    """Kills a worker of the process now and then, as long as it lives."""

    def __init__(self, process: subprocess.Popen[bytes], rng: random.Random) -> None:
        self.process, self.rng, self.kills = process, rng, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill)

    def __enter__(self) -> Saboteur:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _kill(self) -> None:
        while not self._over.wait(self.rng.expovariate(1 / WORKER_LIFE_S)):
            if found := [pid for pid in descendants(self.process.pid) if is_worker(pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.rng.choice(found), signal.SIGKILL)
                    self.kills += 1


def is_worker(pid: int) -> bool:
    try:
        return WORKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return False


# --- the rival --------------------------------------------------------------------------------------------------------
class Rival:
    """Tries for the folder as long as somebody else's process lives, by the lock alone and once by the whole command."""

    def __init__(self, process: subprocess.Popen[bytes], kind: str, run: Path, algorithm: str) -> None:
        self.process, self.run = process, run
        self.words = command(kind, run, algorithm)
        self.refusals = self.commands = self.wrong = 0  # commands: refusals of a whole one, not of the lock alone
        self.held = False  # whether the first has been seen to hold the lock
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._lock), threading.Thread(target=self._command)]

    def __enter__(self) -> Rival:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _lock(self) -> None:
        """Before the first has the lock, trying for it could refuse the first instead: so wait until its file is there."""
        while not self._over.wait(RIVAL_S):
            if not self.names_the_first():
                continue
            self.count(self.refused_by_lock())

    def _command(self) -> None:
        while not self.held and not self._over.wait(RIVAL_S):
            pass
        if not self.held:
            return
        with subprocess.Popen(self.words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as rival:
            while rival.poll() is None:
                if self._over.wait(RIVAL_S):  # the folder is free: it would rightly go on in the first's place
                    rival.kill()
                    rival.wait()
                    if not self.names_the_first():  # the file that the rival itself may leave, having been killed
                        (self.run / "lock").unlink(missing_ok=True)
                    return
            assert rival.stderr is not None
            last = rival.stderr.read().splitlines()[-1:]
            refused = rival.returncode == 2 and f"is being written by process {self.process.pid} on" in str(last)
            self.commands += refused
            self.count(refused)

    def names_the_first(self) -> bool:
        try:
            return bool(json.loads((self.run / "lock").read_text())["pid"] == self.process.pid)
        except (OSError, ValueError):
            return False

    def refused_by_lock(self) -> bool:
        try:
            with Lock(self.run):
                return False
        except MarftError as error:
            self.held = True
            return f"process {self.process.pid} on" in str(error)

    def count(self, refused: bool) -> None:
        """A try that succeeds because the first ended meanwhile is none."""
        if refused:
            self.refusals += 1
        elif self.process.poll() is None and self.names_the_first():
            self.wrong += 1


# --- trials -----------------------------------------------------------------------------------------------------------
def go(
    kind: str, run: Path, algorithm: str, delay: float | None, rng: random.Random
) -> tuple[int | None, Rival, Saboteur]:
    """The exit code, None if it was killed after `delay`; how the rival fared, and how many workers were killed."""
    words = command(kind, run, algorithm)
    with errors_of(run).open("wb") as errors:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
    with Rival(process, kind, run, algorithm) as rival, Saboteur(process, random.Random(rng.random())) as saboteur:
        try:
            code: int | None = process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            code = None
    return code, rival, saboteur


def errors_of(run: Path) -> Path:
    """What the last command on a folder wrote to its standard error."""
    return run.with_suffix(".errors")


def trial(
    number: int, kind: str, folder: Path, algorithm: str, length: float, rng: random.Random, expected: dict[str, Any]
) -> dict[str, Any]:
    run = folder / f"trial-{number}"
    moments: list[float] = []
    codes: list[int | None] = []
    rivals: list[Rival] = []
    saboteurs: list[Saboteur] = []
    while None not in codes:  # one that was quicker than its killer is no trial
        shutil.rmtree(run, ignore_errors=True)
        moments = [round(rng.uniform(0, length), 3) for _ in range(rng.randint(1, 3))]
        ended = [go(kind, run, algorithm, moment, rng) for moment in [*moments, None]]
        codes, rivals, saboteurs = ([each[i] for each in ended] for i in range(3))
    found = outcome(kind, run) if codes[-1] == 0 else {}
    differing = [part for part in expected if found.get(part) != expected[part]]
    shutil.rmtree(run, ignore_errors=True)
    return {
        "trial": number, "command": kind, "moments": moments, "kills": codes.count(None), "identical": not differing,
        "differing": differing, "exit_code": codes[-1],
        "said": "" if codes[-1] == 0 else errors_of(run).read_text(errors="replace").strip().rpartition("\n")[2],
        "refused": sum(rival.refusals for rival in rivals),
        "commands_refused": sum(rival.commands for rival in rivals),
        "wrongly_admitted": sum(rival.wrong for rival in rivals),
        "workers_killed": sum(saboteur.kills for saboteur in saboteurs),
    }  # fmt: skip


def whole(kind: str, folder: Path, algorithm: str) -> tuple[dict[str, Any], float]:
    """What comes of it uninterrupted, and how long that takes."""
    started = time.perf_counter()
    subprocess.run(command(kind, folder / kind, algorithm), check=True, stdout=subprocess.DEVNULL)
    return outcome(kind, folder / kind), time.perf_counter() - started


def run_trials(kinds: Sequence[str], trials: int, seed: int, algorithm: str) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        used = kinds[:trials]
        known = {kind: whole(kind, folder, algorithm) for kind in used}
        found = []
        for number in range(trials):
            kind = used[number % len(used)]
            expected, length = known[kind]
            found.append(trial(number, kind, folder, algorithm, length, rng, expected))
            print(json.dumps(found[-1]), file=sys.stderr)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="in all: the commands take turns")
    parser.add_argument("--commands", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", default="marft-token")
    arguments = parser.parse_args()
    trials = run_trials(arguments.commands, arguments.trials, arguments.seed, arguments.algorithm)
    identical = sum(each["identical"] for each in trials)
    wrong = sum(each["wrongly_admitted"] for each in trials)
    figures = {
        "trials": len(trials),
        "identical": identical,
        "kills": sum(each["kills"] for each in trials),
        "workers_killed": sum(each["workers_killed"] for each in trials),
        "rivals_refused": sum(each["refused"] for each in trials),
        "commands_refused": sum(each["commands_refused"] for each in trials),
        "rivals_wrongly_admitted": wrong,
        "each": trials,
    }
    print(json.dumps(figures))
    sys.exit(0 if identical == len(trials) and not wrong else 1)


if __name__ == "__main__":
    main()
