from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lessons import episodes, make_batch, make_team, seat

from marft.algorithms.batch import Batch
from marft.algorithms.kl_penalty import kl_penalty
from marft.algorithms.losses import KlKind


def batch_of(turns: int, length: int, drawn: torch.Tensor) -> Batch:
    members = seat(make_team(critics=()), critic=None)
    one = make_batch(members, episodes(members))
    none_K = torch.zeros(turns, dtype=torch.int64)
    return replace(one, agent_K=none_K, version_K=none_K, length_K=none_K + length, old_N=drawn)


def noise_of(own: torch.Tensor, drawn: torch.Tensor, turns: int, kind: KlKind = "k3") -> float:
    batch = batch_of(turns, len(own) // turns, drawn)
    return kl_penalty(batch, torch.tensor([0.5, 0.5]), own, own, kind, version=0).noise


def test_amounts_and_noise_by_hand() -> None:
    # two turns of two tokens, k1, weight ½; the engine is off by 0.01 in one of them: the gaps of turns are 0 and 0.005
    own, reference = torch.tensor([-1.0, -2.0, -1.0, -2.0]), torch.tensor([-1.5, -2.0, -1.0, -1.0])
    drawn = own + torch.tensor([0.0, 0.0, 0.01, 0.0])
    found = kl_penalty(batch_of(2, 2, drawn), torch.tensor([0.5, 2.0]), own, reference, "k1", version=0)
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


@pytest.mark.parametrize(("version", "noise"), [(0, 3 * 0.0025), (1, 0.0), (2, 0.0)])
def test_what_another_version_said_tells_nothing_of_rounding(version: int, noise: float) -> None:
    """Gaps 0 and 0.005 of two fresh turns, and a third turn of version 1, off by far more; nobody is of version 2."""
    own = torch.tensor([-1.0, -2.0, -1.0])
    batch = replace(batch_of(3, 1, own + torch.tensor([0.0, 0.01, 0.1])), version_K=torch.tensor([0, 0, 1]))
    found = kl_penalty(batch, torch.tensor([0.5, 2.0]), own, own, "k1", version=version)
    assert found.noise == pytest.approx(noise, rel=1e-4)
