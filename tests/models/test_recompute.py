from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, tiny
from teams import team_of
from torch import Tensor

from marft.models.loading import Loaded
from marft.models.recompute import recompute_layers
from marft.models.scoring import Span, hidden_states
from marft.models.team import TeamModel
from marft.types import MarftError

SPANS = [
    Span(adapter="a", ids=tuple(range(50, 80)), asked=3),
    Span(adapter="a", ids=(*range(50, 75), 7, 8), asked=2),  # begins like the first
    Span(adapter="b", ids=tuple(range(90, 100)), asked=4),
    Span(adapter=None, ids=tuple(range(60, 90)), asked=1),
]


def step(team: TeamModel) -> tuple[Tensor, dict[str, Tensor], int]:
    """States, gradients, and the bytes of activations kept for the backward pass."""
    storages: dict[int, Tensor] = {}  # the tensors are kept, so that no address is used twice

    def keep(x: Tensor) -> Tensor:
        if not isinstance(x, torch.nn.Parameter):
            storages[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        hidden = hidden_states(team, SPANS)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    (hidden * weights).sum().backward()
    gradients = {
        f"{n}/{k}": p.grad for n in team.adapters for k, p in team.trainable_parameters(n).items() if p.grad is not None
    }
    size = sum(x.untyped_storage().nbytes() for x in storages.values())
    return hidden.detach(), gradients, size


@pytest.mark.parametrize("family", ["nano", "qwen3", "phi", "gpt-neox", "gemma2"])
def test_the_same_gradients_with_fewer_activations(family: str) -> None:
    found = []
    for recompute in (False, True):
        team = team_of({"a": 4, "b": 3}, loaded=None if family == "nano" else tiny(FAMILIES[family]))
        if recompute:
            recompute_layers(team)
        found.append(step(team))
    (kept, kept_gradients, most), (recomputed, gradients, least) = found
    torch.testing.assert_close(recomputed, kept, atol=0, rtol=0)
    assert gradients.keys() == kept_gradients.keys()
    assert len(gradients) == 4 * len(team.lora.stacks)
    for key, grad in gradients.items():
        torch.testing.assert_close(grad, kept_gradients[key], atol=0, rtol=0)
    assert least < most / 2


def test_passes_without_gradient_are_as_they_were() -> None:
    team = team_of({"a": 4, "b": 3}, loaded=tiny(FAMILIES["phi"]))
    with torch.no_grad():
        before = hidden_states(team, SPANS)
        recompute_layers(team)
        assert torch.equal(hidden_states(team, SPANS), before)


def test_a_model_without_such_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Loaded = tiny(FAMILIES["phi"])
    team: Any = team_of({"a": 4}, loaded=loaded)
    monkeypatch.setattr(team.base, "modules", lambda: iter([torch.nn.Linear(2, 2)]))
    with pytest.raises(MarftError, match=r"train\.recompute: model 'tiny' has no layers"):
        recompute_layers(team)
