"""What a run holds on a device, and what one training pass takes of memory and time, measured on a real one."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from marft.commands.plan.iteration import Reading
from marft.config import Config
from marft.engines.local import LocalEngine
from marft.learners.microbatches import Pass, cut, runs
from marft.models.logprobs import MOST_LOGITS
from marft.models.recompute import recompute_layers
from marft.models.scoring import logprobs
from marft.models.team import TeamModel
from marft.training.build import Assembly
from marft.types import MarftError

TRAINED = 16  # bytes of a parameter that learns: itself, its gradient and two Adam moments in fp32
FROZEN = 4
FITS = 0.9  # of the device's memory: allocators and kernels take the rest
PART = 8  # a pass is first weighed on one of every so many of its sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """In bytes."""

    weights: int
    adapters: int
    cache: int
    one_pass: int

    @property
    def total(self) -> int:
        return self.weights + self.adapters + self.cache + self.one_pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a pass that computes `tokens`: the bytes that it adds, and seconds a token, with its gradient and without."""

    tokens: int
    memory: int
    training: float
    scoring: float


# --- held all the time -----------------------------------------------------------------------------------------------
def weights_of(team: TeamModel) -> int:
    return sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in team.model.parameters()}.values())


def adapters_of(team: TeamModel, learning: Collection[str]) -> int:
    return sum(
        p.numel() * (TRAINED if name in learning else FROZEN)
        for name in team.adapters
        for p in team.trainable_parameters(name).values()
    )


def cache_of(config: Config, parts: Assembly) -> int:
    """What the engines hold after a play; vLLM takes its part at once, and a server's is not ours."""
    engine = config.engine
    if engine.name == "vllm":
        return 0 if engine.url else int(engine.share * device_memory(parts.teams[0].device))
    ours = [base.engine for base in parts.bases.values() if isinstance(base.engine, LocalEngine)]
    return sum(engine.stepper.held for engine in ours)


def device_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    if not hasattr(os, "sysconf"):
        raise MarftError("this system does not tell how much memory it has, so --plan cannot say whether a run fits")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# --- one pass --------------------------------------------------------------------------------------------------------
def measure(one: Pass, *, recompute: bool) -> Cost:
    """The cost of this pass, or of one of half its tokens and so on where that does not fit.

    Recomputation, which is switched on here, keeps less; but all of a layer while that runs again, which autograd's
    hooks do not see.
    """
    layer = 0.0  # bytes a token
    if recompute:
        if one.team.device.type != "cuda":  # there it is part of the measured peak
            layer = kept_a_token(one) / int(one.team.config.num_hidden_layers)
        recompute_layers(one.team)
    while True:
        try:
            return cost_of(one, layer)
        except torch.OutOfMemoryError:
            if len(one.work) == 1:
                raise MarftError(
                    "not even one sequence fits in the device's memory: use a smaller model, or lower max_tokens"
                ) from None
        one = max(map(Reading, cut(one.work, max(1, one.tokens // 2))), key=lambda half: half.weight).one


def cost_of(one: Pass, layer: float) -> Cost:
    device, size = one.team.device, one.tokens
    try:
        if device.type == "cuda":
            seconds_of(one, train=True)  # its gradients are counted elsewhere, so they stay
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            training = seconds_of(one, train=True)
            memory = torch.cuda.max_memory_allocated(device) - before
        else:
            if (kept_a_token(one) + layer) * size > FITS * device_memory(device):
                raise torch.OutOfMemoryError  # a CPU would not say so, but be killed
            memory = kept(one) + int(layer * size) + logits_of(one)
            training = seconds_of(one, train=True)
    finally:
        for parameter in (p for name in one.team.adapters for p in one.team.trainable_parameters(name).values()):
            parameter.grad = None
    scoring = seconds_of(one, train=False)
    return Cost(tokens=size, memory=memory, training=training / size, scoring=scoring / size)


def seconds_of(one: Pass, *, train: bool) -> float:
    started = time.perf_counter()
    with torch.set_grad_enabled(train):
        loss = loss_of(one)
    if train:
        loss.backward()
    loss.item()  # waits for the device
    return time.perf_counter() - started


def loss_of(one: Pass) -> Tensor:
    """Something that depends on every agent's log-probs and every critic's values."""
    acting, judging = one.split()
    hidden, device = one.hidden(), one.team.device
    n = sum(span.asked for span in acting.spans)
    parts = [one.team.values(critic, hidden[n:][own]).sum() for critic, own in runs(judging.spans)]
    if n:
        chosen, temperature = torch.zeros(n, dtype=torch.int64, device=device), torch.ones(n, device=device)
        parts.append(logprobs(one.team, hidden[:n], chosen, temperature)[0].sum())
    return torch.stack(parts).sum()


def kept(one: Pass) -> int:
    """Bytes of everything that autograd keeps of a pass, but parameters."""
    own = {p.untyped_storage().data_ptr() for p in one.team.model.parameters()}
    held: dict[int, Tensor] = {}  # the tensors stay alive, so that no address is seen twice

    def note(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own and not isinstance(x, torch.nn.Parameter):
            held[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        loss_of(one)
    return sum(x.untyped_storage().nbytes() for x in held.values())


def kept_a_token(one: Pass) -> float:
    """About; from some of its sequences."""
    part = Pass(team=one.team, work=one.work[::PART])
    return kept(part) / part.tokens


def logits_of(one: Pass) -> int:
    """Three tensors of vocabulary width at once, for as many rows as are computed together."""
    words = int(one.team.head.weight.shape[0])
    rows = sum(span.asked for span in one.split()[0].spans)
    return 3 * 4 * words * min(rows, max(1, MOST_LOGITS // words))
