"""Who updates adapters in `training.py`: marft's packed passes, and plain PEFT on right-padded batches with full logits."""

from __future__ import annotations

import asyncio
import random
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.optim import AdamW

from benchmarks.speed.measure import copied, make_team
from marft.algorithms.losses import kl_estimate
from marft.engines.local import LocalEngine
from marft.models.loading import Loaded
from marft.models.scoring import Span, action_span, hidden_states, logprobs, passes
from marft.types import Completion, Request, Sampling

LR = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn to learn from."""

    prompt: tuple[int, ...]
    action: tuple[int, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt + self.action


def make_samples(base: Loaded, group: int, options: Namespace) -> list[Sample]:
    """Lengths from shortest to longest, a quarter of each the prompt; in groups, half of it, and the prompt is shared."""
    draw = random.Random(0)
    allowed = [i for i in range(3, base.model.config.vocab_size) if i not in base.end_ids]

    def tokens(share: float) -> tuple[int, ...]:
        return tuple(draw.choices(allowed, k=max(1, int(share * draw.randint(options.shortest, options.longest)))))

    samples: list[Sample] = []
    while len(samples) < options.sequences:
        if group == 1:
            ids = tokens(1.0)
            samples.append(Sample(prompt=ids[: max(1, len(ids) // 4)], action=ids[max(1, len(ids) // 4) :]))
            continue
        prompt = tokens(0.5)
        samples += [
            Sample(prompt=prompt, action=tokens(0.5)) for _ in range(min(group, options.sequences - len(samples)))
        ]
    return samples


def describe(samples: Sequence[Sample]) -> dict[str, int]:
    sizes = [len(sample.ids) for sample in samples]
    return {
        "sequences": len(sizes),
        "tokens": sum(sizes),
        "actions": sum(len(sample.action) for sample in samples),
        "shortest": min(sizes),
        "longest": max(sizes),
    }


class Marft:
    """The calls that the learner makes, with the plainest of losses: the mean log-prob of the actions."""

    def __init__(self, base: Loaded, agents: int, rank: int, budget: int) -> None:
        self.team, self.budget = make_team(base, agents, rank), budget
        self.optimizers = [
            AdamW(self.team.trainable_parameters(n).values(), lr=LR, foreach=True) for n in self.team.agents
        ]

    def passes(self, samples: Sequence[Sample]) -> int:
        return len(self.cut(self.spans(samples, 1)))

    def spans(self, samples: Sequence[Sample], agents: int) -> list[Span]:
        return [action_span(self.team.agents[i % agents], s.prompt, s.action) for i, s in enumerate(samples)]

    def cut(self, spans: Sequence[Span]) -> list[list[int]]:
        return passes(spans, [*self.team.adapters, None], self.budget)

    def update(self, samples: Sequence[Sample], agents: int) -> None:
        spans = self.spans(samples, agents)
        actions = sum(len(sample.action) for sample in samples)
        for chunk in self.cut(spans):
            new = self.score([spans[i] for i in chunk], [samples[i].action for i in chunk])
            (-new.sum() / actions).backward()
        for optimizer in self.optimizers[:agents]:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def score(self, spans: Sequence[Span], actions: Sequence[tuple[int, ...]]) -> Tensor:
        tokens = torch.tensor([token for action in actions for token in action], device=self.team.device)
        temperature = torch.ones(len(tokens), device=self.team.device)
        return logprobs(self.team, hidden_states(self.team, spans), tokens, temperature)[0]

    def mismatch(self, samples: Sequence[Sample], most: int) -> dict[str, float]:
        """Prompts are continued by the local engine, each with one of the adapters, and the log-probs of what it drew are
        worked out again as training would."""
        sampling = Sampling(max_tokens=most)
        requests = [
            Request(adapter=self.team.agents[i % len(self.team.agents)], prompt_ids=s.prompt, sampling=sampling, seed=i)
            for i, s in enumerate(samples)
        ]
        engine = LocalEngine(self.team, len(requests))

        async def gather() -> list[Completion]:
            return await asyncio.gather(*map(engine.generate, requests))

        drawn = asyncio.run(gather())
        spans = [action_span(r.adapter, r.prompt_ids, c.token_ids) for r, c in zip(requests, drawn, strict=True)]
        kl: list[Tensor] = []
        for chunk in self.cut(spans):
            with torch.no_grad():
                new = self.score([spans[i] for i in chunk], [drawn[i].token_ids for i in chunk])
            old = torch.tensor([each for i in chunk for each in drawn[i].logprobs], device=new.device)
            kl.append(torch.stack([kl_estimate(old, new, "k3"), (old - new).abs()]))
        both = torch.cat(kl, dim=1)
        return {"tokens": both.shape[1], "mean_k3": float(both[0].mean()), "largest_difference": float(both[1].max())}


class Peft:
    """`get_peft_model` and AdamW; log-probs from the logits of every position."""

    def __init__(self, base: Loaded, rank: int, *, adapters_in_fp32: bool) -> None:
        model = copied(base).model
        model.set_attn_implementation("sdpa")
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model: Any = get_peft_model(model, lora, autocast_adapter_dtype=adapters_in_fp32).train()
        self.device, self.mixed = model.device, adapters_in_fp32 and model.dtype != torch.float32
        self.optimizer = AdamW((p for p in self.model.parameters() if p.requires_grad), lr=LR, foreach=True)

    def update(self, samples: Sequence[Sample], rows: int) -> None:
        actions = sum(len(sample.action) for sample in samples)
        for start in range(0, len(samples), rows):
            (-self.score(samples[start : start + rows]) / actions).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def score(self, batch: Sequence[Sample]) -> Tensor:
        """The summed log-prob of all actions."""
        sizes = torch.tensor([len(sample.ids) for sample in batch])
        longest = int(sizes.max())
        ids = torch.tensor([[*sample.ids, *[0] * (longest - len(sample.ids))] for sample in batch], device=self.device)
        place = torch.arange(longest)
        prompts = torch.tensor([len(sample.prompt) for sample in batch])
        real = (place < sizes[:, None]).to(self.device)
        acts = ((place >= prompts[:, None]) & (place < sizes[:, None])).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            logits = self.model(input_ids=ids, attention_mask=real.long(), use_cache=False).logits
        full = logits[:, :-1].float().log_softmax(-1)
        return (full.gather(-1, ids[:, 1:, None])[..., 0] * acts[:, 1:]).sum()
