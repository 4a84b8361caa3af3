"""A training pass like those of the run, with made-up tokens: how long it takes depends on its shape alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle

import torch
from torch import Tensor

from marft.models.scoring import logprobs, passes
from marft.training.passes import Pass, Work, runs
from marft.types import MarftError

FEWEST = 64  # tokens that train.tokens may be lowered to


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds a token, with its gradient and without, measured on a pass of `tokens`; the most bytes that the pass added,
    where a device counts them."""

    tokens: int
    training: float
    scoring: float
    peak: int | None


def made_up(template: Pass, tokens: int, seed: int) -> Pass:
    """Sequences of the template's adapters and lengths, again and again, until there are about `tokens` in all."""
    team, draw = template.team, torch.Generator().manual_seed(seed)
    work: list[Work] = []
    count = 0
    for one in cycle(template.work):
        size = len(one.span.ids)
        if work and count + size > tokens:
            break
        ids = torch.randint(0, team.config.vocab_size, (size,), generator=draw)
        work.append(replace(one, span=replace(one.span, ids=tuple(ids.tolist()))))
        count += size
    [order] = passes([one.span for one in work], [*team.adapters, None], count)
    return Pass(team=team, work=tuple(work[i] for i in order))


def loss_of(one: Pass) -> Tensor:
    """Something that depends on every agent's log-probs and every critic's values."""
    acting, judging = one.split()
    hidden = one.hidden()
    n = sum(span.asked for span in acting.spans)
    chosen = torch.zeros(n, dtype=torch.int64, device=one.team.device)
    found, _ = logprobs(one.team, hidden[:n], chosen, torch.ones(n, device=one.team.device))
    rest = hidden[n:]
    return torch.stack(
        [found.sum(), *(one.team.values(critic, rest[own]).sum() for critic, own in runs(judging.spans))]
    ).sum()


def largest_that_fits(template: Pass, tokens: int) -> Speed:
    """The speed of a pass of `tokens` tokens, or of half of them and so on where that does not fit."""
    try:
        return speed_of(template, tokens)
    except torch.OutOfMemoryError:
        if tokens // 2 < FEWEST:
            raise MarftError(
                "not even a small training pass fits in the device's memory: use a smaller model"
            ) from None
    return largest_that_fits(template, tokens // 2)


def speed_of(template: Pass, tokens: int) -> Speed:
    """Measured on a pass of `tokens` tokens, after another one has warmed up whatever needs it."""
    team = template.team
    counts = team.device.type == "cuda"
    warm, one = (made_up(template, tokens, seed) for seed in (1, 2))

    def train(this: Pass) -> None:
        loss_of(this).backward()
        for name in team.adapters:
            for parameter in team.parameters(name).values():
                parameter.grad = None

    def score() -> None:
        with torch.no_grad():
            loss_of(one)

    train(warm)
    before = 0
    if counts:
        torch.cuda.reset_peak_memory_stats(team.device)
        before = torch.cuda.memory_allocated(team.device)
    training = timed(lambda: train(one), team.device)
    peak = torch.cuda.max_memory_allocated(team.device) - before if counts else None
    scoring = timed(score, team.device)
    return Speed(tokens=tokens, training=training / one.tokens, scoring=scoring / one.tokens, peak=peak)


def timed(work: Callable[[], None], device: torch.device) -> float:
    wait(device)
    started = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - started


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
