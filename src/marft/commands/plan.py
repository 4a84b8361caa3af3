"""`marft train --plan`: what a run will need of memory and time, from one real iteration of which nothing is kept."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from marft.commands.dry_run import StandIn
from marft.commands.train import needed_splits
from marft.config import Config
from marft.engines.local import LocalEngine
from marft.evaluation.held_out import HeldOut
from marft.evaluation.rehearsal import rehearse_all
from marft.game.play import Agent
from marft.models.team import TeamModel
from marft.rollouts.credit import Credit
from marft.rollouts.event_loop import one_loop
from marft.rollouts.source import SynchronousSource
from marft.runs.directory import RunDirectory
from marft.terminal import say
from marft.terminal.status import Status
from marft.training.build import Assembly, assemble
from marft.training.checkpoint import Position
from marft.training.guard import Collapsed
from marft.training.loading import load_initial_adapters
from marft.training.ranks import require_ranks
from marft.training.trainer import Trainer
from marft.types import MarftError

TRAINED = 16  # bytes of a parameter that learns: itself, its gradient and two Adam moments in fp32
FROZEN = 4
REMEDY = "Nothing was written: mend it, then ask again"
FITS = 0.9  # of the device's memory: allocators and other programs take the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Bytes; tokens and seconds of one iteration, by phase."""

    weights: int
    adapters: int
    cache: int  # what the engines hold
    peak: int  # in all, at the most
    device_memory: int
    tokens: Mapping[str, int]
    seconds: Mapping[str, float]
    episodes: int
    held_out: int  # episodes of an evaluation
    iterations: int
    evaluations: int

    @property
    def iteration(self) -> float:
        """Seconds of one iteration."""
        return sum(self.seconds.values())

    @property
    def evaluation(self) -> float:
        """Seconds of an evaluation, at the pace of the iteration's rollout."""
        return self.seconds["rollout"] * self.held_out / self.episodes

    @property
    def run(self) -> float:
        """Seconds of the whole run, with its evaluations."""
        return self.iterations * self.iteration + self.evaluations * self.evaluation


class SilentWatcher:
    """A watcher that tells nobody: the plan is all there is to say."""

    def evaluated(self, when: str, row: dict[str, Any]) -> None:
        """Nothing is told."""

    def warned(self, line: str) -> None:
        """Nothing is told."""

    def iterated(self, row: dict[str, Any], before: float, progress: float) -> None:
        """Nothing is told."""


def plan(config: Config, status: Status | None = None) -> Forecast:
    """Prints the forecast. The real model plays and learns for one iteration; nothing of it is kept."""
    status = status or Status()
    if not config.team.trained:
        raise MarftError("no agent of this team learns; make one trainable, or evaluate it with marft eval")
    require_ranks(config)
    with one_loop(), assemble(config, reads=needed_splits(config), status=status) as parts:
        load_initial_adapters(config, parts)
        status.begin("rehearsing")
        rehearse_all(config, without_remotes(config, parts), REMEDY)
        found = measure_iteration(config, parts)
        lines = list(describe_forecast(config, parts, found))
    status.rest()
    for line in lines:
        say(line)
    return found


