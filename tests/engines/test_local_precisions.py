"""Whatever the base is kept in, what is drawn has the log-probs that training computes."""

from __future__ import annotations

import pytest
import torch
from asking import FREE, RANKS, WILD, ask, flat, recomputed, request
from teams import team_of
from torch import Tensor

from marft.engines.local import LocalEngine
from marft.models.loading import load
from marft.models.quantized import Kind


@pytest.mark.parametrize("kind", [None, "int8", "nf4"])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-9), ("bfloat16", 1e-3), ("float16", 2e-5)])
def test_drawn_and_recomputed_log_probs_agree(kind: Kind | None, dtype: str, bound: float) -> None:
    team = team_of(RANKS, loaded=load("nano", "cpu", dtype))
    if kind is not None:
        team.quantize(kind, torch.device("cpu"))
    asked = [
        request(i, adapter=("planner", "solver", None)[i % 3], seed=i, sampling=WILD if i % 2 else FREE)
        for i in range(12)
    ]
    said = ask(LocalEngine(team, 5), *asked)
    assert k3(recomputed(team, asked, said) - flat(said)) < bound
    if kind is not None:  # the bound would notice another base
        assert k3(recomputed(team_of(RANKS), asked, said) - flat(said)) > {"int8": 1e-6, "nf4": 2e-3}[kind]


def k3(ratio: Tensor) -> float:
    """The mean k3 estimate of the KL between the policy that drew and the one that learns."""
    return float((ratio.double().exp() - 1 - ratio.double()).mean())
