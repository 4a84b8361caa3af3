"""Advantages from values: one recursion serves action-level and token-level GAE, chained from agent to agent."""

from __future__ import annotations

import torch
from torch import Tensor


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
    rewards_EK: Tensor, values_EK: Tensor, mask_EK: Tensor, final_E: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """MARFT-A: a step is a whole turn, so agent k bootstraps from the next agent to act in the same episode."""
    ones = torch.ones_like(values_EK)
    return gae(rewards_EK, values_EK, gamma * ones, lam * ones, mask_EK, final_E)


def token_gae(
    rewards_ET: Tensor,
    values_ET: Tensor,
    ends_ET: Tensor,
    mask_ET: Tensor,
    final_E: Tensor,
    *,
    gamma: float,
    lam: float,
    token_gamma: float = 1.0,
    token_lam: float = 1.0,
) -> Tensor:
    """MARFT-T: a step is a token. γ_w and λ_w inside an action, γ and λ from its last token (`ends`) to the next turn.

    γ_w = γ and λ_w = λ is the plain token MDP; γ_w = 1 is the Bellman backup with action decomposition (POAD).
    """
    ends = ends_ET.bool()
    discount = torch.where(ends, gamma, token_gamma)
    decay = torch.where(ends, lam, token_lam)
    return gae(rewards_ET, values_ET, discount.to(values_ET), decay.to(values_ET), mask_ET, final_E)


def group_relative(scores_N: Tensor, groups_N: Tensor, *, std_floor: float) -> Tensor:
    """A = (c − mean) / max(std, floor) within each group (GRPO, arXiv 2402.03300); population statistics.

    Groups are named by `groups_N` (any integers), never by position. A group of one, or without spread, gives 0.
    """
    _, group = groups_N.unique(return_inverse=True)
    scores = scores_N.double()  # in float32, equal scores differ from their mean by rounding, and the floor is small
    count = torch.bincount(group).double()
    mean = torch.zeros_like(count).index_add_(0, group, scores) / count
    centred = scores - mean[group]
    std = (torch.zeros_like(count).index_add_(0, group, centred.square()) / count).sqrt()
    return (centred / std[group].clamp(min=std_floor)).to(scores_N)


def whiten(advantages_N: Tensor, agents_N: Tensor) -> Tensor:
    """Mean 0 and deviation 1 for each agent over its own entries, zeros included; an agent without spread gets 0."""
    whitened = torch.zeros_like(advantages_N)
    for agent in agents_N.unique():
        own = agents_N == agent
        entries = advantages_N[own].double()  # so that equal entries have no spread by rounding
        floor = 1e-8 + 1e-5 * float(entries.abs().max())  # a spread below it is rounding
        whitened[own] = ((entries - entries.mean()) / entries.std(correction=0).clamp(min=floor)).to(whitened)
    return whitened
