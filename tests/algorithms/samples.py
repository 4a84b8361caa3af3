"""Small episodes, small experience and one of each method, for the tests beside this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from experience import Experience
from hypothesis import strategies as st
from torch import Tensor

from marft.algorithms.base import Algorithm
from marft.algorithms.dr_grpo import DrGrpo
from marft.algorithms.grpo import Grpo
from marft.algorithms.gspo import Gspo
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken
from marft.algorithms.rae import Rae
from marft.algorithms.reinforce_pp import ReinforcePP
from marft.algorithms.rloo import Rloo
from marft.types import Completion, Episode, Reward, Task, Turn

# for each episode the lengths of its turns, which agents 0, 1, 0, 1, … take
layouts = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4)
seeds = st.integers(0, 2**31)

TOKEN = MarftToken(
    lam=0.5, token_gamma=1.0, token_lam=1.0, whiten=False,
    clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn",
)  # fmt: skip
ACTION = MarftAction(
    lam=0.5, whiten=False, clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn", normalise="token"
)
GRPO = Grpo(std_floor=1e-4, clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn")
DR_GRPO = DrGrpo(clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn")
RLOO = Rloo(clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn")
REINFORCE_PP = ReinforcePP(clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn")
RAE = Rae(decay=0.75, clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn")
GSPO = Gspo(std_floor=1e-4, clip_low=0.2, clip_high=0.3, dual_clip=None, aggregation="turn")

WITH_CRITIC: tuple[MarftToken | MarftAction, ...] = (TOKEN, ACTION)
TokenMethod = MarftToken | Grpo | DrGrpo | Rloo | ReinforcePP | Rae
ActionMethod = MarftAction | Gspo
AT_TOKENS: tuple[TokenMethod, ...] = (TOKEN, GRPO, DR_GRPO, RLOO, REINFORCE_PP, RAE)
AT_TURNS: tuple[ActionMethod, ...] = (ACTION, GSPO)
METHODS = (*AT_TOKENS, *AT_TURNS)


def name(method: object) -> str:
    return type(method).__name__


def episode(turns: int, team: float, own: Mapping[int, float] | None = None, forked_at: int = 0) -> Episode:
    completion = Completion(text="x", token_ids=(5, 2), logprobs=(-1.0, -1.0), finish="stop", version=0)
    made = tuple(
        Turn(agent=f"agent_{k}", index=k, nth=0, shown="", observation=(), prompt_ids=(1,), completion=completion)
        for k in range(turns)
    )
    reward = Reward(team=team, turns=own or {})
    return Episode(task=Task(id="t", prompt="p"), sample=0, turns=made, reward=reward, forked_at=forked_at)


def experience(
    layout: Sequence[Sequence[int]],
    rewards: Sequence[float],
    values: Tensor | None = None,
    gamma: float = 1.0,
    penalty: Tensor | None = None,
) -> Experience:
    """Episodes with the team's reward on the last turn; groups are (agent, nth turn), as if all played one task."""
    turns = [(e, k) for e, episode in enumerate(layout) for k in range(len(episode))]
    last = [k == len(layout[e]) - 1 for e, k in turns]
    return Experience(
        episode_K=torch.tensor([e for e, _ in turns]),
        agent_K=torch.tensor([k % 2 for _, k in turns]),
        group_K=torch.tensor([k for _, k in turns]),
        task_K=torch.zeros(len(turns), dtype=torch.int64),
        play_K=torch.tensor([e for e, _ in turns]),
        length_K=torch.tensor([length for episode in layout for length in episode]),
        reward_K=torch.tensor([float(rewards[e]) if final else 0.0 for (e, _), final in zip(turns, last, strict=True)]),
        discount_K=torch.full((len(turns),), gamma),
        final_E=torch.zeros(len(layout)),
        values=values,
        penalty_N=penalty,
        baseline_A=torch.tensor([0.25, -0.5]),
    )


def critic_values(method: Algorithm, layout: Sequence[Sequence[int]], seed: int) -> Tensor | None:
    if method.values_at is None:
        return None
    entries = sum(map(len, layout)) if method.values_at == "turn" else sum(map(sum, layout))
    return torch.rand(entries, generator=torch.Generator().manual_seed(seed))
