"""Every command that reads a folder of ours × every way that we know to damage one: one line, exit code 2, nothing changed."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from damages import (
    BROKEN,
    CELLS,
    CONFIGS,
    EVALUATED,
    FIGURES,
    LINES,
    MANIFESTS,
    NODES,
    OBJECTS,
    SCALINGS,
    SEALED,
    SUMMARIES,
    TEXTS,
    TRANSCRIPTS,
    WEIGHTS,
    Damage,
    drop,
    edit,
    edit_line,
    instead,
    missing,
    replace,
    sealed,
)  # fmt: skip
from quick import models_in_memory, settings_of
from toys import without_progress

from marft.cli import main

LIMIT = 30  # seconds of a command
SETTINGS: Mapping[str, Any] = {
    "algorithm": "marft-token",
    "train": {"iterations": 2},
    "eval": {"tasks": 2},
    "checkpoint": {"every": 1, "keep": 3},
    "optimizer": {"decay": "constant"},
}


# --- folders to damage ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, an evaluation of it, its exported adapters, and a comparison."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "mine.yaml").write_text(yaml.safe_dump(settings_of(**SETTINGS)))
    with models_in_memory():
        run = str(folder / "run")
        assert main(["train", str(folder / "mine.yaml"), "--run", run]) == 0
        assert main(["eval", run, "--run", str(folder / "evaluation")]) == 0
        assert main(["export", run, str(folder / "adapters")]) == 0
        assert main(["compare", str(folder / "mine.yaml"), "--seeds", "1", "--run", str(folder / "comparison")]) == 0
    return folder


def commands_of(shelf: Path, folder: Path, new: Path) -> dict[str, list[str]]:
    """What reads `folder`, by what it is; `new` is where the commands write."""
    config = str(shelf / "mine.yaml")
    match folder.name:
        case "run":
            return {
                "resume": ["train", "--resume", "--run", str(folder)],
                "go back": ["train", "--resume", "--run", str(folder), "--at", "1"],
                "train again": ["train", config, "--run", str(folder)],
                "eval": ["eval", str(folder), "--run", str(new)],
                "play": ["play", str(folder)],
                "export": ["export", str(folder), str(new)],
                "init_from": ["train", config, f"init_from={folder}", "train.iterations=1", "--run", str(new)],
            }
        case "adapters":
            own = [f"team.agents.ann.init_from={folder / 'ann'}", "team.agents.ann.trainable=false"]
            return {
                "init_from": ["train", config, f"init_from={folder}", "train.iterations=1", "--run", str(new)],
                "own": ["train", config, *own, "train.iterations=1", "--run", str(new)],
                "dry run": ["train", config, *own, "--dry-run"],
                "eval": ["eval", config, f"init_from={folder}", "--run", str(new)],
            }
        case "evaluation":
            return {"eval": ["eval", str(shelf / "run"), "--run", str(folder)]}
        case "comparison":
            return {"compare": ["compare", config, "--seeds", "1", "--run", str(folder)]}
    raise ValueError(folder)


def snapshot(folder: Path) -> dict[str, str]:
    """All that lies there: kinds, links, and hashes of contents."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        content = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(folder).as_posix()] = f"{path.lstat().st_mode:o} {content}"
    return found


@contextmanager
def in_time() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"nothing came of it in {LIMIT} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


TEAM = ("eval", "play", "export", "init_from")
READERS = ("resume", "train again", "eval", "play", "export", "init_from")
ON_RESUME = ("resume",)
# the file, how it is damaged, and the commands that cannot do without it
FILES: list[tuple[str, Mapping[str, Damage], tuple[str, ...]]] = [
    ("run/config.yaml", CONFIGS, READERS),
    ("run/manifest.json", {**OBJECTS, **MANIFESTS}, (*ON_RESUME, "eval", "play")),
    ("run/summary.json", {**NODES, **TEXTS, **SUMMARIES, "empty": replace("")}, ON_RESUME),
    ("run/metrics.jsonl", {**LINES, **FIGURES}, ON_RESUME),
    ("run/episodes.jsonl", LINES, ON_RESUME),
    ("run/held_out.jsonl", {**LINES, **TRANSCRIPTS}, (*ON_RESUME, "play")),
    ("run/events.jsonl", {**LINES, "no event": edit_line(drop("event"))}, ON_RESUME),
    ("run/lock", NODES, (*ON_RESUME, "train again")),
    ("run/checkpoints", {**NODES, "missing": missing, "a file": instead(Path.touch)}, (*ON_RESUME, "go back", *TEAM)),
    ("run/tensorboard", {"a file": Path.touch}, ON_RESUME),
    ("evaluation/eval.yaml", CONFIGS, ("eval",)),
    ("evaluation/manifest.json", OBJECTS, ("eval",)),
    ("evaluation/episodes.jsonl", {**NODES, **TEXTS, **EVALUATED}, ("eval",)),
    ("evaluation/results.json", NODES, ("eval",)),
    ("evaluation/results.md", NODES, ("eval",)),
    ("comparison/compare.yaml", CONFIGS, ("compare",)),
    ("comparison/compare.json", {**OBJECTS, **CELLS}, ("compare",)),
    ("comparison/compare.md", NODES, ("compare",)),
    ("comparison/compare.png", NODES, ("compare",)),
]


