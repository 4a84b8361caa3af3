"""What of `marft train --plan` needs no weights: the memory of a run in bfloat16, int8 and nf4, and the GPUs that have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from marft.config import Config
from marft.engines.cuda_graphs import PREFILL_TOKENS
from marft.engines.kv_cache import round_up
from marft.engines.slot_cache import GROW
from marft.models.loading import context_limit, read_files
from marft.models.memory import BaseShape, Needs, Use, estimate_needs
from marft.models.quantized import Kind
from marft.terminal import format_bytes
from marft.training.build import adapter_of, base_names, critic_of, model_of
from marft.types import MarftError

CARDS = (8, 16, 24, 80)  # GB
FITS = 0.9  # of a GPU's memory: libraries, the allocator's gaps and other programs take the rest
PROMPT_TOKENS = 256  # of an instruction and a task, where nobody has seen one
FEWEST = 16  # rows that must have room for their keys: with fewer at once nobody would wait for a play
KINDS: tuple[Kind | None, ...] = (None, "int8", "nf4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A run's needs with its bases kept in one way, and the rows that are generated at once on each card; None: no room."""

    kept_in: str
    needs: Needs
    slots: int  # rows that are asked for
    rows: dict[int, int | None]


def estimate_run(config: Config) -> list[Estimate]:
    """Of each way to keep the bases, from their configs alone."""
    bases = [(model, read_files(model, None)[0]) for model in base_names(config)]
    return [estimate_kind(config, bases, kind) for kind in KINDS]


def estimate_kind(config: Config, bases: Sequence[tuple[str, Any]], kind: Kind | None) -> Estimate:
    """Of bases, given with their configs of transformers, in one precision."""
    found = []
    for model, settings in bases:
        use = use_of(config, model, context_limit(settings.get_text_config()), kind)
        try:
            shape = BaseShape.of(settings, config.lora.targets)
        except ValueError as error:  # lora.targets that no layer has
            raise MarftError(str(error)) from None
        found.append(estimate_needs(shape, use))
    needs = Needs(
        base=sum(each.base for each in found),
        adapters=sum(each.adapters for each in found),
        optimizers=sum(each.optimizers for each in found),
        cache=sum(each.cache for each in found),
        activations=max(each.activations for each in found),
    )
    slots = use_of(config, bases[0][0], 1, kind).slots
    plain = "bfloat16" if config.dtype == "auto" else config.dtype
    rows = {card: rows_on(config, needs, slots, card) for card in CARDS}
    return Estimate(kept_in=kind or plain, needs=needs, slots=slots, rows=rows)


def use_of(config: Config, model: str, longest: int, kind: Kind | None) -> Use:
    """How the run uses a base: every adapter and critic on it, and rows that hold all that is said in an episode."""
    ranks: dict[str, int] = {}
    said = 0
    for name, agent in config.team.agents.items():
        if agent.kind not in ("trained", "frozen") or model_of(config, name) != model:
            continue
        said += agent.max_tokens
        if adapter := adapter_of(config, name):
            ranks[adapter] = agent.rank or config.lora.rank
        if agent.kind == "trained" and (critic := critic_of(config, name)):
            ranks[critic] = config.lora.rank
    return Use(
        ranks=tuple(ranks.values()),
        tokens=config.train.tokens,
        recompute=config.train.recompute,
        slots=min(config.engine.slots, config.train.tasks * config.train.samples),
        positions=round_up(min(longest, PROMPT_TOKENS + said), GROW),
        prefill=PREFILL_TOKENS,
        dtype_bytes=4 if config.dtype == "float32" else 2,
        quantize=kind,
        trust_region=config.algorithm.trust_region is not None,
    )


def rows_on(config: Config, needs: Needs, slots: int, card: int) -> int | None:
    """Rows that are generated at once on a card of so many GB, whose engine takes its share of what the base leaves free; None
    where the run does not fit."""
    memory = card * 10**9
    share = config.engine.share * max(0, memory - needs.base - needs.adapters)
    rows = min(slots, int(slots * share / needs.cache)) if needs.cache else slots
    taken = needs.without_cache + needs.cache * rows / max(slots, 1)
    return rows if rows >= min(slots, FEWEST) and taken <= FITS * memory else None


# --- in words --------------------------------------------------------------------------------------------------------
def describe_estimates(config: Config, found: Sequence[Estimate]) -> Iterator[str]:
    """A short table."""
    use = use_of(config, base_names(config)[0], 1 << 30, None)
    yield (
        f"estimate   from the model's config alone, for a GPU: passes of {use.tokens:,} tokens"
        f"{', recomputed' if use.recompute else ''}; {use.slots:,} rows of {use.positions:,} tokens"
    )
    titles = ("base", "adapters", "optimizers", "cache", "activations", "in all")
    yield f"{'':11}{'base in':10}" + "".join(f"{title:>13}" for title in titles) + "   fits in"
    for each in found:
        needs = each.needs
        amounts = (needs.base, needs.adapters, needs.optimizers, needs.cache, needs.activations, needs.total)
        yield (
            f"{'':11}{each.kept_in:10}" + "".join(f"{format_bytes(n):>13}" for n in amounts) + f"   {name_cards(each)}"
        )


def name_cards(found: Estimate) -> str:
    """`8 (216 rows), 16, 24, 80 GB`: rows at once, where they are not all that were asked for."""
    cards = [
        f"{card}" if rows == found.slots else f"{card} ({rows} rows)"
        for card, rows in found.rows.items()
        if rows is not None
    ]
    return f"{', '.join(cards)} GB" if cards else f"none of {', '.join(map(str, CARDS))} GB"
