"""Team LoRA: every adapter of the team (agents and critics) stacked beside each linear layer of one frozen base.

y = W x + (α/r) · B_i A_i x, with i the adapter of the row that x belongs to. All adapters of a layer live in two
stacked fp32 tensors, A [Σr, in] and B [Σr, out]; adapter i's parameters are views of its rows of both, registered as
`<adapter>.<layer>.lora_A` and `lora_B`. Tokens are routed by a mask over the stacked rank (`Routing`); the product itself
is `fused_linear.FusedLinear`'s.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """One adapter's name, rank and alpha."""

    name: str
    rank: int
    alpha: float

    @property
    def scaling(self) -> float:
        """α/r, which the adapter's product is multiplied by."""
        return self.alpha / self.rank


class LoraStack:
    """One layer's adapters: `a[i]` [r, in] and `b[i]` [r, out] are parameters that share memory with the stacks."""

    def __init__(self, base: nn.Linear, specs: Sequence[AdapterSpec]) -> None:
        ranks, device = [s.rank for s in specs], base.weight.device
        all_a = torch.empty(sum(ranks), base.in_features)
        for rows in all_a.split(ranks):  # drawn on the CPU: the same whatever the device
            nn.init.kaiming_uniform_(rows, a=math.sqrt(5))
        self.all_a = all_a.to(device)
        self.all_b = torch.zeros(sum(ranks), base.out_features, device=device)
        self.a = [nn.Parameter(rows) for rows in self.all_a.split(ranks)]
        self.b = [nn.Parameter(rows) for rows in self.all_b.split(ranks)]
        self.watched = [self.all_a, self.all_b]  # whose version counters tell that a parameter has changed

    def restack(self) -> None:
        """Let the stacks hold the parameters again, where these have moved to other memory."""
        if self.a and self.a[0].data_ptr() != self.all_a.data_ptr():
            self.all_a, self.all_b = (torch.cat([p.detach() for p in side]) for side in (self.a, self.b))
            for whole, side in ((self.all_a, self.a), (self.all_b, self.b)):
                for parameter, rows in zip(side, whole.split([len(p) for p in side]), strict=True):
                    parameter.data = rows
            self.watched = [*self.a, *self.b]  # a parameter given other data keeps a counter of its own


class NamedModules(nn.ModuleDict):
    """Modules by names that users choose, which may also be those of a method (`train`, `keys`)."""

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Registers the module whatever its name; nn.Module refuses names that are attributes."""
        self._modules[name] = module  # type: ignore[assignment]  # torch's stubs know no None

    def __contains__(self, name: object) -> bool:
        return name in self._modules


class Adapter(nn.Module):
    """One adapter's parameters in a tree of modules like the base's, so that their names are like the base's too."""

    def __init__(self, stacks: Mapping[str, LoraStack], number: int) -> None:
        super().__init__()
        for layer, stack in stacks.items():
            place: nn.Module = self
            for part in layer.split("."):
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.register_parameter("lora_A", stack.a[number])
            place.register_parameter("lora_B", stack.b[number])


class Routing:
    """Which adapter each row of a pass belongs to, in any order: all adapters' products are computed at once, and each row
    keeps its own adapter's rank columns. A few kernels however many adapters the rows mix."""

    def __init__(self, mask: Tensor, present: Collection[int] = ()) -> None:
        self.mask = mask  # [tokens, Σr]: the adapter's scaling on its own columns, else 0
        self.present = present  # adapters that have rows, and so gradients
        self.gradient_scale: Tensor | None = None  # by which gradients that come back are too large
        self._columns: dict[int, Tensor] = {}

    def columns(self, layers: int, dtype: torch.dtype) -> Tensor:
        """The mask for the ranks of several layers side by side."""
        if layers not in self._columns:
            self._columns[layers] = self.mask.to(dtype).repeat(1, layers)
        return self._columns[layers]


class TeamLora:
    """All adapters of a team on one base model: a stack for each of its layers that are adapted."""

    def __init__(self, model: nn.Module, specs: Sequence[AdapterSpec], targets: Sequence[str] | str, seed: int) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.index = {spec.name: i for i, spec in enumerate(specs)}
        self.routing: Routing | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.stacks = {name: LoraStack(layer, specs) for name, layer in find_targets(model, targets)}
        self.adapters = NamedModules({name: Adapter(self.stacks, i) for name, i in self.index.items()})

    @contextmanager
    def route(self, routing: Routing | None) -> Iterator[None]:
        """Passes inside go through `routing`; None is the base alone, the reference policy."""
        before, self.routing = self.routing, routing
        try:
            yield
        finally:
            self.routing = before

    def adapter_parameters(self, name: str) -> dict[str, nn.Parameter]:
        """Adapter `name`'s parameters under stable names; only its own, found by index and never by substring."""
        i = self.index[name]
        return {
            f"{layer}.{side}": parameter
            for layer, stack in self.stacks.items()
            for side, parameter in (("a", stack.a[i]), ("b", stack.b[i]))
        }

    def masks(self, device: torch.device) -> Tensor:
        """[adapters + 1, Σr]: row i keeps adapter i's columns, the last row none (base alone)."""
        own = [torch.full((1, spec.rank), spec.scaling) for spec in self.specs.values()]
        none = torch.zeros(1, sum(spec.rank for spec in self.specs.values()))
        return torch.cat([torch.block_diag(*own), none]).to(device) if own else none.to(device)


def find_targets(model: nn.Module, targets: Sequence[str] | str) -> list[tuple[str, nn.Linear]]:
    """The linear layers to adapt: by their last name, or all but the output head."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    linears = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    if not linears:
        raise ValueError("this model has no linear layers (nn.Linear) that LoRA could adapt; use another model")
    if targets == "all-linear":
        return linears
    found = [(name, m) for name, m in linears if name.rpartition(".")[2] in targets]
    missing = set(targets) - {name.rpartition(".")[2] for name, _ in found}
    if missing:
        known = sorted({name.rpartition(".")[2] for name, _ in linears})
        raise ValueError(f"lora.targets: no layer is called {min(missing)!r}; this model has {', '.join(known)}")
    return found
