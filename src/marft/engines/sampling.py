"""Drawing tokens: each row with its own settings, and a random number that depends on its seed and step alone."""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64's constants, as signed integers
GOLDEN, MIX_1, MIX_2 = -7046029254386353131, -4658895280553007687, -7723592293110705685


def uniform(seed_B: Tensor, step_B: Tensor) -> Tensor:
    """U[0, 1) in float64 from (seed, step) by splitmix64: the same whatever else is in the batch, on every device."""
    x = seed_B + (step_B + 1) * GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return ((x >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def temper(logits_BV: Tensor, temperature_B: Tensor) -> Tensor:
    """Logits at each row's temperature; greedy rows (temperature 0) as they are."""
    return logits_BV / torch.where(temperature_B == 0, 1.0, temperature_B)[:, None]


def truncate(logits_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """-inf outside each row's top k and its nucleus of mass p; the likeliest token always stays."""
    ordered, order = logits_BV.sort(dim=-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # mass of the likelier tokens
    rank = torch.arange(logits_BV.shape[1], device=logits_BV.device)
    limit = torch.where(top_k_B > 0, top_k_B, logits_BV.shape[1])
    nucleus = torch.where(top_p_B < 1, top_p_B, torch.inf)  # rounded masses reach 1 before the last token
    drop = (rank >= limit[:, None]) | (before >= nucleus[:, None])
    drop[:, 0] = False
    return logits_BV.masked_fill(drop.gather(1, order.argsort(dim=-1)), float("-inf"))


def draw(logits_BV: Tensor, greedy_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """A token a row and its log-prob under the distribution it was drawn from; greedy rows take the likeliest."""
    logprobs = logits_BV.log_softmax(-1)
    cdf = logprobs.exp().double().cumsum(-1)
    total = cdf[:, -1:]
    threshold = torch.minimum(uniform_B[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(cdf, threshold, right=True)
    token = torch.where(greedy_B[:, None], logits_BV.argmax(-1, keepdim=True), token)
    logprob = logprobs.gather(1, token).masked_fill(greedy_B[:, None], 0.0)
    return token.squeeze(1), logprob.squeeze(1)
