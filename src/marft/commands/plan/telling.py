"""The figures of a plan, and the plan in words: a short table, and which key to lower where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from marft.commands.plan.memory import FITS, Memory
from marft.config import Config
from marft.training.build import Assembly

FEWEST = 64  # tokens that train.tokens may be lowered to


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Tokens and seconds are of one iteration, as expected, but those of the evaluation, which are of one evaluation."""

    memory: Memory
    device_memory: int
    pass_tokens: int  # computed by the largest pass
    fitting: int | None  # tokens of a smaller pass that did fit, where the largest did not
    generated: float
    most_generated: int
    trained: float
    computed: float  # of those trained: what sequences share counts once
    seconds: Mapping[str, float]  # rollout, credit, update
    evaluation: float
    iterations: int
    evaluations: int
    probed: int  # episodes played whole

    @property
    def iteration(self) -> float:
        return sum(self.seconds.values())

    @property
    def run(self) -> float:
        return self.iterations * self.iteration + self.evaluations * self.evaluation


def tell(config: Config, parts: Assembly, found: Forecast) -> Iterator[str]:
    memory, vllm = found.memory, config.engine.name == "vllm"
    count = sum(p.numel() for team in parts.teams for p in team.model.parameters())
    learning = sum(p.numel() for o in parts.learner.optimizers.values() for p in o.param_groups[0]["params"])
    kept = "recomputed" if config.train.recompute else "kept"
    yield f"plan       {', '.join(parts.bases)} on {parts.device}; an estimate, from a short probe and {found.probed} whole episodes"
    yield ""
    yield f"memory     {'base weights':34}{size(memory.weights):>12}   {count:,} parameters"
    yield line("adapters, gradients, optimizers", size(memory.adapters), f"{learning:,} parameters that learn")
    yield line(
        "engine",
        size(memory.cache),
        "vLLM's part" if vllm else f"keys and values of at most {config.engine.slots:,} rows",
    )
    yield line("largest pass", size(memory.one_pass), f"{found.pass_tokens:,} tokens, activations {kept}")
    yield line("in all", size(memory.total), f"of {size(found.device_memory)} on {parts.device}")
    yield ""
    yield f"iteration  {'tokens generated':34}{found.generated:>12,.0f}   at most {found.most_generated:,}"
    yield line("tokens trained", f"{found.trained:,.0f}", f"{found.computed:,.0f} computed, the others are shared")
    for phase, seconds in {**found.seconds, "whole iteration": found.iteration}.items():
        yield line(f"seconds of {phase}", f"{seconds:,.1f}", "")
    yield ""
    yield f"run        {found.iterations} iterations, {found.evaluations} evaluations: about {duration(found.run)}"
    yield from advice(config, found)
    yield "nothing was trained or written"


def line(name: str, amount: str, note: str) -> str:
    return f"{'':11}{name:34}{amount:>12}   {note}".rstrip()


def advice(config: Config, found: Forecast) -> Iterator[str]:
    """The first key whose lowering makes room."""
    memory, room = found.memory, FITS * found.device_memory
    if found.fitting is not None:
        yield f"the largest pass does not fit. {fewer_tokens(config, found.fitting)}"
    elif memory.total > room:
        tokens = int((room - memory.total + memory.one_pass) * found.pass_tokens / memory.one_pass)
        if memory.weights + memory.adapters > room:
            remedy = "The weights alone do not: use a smaller model"
            remedy += "" if config.dtype == "bfloat16" else ", or dtype=bfloat16"
        elif tokens >= FEWEST:
            remedy = fewer_tokens(config, tokens)
        else:
            remedy = "Lower engine.memory" if config.engine.name == "vllm" else "Lower engine.slots"
        yield f"it does not fit: {size(memory.total)} of {size(found.device_memory)}. {remedy}"


def fewer_tokens(config: Config, tokens: int) -> str:
    fewer = max(FEWEST, tokens // FEWEST * FEWEST)
    return f"Lower train.tokens to {fewer}" + ("" if config.train.recompute else ", or set train.recompute=true")


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