@pytest.mark.parametrize(
    ("file", "kind", "command"),
    [(file, kind, command) for file, damages, commands in FILES for kind in damages for command in commands],
)
def test_a_damaged_file_is_one_line(
    file: str, kind: str, command: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, below = file.partition("/")
    damages = next(damages for each, damages, _ in FILES if each == file)
    folder = tmp_path / "there" / name
    shutil.copytree(shelf / name, folder)
    if not (folder / below).exists() and below != "tensorboard":
        (folder / below).touch()
    damages[kind](folder / below)
    line = refused(shelf, folder, command, tmp_path / "new", capsys)
    assert below in line or command in ("train again", "export")
    assert not (tmp_path / "new").exists() or command == "eval"


def refused(shelf: Path, folder: Path, command: str, new: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says; it must end in one line and leave the folder as it is."""
    before = snapshot(folder)
    capsys.readouterr()
    with in_time(), models_in_memory():
        code = main(commands_of(shelf, folder, new)[command])
    said = capsys.readouterr().err
    lines = without_progress(said)
    assert code == 2, said
    assert len(lines) == 1, said
    assert lines[0].startswith("marft: ")
    assert len(lines[0]) < 1000
    assert snapshot(folder) == before
    return lines[0]


# --- checkpoints ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", ["resume", "go back", "play", "export", "init_from"])
def test_where_no_checkpoint_is_whole_nothing_begins_anew(
    kind: str, command: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    for folder in (run / "checkpoints").iterdir():
        BROKEN[kind](folder)
    line = refused(shelf, run, command, tmp_path / "new", capsys)
    assert "is corrupt" in line
    if command != "go back":
        assert f"start anew in another folder: marft train {run / 'config.yaml'} --run DIR" in line


def test_the_command_that_starts_anew_does(shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    missing(run / "checkpoints")
    line = refused(shelf, run, "resume", tmp_path / "new", capsys)
    command = line.rpartition("start anew in another folder: marft ")[2].replace("DIR", str(tmp_path / "new"))
    with models_in_memory():
        assert main(shlex.split(command)) == 0
    assert snapshot(tmp_path / "new" / "checkpoints") == snapshot(shelf / "run" / "checkpoints")


@pytest.mark.parametrize("kind", BROKEN)
def test_a_damaged_checkpoint_is_told_and_kept(
    kind: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    BROKEN[kind](run / "checkpoints" / "000002")
    damaged = snapshot(run / "checkpoints" / "000002")
    for command in ("play", "resume"):
        capsys.readouterr()
        with in_time(), models_in_memory():
            assert main(commands_of(shelf, run, tmp_path / "new")[command]) == 0
        [line] = without_progress(capsys.readouterr().err)
        assert line.startswith("marft: warning: ")
        assert "000002 is corrupt" in line
        assert "iteration 1" in line
    assert line.endswith("keeping what is damaged as 000002.damaged")
    assert snapshot(run / "checkpoints" / "000002.damaged") == damaged
    assert snapshot(run / "checkpoints" / "000002") == snapshot(shelf / "run" / "checkpoints" / "000002")


@pytest.mark.parametrize("state", ["new", "old"])
def test_a_whole_checkpoint_hidden_beside_a_damaged_one_is_taken(
    state: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    whole, hidden = run / "checkpoints" / "000002", run / "checkpoints" / f".000002.{state}"
    shutil.copytree(whole, hidden)
    BROKEN["a flipped bit"](whole)
    damaged = snapshot(whole)
    for command, taken in (("export", f"{hidden} is taken instead"), ("resume", "going on from iteration 2, ")):
        capsys.readouterr()
        with in_time(), models_in_memory():
            assert main(commands_of(shelf, run, tmp_path / command)[command]) == 0
        [line] = without_progress(capsys.readouterr().err)
        assert "000002 is corrupt" in line
        assert taken in line
    checkpoints = snapshot(run / "checkpoints")
    assert snapshot(run / "checkpoints" / "000002.damaged") == damaged
    assert {key: value for key, value in checkpoints.items() if "damaged" not in key} == snapshot(
        shelf / "run" / "checkpoints"
    )


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in SEALED.items() for kind in kinds])
def test_what_a_checkpoint_holds_is_read_with_care(
    name: str, kind: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    sealed(name, SEALED[name][kind])(run)
    of_training = name == "state.json" or name.startswith("optimizers/")
    for command in ("resume",) if of_training else ("resume", "eval", "init_from"):
        line = refused(shelf, run, command, tmp_path / command, capsys)
        assert name in line


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("adapter_config.json", kind) for kind in (*SCALINGS, "a FIFO", "a device", "a dangling link")),
     *(("adapter_model.safetensors", kind) for kind in (*WEIGHTS, *NODES))],
)  # fmt: skip
@pytest.mark.parametrize("command", ["init_from", "own"])
def test_adapters_from_elsewhere(
    name: str, kind: str, command: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "there" / "adapters"
    shutil.copytree(shelf / "adapters", folder)
    ({**SCALINGS, **NODES} if name == "adapter_config.json" else {**WEIGHTS, **NODES})[kind](folder / "ann" / name)
    assert name in refused(shelf, folder, command, tmp_path / "new", capsys)


# --- what does not matter ---------------------------------------------------------------------------------------------
HARMLESS: list[tuple[str, Damage]] = [
    ("metrics.jsonl", missing),
    ("metrics.jsonl", replace("")),
    ("summary.json", missing),
    ("held_out.jsonl", missing),
    ("events.jsonl", missing),
    ("lock", replace("left by a kill")),
    (".summary.json.tmp", os.mkfifo),
    (".metrics.jsonl.tmp", lambda path: path.symlink_to("nowhere")),
    ("checkpoints/.000003.new", Path.mkdir),
    ("checkpoints/.000003.new", Path.touch),
    ("checkpoints/.000001.gone", lambda path: path.symlink_to("nowhere")),
    ("checkpoints/000007.damaged", os.mkfifo),
    ("checkpoints/notes.txt", Path.touch),
]


@pytest.mark.parametrize(("name", "damage"), HARMLESS)
def test_a_run_goes_on_without_what_it_does_not_need(name: str, damage: Damage, shelf: Path, tmp_path: Path) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    damage(run / name)
    with in_time(), models_in_memory():
        assert main(commands_of(shelf, run, tmp_path / "new")["resume"]) == 0
        assert main(commands_of(shelf, run, tmp_path / "new")["eval"]) == 0
    assert snapshot(run / "checkpoints" / "000002") == snapshot(shelf / "run" / "checkpoints" / "000002")


def test_parts_of_a_run_without_its_config_take_no_new_run(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    missing(run / "config.yaml")
    for command in ("train again", "resume", "eval", "play", "export"):
        assert "of a run that has lost its config.yaml" in refused(shelf, run, command, tmp_path / "new", capsys)


def test_cells_of_a_comparison_without_its_config_take_no_new_one(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "there" / "comparison"
    shutil.copytree(shelf / "comparison", folder)
    missing(folder / "compare.yaml")
    assert "has lost its compare.yaml" in refused(shelf, folder, "compare", tmp_path / "new", capsys)


@pytest.mark.parametrize(
    "kind", ["a bomb of aliases", "a bomb of merges", "a circle", "a FIFO", "a device", "huge", "deep"]
)
def test_a_config_of_the_user_s_own(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.touch()
    CONFIGS[kind](path)
    with in_time():
        assert main(["train", str(path), "--run", str(tmp_path / "run")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "mine.yaml" in line


def test_an_override_that_is_a_bomb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = ", ".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefg", "bcdefgh", strict=True)
    )
    with in_time():
        assert main(["train", f"env.data={{a: &a [x], {levels}}}", "--run", str(tmp_path / "run")]) == 2
    assert "aliases stand for more than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cell", "file", "kind"),
    [
        ("team", "summary.json", "a list"),
        ("team", "summary.json", "a FIFO"),
        ("team", "config.yaml", "garbage"),
        ("team", "metrics.jsonl", "a text"),
        ("team", "checkpoints", "a FIFO"),
        ("single", "manifest.json", "deep"),
        ("single", "checkpoints", "a dangling link"),
        ("frozen-ann", "events.jsonl", "a number"),
    ],
)
def test_a_cell_s_run_is_read_with_care_too(
    cell: str, file: str, kind: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison that has its cells still to tell reads them from their runs."""
    folder = tmp_path / "there" / "comparison"
    shutil.copytree(shelf / "comparison", folder)
    name = cell.replace("-", " ")
    edit(lambda data: {**data, "cells": [each for each in data["cells"] if each["name"] != name]})(
        folder / "compare.json"
    )
    OBJECTS[kind](folder / "cells" / f"{cell}-seed0" / file)
    assert f"{cell}-seed0/{file}" in refused(shelf, folder, "compare", tmp_path / "new", capsys)


@pytest.mark.parametrize("command", ["resume", "eval", "play", "export", "init_from"])
def test_a_class_that_is_not_there_is_named_with_what_to_do(
    command: str, shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "there" / "run"
    shutil.copytree(shelf / "run", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["credit"] = {"name": "gone_since:Mine"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert refused(shelf, run, command, tmp_path / "new", capsys).endswith(
        f"{run / 'config.yaml'} needs code of yours: credit.name: cannot import 'gone_since:Mine': No module named "
        "'gone_since'; give the command in the folder where gone_since lies, or install it"
    )
