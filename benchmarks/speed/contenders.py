"""Requests for `generation.py`, and whom the local engine is measured against: transformers' `generate` with PEFT's mixed
adapters, and vLLM with LoRA."""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import PeftModel
from torch import Tensor

from marft.game.play import seed_of
from marft.models.loading import Loaded
from marft.types import Request, Sampling


def make_requests(adapters: int, base: Loaded, options: Namespace) -> list[Request]:
    draw = random.Random(0)
    sampling = Sampling(temperature=1.0, max_tokens=options.max_tokens)
    allowed = [i for i in range(3, base.model.config.vocab_size) if i not in base.end_ids]
    requests: list[Request] = []
    while len(requests) < options.prompts:
        prompt = tuple(draw.choices(allowed, k=draw.randint(max(1, options.prompt_tokens // 2), options.prompt_tokens)))
        adapter = f"a{len(requests) // options.group % adapters}" if adapters else None
        for _ in range(min(options.group, options.prompts - len(requests))):
            requests.append(Request(adapter=adapter, prompt_ids=prompt, sampling=sampling, seed=len(requests)))
    return requests


class Contender(Protocol):
    def __call__(self, repeat: int, max_tokens: int | None = None) -> int:
        """Answer all requests, with at most so many tokens each (None: as they ask); the real tokens made."""
        ...


class Generate:
    """Left-padded batches of rows of like length, with several adapters each row with its own. Text is made, log-probs are
    not."""

    def __init__(self, base: Loaded, folders: Sequence[Path], requests: Sequence[Request], rows: int) -> None:
        self.model: Any = with_adapters(base, folders)
        self.mixes = len(folders) > 1  # one alone needs no names
        self.tokenizer, self.ends = base.tokenizer, sorted(base.end_ids)
        self.pad = next(i for i in range(len(base.tokenizer)) if i not in base.end_ids)
        ordered = sorted(requests, key=lambda request: len(request.prompt_ids))
        self.batches = [ordered[i : i + rows] for i in range(0, len(ordered), rows)]

    def __call__(self, repeat: int, max_tokens: int | None = None) -> int:
        torch.manual_seed(seed_of("generate", repeat))
        with torch.no_grad():
            return sum(self.answer(batch, max_tokens or batch[0].sampling.max_tokens) for batch in self.batches)

    def answer(self, batch: Sequence[Request], max_tokens: int) -> int:
        longest, device = max(len(r.prompt_ids) for r in batch), self.model.device
        pads = [longest - len(r.prompt_ids) for r in batch]
        ids = [[self.pad] * pad + list(r.prompt_ids) for pad, r in zip(pads, batch, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
        mixed = {"adapter_names": [r.adapter for r in batch]} if self.mixes else {}
        out = self.model.generate(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            do_sample=True,
            temperature=batch[0].sampling.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_tokens,
            eos_token_id=self.ends,
            pad_token_id=self.pad,
            **mixed,
        )
        said = out[:, longest:]
        self.tokenizer.batch_decode(said, skip_special_tokens=True)
        return real_tokens(said, torch.tensor(self.ends, device=device))


def with_adapters(base: Loaded, folders: Sequence[Path]) -> Any:
    """Adapters in the base's precision: PEFT's default is fp32, with casts around every product."""
    if not folders:
        return base.model
    first, *others = folders
    model = PeftModel.from_pretrained(base.model, first, adapter_name=first.name, autocast_adapter_dtype=False)
    for folder in others:
        model.load_adapter(folder, adapter_name=folder.name, autocast_adapter_dtype=False)
    return model.eval()


def real_tokens(said: Tensor, ends: Tensor) -> int:
    """Tokens [B, T] up to and including the first that ends a turn; padding comes after it."""
    ended = torch.isin(said, ends)
    before = ended.cumsum(1) - ended.long()  # ends seen earlier
    return int((before == 0).sum())


class Vllm:
    """One vLLM engine for every number of adapters: LoRA on, unless no adapter is ever asked for. It hands back tokens and
    their log-probs and is spared making text."""

    def __init__(
        self, folder: Path, *, adapters: int, rank: int, rows: int, longest: int, dtype: str, memory: float
    ) -> None:
        from vllm import LLM

        # one slot more than adapters: on CPU a row without an adapter would be given the last slot's
        lora = {"enable_lora": True, "max_loras": adapters + 1, "max_lora_rank": rank} if adapters else {}
        self.llm = LLM(
            model=str(folder),
            dtype=dtype,
            skip_tokenizer_init=True,
            max_num_seqs=rows,
            max_model_len=longest,
            gpu_memory_utilization=memory,
            enable_prefix_caching=True,
            **lora,
        )
        self.requests: Sequence[Request] = ()
        self.ends: list[int] = []
        self.adapters: dict[str | None, Any] = {}
        self.loaded = 0

    def take(self, folders: Sequence[Path], requests: Sequence[Request], ends: Sequence[int]) -> None:
        """What to answer from now on; new adapters get new numbers, so that no old keys are read for them."""
        from vllm.lora.request import LoRARequest

        numbers = range(self.loaded + 1, self.loaded + 1 + len(folders))
        self.adapters = {f.name: LoRARequest(f"{f.name}-{i}", i, str(f)) for i, f in zip(numbers, folders, strict=True)}
        self.loaded += len(folders)
        self.requests, self.ends = requests, list(ends)

    def __call__(self, repeat: int, max_tokens: int | None = None) -> int:
        from vllm import SamplingParams

        self.llm.reset_prefix_cache()  # nobody else has seen these prompts before either
        sampling = [
            SamplingParams(
                temperature=r.sampling.temperature,
                max_tokens=max_tokens or r.sampling.max_tokens,
                seed=None,  # a seed a request would make vLLM sample row by row
                logprobs=0,  # of the token that was drawn
                stop_token_ids=self.ends,
                detokenize=False,
            )
            for r in self.requests
        ]
        prompts = [{"prompt_token_ids": list(r.prompt_ids)} for r in self.requests]
        adapters = [self.adapters.get(r.adapter) for r in self.requests]
        outputs = self.llm.generate(prompts, sampling, lora_request=adapters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


def vllm_is_here() -> bool:
    try:
        import vllm  # noqa: F401
    except ImportError:
        print("vllm cannot be imported here and is left out", file=sys.stderr)
        return False
    return True
