"""A real result: a language model alone and as reasoner → actor, trained on GSM8K or MATH; untuned and trained measured alike.

    python benchmarks/learning/real.py run --model DIR --data DIR --out DIR [--set gsm8k | math] [--only NAME …] [--seconds S] [--jobs N] [key=value …]
    python benchmarks/learning/real.py report --out DIR [--docs docs]

`run` trains what is not trained yet and measures every team at its newest checkpoint; give it again to go on.
`report` writes the tables and the pictures, from the files that the runs wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from benchmarks.docs.report_real import LUCK, SITTINGS, write_report
from marft.config import load_config
from marft.runs.directory import RunDirectory
from marft.runs.export import checkpoint_folder
from marft.types import MarftError

ENTRIES = {  # a team by its name, and what trains it
    "untuned-single": [],
    "untuned-duo": [],
    "untuned-single-long": [],
    "untuned-duo-long": [],
    "single-token": ["algorithm={name: marft-token, lam: 1.0}"],
    # a clip on a turn's mean ratio hardly holds long turns: at 5e-4 this one unlearnt everything within 12 iterations
    "duo-action": ["algorithm={name: marft-action, lam: 1.0}", "optimizer.lr=1.5e-4"],
    "duo-token": ["algorithm={name: marft-token, lam: 1.0}"],
    "duo-grpo": ["algorithm=grpo"],
}
CLIP = "algorithm.clip_high=0.28"  # rare tokens may rise further than they may fall, so that trying things lasts longer
PATIENCE = 120  # seconds for an interrupted run to end
AGENTS = {"single": ["solver"], "duo": ["reasoner", "actor"]}
TEMPERATURE = 0.7  # in training too: what is measured is what is trained
SETTINGS = (
    "lora={rank: 8, alpha: 16}",  # half the checkpoint of rank 16
    "optimizer={warmup: 2, decay: linear}",  # the first gradients are noisy, and the last steps settle
    "train={tasks: 32, samples: 8, minibatches: 4}",  # of eight samples, one in six right, most groups differ
    "checkpoint={every: 2, keep: 2}",  # what a stop can cost
    "eval={tasks: 0, every: 0}",  # `marft eval` measures, the untuned team once for all
    "track={tensorboard: false}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A data set: how many held-out tasks there are, and how long agents may speak.

    The single agent may speak as long as the duo together. The limits cut many an untuned answer, so the untuned teams are
    measured with room to spare too (`long`).
    """

    tasks: int
    longest: Mapping[str, int]
    long: int
    words: Sequence[str]


