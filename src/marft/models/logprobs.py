"""From hidden states to logits and log-probs in fp32, with gradients that need no logits to be kept.

The head is frozen, so a token's log-prob has its gradient ready where it is computed: with z the logits at the row's
temperature τ and p their softmax, ∂ log p_a / ∂h = Σ_v (1[v = a] − p_v) ∂z_v/∂h and ∂H / ∂h = −Σ_v p_v (log p_v + H)
∂z_v/∂h, one more product with the head's weights. These rows of width D are all that the backward pass finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

MOST_LOGITS = 1 << 26  # held at once: 256 MB in fp32
MOST_WIDENED = 1 << 24  # weights turned to fp32 at once where the device multiplies nothing narrower into fp32


class HasHead(Protocol):
    """What of a team's model is needed here: its output head, a linear layer, and what follows it in the config."""

    config: Any

    @property
    def head(self) -> Any:
        """The output head."""
        ...


def head_logits(team: HasHead, hidden: Tensor) -> Tensor:
    """fp32 logits [..., V] of hidden [..., D], without gradient; with the scaling or soft cap that some families put
    after the head."""
    with torch.no_grad():
        logits = in_fp32(hidden.detach().flatten(0, -2), team.head.weight.T)
        if team.head.bias is not None:
            logits += team.head.bias
        if (scale := logit_scaling(team)) != 1.0:
            logits *= scale
        if cap := soft_cap(team):
            logits.div_(cap).tanh_().mul_(cap)
    return logits.view(*hidden.shape[:-1], -1)


def in_fp32(x: Tensor, m: Tensor) -> Tensor:
    """x @ m in fp32, whatever precision m is kept in: logits rounded to bf16, say, would move log-probs by a tenth."""
    if m.dtype == torch.float32:
        return x.float() @ m
    if m.is_cuda:
        return torch.mm(x.to(m.dtype), m, out_dtype=torch.float32)
    wide, columns = x.float(), max(1, MOST_WIDENED // m.shape[0])
    return torch.cat([wide @ part.float() for part in m.split(columns, dim=1)], dim=1)


def logit_scaling(team: HasHead) -> float:
    """What the head's output is multiplied by."""
    divisor, factor = (getattr(team.config, key, None) for key in ("logits_scaling", "logit_scale"))
    return float(factor or 1.0) / float(divisor or 1.0)


def soft_cap(team: HasHead) -> float | None:
    """The cap on logits that some families have."""
    cap: float | None = getattr(team.config, "final_logit_softcapping", None)
    return cap


class TokenLogProbs(torch.autograd.Function):
    """Log-probs of tokens and the entropies of their distributions, part by part of at most MOST_LOGITS logits.

    The entropy has a gradient only where it is trained: it costs one more product with the head and D numbers a row.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, tokens_N: Tensor, temperature_N: Tensor, team: HasHead, entropy_trains: bool
    ) -> tuple[Tensor, Tensor]:
        slopes = int(ctx.needs_input_grad[0]) * (2 if entropy_trains else 1)
        rows = max(1, MOST_LOGITS // team.head.weight.shape[0])
        cut = (hidden_ND.split(rows), tokens_N.split(rows), temperature_N.split(rows))
        parts = [log_probs_of(team, *part, slopes) for part in zip(*cut, strict=True)]
        found_N, entropy_N, *kept = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(*kept)
        if not entropy_trains:
            ctx.mark_non_differentiable(entropy_N)
        return found_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, entropy_grad_N: Tensor) -> tuple[Tensor, None, None, None, None]:
        slope_ND, *entropy_slope = ctx.saved_tensors
        grad_ND = grad_N[:, None] * slope_ND
        for slope in entropy_slope:
            grad_ND += entropy_grad_N[:, None] * slope
        return grad_ND.to(slope_ND.dtype), None, None, None, None


def log_probs_of(
    team: HasHead, hidden_ND: Tensor, tokens_N: Tensor, temperature_N: Tensor, slopes: int
) -> list[Tensor]:
    """The tokens' log-probs, the entropies, and of the first `slopes` of these two the gradients by hidden [N, D]."""
    z_NV = head_logits(team, hidden_ND)
    by_kernel = z_NV.is_cuda and not soft_cap(team)
    way = statistics_by_kernel if by_kernel else statistics_by_torch
    found, by_logits = way(team, z_NV, tokens_N, temperature_N, slopes)
    rate_N1 = logit_scaling(team) / temperature_N[:, None]
    slopes_ND = (in_fp32(by_NV, team.head.weight).mul_(rate_N1).to(hidden_ND.dtype) for by_NV in by_logits)
    return [*found, *slopes_ND]


def statistics_by_kernel(
    team: HasHead, z_NV: Tensor, tokens_N: Tensor, temperature_N: Tensor, slopes: int
) -> tuple[list[Tensor], Iterator[Tensor]]:
    """Values, and slopes by the tempered logits one after the other: by kernels that read the logits once for the values
    and once for each slope."""
    from marft.models.head_kernels import TokenStatistics

    chances, dtype = TokenStatistics(z_NV, temperature_N, tokens_N), team.head.weight.dtype
    wanted = (False, True)[:slopes]
    return [chances.found, chances.entropy], (chances.slope(dtype, of_entropy=which) for which in wanted)


def statistics_by_torch(
    team: HasHead, z_NV: Tensor, tokens_N: Tensor, temperature_N: Tensor, slopes: int
) -> tuple[list[Tensor], Iterator[Tensor]]:
    """The same in torch's words. Few rows of vocabulary width exist at once: each step overwrites one that is no longer
    needed."""
    cap = soft_cap(team)
    bend_NV = 1 - (z_NV / cap).square() if cap and slopes else None  # the soft cap's own slope
    full_NV = z_NV.div_(temperature_N[:, None]).log_softmax(-1)
    chosen_N1 = tokens_N[:, None]
    found_N = full_NV.gather(1, chosen_N1).squeeze(1)
    chance_NV = torch.exp(full_NV, out=z_NV)
    full_NV.mul_(chance_NV)  # now p log p
    entropy_N = -full_NV.sum(-1)

    def by_logits() -> Iterator[Tensor]:
        if slopes == 2:
            full_NV.addcmul_(chance_NV, entropy_N[:, None]).neg_()  # −p (log p + H)
        if slopes:
            ones_N1 = torch.ones_like(chosen_N1, dtype=chance_NV.dtype)
            yield bent(chance_NV.neg_().scatter_add_(1, chosen_N1, ones_N1))
        if slopes == 2:
            yield bent(full_NV)

    def bent(slope_NV: Tensor) -> Tensor:
        return slope_NV if bend_NV is None else slope_NV.mul_(bend_NV)

    return [found_N, entropy_N], by_logits()
