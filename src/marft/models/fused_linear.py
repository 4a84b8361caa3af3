"""Linear layers that read the same input as one matrix product, with every adapter of the team beside it.

The rows of all A matrices stand below those of the base weights, so that one product gives W x and A x; each row then
keeps its own adapter's part of A x, and one product with the block-diagonal B adds it. The number of kernels does not
depend on the number of adapters. A and B are copies in the compute dtype, renewed when the trained parameters have
changed; they are no parameters here, so that whoever shards the base leaves the adapters alone.

Where the base is quantised, `joined` and `plain` are made of few bits for each product, and forgotten after it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from marft.models.elementwise import swiglu, swiglu_backward
from marft.models.logprobs import in_fp32
from marft.models.lora import LoraStack, Routing, TeamLora
from marft.models.quantized import Kind, QuantizedWeight

FEW = 2048  # rows of a decode step rather than of a pass over whole texts
TILE = 256  # outputs of one program of the kernel that adds adapters
Copies = list[tuple[Tensor, Tensor]]  # where to copy, and what


class FusedLinear(nn.Module):
    """y = [W₁ x, W₂ x, …] plus the routed adapters' parts; with `gated`, of x = silu(gate) · up instead of x.

    It takes the layers' weights, which are left without; `stacks[j]` has the adapters of layer j, if it is adapted.
    """

    weight: nn.Parameter | None  # None: it is quantised
    a: Tensor  # copies of all A [rank, in], where W is quantised
    b: Tensor

    def __init__(self, layers: Sequence[nn.Linear], stacks: Sequence[LoraStack | None], *, gated: bool = False) -> None:
        super().__init__()
        self.gated = gated
        self.outs = [layer.out_features for layer in layers]
        self.out = sum(self.outs)
        self.stacks = {j: stack for j, stack in enumerate(stacks) if stack is not None}
        self.rank = sum(len(stack.all_a) for stack in self.stacks.values())
        weight = torch.cat([layer.weight for layer in layers])
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.quantized: QuantizedWeight | None = None
        self.bias = join_biases(layers, self.rank)
        for layer in layers:
            layer.weight = None  # type: ignore[assignment]  # else it would be held twice
        self.register_buffer("b", weight.new_zeros(self.rank, self.out), persistent=False)
        self._make_room(weight)

    def _make_room(self, weight: Tensor) -> None:
        """W in memory that has room for copies of all A behind it."""
        roomy = torch.cat([weight, weight.new_zeros(self.rank, weight.shape[1])])
        self.weight = nn.Parameter(roomy[: self.out], requires_grad=False)
        self._roomy = weakref.ref(self.weight)
        self.seen: list[int] = []

    def quantize(self, kind: Kind, device: torch.device) -> None:
        """Keep W in few bits, on the device; nothing more of full size goes there than is quantised at once."""
        assert self.weight is not None
        self.quantized = QuantizedWeight(self.weight, kind, device)
        self.register_buffer("a", self.weight.new_zeros(self.rank, self.weight.shape[1]), persistent=False)
        self.weight = None
        self.seen = []

    @property
    def has_room(self) -> bool:
        """Whether W is still the one that copies of A lie behind, and not one that was gathered from shards, say."""
        return self.weight is not None and self._roomy() is self.weight

    @property
    def plain(self) -> Tensor:
        """W alone."""
        if self.quantized is not None:
            return self.quantized.dequantize()
        assert self.weight is not None
        return self.weight

    @property
    def joined(self) -> Tensor:
        """W with all A below it, without a copy where A lies there already."""
        if self.quantized is not None:
            whole = self.quantized.dequantize(self.rank)
            whole[self.out :] = self.a
            return whole
        assert self.weight is not None
        if self.has_room:
            shape = (self.out + self.rank, self.weight.shape[1])
            return self.weight.data.as_strided(shape, self.weight.stride())
        return torch.cat([self.weight, *(stack.all_a.to(self.weight.dtype) for stack in self.stacks.values())])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.has_room:
            assert self.weight is not None
            self._make_room(self.weight.data)
        self.__dict__.pop("rank_ranges", None)
        return self

    def refresh(self) -> Copies:
        """What to copy since the parameters changed; nothing, where none did."""
        # a fused optimizer would not count its changes here; the learner's, which goes parameter by parameter, does
        versions = [side._version for stack in self.stacks.values() for side in stack.watched]
        if versions == self.seen:
            return []
        self.seen = versions
        found: Copies = []
        for j, stack in self.stacks.items():
            rows, columns = self.adapter_block(j)
            found.append((self.b[rows, columns], stack.all_b))
            if self.quantized is not None:
                found.append((self.a[rows], stack.all_a))
            elif self.has_room:
                found.append((self.joined[self.out :][rows], stack.all_a))
        return found

    def adapter_block(self, j: int) -> tuple[slice, slice]:
        """Where layer j's adapters stand among the ranks, and its outputs among all outputs."""
        rank, out = sum(len(s.all_a) for i, s in self.stacks.items() if i < j), sum(self.outs[:j])
        return slice(rank, rank + len(self.stacks[j].all_a)), slice(out, out + self.outs[j])

    def forward(self, x: Tensor, routing: Routing | None) -> Tensor:
        """x [M, in] → [M, Σ out]"""
        if routing is None or not self.rank:
            if self.gated:
                x = SwiGLU.apply(x) if torch.is_grad_enabled() else swiglu(x)
            bias = None if self.bias is None else self.bias[: self.out]
            if self.quantized is not None and torch.is_grad_enabled():
                alone: Tensor = QuantizedLinear.apply(x, self, bias)
                return alone
            return linear(x, self.plain, bias)
        if torch.is_grad_enabled():
            parameters = [p for stack in self.stacks.values() for p in (*stack.a, *stack.b)]
            y: Tensor = RoutedLinear.apply(x, self, routing, *parameters)
            return y
        return self.forward_inference(swiglu(x) if self.gated else x, routing)

    def forward_inference(self, x: Tensor, routing: Routing) -> Tensor:
        """y alone. With few rows on CUDA, mask and product are one kernel."""
        if not is_decode_step_on_cuda(x):
            return self.routed(x, routing)[0]
        from marft.models.kernels import add_routed

        wide = linear(x, self.joined, self.bias)
        add_routed(wide, routing.columns(1, x.dtype), self.b, self.rank_ranges, TILE)
        return wide[:, : self.out]

    def swiglu_inference(self, x: Tensor, routing: Routing) -> Tensor:
        """silu(gate) · up of the two layers' outputs, with few rows on CUDA."""
        from marft.models.kernels import swiglu_routed

        gated = len(self.stacks[0].all_a) if 0 in self.stacks else 0
        return swiglu_routed(linear(x, self.joined, self.bias), routing.columns(1, x.dtype), self.b, gated)

    @cached_property
    def rank_ranges(self) -> Tensor:
        """[tiles of TILE outputs, 2]: the ranks whose rows of B are not all zero there."""
        blocks = [self.adapter_block(j) for j in self.stacks]
        found = []
        for start in range(0, self.out, TILE):
            ranks = [r for r, out in blocks if out.start < start + TILE and start < out.stop]
            found.append([min((r.start for r in ranks), default=0), max((r.stop for r in ranks), default=0)])
        return torch.tensor(found, dtype=torch.int32, device=self.b.device)

    def routed(self, x: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
        """y, and what is left of A x [M, rank]."""
        wide = linear(x, self.joined, self.bias)
        hidden = wide[:, self.out :] * routing.columns(len(self.stacks), x.dtype)
        return wide[:, : self.out].addmm_(hidden, self.b), hidden


class AdaptedLinear(nn.Module):
    """A linear layer of a transformers model with its adapters; the team's current routing counts in its passes."""

    def __init__(self, layer: nn.Linear, stack: LoraStack, lora: TeamLora) -> None:
        super().__init__()
        self.product, self.lora = FusedLinear([layer], [stack]), lora

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] → [..., out]"""
        y: Tensor = self.product(x.flatten(0, -2), self.lora.routing)
        return y.contiguous().view(*x.shape[:-1], -1)


def adapt_layers(model: nn.Module, lora: TeamLora) -> None:
    """Put adapted layers in the places of a model's own."""
    for name, stack in lora.stacks.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, AdaptedLinear(layer, stack, lora))


