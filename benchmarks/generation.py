"""Tokens per second of our local engine against transformers' `generate` with PEFT adapters, on the same prompts.

Both continue the duo team's prompts on the arithmetic environment, half the planner's and half the solver's, each with
its own adapter in one mixed batch, and both hand back text. Only real tokens count: up to and including the end of a
turn. They take turns in one process, so that a busy machine slows both; the ratio is that of the medians.

    python benchmarks/generation.py
    python benchmarks/generation.py --model smollm2-135m --device cuda
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from marft.threads import rest_soon

rest_soon()  # as the command line does, and before torch is loaded

import torch
from peft import PeftModel
from torch import Tensor

from marft.config import load_config
from marft.engines.local import LocalEngine
from marft.envs import make_env
from marft.game.observation import observe
from marft.game.play import seed_of
from marft.models.loading import Loaded, load
from marft.models.lora import AdapterSpec
from marft.models.peft_format import save_adapter
from marft.models.team import TeamModel
from marft.types import Completion, Request, Sampling, Turn

AGENTS = ("planner", "solver")


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    ours, theirs = (load(options.model, options.device, options.dtype) for _ in range(2))
    team = make_team(ours, options.rank)
    engine = LocalEngine(team, options.prompts)
    requests = make_requests(engine, options)
    with tempfile.TemporaryDirectory() as folder:
        peft = to_peft(team, theirs, Path(folder))
    generate = Transformers(peft, theirs, requests, options)
    runs: dict[str, Callable[[int], int]] = {
        "marft": lambda repeat: answer(engine, requests, repeat),
        "transformers": generate,
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(-1, options.repeats):
        for name, run in runs.items():
            start = now(team.device)
            tokens = run(repeat)
            if repeat >= 0:  # the first round is for warming up
                rates[name].append(tokens / (now(team.device) - start))
    medians = {name: statistics.median(seen) for name, seen in rates.items()}
    result = {
        **vars(options),
        "device": str(team.device),
        "threads": torch.get_num_threads(),
        "tokens_per_second": {name: [round(rate) for rate in seen] for name, seen in rates.items()},
        "median": {name: round(rate) for name, rate in medians.items()},
        "ratio": round(medians["marft"] / medians["transformers"], 2),
    }
    print(json.dumps(result, indent=2))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def make_team(loaded: Loaded, rank: int) -> TeamModel:
    """Adapters that change the output a little, so that neither side could leave them out unnoticed."""
    specs = [AdapterSpec(name=name, rank=rank, alpha=2 * rank) for name in AGENTS]
    team = TeamModel(loaded, agents=specs, critics=[], targets="all-linear", seed=0)
    torch.manual_seed(0)
    for name in AGENTS:
        for key, parameter in team.parameters(name).items():
            if key.endswith(".b"):
                torch.nn.init.normal_(parameter, std=1e-3)
    return team


def make_requests(engine: LocalEngine, options: argparse.Namespace) -> list[Request]:
    """Planners' prompts, and the solvers' prompts that follow from what the planners said."""
    config = load_config("duo")
    tasks = make_env(config.env.name, config.env.settings).tasks("train")[: options.prompts // 2]
    sampling = Sampling(temperature=options.temperature, max_tokens=options.max_tokens)

    def request(name: str, turns: Sequence[Turn], number: int) -> Request:
        seen = observe(prompt=config.team.agents[name].prompt, task=tasks[number], shown="", turns=turns)
        return Request(adapter=name, prompt_ids=engine.encode(seen), sampling=sampling, seed=seed_of(name, number))

    planning = [request("planner", (), i) for i in range(len(tasks))]
    solving = []
    for i, plan in enumerate(asyncio.run(gather(engine, planning))):
        turn = Turn(
            agent="planner",
            index=0,
            nth=0,
            shown="",
            observation=(),
            prompt_ids=planning[i].prompt_ids,
            completion=plan,
        )
        solving.append(request("solver", [turn], i))
    return [*planning, *solving]


async def gather(engine: LocalEngine, requests: Sequence[Request]) -> list[Completion]:
    return await asyncio.gather(*map(engine.generate, requests))


def answer(engine: LocalEngine, requests: Sequence[Request], repeat: int) -> int:
    fresh = [
        Request(adapter=r.adapter, prompt_ids=r.prompt_ids, sampling=r.sampling, seed=seed_of(r.seed, repeat))
        for r in requests
    ]
    return sum(len(completion.token_ids) for completion in asyncio.run(gather(engine, fresh)))


def to_peft(team: TeamModel, loaded: Loaded, folder: Path) -> PeftModel:
    for name in AGENTS:
        save_adapter(team, name, folder / name)
    model = PeftModel.from_pretrained(loaded.model, folder / AGENTS[0], adapter_name=AGENTS[0])
    for name in AGENTS[1:]:
        model.load_adapter(folder / name, adapter_name=name)
    return model.eval()


class Transformers:
    """`generate` of transformers on one left-padded batch, each row with its own PEFT adapter."""

    def __init__(
        self, model: PeftModel, loaded: Loaded, requests: Sequence[Request], options: argparse.Namespace
    ) -> None:
        self.model, self.tokenizer, self.ends = model, loaded.tokenizer, sorted(loaded.end_ids)
        self.adapters = [request.adapter for request in requests]
        self.longest = max(len(request.prompt_ids) for request in requests)
        self.pad = next(i for i in range(len(loaded.tokenizer)) if i not in loaded.end_ids)
        pads = [self.longest - len(request.prompt_ids) for request in requests]
        ids = [[self.pad] * pad + list(r.prompt_ids) for pad, r in zip(pads, requests, strict=True)]
        self.ids = torch.tensor(ids, device=model.device)
        self.mask = torch.tensor([[0] * pad + [1] * (self.longest - pad) for pad in pads], device=model.device)
        self.settings = {
            "do_sample": options.temperature > 0,
            "max_new_tokens": options.max_tokens,
            "eos_token_id": self.ends,
            "pad_token_id": self.pad,
            **({"temperature": options.temperature, "top_k": 0, "top_p": 1.0} if options.temperature > 0 else {}),
        }

    def __call__(self, repeat: int) -> int:
        torch.manual_seed(seed_of("transformers", repeat))
        with torch.no_grad():
            out = self.model.generate(
                input_ids=self.ids, attention_mask=self.mask, adapter_names=self.adapters, **self.settings
            )
        said = out[:, self.longest :]
        self.tokenizer.batch_decode(said, skip_special_tokens=True)
        return real_tokens(said, torch.tensor(self.ends, device=said.device))


def real_tokens(said: Tensor, ends: Tensor) -> int:
    """Tokens [B, T] up to and including the first that ends a turn; padding comes after it."""
    ended = torch.isin(said, ends)
    before = ended.cumsum(1) - ended.long()  # ends seen earlier
    return int((before == 0).sum())


if __name__ == "__main__":
    main()
