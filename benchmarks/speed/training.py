"""Tokens per second, peak memory and FLOP utilisation of one LoRA update, against plain PEFT on padded batches.

    python benchmarks/speed/training.py
    python benchmarks/speed/training.py --model random:1.5b --sequences 64 --tokens 16384

Both update rank-16 adapters on all linear layers from the same sequences of ragged lengths with AdamW. marft packs them into
passes; PEFT has right-padded batches of as many sequences as a pass of ours has on average, in the order they come, full
logits and SDPA, once with fp32 adapters under autocast (as transformers' Trainer has them) and, where the base is not fp32,
once with adapters in the base's precision. Only real tokens count. Further: the same sequences split over four agents; groups
that share their prompts; and how far log-probs as sampled are from those that training computes (mean k3 KL). Contenders take
turns after a warm-up; figures are medians.

Useful FLOPs of a sequence of T tokens, A of them actions: 4NT + 6nT + 6LHdT² + 4VDA, with N weights in linear layers, n in
one adapter, L layers, H heads of d, vocabulary V, width D. The base is frozen, so its backward costs no more than its forward,
and attention is causal. Utilisation is these FLOPs a second over `--peak`. Prints JSON; `--out FILE` also writes it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from marft.openmp import limit_spinning

limit_spinning()  # as the command line does, and before torch is loaded

import torch
from torch import nn

from benchmarks.speed.learners import Marft, Peft, Sample, describe, make_samples
from benchmarks.speed.measure import Meter, finish, get_model, machine, settings
from marft.models.loading import Loaded

AGENTS = 4
PEFT = {"peft": True, "peft, adapters as the base": False}  # are its adapters in fp32?


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Who updates on what, and who measures it."""

    meter: Meter
    update: Callable[[], None]
    samples: Sequence[Sample]


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    base = get_model(options.model, options.device, options.dtype)
    ragged, grouped = make_samples(base, 1, options), make_samples(base, options.group, options)
    meter = Meter(base.model.device)
    ours, _ = meter.run(lambda: Marft(base, AGENTS, options.rank, options.tokens))
    mismatch = ours.mismatch(ragged[: options.kl_prompts], options.kl_tokens)
    rows = max(1, round(len(ragged) / ours.passes(ragged)))
    cases = {
        "marft": Case(meter=meter, update=lambda: ours.update(ragged, 1), samples=ragged),
        "marft, four agents": Case(meter=meter.another(), update=lambda: ours.update(ragged, AGENTS), samples=ragged),
        "marft, shared prompts": Case(meter=meter.another(), update=lambda: ours.update(grouped, 1), samples=grouped),
    }
    if options.against == "peft":
        cases |= peft_cases(base, ragged, grouped, rows, options)
    seconds = take_turns(cases, options.repeats)
    figures = {name: figure(base, case, seconds[name], options) for name, case in cases.items()}
    result = {
        "benchmark": "training",
        "settings": settings(options),
        "machine": machine(base.model.device),
        "samples": describe(ragged),
        "shared_samples": describe(grouped),
        "sequences_per_pass": rows,
        "mismatch": mismatch,
        "figures": figures,
        "ratios": ratios(figures),
    }
    finish(result, options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="a name or folder, or random:SIZE (tiny, 135m, 0.5b, 1.5b)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--shortest", type=int, default=128)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--group", type=int, default=8, help="sequences that share a prompt, in the figure for those")
    parser.add_argument("--tokens", type=int, default=8192, help="of one pass")
    parser.add_argument("--kl-prompts", type=int, default=16, help="prompts that are continued and then scored")
    parser.add_argument("--kl-tokens", type=int, default=128, help="most tokens of each")
    parser.add_argument("--against", choices=["peft", "none"], default="peft")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", type=float, default=989e12, help="FLOP/s of the GPU (default: bf16 of an H200)")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    return parser.parse_args()


def peft_cases(
    base: Loaded, ragged: Sequence[Sample], grouped: Sequence[Sample], rows: int, options: argparse.Namespace
) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name, fp32 in PEFT.items():
        if not fp32 and base.model.dtype == torch.float32:
            continue
        meter = Meter(base.model.device)
        peft, _ = meter.run(lambda fp32=fp32: Peft(base, options.rank, adapters_in_fp32=fp32))  # type: ignore[misc]
        for samples, what in ((ragged, ""), (grouped, ", shared prompts")):
            cases[name + what] = Case(
                meter=meter if samples is ragged else meter.another(),
                update=lambda peft=peft, samples=samples: peft.update(samples, rows),  # type: ignore[misc]
                samples=samples,
            )
    return cases


def take_turns(cases: dict[str, Case], repeats: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(-1, repeats):
        for name, case in cases.items():
            _, taken = case.meter.run(case.update)
            if repeat >= 0:  # the first round is for warming up
                seconds[name].append(taken)
    return seconds


def figure(base: Loaded, case: Case, seconds: Sequence[float], options: argparse.Namespace) -> dict[str, Any]:
    median = statistics.median(seconds)
    rate = useful_flops(base, options.rank, case.samples) / median
    return {
        "seconds": round(median, 4),
        "runs": [round(each, 4) for each in seconds],
        "tokens_per_second": round(sum(len(sample.ids) for sample in case.samples) / median),
        "peak_gib": case.meter.peak_gib,
        "flops_per_second": rate,
        "utilisation": round(rate / options.peak, 4) if case.meter.cuda else None,
    }


def useful_flops(base: Loaded, rank: int, samples: Sequence[Sample]) -> float:
    config, head = base.model.config, base.model.get_output_embeddings()
    linears = [m for m in base.model.modules() if isinstance(m, nn.Linear) and m is not head]
    weights = sum(m.weight.numel() for m in linears)
    adapter = sum(rank * (m.in_features + m.out_features) for m in linears)
    heads, width = config.num_attention_heads, config.hidden_size
    dim = getattr(config, "head_dim", None) or width // heads
    attention = 6 * config.num_hidden_layers * heads * dim
    total = 0.0
    for sample in samples:
        size = len(sample.ids)
        total += (4 * weights + 6 * adapter) * size + attention * size**2
        total += 4 * config.vocab_size * width * len(sample.action)
    return total


def ratios(figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """marft over the faster of PEFT's two ways, and four agents' time over one's."""
    found: dict[str, Any] = {
        "four_agents_over_one": round(figures["marft, four agents"]["seconds"] / figures["marft"]["seconds"], 3)
    }
    for what in ("", ", shared prompts"):
        ours, theirs = figures["marft" + what], [figures[n + what] for n in PEFT if n + what in figures]
        if theirs:
            best = max(theirs, key=lambda row: row["tokens_per_second"])
            found["speed_over_peft" + what] = round(ours["tokens_per_second"] / best["tokens_per_second"], 2)
            if ours["peak_gib"] is not None:
                found["memory_over_peft" + what] = round(ours["peak_gib"] / best["peak_gib"], 3)
    return found


if __name__ == "__main__":
    main()
