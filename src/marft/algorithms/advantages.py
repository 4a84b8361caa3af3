"""Advantages: from values by one recursion (action- and token-level GAE), and from scores compared within groups.

Group statistics are taken in double: sums of equal float32 numbers are exact there, so that a group of one, or without
spread, gets exactly 0 and no rounding is blown up by a small deviation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marft.algorithms.losses import sum_by_turn


def suffix_scan(x_ET: Tensor, decay_ET: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1}, y_T = 0, in log2(T) steps instead of T.

    After the step with shift s, y_t sums the next 2s terms and decay_t is the product of the next 2s decays.
    """
    y, decay = x_ET.clone(), decay_ET.clone()
    shift = 1
    while shift < x_ET.shape[1]:
        y[:, :-shift] += decay[:, :-shift] * y[:, shift:].clone()
        decay[:, :-shift] = decay[:, :-shift] * decay[:, shift:].clone()
        shift *= 2
    return y


def gae(
    rewards_ET: Tensor, values_ET: Tensor, discount_ET: Tensor, lam_ET: Tensor, mask_ET: Tensor, final_E: Tensor
) -> Tensor:
    """Generalised advantages of steps t of episodes e: δ_t = r_t + γ_t V_{t+1} − V_t; A_t = δ_t + γ_t λ_t A_{t+1}.

    A row is one episode, its steps first and padding (mask 0) after them, so nothing leaks across episodes. The value
    after a row's last step is `final_E`: 0 where the episode terminated, V(s_K) where it was cut off.
    Schulman et al., arXiv 1506.02438; chained over agents as in MARFT, arXiv 2504.16129.
    """
    keep, values = mask_ET.bool(), values_ET
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    last = keep & ~torch.cat([keep[:, 1:], torch.zeros_like(keep[:, :1])], dim=1)
    following = torch.where(last, final_E[:, None], following)
    delta = (rewards_ET + discount_ET * following - values).masked_fill(~keep, 0)
    decay = (discount_ET * lam_ET).masked_fill(~keep, 0)
    return suffix_scan(delta, decay)


def action_gae(
    rewards_EK: Tensor, values_EK: Tensor, discount_EK: Tensor, mask_EK: Tensor, final_E: Tensor, *, lam: float
) -> Tensor:
    """MARFT-A: a step is a whole turn, so agent k bootstraps from the next agent to act in the same episode.

    `discount_EK` reaches from a turn to the next one in the row; where it is 0, A_k = r_k − V_k.
    """
    return gae(rewards_EK, values_EK, discount_EK, lam * torch.ones_like(values_EK), mask_EK, final_E)


def token_gae(
    rewards_ET: Tensor,
    values_ET: Tensor,
    ends_ET: Tensor,
    discount_ET: Tensor,
    mask_ET: Tensor,
    final_E: Tensor,
    *,
    lam: float,
    token_gamma: float = 1.0,
    token_lam: float = 1.0,
) -> Tensor:
    """MARFT-T: a step is a token. γ_w and λ_w inside an action; from its last token (`ends`) to the next turn the turn's
    discount and λ. `discount_ET` is read on `ends` alone.

    γ_w = γ and λ_w = λ is the plain token MDP; γ_w = 1 is the Bellman backup with action decomposition (POAD).
    """
    ends = ends_ET.bool()
    discount = torch.where(ends, discount_ET, token_gamma)
    decay = torch.where(ends, lam, token_lam)
    return gae(rewards_ET, values_ET, discount.to(values_ET), decay.to(values_ET), mask_ET, final_E)


def group_mean(x_N: Tensor, groups_N: Tensor) -> Tensor:
    """Each entry's group mean [N]. Groups are named by `groups_N` (any integers), never by position."""
    _, group = groups_N.unique(return_inverse=True)
    count = torch.bincount(group).to(x_N)
    return (torch.zeros_like(count).index_add_(0, group, x_N) / count)[group]


def group_relative(scores_N: Tensor, groups_N: Tensor, *, std_floor: float) -> Tensor:
    """A = (c − mean) / max(std, floor) within each group (GRPO, arXiv 2402.03300); population statistics."""
    scores = scores_N.double()
    distance = scores - group_mean(scores, groups_N)
    std = group_mean(distance.square(), groups_N).sqrt()
    return (distance / std.clamp(min=std_floor)).to(scores_N)


