"""From episodes to the flat tensors that algorithms and the learner work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marft.algorithms.credit import RewardStream
from marft.algorithms.experience import Experience
from marft.game.observation import central_state
from marft.types import Episode, Message, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All turns of the episodes that are trained on, in order of play, and their tokens end to end."""

    episodes: tuple[Episode, ...]
    turns: tuple[Turn, ...]
    agents: tuple[str, ...]  # agent_K indexes this
    states: tuple[tuple[int, ...], ...]  # s_k as token ids; empty without a critic
    cut_states: Mapping[int, tuple[int, ...]]  # s_K of episodes (by index) that were cut off
    episode_K: Tensor
    agent_K: Tensor
    group_K: Tensor
    length_K: Tensor
    words_K: Tensor
    reward_K: Tensor
    score_K: Tensor
    gamma: float
    tokens_N: Tensor
    old_N: Tensor  # log-probs at which the tokens were sampled
    temperature_K: Tensor

    @property
    def starts_K(self) -> Tensor:
        return self.length_K.cumsum(0) - self.length_K

    def experience(self, values: Tensor | None, final_E: Tensor) -> Experience:
        return Experience(
            episode_K=self.episode_K, agent_K=self.agent_K, group_K=self.group_K, length_K=self.length_K,
            reward_K=self.reward_K, score_K=self.score_K, gamma=self.gamma, final_E=final_E, values=values,
        )  # fmt: skip


def build_batch(
    episodes: Sequence[Episode],
    *,
    agents: Sequence[str],
    temperatures: Mapping[str, float],
    credit: Callable[[Episode], RewardStream],
    encode_state: Callable[[Sequence[Message]], tuple[int, ...]] | None,
) -> Batch:
    """Every turn is its own sample with the prompt it really saw. `encode_state` renders s_k where a critic is used."""
    streams = [credit(episode) for episode in episodes]
    turns = [turn for episode in episodes for turn in episode.turns]
    groups: dict[tuple[str, str, int], int] = {}
    keys = [(e.task.id, turn.agent, turn.nth) for e in episodes for turn in e.turns]
    states: list[tuple[int, ...]] = []
    cut_states: dict[int, tuple[int, ...]] = {}
    if encode_state:
        for e, episode in enumerate(episodes):
            task, said = episode.task, episode.turns
            for k, turn in enumerate(said):
                state = central_state(task=task, shown=turn.shown, turns=said[:k], next_agent=turn.agent)
                states.append(encode_state(state))
            if episode.cut_before is not None:
                state = central_state(task=task, shown=episode.cut_shown, turns=said, next_agent=episode.cut_before)
                cut_states[e] = encode_state(state)
    return Batch(
        episodes=tuple(episodes),
        turns=tuple(turns),
        agents=tuple(agents),
        states=tuple(states),
        cut_states=cut_states,
        episode_K=torch.tensor([e for e, episode in enumerate(episodes) for _ in episode.turns]),
        agent_K=torch.tensor([agents.index(turn.agent) for turn in turns]),
        group_K=torch.tensor([groups.setdefault(key, len(groups)) for key in keys]),
        length_K=torch.tensor([len(turn.completion.token_ids) for turn in turns]),
        words_K=torch.tensor([len(turn.text.split()) for turn in turns]),
        reward_K=torch.tensor([float(r) for stream in streams for r in stream.rewards]),
        score_K=torch.tensor([float(c) for stream in streams for c in stream.scores()]),
        gamma=streams[0].gamma,
        tokens_N=torch.tensor([token for turn in turns for token in turn.completion.token_ids]),
        old_N=torch.tensor([logprob for turn in turns for logprob in turn.completion.logprobs]),
        temperature_K=torch.tensor([temperatures[turn.agent] for turn in turns]),
    )
