"""How much of a GPU's memory a team takes, reckoned from its base's config alone: no weights are loaded.

What is counted is what the decoder keeps (`decoder.py`, `fused_linear.py`, `logprobs.py`) and the local engine's cache; other
families keep more. Libraries and the allocator's gaps come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from marft.models.logprobs import MOST_LOGITS
from marft.models.lora import find_targets
from marft.models.quantized import BLOCK, Kind

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers that are one product
ADAPTER, LEARNING = (
    4,
    12,
)  # bytes of a parameter in fp32; of its gradient and two Adam moments, and of what a region holds
COPIED_KEYS = 4  # the most that a pass copies for each of its tokens, where prompts are shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Linear layers that read the same input, `adapted` of them with adapters."""

    inputs: int
    outputs: int
    adapted: int
    adapted_outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseShape:
    """What of a base decides the memory that it takes."""

    products: tuple[Product, ...]
    other: int  # parameters: embedding, output head, norms and biases
    layers: int
    width: int
    vocabulary: int
    queries: int  # heads · size of a head
    keys: int
    gate: int  # outputs of gate and up

    @classmethod
    def of(cls, settings: Any, targets: Sequence[str] | str) -> BaseShape:
        """From a config of transformers."""
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(settings)
        text = settings.get_text_config()
        adapted = {name for name, _ in find_targets(model, targets)}
        groups: dict[str, list[tuple[bool, Any]]] = {}
        for name, layer in find_targets(model, "all-linear"):
            parent, _, own = name.rpartition(".")
            fused = next((names[0] for names in FUSED if own in names), own)
            groups.setdefault(f"{parent}.{fused}", []).append((name in adapted, layer))
        linear = sum(layer.weight.numel() for group in groups.values() for _, layer in group)
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return cls(
            products=tuple(product_of(group) for group in groups.values()),
            other=sum(p.numel() for p in model.parameters()) - linear,
            layers=text.num_hidden_layers,
            width=text.hidden_size,
            vocabulary=text.vocab_size,
            queries=text.num_attention_heads * head,
            keys=(getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * head,
            gate=2 * (getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        )

    @property
    def parameters(self) -> int:
        """Of all of it."""
        return self.other + sum(each.inputs * each.outputs for each in self.products)


def product_of(group: Sequence[tuple[bool, Any]]) -> Product:
    """Layers, each with whether it is adapted, as one product."""
    return Product(
        inputs=group[0][1].in_features,
        outputs=sum(layer.out_features for _, layer in group),
        adapted=sum(adapted for adapted, _ in group),
        adapted_outputs=sum(layer.out_features for adapted, layer in group if adapted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a run uses a base: all that counts besides its shape."""

    ranks: tuple[int, ...]  # of all adapters on it
    tokens: int  # of one pass of training
    recompute: bool
    slots: int  # rows that are generated at once
    positions: int  # the most tokens of a row
    prefill: int  # tokens of a pass over prompts
    dtype_bytes: int = 2
    quantize: Kind | None = None
    trust_region: bool = False  # which holds the weights and moments of before the last step


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes. Activations are those of training or of playing, whichever are more: they do not exist at once."""

    base: int
    adapters: int
    optimizers: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        """All at once."""
        return self.base + self.adapters + self.optimizers + self.cache + self.activations

    @property
    def without_cache(self) -> int:
        """What must fit, whatever is left for keys and values."""
        return self.total - self.cache


def estimate_needs(base: BaseShape, use: Use) -> Needs:
    """What a team on such a base takes."""
    rank, size = sum(use.ranks), use.dtype_bytes
    trained = sum(rank * (each.adapted * each.inputs + each.adapted_outputs) for each in base.products)
    copies = sum(rank * each.adapted * (each.inputs + each.outputs) for each in base.products)
    return Needs(
        base=base.other * size + sum(weight_bytes(each, use) for each in base.products),
        adapters=trained * ADAPTER + copies * size,
        optimizers=trained * LEARNING * (2 if use.trust_region else 1),
        cache=use.slots * slot_bytes(base, use),
        activations=max(training_bytes(base, use), playing_bytes(base, use)),
    )


def weight_bytes(product: Product, use: Use) -> int:
    """Of one product's weights, as they are kept."""
    values = product.inputs * product.outputs
    match use.quantize:
        case "int8":
            return values + 4 * product.outputs
        case "nf4":
            return values // 2 + 2 * -(-values // BLOCK)
        case None:
            return values * use.dtype_bytes


def slot_bytes(base: BaseShape, use: Use) -> int:
    """Of one row's keys and values."""
    return 2 * base.layers * base.keys * use.dtype_bytes * use.positions


def training_bytes(base: BaseShape, use: Use) -> int:
    """What a forward and backward pass keeps, and what is in between at its peak."""
    size, ranks = use.dtype_bytes, sum(use.ranks) * sum(each.adapted for each in base.products) // base.layers
    states = 2 * (4 + size) * base.width  # the stream before each block, in fp32, and its norm
    attention = size * (2 * base.queries + 2 * COPIED_KEYS * base.keys)
    layer = states + attention + size * (base.gate + 2 * ranks)
    kept = base.layers * ((4 + size) * base.width) + layer if use.recompute else base.layers * layer
    backward = size * 5 * base.gate // 2 + 16 * base.width  # gradients of a gate and of the stream
    return use.tokens * (kept + backward + 2 * size * base.width) + head_bytes(base, use) + dequantized_bytes(base, use)


def playing_bytes(base: BaseShape, use: Use) -> int:
    """A pass over prompts, or the logits of a step."""
    row = 12 * base.width + use.dtype_bytes * (base.queries + 2 * base.keys + 3 * base.gate // 2)
    prompts = min(use.prefill, use.slots * use.positions)
    logits = 2 * 4 * use.slots * base.vocabulary
    return max(prompts * row, logits) + 2 * dequantized_bytes(base, use)  # one more belongs to the graphs of steps


def head_bytes(base: BaseShape, use: Use) -> int:
    """Logits of a part of the rows, in fp32, and their gradient."""
    return min(MOST_LOGITS, use.tokens * base.vocabulary) * (4 + use.dtype_bytes)


def dequantized_bytes(base: BaseShape, use: Use) -> int:
    """The largest product's weights in the compute dtype, where they are quantised."""
    return 0 if use.quantize is None else max(each.inputs * each.outputs for each in base.products) * use.dtype_bytes
