"""The forward pass of the Llama, Qwen2 and Qwen3 families in few, large products, on the weights of the transformers model.

Training, prompts and single steps all go through it; they differ in the attention that they pass. The
residual stream is kept in fp32: what is sampled and what is recomputed then differ by little even in half precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from marft.models.attention import Attend
from marft.models.elementwise import add_norm, turn
from marft.models.lora import Mask
from marft.models.products import Product, mlp

FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
FIXED_ANGLES = ("default", "linear", "llama3", "yarn")  # the others depend on how long a text has become


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's norms and products; `head_norms` (of q and k) only where the family has them."""

    before_attention: Tensor
    before_mlp: Tensor
    head_norms: tuple[Tensor, Tensor] | None
    qkv: Product
    o: Product
    gate_up: Product
    down: Product

    @property
    def products(self) -> tuple[Product, ...]:
        return self.qkv, self.o, self.gate_up, self.down


class Decoder:
    """ids [B, T] → last hidden states [B, T, D], as the transformers model computes them."""

    def __init__(self, model: PreTrainedModel, longest: int) -> None:
        backbone: Any = model.base_model
        config: Any = model.config
        self.embedding: Tensor = backbone.embed_tokens.weight
        self.dtype, self.eps = self.embedding.dtype, float(config.rms_norm_eps)
        self.heads = (int(config.num_attention_heads), int(config.num_key_value_heads))
        self.last_norm: Tensor = backbone.norm.weight
        self.layers = [layer_of(layer) for layer in backbone.layers]
        self.dim = self.layers[0].qkv.out // (self.heads[0] + 2 * self.heads[1])
        self.scale = self.dim**-0.5
        self.rotary: Any = backbone.rotary_emb
        self.cos, self.sin = self._angles(longest)
        self.recompute = False  # activations of a layer in the backward pass, instead of keeping them

    def _angles(self, longest: int) -> tuple[Tensor, Tensor]:
        """[positions, d/2] in fp32."""
        positions = torch.arange(longest, device=self.embedding.device)[None]
        tables = self.rotary(torch.zeros(1, device=self.embedding.device), positions)
        cos, sin = (table[0, :, : self.dim // 2].contiguous() for table in tables)
        return cos, sin

    def refresh(self) -> None:
        """Give the adapters' changed parameters to the products."""
        pairs = [pair for layer in self.layers for product in layer.products for pair in product.refresh()]
        dense = [pair for pair in pairs if pair[0].is_contiguous()]  # copied in a few kernels
        with torch.no_grad():
            for some in (dense, [pair for pair in pairs if not pair[0].is_contiguous()]):
                if some:
                    torch._foreach_copy_([target for target, _ in some], [source for _, source in some])

    def __call__(self, ids: Tensor, positions: Tensor, attend: Attend, routing: Mask | None) -> Tensor:
        shape, flat = ids.shape, positions.flatten()
        stream = self.embedding[ids.flatten()].float()
        delta: Tensor | None = None
        recompute = self.recompute and torch.is_grad_enabled()
        for number, layer in enumerate(self.layers):
            given = (layer, number, shape, stream, delta, flat, attend, routing)
            stream, delta = checkpoint(self._layer, *given, use_reentrant=False) if recompute else self._layer(*given)
        _, out = add_norm(stream, delta, self.last_norm, self.eps, self.dtype)
        return out.view(*shape, -1)

    def _layer(
        self,
        layer: Layer,
        number: int,
        shape: torch.Size,
        stream: Tensor,
        delta: Tensor | None,
        positions: Tensor,
        attend: Attend,
        routing: Mask | None,
    ) -> tuple[Tensor, Tensor]:
        """The stream [M, D] before the MLP, and what the MLP adds to it."""
        stream, x = add_norm(stream, delta, layer.before_attention, self.eps, self.dtype)
        qkv = layer.qkv(x, routing)
        if layer.head_norms is not None:
            qkv = self._norm_heads(qkv, layer.head_norms)
        turned = turn(qkv, positions, self.cos, self.sin, sum(self.heads)).view(*shape, -1, self.dim).transpose(1, 2)
        q, k, v = turned.split([*self.heads, self.heads[1]], dim=1)
        seen = attend(number, q, k, v, self.scale).reshape(len(x), -1)
        stream, x = add_norm(stream, layer.o(seen, routing), layer.before_mlp, self.eps, self.dtype)
        return stream, mlp(layer.gate_up, layer.down, x, routing)

    def _norm_heads(self, qkv: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        sizes = [count * self.dim for count in (*self.heads, self.heads[1])]
        q, k, v = qkv.split(sizes, dim=-1)
        normed = [
            rms_norm(part.reshape(len(qkv), -1, self.dim), (self.dim,), weight, self.eps).flatten(1)
            for part, weight in zip((q, k), weights, strict=True)
        ]
        return torch.cat([*normed, v], dim=-1)


def has_decoder(model: PreTrainedModel) -> bool:
    """Whether the model is of a family that `Decoder` knows, in a form that it knows."""
    config: Any = model.config
    if type(model).__name__ not in FAMILIES or config.hidden_act != "silu":
        return False
    rotary: Any = model.base_model.rotary_emb
    return rotary.rope_type in FIXED_ANGLES


def layer_of(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else None
    return Layer(
        before_attention=layer.input_layernorm.weight,
        before_mlp=layer.post_attention_layernorm.weight,
        head_norms=norms,
        qkv=Product([attention.q_proj, attention.k_proj, attention.v_proj]),
        o=Product([attention.o_proj]),
        gate_up=Product([mlp.gate_proj, mlp.up_proj]),
        down=Product([mlp.down_proj], gated=True),
    )