def centred(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    """A = c − mean within each group, not divided (Dr. GRPO, arXiv 2503.20783)."""
    scores = scores_N.double()
    return (scores - group_mean(scores, groups_N)).to(scores_N)


def leave_one_out(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    """A_i = c_i − mean of the others of its group (RLOO, arXiv 2402.14740), which is (c_i − mean) · n / (n − 1)."""
    scores = scores_N.double()
    distance = scores - group_mean(scores, groups_N)
    _, group, count = groups_N.unique(return_inverse=True, return_counts=True)
    stretch: Tensor = count.double() / (count - 1).clamp(min=1)
    return (distance * stretch[group]).to(scores_N)


def less_other_plays(scores_K: Tensor, agents_K: Tensor, plays_K: Tensor, tasks_K: Tensor) -> Tensor:
    """A_k = c_k − the mean of the agent's scores in other plays of the task, or else of the batch; 0 where it has none.

    Scores of the same play are left out: they may be what this very turn brought about.
    """
    scores = scores_K.double()
    advantages = torch.zeros_like(scores)
    for wide in ([agents_K], [agents_K, tasks_K]):  # the task's own where there are some: they know how hard it is
        _, around = torch.stack(wide).unique(dim=1, return_inverse=True)
        _, within = torch.stack([*wide, plays_K]).unique(dim=1, return_inverse=True)
        totals = [sum_by_turn(scores, group, len(scores))[group] for group in (around, within)]
        count = (torch.bincount(around)[around] - torch.bincount(within)[within]).double()
        mean_of_others = (totals[0] - totals[1]) / count.clamp(min=1)
        advantages = torch.where(count > 0, scores - mean_of_others, advantages)
    return advantages.to(scores_K)


def running_baseline(scores_K: Tensor, agents_K: Tensor, baseline_A: Tensor, *, decay: float) -> tuple[Tensor, Tensor]:
    """A = c − b of the turn's agent, and the baselines for the next batch (RAE, SPIRAL, arXiv 2506.24119).

    b ← decay · b + (1 − decay) · the mean of the agent's scores; an agent without scores keeps its own. Advantages use
    the baselines from before the batch, so its order does not matter and no score is compared with itself; but an agent's
    first baseline (NaN before) is the mean of its first batch: from 0, all that earns something would be reinforced.
    """
    mean_K = group_mean(scores_K.double(), agents_K)
    old_K = torch.where(baseline_A[agents_K].isnan(), mean_K, baseline_A[agents_K].double())
    following_A = baseline_A.clone()
    following_A[agents_K] = (decay * old_K + (1 - decay) * mean_K).to(baseline_A)
    return scores_K - old_K.to(scores_K), following_A


def whiten(advantages_N: Tensor, agents_N: Tensor, scores_N: Tensor | None = None, *, noise: float = 0.0) -> Tensor:
    """(A − mean) / max(σ_A, σ_A² / σ_c) for each agent over its own entries, zeros included; σ_c is the deviation of the
    scores that the advantages come from (None: they are the scores).

    Advantages that spread further than the scores they come from are mostly the critic's own errors. Dividing by σ_A alone
    would blow them up to full size, most of all where no score differs and nothing can be learnt: there they become 0.
    With σ_A ≤ σ_c it is the usual mean 0 and deviation 1. Of σ_c only what passes `noise` counts, √(σ_c² − noise²).
    """
    whitened = torch.zeros_like(advantages_N)
    for agent in agents_N.unique():
        own = agents_N == agent
        entries = advantages_N[own].double()
        deviation = spread_of(entries)
        spread = deviation if scores_N is None else spread_of(scores_N[own].double())
        spread = max(0.0, spread**2 - noise**2) ** 0.5
        if deviation and spread:
            whitened[own] = ((entries - entries.mean()) / max(deviation, deviation**2 / spread)).to(whitened)
    return whitened


def spread_of(entries: Tensor) -> float:
    """Their standard deviation; 0 where it is no more than rounding."""
    deviation = float(entries.std(correction=0))
    return deviation if deviation > 1e-8 + 1e-5 * float(entries.abs().max()) else 0.0
