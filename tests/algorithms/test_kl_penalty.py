from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lessons import episodes, make_batch, make_team, seat

from marft.algorithms.batch import Batch
from marft.algorithms.kl_penalty import kl_penalty


def batch_of(turns: int, length: int) -> Batch:
    members = seat(make_team(critics=()), critic=None)
    one = make_batch(members, episodes(members))
    return replace(one, agent_K=torch.zeros(turns, dtype=torch.int64), length_K=torch.full((turns,), length))


def noise_of(own: torch.Tensor, drawn: torch.Tensor, turns: int, kind: str = "k3") -> float:
    batch = batch_of(turns, len(own) // turns)
    weight = torch.tensor([0.5, 0.5])
    return kl_penalty(batch, weight, own, drawn, own, kind).noise  # type: ignore[arg-type]


def test_amounts_and_noise_by_hand() -> None:
    # two turns of two tokens, k1, weight ½; the engine is off by 0.01 in one of them: the gaps of turns are 0 and 0.005
    own, reference = torch.tensor([-1.0, -2.0, -1.0, -2.0]), torch.tensor([-1.5, -2.0, -1.0, -1.0])
    drawn = own + torch.tensor([0.0, 0.0, 0.01, 0.0])
    found = kl_penalty(batch_of(2, 2), torch.tensor([0.5, 2.0]), own, drawn, reference, "k1")
    assert found.amount_N.tolist() == pytest.approx([0.25, 0.0, 0.0, -0.5])
    assert found.noise == pytest.approx(3 * 0.0025, rel=1e-4)


def test_what_all_turns_are_off_by_is_no_difference_between_them() -> None:
    own = -torch.rand(4000)
    assert noise_of(own, own + 0.02, turns=40, kind="k1") < 1e-4


def test_one_mishap_does_not_drown_the_rewards() -> None:
    own = -torch.rand(30_000)
    drawn = own.clone()
    drawn[7] -= 7
    assert noise_of(own, drawn, turns=100) < 0.01