def join_biases(layers: Sequence[nn.Linear], rank: int) -> nn.Parameter | None:
    """The layers' biases, and zeros for the rows of A; None where no layer has one."""
    if all(layer.bias is None for layer in layers):
        return None
    like = layers[0].weight
    parts = [like.new_zeros(each.out_features) if each.bias is None else each.bias for each in layers]
    return nn.Parameter(torch.cat([*parts, like.new_zeros(rank)]), requires_grad=False)


def mlp_forward(gate_up: FusedLinear, down: FusedLinear, x: Tensor, routing: Routing | None) -> Tensor:
    """What a layer's MLP adds. In a step on CUDA adapters join the outputs of gate_up, the widest of a layer, on the way
    through the gate, so that these are read only once."""
    if routing is None or not (gate_up.rank and down.rank) or torch.is_grad_enabled() or not is_decode_step_on_cuda(x):
        added: Tensor = down(gate_up(x, routing), routing)
        return added
    return down.forward_inference(gate_up.swiglu_inference(x, routing), routing)


def is_decode_step_on_cuda(x: Tensor) -> bool:
    """Whether these are the few rows of a decode step on CUDA."""
    return x.is_cuda and len(x) <= FEW


class RoutedLinear(torch.autograd.Function):
    """`FusedLinear.routed` with the gradients of x and of the adapters that take part; the others receive none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, product: FusedLinear, routing: Routing, *parameters: Tensor) -> Tensor:
        y, hidden = product.routed(swiglu(x) if product.gated else x, routing)
        ctx.save_for_backward(x, hidden)
        ctx.product, ctx.routing = product, routing
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        product, routing = ctx.product, ctx.routing
        given, hidden = ctx.saved_tensors
        x = swiglu(given) if product.gated else given  # cheaper to work out again than to keep
        weight, a = product.joined.split([product.out, product.rank])
        d_hidden = (d_y @ product.b.T) * routing.columns(len(product.stacks), x.dtype)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_y @ weight).addmm_(d_hidden, a)
            d_x = swiglu_backward(given, d_x) if product.gated else d_x
        d_a, d_b = in_fp32(d_hidden.T, x), in_fp32(hidden.T, d_y)
        if routing.gradient_scale is not None:
            d_a, d_b = d_a / routing.gradient_scale, d_b / routing.gradient_scale
        found: list[Tensor | None] = []
        for j, stack in product.stacks.items():
            rows, columns = product.adapter_block(j)
            for side in (d_a[rows], d_b[rows, columns]):
                parts = side.split([len(a) for a in stack.a])
                found += [part if i in routing.present else None for i, part in enumerate(parts)]
        return d_x, None, None, *found


class QuantizedLinear(torch.autograd.Function):
    """The product with a quantised W alone, which is dequantised again for the gradient of x instead of being kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, product: FusedLinear, bias: Tensor | None) -> Tensor:
        ctx.product = product
        return linear(x, product.plain, bias)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None, None]:
        return d_y @ ctx.product.plain, None, None


class SwiGLU(torch.autograd.Function):
    """`swiglu` with its gradient."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        return swiglu(both)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        return swiglu_backward(ctx.saved_tensors[0], d_out)
