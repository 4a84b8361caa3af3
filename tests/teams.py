"""Teams on the nano model whose adapters do something, and PEFT's own model with the same weights as an oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft.models.loading import Loaded, load
from marft.models.lora import AdapterSpec, LoraStack
from marft.models.team import TeamModel


def team_of(
    ranks: Mapping[str, int],
    *,
    critics: Sequence[str] = (),
    targets: Sequence[str] | str = "all-linear",
    loaded: Loaded | None = None,
    std: float = 0.05,
) -> TeamModel:
    """Adapters of the given ranks (critics among them by name), alpha twice the rank, B random instead of zero."""
    specs = {name: AdapterSpec(name=name, rank=rank, alpha=2 * rank + 1) for name, rank in ranks.items()}
    team = TeamModel(
        loaded or load("nano", "cpu", "float32"),
        agents=[spec for name, spec in specs.items() if name not in critics],
        critics=[specs[name] for name in critics],
        targets=targets,
        seed=0,
    )
    fill_b(team, std)
    return team


def fill_b(team: TeamModel, std: float, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in team.lora.specs:
            for key, parameter in team.lora.adapter_parameters(name).items():
                if key.endswith(".b"):
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def peft_of(team: TeamModel, name: str) -> PeftModel:
    """PEFT's model with adapter `name`'s weights, made without our own file format."""
    spec = team.lora.specs[name]
    config = LoraConfig(r=spec.rank, lora_alpha=spec.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(load("nano", "cpu", "float32").model, config)
    weights = team.lora.adapter_parameters(name)
    with torch.no_grad():
        for layer in team.lora.stacks:
            lora = model.base_model.model.get_submodule(layer)
            lora.lora_A["default"].weight.copy_(weights[f"{layer}.a"])
            lora.lora_B["default"].weight.copy_(weights[f"{layer}.b"].T)
    return model.eval()


def plain_model(
    team: TeamModel, model: PreTrainedModel, adapters: Sequence[int | None], lengths: Sequence[int] | None = None
) -> PreTrainedModel:
    """A transformers model whose layers add the team's adapters in plain arithmetic: `adapters[j]` to the next `lengths[j]`
    tokens, or the only one to all."""
    scalings = [spec.scaling for spec in team.lora.specs.values()]

    def hook(stack: LoraStack) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
        def add(layer: nn.Module, given: tuple[Tensor], y: Tensor) -> Tensor:
            x, out = given[0].flatten(0, -2), y.flatten(0, -2)
            sizes = list(lengths or [len(x)])
            parts = [
                piece if i is None else piece + (rows @ stack.a[i].T) @ stack.b[i] * scalings[i]
                for i, rows, piece in zip(adapters, x.split(sizes), out.split(sizes), strict=True)
            ]
            return torch.cat(parts).view_as(y)

        return add

    for name, stack in team.lora.stacks.items():
        model.get_submodule(name).register_forward_hook(hook(stack))
    return model
