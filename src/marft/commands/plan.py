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
from marft.commands.estimate import FITS, describe_estimates, estimate_run
from marft.commands.train import needed_splits, require_learner
from marft.config import Config
from marft.engines.local import LocalEngine
from marft.evaluation.held_out import HeldOut
from marft.evaluation.sanity_check import check_team_everywhere
from marft.models.quantized import QuantizedWeight
from marft.models.team import TeamModel
from marft.rollouts.credit import Credit
from marft.rollouts.event_loop import one_loop
from marft.rollouts.players import LocalPlayers
from marft.rollouts.source import OrderedSource
from marft.runs.directory import RunDirectory
from marft.terminal import format_bytes, say
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

    @property
    def share_with_lag(self) -> float:
        """Of an iteration's seconds, what the longer of playing and learning takes: the other is done beside it."""
        return max(self.seconds["rollout"], self.iteration - self.seconds["rollout"]) / self.iteration

    @property
    def share_with_workers(self) -> float:
        """Of an iteration's seconds, what is left where two workers halve the rollout."""
        return 1 - self.seconds["rollout"] / 2 / self.iteration


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
    require_learner(config)
    if config.learner.shard:
        raise MarftError(
            "learner.shard: a plan is measured in one process with the whole base; say learner.shard=false for it"
        )
    require_ranks(config)
    if config.engine.name == "local":
        for line in (*describe_estimates(config, estimate_run(config)), ""):
            say(line)  # before the weights are loaded, for which there may be no room
    with one_loop(), assemble(config, reads=needed_splits(config), status=status) as parts:
        load_initial_adapters(config, parts)
        status.begin("checking that the team can play")
        check_team_everywhere(config, without_remotes(config, parts), REMEDY)
        found = measure_iteration(config, parts)
        lines = list(describe_forecast(config, parts, found))
    status.rest()
    for line in lines:
        say(line)
    return found


def measure_iteration(config: Config, parts: Assembly) -> Forecast:
    """One iteration as a run has it, after the critics' warm-up. A remote model is not asked: somebody else speaks for it."""
    parts, config = without_remotes(config, parts), in_one_process(config)
    device = torch.device(parts.device)
    with tempfile.TemporaryDirectory() as folder, limit_memory(device):
        run = RunDirectory(Path(folder))
        trainer = Trainer(config, parts, run, HeldOut(config, parts, ""), SilentWatcher())
        trainer.position = Position(iteration=config.critic.warmup)
        trainer.config = config.model_copy(update={"eval": config.eval.model_copy(update={"every": 0})})
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        assert isinstance(config.credit, Credit)
        trainer.source = OrderedSource(
            config, parts.runner, LocalPlayers(config, parts.runner, parts), parts.snapshot, parts.learner.members,
            config.credit, REMEDY,
        )  # fmt: skip
        try:
            trainer.iterate()
        except Collapsed as found:
            raise MarftError(f"the iteration cannot be learnt from: {found.sign.agent}: {found.sign.name}") from found
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


def in_one_process(config: Config) -> Config:
    """The same without lag and workers: what is measured is the work there is, not how it overlaps."""
    rollout = config.rollout.model_copy(update={"workers": 0, "swap": "turn", "replay": None})
    return config.model_copy(update={"rollout": rollout, "train": config.train.model_copy(update={"lag": 0})})


def without_remotes(config: Config, parts: Assembly) -> Assembly:
    """The same with a stand-in for each remote agent, which speaks at once."""
    team = dict(parts.runner.team)
    for name, agent in team.items():
        if config.team.agents[name].kind == "remote":
            team[name] = replace(agent, engine=StandIn(name, agent.engine.encode, iter(())))
    return replace(parts, runner=replace(parts.runner, team=team))


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
    "engine.memory, or give train.recompute=true or quantize=nf4; or use a smaller model"
)


def mapped_memory() -> int:
    """Bytes that this process has mapped for itself, as RLIMIT_DATA counts them."""
    return kernel_bytes("/proc/self/status", "VmData")


def available_memory() -> int:
    """Bytes that programs may still take."""
    return kernel_bytes("/proc/meminfo", "MemAvailable")


def kernel_bytes(file: str, key: str) -> int:
    """What the kernel tells in kB under `key`."""
    [line] = [line for line in Path(file).read_text().splitlines() if line.startswith(f"{key}:")]
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
    plain = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in team.base.parameters()}
    return sum(plain.values()) + sum(each.nbytes for each in quantized_weights(team))


def parameter_count(team: TeamModel) -> int:
    """Of the base, whatever it is kept in."""
    return sum(p.numel() for p in team.base.parameters()) + sum(each.shape.numel() for each in quantized_weights(team))


def quantized_weights(team: TeamModel) -> list[QuantizedWeight]:
    """Of the base's layers, where they are quantised."""
    return [product.quantized for product in team.products if product.quantized is not None]


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
    return sum(engine.stepper.cache.nbytes + engine.kept.nbytes for engine in ours)


# --- in words --------------------------------------------------------------------------------------------------------
def describe_forecast(config: Config, parts: Assembly, found: Forecast) -> Iterator[str]:
    """A short table."""
    count = sum(parameter_count(team) for team in parts.teams)
    learning = sum(p.numel() for own in parts.learner.adapters().values() for p in own.values())
    rows = {"vllm": "vLLM's part", "local": f"keys and values of at most {config.engine.slots:,} rows"}
    whole = f"of {format_bytes(found.device_memory)} on {parts.device}" if found.device_memory else ""
    yield f"plan       {', '.join(parts.bases)} on {parts.device}; measured on one iteration of {found.episodes:,} episodes"
    yield ""
    yield f"memory     {'base weights':34}{format_bytes(found.weights):>12}   {count:,} parameters"
    yield forecast_row(
        "adapters, gradients, optimizers", format_bytes(found.adapters), f"{learning:,} parameters that learn"
    )
    yield forecast_row(
        "engine", format_bytes(found.cache), rows.get(config.engine.name, "not known of an engine of your own")
    )
    yield forecast_row("at its peak, in all", format_bytes(found.peak), whole)
    yield ""
    yield f"iteration  {'tokens generated':34}{found.tokens['rollout']:>12,}"
    yield forecast_row("tokens trained", f"{found.tokens['update']:,}", "")
    for phase, seconds in {**found.seconds, "whole iteration": found.iteration}.items():
        yield forecast_row(f"seconds of {phase}", f"{seconds:,.1f}", "")
    yield ""
    yield f"run        {found.iterations} iterations, {found.evaluations} evaluations: about {format_seconds(found.run)}"
    yield (
        f"           at best, each on hardware of its own: {found.share_with_lag:.2f} of that with train.lag=1, "
        f"{found.share_with_workers:.2f} with two workers that play"
    )
    if found.peak > FITS * found.device_memory > 0:
        yield f"it hardly fits: {format_bytes(found.peak)} {whole}. Lower train.tokens or engine.slots"
    yield "nothing was kept or written"


def forecast_row(name: str, amount: str, note: str) -> str:
    """A row of the table: name, amount aligned to the right, and a note."""
    return f"{'':11}{name:34}{amount:>12}   {note}".rstrip()


def format_seconds(seconds: float) -> str:
    """In seconds below two minutes, in minutes below two hours, else in hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
