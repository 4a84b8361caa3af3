"""Which models a duo trains on which GPUs, with the base in bfloat16, int8 and nf4.

    python benchmarks/memory/what_fits.py --out docs/results/memory.json
    python benchmarks/memory/what_fits.py --measure --out docs/results/memory-measured.json

The first reckons as `marft train --plan` does, from shapes alone. `--measure` needs a CUDA GPU: bases with random weights play
and learn, and the peaks of both stand beside what is reckoned, with the k3 KL between drawn and recomputed log-probs. Prints
JSON; `--out FILE` also writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import torch
from torch.optim import AdamW

from benchmarks.speed.measure import SIZES, finish, forget, get_model, machine, settings
from marft.algorithms.losses import kl_estimate
from marft.commands.estimate import CARDS, KINDS, estimate_kind
from marft.config import Config, load_config
from marft.engines.local import LocalEngine
from marft.models.lora import AdapterSpec
from marft.models.memory import BaseShape, Use, estimate_needs, playing_bytes, training_bytes
from marft.models.quantized import Kind
from marft.models.recompute import recompute_layers
from marft.models.scoring import Span, action_span, hidden_states, logprobs
from marft.models.team import TeamModel
from marft.types import Completion, Request, Sampling

RECIPE = "gsm8k-duo-action"
SETTINGS = {  # by how a table calls them
    "as the recipe": (),
    "recomputed": ("train.recompute=true", "train.tokens=8192"),
    "small": ("train.recompute=true", "train.tokens=2048", "engine.slots=64", "engine.memory=0.2"),
}
MODELS = ("0.5b", "1.5b", "3b", "7b", "14b", "32b")
GB = 10**9
LONGEST = 1024  # tokens of a sequence that is measured


def main() -> None:
    options = arguments()
    result = measured(options) if options.measure else reckoned()
    finish({"benchmark": "memory", "settings": settings(options), **result}, options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="on a CUDA GPU, instead of reckoning")
    parser.add_argument("--sizes", nargs="+", default=["0.5b", "1.5b", "3b"], choices=list(SIZES), help="to measure")
    parser.add_argument("--tokens", type=int, default=8192, help="of a pass of training")
    parser.add_argument("--slots", type=int, default=256, help="rows generated at once")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


# --- reckoned --------------------------------------------------------------------------------------------------------
def reckoned() -> dict[str, Any]:
    """Of every size, way to keep the base and settings."""
    rows = [
        row_of(name, load_config(RECIPE, overrides), size, kind)
        for size in MODELS
        for name, overrides in SETTINGS.items()
        for kind in KINDS
    ]
    return {"recipe": RECIPE, "overrides": {name: " ".join(given) for name, given in SETTINGS.items()}, "rows": rows}


def row_of(name: str, config: Config, size: str, kind: Kind | None) -> dict[str, Any]:
    found = estimate_kind(config, [(config.model, SIZES[size]())], kind)
    needs = found.needs
    return {
        "model": size,
        "base in": found.kept_in,
        "settings": name,
        **{
            key: round(getattr(needs, key) / GB, 2)
            for key in ("base", "adapters", "optimizers", "cache", "activations")
        },
        "rows": {str(card): rows for card, rows in found.rows.items()},
    }


def fits_table(result: Mapping[str, Any]) -> str:
    """A row a model: what must fit whatever is left for keys, and the smallest card of each way to keep the base."""
    ways = list(dict.fromkeys(row["base in"] for row in result["rows"]))
    heads = [f"{way}, GB | from" for way in ways]
    lines = [f"| model | settings | {' | '.join(heads)} |", "|---" * (2 + 2 * len(ways)) + "|"]
    for model, name in dict.fromkeys((row["model"], row["settings"]) for row in result["rows"]):
        own = [row for row in result["rows"] if (row["model"], row["settings"]) == (model, name)]
        cells = [f"{without_cache(row):.1f} | {smallest_card(row)}" for row in own]
        lines.append(f"| {model.upper()} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def without_cache(row: Mapping[str, Any]) -> float:
    return float(sum(row[key] for key in ("base", "adapters", "optimizers", "activations")))


def smallest_card(row: Mapping[str, Any]) -> str:
    """With the rows that are generated at once there."""
    found = [(card, row["rows"][str(card)]) for card in CARDS if row["rows"][str(card)] is not None]
    return f"{found[0][0]} GB, {found[0][1]} rows" if found else "–"


# --- measured --------------------------------------------------------------------------------------------------------
def measured(options: argparse.Namespace) -> dict[str, Any]:
    rows = [measure(size, kind, options) for size in options.sizes for kind in KINDS]
    return {"machine": machine(torch.device(options.device)), "rows": rows}


def measure(size: str, kind: Kind | None, options: argparse.Namespace) -> dict[str, Any]:
    """One base: plays, then learns with activations kept and recomputed."""
    start = time.perf_counter()
    team = make_team(size, kind, options)
    use = Use(
        ranks=(options.rank, options.rank), tokens=options.tokens, recompute=False, slots=options.slots,
        positions=LONGEST, prefill=32768, quantize=kind,
    )  # fmt: skip
    shape = BaseShape.of(SIZES[size](), "all-linear")
    needs, again = estimate_needs(shape, use), replace(use, recompute=True)
    held, rows = torch.cuda.memory_allocated(), make_prompts(team, options.slots, LONGEST // 2)
    row: dict[str, Any] = {
        "model": size,
        "base in": kind or "bfloat16",
        "base and adapters": compare(held, needs.base + needs.adapters),
    }
    resting = needs.base + needs.adapters
    row |= play(team, rows, resting + needs.cache + playing_bytes(shape, use))
    learning = resting + needs.optimizers
    row["training"] = compare(learn(team, options.tokens), learning + training_bytes(shape, use))
    recompute_layers(team)
    row["training, recomputed"] = compare(learn(team, options.tokens), learning + training_bytes(shape, again))
    return {**row, "seconds": round(time.perf_counter() - start, 1)}


def make_team(size: str, kind: Kind | None, options: argparse.Namespace) -> TeamModel:
    forget()
    specs = [AdapterSpec(name=name, rank=options.rank, alpha=2 * options.rank) for name in ("reasoner", "actor")]
    loaded = get_model(f"random:{size}", options.device, "bfloat16")
    team = TeamModel(loaded, agents=specs, critics=[], targets="all-linear", seed=0)
    if kind is not None:
        team.quantize(kind, team.device)
    for spec in specs:
        for key, parameter in team.trainable_parameters(spec.name).items():
            if key.endswith(".b"):
                torch.nn.init.normal_(parameter, std=1e-3)
    del loaded
    forget()
    return team


def compare(found: int, expected: int) -> dict[str, float]:
    """In GB."""
    return {"measured": round(found / GB, 2), "reckoned": round(expected / GB, 2), "ratio": round(found / expected, 3)}


def make_prompts(team: TeamModel, count: int, length: int) -> list[tuple[int, ...]]:
    draw = random.Random(0)
    return [tuple(draw.choices(range(3, team.words), k=length)) for _ in range(count)]


def play(team: TeamModel, prompts: Sequence[tuple[int, ...]], expected: int) -> dict[str, Any]:
    """A round to warm up and one that counts; rows have room for LONGEST tokens."""
    torch.cuda.reset_peak_memory_stats()
    engine = LocalEngine(team, len(prompts), memory=0.4)
    engine.stepper.cache.reserve(LONGEST, 0)
    sampling = Sampling(temperature=1.0, max_tokens=64)
    asked = [
        Request(adapter=team.agents[i % 2], prompt_ids=prompt, sampling=sampling, seed=i)
        for i, prompt in enumerate(prompts)
    ]
    ask(engine, asked)
    torch.cuda.synchronize()
    start = time.perf_counter()
    said = ask(engine, asked)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated()
    engine.close()
    return {
        "playing": compare(peak, expected),
        "tokens per second, prompts included": round(sum(len(one.token_ids) for one in said) / seconds),
        "k3 of drawn and recomputed log-probs": mismatch(team, asked[:16], said[:16]),
    }


def ask(engine: LocalEngine, asked: Sequence[Request]) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, asked))

    return asyncio.run(together())


def mismatch(team: TeamModel, asked: Sequence[Request], said: Sequence[Completion]) -> float:
    order = sorted(range(len(asked)), key=lambda i: team.lora.index[str(asked[i].adapter)])
    spans = [action_span(asked[i].adapter, asked[i].prompt_ids, said[i].token_ids) for i in order]
    tokens = torch.tensor([token for i in order for token in said[i].token_ids], device=team.device)
    old = torch.tensor([logprob for i in order for logprob in said[i].logprobs], device=team.device)
    with torch.no_grad():
        new = logprobs(team, hidden_states(team, spans), tokens, torch.ones(len(tokens), device=team.device))[0]
    return float(f"{kl_estimate(old, new, 'k3').mean():.2e}")


def learn(team: TeamModel, tokens: int) -> int:
    """The peak of one update: a full pass, in which half of the tokens are learnt from, and AdamW's step."""
    torch.cuda.synchronize()
    forget()
    torch.cuda.reset_peak_memory_stats()
    optimizers = [AdamW(team.trainable_parameters(name).values(), foreach=True) for name in team.agents]
    prompts = make_prompts(team, tokens // LONGEST, LONGEST)
    spans = [
        Span(adapter=team.agents[2 * i // len(prompts)], ids=prompt, asked=LONGEST // 2)
        for i, prompt in enumerate(prompts)
    ]
    for _ in range(2):  # the first step makes the moments
        hidden = hidden_states(team, spans)
        chosen = torch.full((len(hidden),), 5, device=team.device)
        logprobs(team, hidden, chosen, torch.ones(len(hidden), device=team.device))[0].mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        del hidden
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    main()