STUDIES = {  # `engine.slots` and `train.tokens` let four runs and some evaluations share one GPU's memory
    "gsm8k": Study(  # a rate of 2e-4 moved policies by a KL of 0.0005 an iteration, far less than the trust region allows
        tasks=1319, longest={"solver": 592, "reasoner": 400, "actor": 192}, long=700,
        words=["optimizer.lr=5.0e-4", "train.iterations=45", "train.tokens=8192", "engine.slots=256"],
    ),
    "math": Study(  # longer answers, so fewer in an iteration; of the test set the first 500 of 5,000
        tasks=500, longest={"solver": 1024, "reasoner": 640, "actor": 384}, long=1536,
        words=["optimizer.lr=3.0e-4", "train={iterations: 24, tasks: 16, minibatches: 2, tokens: 6144}", "engine.slots=128"],
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """One call of `run`."""

    set: str
    model: Path
    data: Path
    folder: Path
    tasks: int
    until: float | None  # of the monotonic clock: past it no training goes on
    overrides: Sequence[str]

    def words(self, entry: str) -> list[str]:
        """What makes the team, for `marft train` or `marft eval`."""
        team, study = "duo" if "duo" in entry else "single", STUDIES[self.set]
        words = [f"gsm8k-{team}-token", f"model={self.model}", f"env.data={self.set}"]
        words += [f"env.{split}={data_file(self.data, self.set, split)}" for split in ("train", "test")]
        for agent in AGENTS[team]:
            longest = study.long if entry.endswith("-long") else study.longest[agent]
            words += [f"team.agents.{agent}.temperature={TEMPERATURE}", f"team.agents.{agent}.max_tokens={longest}"]
        return [*words, *SETTINGS, *study.words, *ENTRIES[entry], CLIP, *self.overrides]


def data_file(folder: Path, name: str, split: str) -> Path:
    found = sorted(folder.glob(f"{name}_{split}.json*"))
    if not found:
        raise MarftError(f"{folder} has no {name}_{split}.jsonl; put it there or give another --data")
    return found[0].resolve()


def go(entry: str, sitting: Sitting) -> None:
    """Train, as far as there is time, and measure what has learnt something."""
    source, iteration = sitting.words(entry), 0
    if "untuned" not in entry:
        run = sitting.folder / entry
        train(run, source, sitting.until)
        iteration = int(checkpoint_folder(RunDirectory.open(run), None).name) if run.exists() else 0
        if not iteration:
            return
        source = [str(run)]
    for luck, temperature in LUCK.items():
        where = sitting.folder / f"{entry}-{iteration}-{luck}"
        wanted = luck == "sampled" or not entry.endswith("-long")
        if wanted and not (where / "results.json").exists():
            asked = [f"eval.tasks={sitting.tasks}", f"eval.temperature={temperature}"]
            marft(sitting.folder / f"{entry}.log", "eval", *source, *asked, "--run", str(where))


def train(run: Path, words: Sequence[str], until: float | None) -> None:
    """To the end, or as long as there is time: what a run has written is whole whenever it is stopped."""
    left = None if until is None else until - time.monotonic()
    config = load_config(words[0], words[1:])
    done = (RunDirectory(run).summary() or {}).get("iterations", 0) >= config.train.iterations
    if done or (left is not None and left <= 0):
        return
    begin = ["--resume", *words[1:]] if RunDirectory(run).exists() else words
    marft(run.with_suffix(".log"), "train", *begin, "--run", str(run), seconds=left)


def marft(log: Path, *words: str, seconds: float | None = None) -> None:
    """Interrupted after `seconds`; killed only where that does not help, since one that is killed may take along others that
    share its GPU (MPS)."""
    command = [sys.executable, "-m", "marft.cli", *words]
    with log.open("ab") as said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as process:
        try:
            failed = process.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
            failed = False
    if failed:
        raise MarftError(f"marft {words[0]} failed; {log} says why")


def run_all(arguments: argparse.Namespace) -> None:
    started = time.monotonic()
    folder = arguments.out / f"{arguments.set}-{arguments.model.resolve().name}"
    folder.mkdir(parents=True, exist_ok=True)
    until = None if arguments.seconds is None else started + arguments.seconds
    sitting = Sitting(
        set=arguments.set, model=arguments.model.resolve(), data=arguments.data, folder=folder, until=until,
        tasks=arguments.tasks or STUDIES[arguments.set].tasks, overrides=arguments.overrides,
    )  # fmt: skip
    entries = arguments.only or list(ENTRIES)
    with ThreadPoolExecutor(arguments.jobs) as pool:  # one that fails ends no other
        jobs = [pool.submit(go, entry, sitting) for entry in entries]
    words = {entry: sitting.words(entry) for entry in entries if "untuned" not in entry}
    planned = {entry: load_config(each[0], each[1:]).train.iterations for entry, each in words.items()}
    row = {"machine": machine(), "entries": entries, "iterations": planned, "jobs": arguments.jobs}
    row |= {"limit": arguments.seconds, "overrides": arguments.overrides, "seconds": time.monotonic() - started}
    with (folder / SITTINGS).open("a") as out:
        out.write(json.dumps(row) + "\n")
    for job in jobs:
        job.result()


def machine() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"


def main() -> None:
    # a shell's background job ignores interrupts, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="run | report")
    run = commands.add_parser("run")
    run.add_argument("overrides", nargs="*", metavar="key=value")
    run.add_argument("--model", type=Path, required=True, help="a folder; its name names the results")
    run.add_argument("--data", type=Path, required=True, help="a folder with SET_train.jsonl and SET_test.jsonl")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--set", choices=STUDIES, default="gsm8k")
    run.add_argument("--only", nargs="+", choices=ENTRIES, help="these teams alone")
    run.add_argument("--seconds", type=float, help="stop training after this time; 0: only measure")
    run.add_argument("--tasks", type=int, help="held-out tasks (default: 1,319 of GSM8K, 500 of MATH)")
    run.add_argument("--jobs", type=int, default=1, help="teams at once")
    run.set_defaults(command=run_all)
    report = commands.add_parser("report")
    report.add_argument("--out", type=Path, required=True)
    report.add_argument("--docs", type=Path, default=Path("docs"))
    report.set_defaults(command=lambda arguments: write_report(arguments.out, arguments.docs))
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    try:
        main()
    except MarftError as error:
        sys.exit(f"real.py: {error}")
