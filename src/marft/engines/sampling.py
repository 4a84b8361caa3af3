"""Drawing tokens: each row with its own settings, and a random number that depends on its seed and step alone."""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64's constants, as signed integers
GOLDEN, MIX_1, MIX_2 = -7046029254386353131, -4658895280553007687, -7723592293110705685
BLOCK = 1024  # of the vocabulary
WITHOUT_DOUBLES = {"mps"}  # types of devices that have no float64


def seeded_uniform(seed_B: Tensor, step_B: Tensor) -> Tensor:
    """U[0, 1) in float64 from (seed, step) by splitmix64: the same whatever else is in the batch, on every device."""
    x = seed_B + (step_B + 1) * GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * MIX_2
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return ((x >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def apply_temperature(logits_BV: Tensor, temperature_B: Tensor) -> Tensor:
    """Logits at each row's temperature; greedy rows (temperature 0) as they are."""
    return logits_BV / torch.where(temperature_B == 0, 1.0, temperature_B)[:, None]


def truncate_logits(logits_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """-inf outside each row's top k and its nucleus of mass p; the likeliest token always stays."""
    ordered, order = logits_BV.sort(dim=-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # mass of the likelier tokens
    rank = torch.arange(logits_BV.shape[1], device=logits_BV.device)
    limit = torch.where(top_k_B > 0, top_k_B, logits_BV.shape[1])
    nucleus = torch.where(top_p_B < 1, top_p_B, torch.inf)  # rounded masses reach 1 before the last token
    drop = (rank >= limit[:, None]) | (before >= nucleus[:, None])
    drop[:, 0] = False
    return logits_BV.masked_fill(drop.gather(1, order.argsort(dim=-1)), float("-inf"))


def sample_tokens(logits_BV: Tensor, temperature_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """A token a row and its log-prob under the distribution it was drawn from; greedy rows take the likeliest.

    A row whose logits are no distribution (NaN or infinity) gets some token, and NaN for its log-prob.
    """
    if logits_BV.is_cuda:
        return sample_by_blocks(logits_BV, temperature_B, uniform_B)
    greedy_B1 = temperature_B[:, None] == 0
    logprobs = apply_temperature(logits_BV, temperature_B).log_softmax(-1)
    cdf = logprobs.exp().double().cumsum(-1)
    token = torch.searchsorted(cdf, sampling_threshold(uniform_B[:, None], cdf[:, -1:]), right=True)
    token = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), token).clamp(max=logits_BV.shape[1] - 1)
    logprob = zero_where_greedy(logprobs.gather(1, token), greedy_B1)
    return token.squeeze(1), logprob.squeeze(1)


def zero_where_greedy(logprob: Tensor, greedy: Tensor) -> Tensor:
    """0 where the likeliest token was taken; NaN stays NaN."""
    return logprob.masked_fill(greedy & (logprob == logprob), 0.0)


def sample_seeded(logits_BV: Tensor, temperature_B: Tensor, seed_B: Tensor, step_B: Tensor) -> tuple[Tensor, Tensor]:
    """`sample_tokens` with each row's own random number. Both need float64: a device that has none has it done on the CPU."""
    device = logits_BV.device
    if device.type in WITHOUT_DOUBLES:
        logits_BV, temperature_B, seed_B, step_B = (x.cpu() for x in (logits_BV, temperature_B, seed_B, step_B))
    token, logprob = sample_tokens(logits_BV, temperature_B, seeded_uniform(seed_B, step_B))
    return token.to(device), logprob.to(device)


def sampling_threshold(uniform: Tensor, total: Tensor) -> Tensor:
    """u of all mass, and always a little less than all."""
    return torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))


def sample_by_blocks(logits_BV: Tensor, temperature_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """The same draw with one look at the logits: first a block of the vocabulary by its mass, then a token in it."""
    greedy_B, cold_B = temperature_B == 0, torch.where(temperature_B == 0, 1.0, 1 / temperature_B)
    top_BN, mass_BN, first_BN = block_masses(logits_BV, cold_B)
    top_B1 = top_BN.amax(1, keepdim=True)
    mass_BN = mass_BN.double() * (top_BN - top_B1).double().exp()
    cdf_BN = mass_BN.cumsum(1)
    total_B1 = cdf_BN[:, -1:].clone()
    target_B1 = sampling_threshold(uniform_B[:, None], total_B1)
    block_B1 = torch.searchsorted(cdf_BN, target_B1, right=True).clamp(max=cdf_BN.shape[1] - 1)  # past it with NaN
    rest_B1 = target_B1 - (cdf_BN - mass_BN).gather(1, block_B1)
    tokens_BM = block_B1 * BLOCK + torch.arange(BLOCK, device=logits_BV.device)
    missing_BM = tokens_BM >= logits_BV.shape[1]
    inside_BM = logits_BV.gather(1, tokens_BM.clamp(max=logits_BV.shape[1] - 1)) * cold_B[:, None]
    chance_BM = (inside_BM - top_B1).masked_fill(missing_BM, float("-inf")).double().exp()
    within_B1 = torch.searchsorted(chance_BM.cumsum(1), rest_B1, right=True)
    possible_BM = torch.where(chance_BM > 0, torch.arange(BLOCK, device=logits_BV.device), -1)
    within_B1 = torch.minimum(within_B1, possible_BM.amax(1, keepdim=True))  # masses of a block are rounded
    token_B1 = torch.where(
        greedy_B[:, None], first_BN.gather(1, top_BN.argmax(1, keepdim=True)), within_B1 + block_B1 * BLOCK
    ).clamp(0, logits_BV.shape[1] - 1)
    scaled_B1 = logits_BV.gather(1, token_B1) * cold_B[:, None]
    logprob_B1 = scaled_B1 - top_B1 - total_B1.log().float()
    return token_B1.squeeze(1), zero_where_greedy(logprob_B1.squeeze(1), greedy_B)


def block_masses(logits_BV: Tensor, cold_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each block of each row's logits at its temperature: the highest, Σ exp(logit - highest), and whose it is."""
    if logits_BV.is_cuda:
        from marft.engines.kernels import block_masses as by_kernel

        return by_kernel(logits_BV, cold_B, BLOCK)
    missing = -logits_BV.shape[1] % BLOCK
    padded = torch.nn.functional.pad(logits_BV * cold_B[:, None], (0, missing), value=float("-inf"))
    blocks = padded.view(len(padded), -1, BLOCK)
    top, first = blocks.max(-1)
    mass = (blocks - top[..., None].clamp(min=torch.finfo(torch.float32).min)).exp().sum(-1)
    return top, mass, first + torch.arange(blocks.shape[1]) * BLOCK
