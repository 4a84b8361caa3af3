"""Tokens per second of the local engine, end to end, against transformers' `generate` with PEFT adapters and against vLLM.

    python benchmarks/speed/generation.py
    python benchmarks/speed/generation.py --model random:135m --prompts 1024 --max-tokens 128 --slots 1024 --against generate vllm

All answer the same random prompts of ragged lengths with 0, 1, 2 and 4 adapters mixed in one batch (`--adapters`); prefill
and refill are part of it. Only real tokens count: up to and including the end of a turn. Contenders take turns in one
process after a round of warming up, and the figures are medians of `--repeats` runs. Only the first number of adapters says
what start-up costs: later ones find kernels compiled. Prints JSON; `--out FILE` also writes it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from marft.openmp import limit_spinning

limit_spinning()  # as the command line does, and before torch is loaded

import torch

from benchmarks.speed.contenders import Contender, Generate, Vllm, make_requests, vllm_is_here
from benchmarks.speed.measure import (
    Meter,
    copied,
    finish,
    forget,
    get_model,
    machine,
    make_team,
    save_adapters,
    settings,
    write,
)
from marft.engines.local import LocalEngine
from marft.game.play import seed_of
from marft.models.loading import Loaded
from marft.models.team import TeamModel
from marft.types import Completion, Request

WARM_TOKENS = 32  # of the others' warm-up; ours warms up with a whole round
REFRESHES = 20


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    base = get_model(options.model, options.device, options.dtype)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vllm, vllm_start = start_vllm(base, folder, options)
        rows: dict[str, Any] = {}
        for n in options.adapters:
            rows[str(n)] = measure(n, base, folder, vllm, options)
            result = summary(rows, base, vllm_start, options)
            write(result, options.out)  # what is measured stays, whatever comes
    finish(result, options.out)


def summary(
    rows: Mapping[str, Any], base: Loaded, vllm_start: float | None, options: argparse.Namespace
) -> dict[str, Any]:
    rate = {n: row["marft"]["tokens_per_second"] for n, row in rows.items()}
    return {
        "benchmark": "generation",
        "settings": {**settings(options), "adapters": [int(n) for n in rows]},
        "machine": machine(base.model.device),
        "vllm_start_up_seconds": vllm_start,
        "adapters": rows,
        "four_over_none": round(rate["4"] / rate["0"], 3) if rate.keys() >= {"0", "4"} else None,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="a name or folder, or random:SIZE (tiny, 135m, 0.5b, 1.5b)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    parser.add_argument("--adapters", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of the longest; the shortest has half")
    parser.add_argument("--group", type=int, default=1, help="so many requests in a row share adapter and prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, default=256, help="rows at once, the same for all contenders")
    parser.add_argument("--against", nargs="*", choices=["generate", "vllm", "none"], default=["generate"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--their-repeats", type=int, help="of the slower contenders (default: as --repeats)")
    parser.add_argument("--vllm-memory", type=float, default=0.3, help="share of the GPU's memory that vLLM takes")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    return parser.parse_args()


def start_vllm(base: Loaded, folder: Path, options: argparse.Namespace) -> tuple[Vllm | None, float | None]:
    if "vllm" not in options.against or not vllm_is_here():
        return None, None
    base.model.save_pretrained(folder / "model")
    vllm, seconds = Meter(base.model.device).run(
        lambda: Vllm(
            folder / "model",
            adapters=max(options.adapters),
            rank=options.rank,
            rows=options.slots,
            longest=options.prompt_tokens + options.max_tokens,
            dtype=str(base.model.dtype).removeprefix("torch."),
            memory=options.vllm_memory,
        )
    )
    return vllm, round(seconds, 2)


def measure(
    adapters: int, base: Loaded, folder: Path, vllm: Vllm | None, options: argparse.Namespace
) -> dict[str, Any]:
    """Everybody with so many adapters."""
    forget()
    requests = make_requests(adapters, base, options)
    meters = {name: Meter(base.model.device) for name in ("marft", "generate", "vllm")}
    team, team_seconds = meters["marft"].run(lambda: make_team(base, adapters, options.rank))
    engine, engine_seconds = meters["marft"].run(lambda: LocalEngine(team, options.slots))
    ours = Marft(engine, requests)
    _, step_seconds = meters["marft"].run(lambda: ours.alone(2))
    folders = save_adapters(team, folder / str(adapters))
    contenders: dict[str, Contender] = {"marft": ours}
    if "generate" in options.against:
        contenders["generate"], _ = meters["generate"].run(
            lambda: Generate(copied(base), folders, requests, options.slots)
        )
    if vllm is not None:
        vllm.take(folders, requests, sorted(base.end_ids))
        contenders["vllm"] = vllm
    rates = take_turns(contenders, meters, options)
    medians = {name: statistics.median(seen) for name, seen in rates.items()}
    found: dict[str, Any] = {
        name: {
            "tokens_per_second": round(median),
            "runs": [round(rate) for rate in rates[name]],
            "peak_gib": meters[name].peak_gib if name != "vllm" else None,  # a share that it takes whatever it needs
        }
        for name, median in medians.items()
    }
    found["marft"] |= {
        "start_up_seconds": round(engine_seconds + step_seconds, 3),
        "team_seconds": round(team_seconds, 3),
        "first_round_seconds": round(meters["marft"].first, 3),
        "refresh": refresh(team, ours, options) if adapters else None,
    }
    found["ratio"] = {name: round(medians["marft"] / rate, 2) for name, rate in medians.items() if name != "marft"}
    return found


def take_turns(
    contenders: dict[str, Contender], meters: dict[str, Meter], options: argparse.Namespace
) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(-1, options.repeats):
        for name, answer in contenders.items():
            others = options.repeats if options.their_repeats is None else options.their_repeats
            if name != "marft" and repeat >= others:
                continue
            most = WARM_TOKENS if repeat < 0 and name != "marft" else None
            tokens, seconds = meters[name].run(lambda answer=answer, most=most, repeat=repeat: answer(repeat, most))
            if repeat >= 0:
                rates[name].append(tokens / seconds)
            else:  # for warming up: graphs are captured, caches grow
                meters[name].first = seconds
    return rates


class Marft:
    def __init__(self, engine: LocalEngine, requests: Sequence[Request]) -> None:
        self.engine, self.requests = engine, requests

    def __call__(self, repeat: int, max_tokens: int | None = None) -> int:
        fresh = [replace(r, seed=seed_of(r.seed, repeat)) for r in self.requests]
        return sum(len(completion.token_ids) for completion in asyncio.run(self.gather(fresh)))

    def alone(self, max_tokens: int) -> int:
        """One request by itself."""
        short = replace(self.requests[0], sampling=replace(self.requests[0].sampling, max_tokens=max_tokens))
        return sum(len(completion.token_ids) for completion in asyncio.run(self.gather([short])))

    async def gather(self, requests: Sequence[Request]) -> list[Completion]:
        return await asyncio.gather(*map(self.engine.generate, requests))


def refresh(team: TeamModel, ours: Marft, options: argparse.Namespace) -> dict[str, float]:
    """What two tokens cost more, in milliseconds, when all adapters have just changed."""
    meter, seen = Meter(team.device), {"unchanged": list[float](), "changed": list[float]()}
    for _ in range(REFRESHES):
        for case, taken in seen.items():
            if case == "changed":
                with torch.no_grad():
                    for name in team.agents:
                        torch._foreach_mul_(list(team.trainable_parameters(name).values()), 1.0)
            taken.append(1000 * meter.run(lambda: ours.alone(2))[1])
    medians = {case: round(statistics.median(taken), 3) for case, taken in seen.items()}
    return {**medians, "milliseconds": round(medians["changed"] - medians["unchanged"], 3)}


if __name__ == "__main__":
    main()