def measure_iteration(config: Config, parts: Assembly) -> Forecast:
    """One iteration as a run has it, after the critics' warm-up. A remote model is not asked: somebody else speaks for it."""
    parts = without_remotes(config, parts)
    device = torch.device(parts.device)
    with tempfile.TemporaryDirectory() as folder, limit_memory(device):
        run = RunDirectory(Path(folder))
        trainer = Trainer(config, parts, run, HeldOut(config, parts, ""), SilentWatcher())
        trainer.position = Position(iteration=config.critic.warmup)
        trainer.config = config.model_copy(update={"eval": config.eval.model_copy(update={"every": 0})})
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        assert isinstance(config.credit, Credit)
        trainer.source = SynchronousSource(config, parts.runner, parts.learner.members, config.credit, REMEDY)
        try:
            trainer.iterate()
        except Collapsed as found:
            raise MarftError(f"the iteration cannot be learnt from: {found.sign.agent}: {found.sign.name}") from found
        finally:
            trainer.interruption.release()
        [row] = run.metrics()
    generated = max(row["tokens"]["rollout"], 1)
    iterations, budget = config.train.iterations, config.train.budget
    iterations = iterations if budget is None else min(iterations, -(-budget // generated))
    held_out = min(config.eval.tasks, len(parts.runner.host.tasks("test"))) if config.eval.tasks else 0
    return Forecast(
        weights=sum(weight_bytes(team) for team in parts.teams),
        adapters=sum(adapter_bytes(team, parts.learner.rates) for team in parts.teams),
        cache=cache_bytes(config, parts),
        peak=peak_memory(device),
        device_memory=device_memory(device),
        tokens=row["tokens"],
        seconds={phase: row["seconds"][phase] for phase in ("rollout", "credit", "update")},
        episodes=config.train.tasks * config.train.samples,
        held_out=held_out * (1 + len(config.eval.benchmarks)),
        iterations=iterations,
        evaluations=(2 + (iterations // config.eval.every if config.eval.every else 0)) if held_out else 0,
    )


def without_remotes(config: Config, parts: Assembly) -> Assembly:
    """The same with stand-ins for all remote agents."""
    team = {name: without_remote(config, agent) for name, agent in parts.runner.team.items()}
    return replace(parts, runner=replace(parts.runner, team=team))


def without_remote(config: Config, agent: Agent) -> Agent:
    """A stand-in for a remote agent, which speaks at once; any other as it is."""
    if config.team.agents[agent.name].kind != "remote":
        return agent
    return replace(agent, voice=StandIn(agent.name, agent.voice.encode, iter(())))


# --- memory ----------------------------------------------------------------------------------------------------------
@contextmanager
def limit_memory(device: torch.device) -> Iterator[None]:
    """A probe that takes more than the machine has ends in one line. A CPU's process would be killed: it gets a limit."""
    limited = device.type == "cpu" and sys.platform == "linux"
    if limited:
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        hard = before[1]
        limit = mapped_memory() + int(FITS * available_memory())
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise MarftError(TOO_LARGE) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            raise MarftError(TOO_LARGE) from error
        raise
    finally:
        if limited:
            resource.setrlimit(resource.RLIMIT_DATA, before)


TOO_LARGE = (
    "an iteration does not fit in the device's memory; lower train.tokens (the tokens of one pass), engine.slots or "
    "engine.memory, or give train.recompute=true; or use a smaller model"
)


def mapped_memory() -> int:
    """Bytes that this process has mapped for itself, as RLIMIT_DATA counts them."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:")]
    return int(line.split()[1]) << 10


def available_memory() -> int:
    """Bytes that programs may still take."""
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) << 10


def peak_memory(device: torch.device) -> int:
    """The most that the device, or this process where it is a CPU, has held."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())
    try:
        import resource
    except ImportError:  # Windows
        return 0
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest << 10


def device_memory(device: torch.device) -> int:
    """Bytes of the device, or of the machine where it is a CPU; 0 where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def weight_bytes(team: TeamModel) -> int:
    """Bytes of the base."""
    return sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in team.model.parameters()}.values())


def adapter_bytes(team: TeamModel, learning: Collection[str]) -> int:
    """Bytes of the adapters and critics, with gradients and optimizers of those that learn."""
    return sum(
        p.numel() * (TRAINED if name in learning else FROZEN)
        for name in team.adapters
        for p in team.trainable_parameters(name).values()
    )


def cache_bytes(config: Config, parts: Assembly) -> int:
    """What the engines hold after a play; vLLM takes its part at once, and a server's is not ours."""
    engine = config.engine
    if engine.name == "vllm":
        return 0 if engine.url else int(engine.share * device_memory(parts.teams[0].device))
    ours = [base.engine for base in parts.bases.values() if isinstance(base.engine, LocalEngine)]
    return sum(engine.stepper.held for engine in ours)


# --- in words --------------------------------------------------------------------------------------------------------
def describe_forecast(config: Config, parts: Assembly, found: Forecast) -> Iterator[str]:
    """A short table."""
    count = sum(p.numel() for team in parts.teams for p in team.model.parameters())
    learning = sum(p.numel() for own in parts.learner.adapters().values() for p in own.values())
    rows = {"vllm": "vLLM's part", "local": f"keys and values of at most {config.engine.slots:,} rows"}
    whole = f"of {format_memory(found.device_memory)} on {parts.device}" if found.device_memory else ""
    yield f"plan       {', '.join(parts.bases)} on {parts.device}; measured on one iteration of {found.episodes:,} episodes"
    yield ""
    yield f"memory     {'base weights':34}{format_memory(found.weights):>12}   {count:,} parameters"
    yield forecast_row(
        "adapters, gradients, optimizers", format_memory(found.adapters), f"{learning:,} parameters that learn"
    )
    yield forecast_row(
        "engine", format_memory(found.cache), rows.get(config.engine.name, "not known of an engine of your own")
    )
    yield forecast_row("at its peak, in all", format_memory(found.peak), whole)
    yield ""
    yield f"iteration  {'tokens generated':34}{found.tokens['rollout']:>12,}"
    yield forecast_row("tokens trained", f"{found.tokens['update']:,}", "")
    for phase, seconds in {**found.seconds, "whole iteration": found.iteration}.items():
        yield forecast_row(f"seconds of {phase}", f"{seconds:,.1f}", "")
    yield ""
    yield f"run        {found.iterations} iterations, {found.evaluations} evaluations: about {format_seconds(found.run)}"
    if found.peak > FITS * found.device_memory > 0:
        yield f"it hardly fits: {format_memory(found.peak)} {whole}. Lower train.tokens or engine.slots"
    yield "nothing was kept or written"


def forecast_row(name: str, amount: str, note: str) -> str:
    """A row of the table: name, amount aligned to the right, and a note."""
    return f"{'':11}{name:34}{amount:>12}   {note}".rstrip()


def format_memory(amount: float) -> str:
    """12000000 → '12 MB'."""
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"


def format_seconds(seconds: float) -> str:
    """In seconds below two minutes, in minutes below two hours, else in hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
