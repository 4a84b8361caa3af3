"""A plan in words: a short table, and which key to lower where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator

from marft.config import Config
from marft.training.compose import Assembly
from marft.training.plan.forecast import Forecast
from marft.training.plan.passing import FEWEST

FITS = 0.9  # of the device's memory: allocators and kernels take the rest


def tell(config: Config, parts: Assembly, found: Forecast) -> Iterator[str]:
    memory, rows = found.memory, min(config.engine.slots, config.train.tasks * config.train.samples)
    count = sum(p.numel() for team in parts.teams for p in team.model.parameters())
    learning = sum(p.numel() for o in parts.learner.optimizers.values() for p in o.param_groups[0]["params"])
    yield f"plan       {', '.join(parts.bases)} on {parts.device}; an estimate, from a short probe and {found.probed} whole episodes"
    yield ""
    yield f"memory     {'base weights':34}{size(memory.weights):>12}   {count:,} parameters"
    yield line("adapters, gradients, optimizers", memory.adapters, f"{learning:,} parameters that learn")
    yield line("engine's cache", memory.cache, f"{rows:,} rows at once")
    kept = "recomputed" if config.train.recompute else "kept"
    yield line("activations of one pass", memory.activations, f"{found.pass_tokens:,} tokens, activations {kept}")
    yield line("logits of one pass", memory.logits, "computed part by part")
    yield line("in all", memory.total, f"of {size(found.device_memory)} on {parts.device}")
    if found.peak is not None:
        yield line("one pass, as measured", found.peak, "")
    yield ""
    yield f"iteration  {'':34}{'expected':>12}{'at most':>12}"
    for name, part in (
        ("tokens generated", found.generated),
        ("tokens trained", found.trained),
        ("of these computed", found.computed),
    ):
        yield f"{'':11}{name:34}{part.expected:>12,.0f}{part.most:>12,.0f}"
    phases = {"rollout": found.seconds["rollout"], "credit": found.seconds["credit"], "update": found.seconds["update"]}
    for name, part in {**phases, "whole iteration": found.iteration}.items():
        yield f"{'':11}{'seconds of ' + name:34}{part.expected:>12,.1f}{part.most:>12,.1f}"
    yield ""
    yield (
        f"run        {found.iterations} iterations, {found.evaluations} evaluations: about {duration(found.run.expected)}, "
        f"at most {duration(found.run.most)}"
    )
    yield from advice(config, found)
    yield "nothing was trained or written"


def line(name: str, amount: int, note: str) -> str:
    return f"{'':11}{name:34}{size(amount):>12}   {note}".rstrip()


def advice(config: Config, found: Forecast) -> Iterator[str]:
    """The first key whose lowering makes room."""
    memory, room = found.memory, FITS * found.device_memory
    if found.fitting_tokens < found.pass_tokens:
        keep = "" if config.train.recompute else ", or set train.recompute=true"
        yield f"a pass ran out of memory. Lower train.tokens to {found.fitting_tokens}{keep}"
        return
    if memory.total <= room:
        return
    yield f"it does not fit: {size(memory.total)} of {size(found.device_memory)}. {remedy(config, found, room)}"


def remedy(config: Config, found: Forecast, room: float) -> str:
    memory = found.memory
    if memory.weights + memory.adapters > room:
        return "The weights alone do not: use a smaller model" + (
            "" if config.dtype == "bfloat16" else ", or dtype=bfloat16"
        )
    tokens = int((room - memory.total + memory.activations) / memory.activation)
    if tokens >= FEWEST:
        return f"Lower train.tokens to {tokens // FEWEST * FEWEST}" + (
            "" if config.train.recompute else ", or set train.recompute=true"
        )
    return "Lower engine.memory" if config.engine.name == "vllm" else "Lower engine.slots"


def size(amount: float) -> str:
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
