"""The forward pass of the Llama, Qwen2 and Qwen3 families in few, large products, with the weights of a transformers model.

Training, prompts and single steps all go through it; they differ in the attention that they pass. The
residual stream is kept in fp32: what is sampled and what is recomputed then differ by little even in half precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from marft.models.attention import AttentionFn
from marft.models.elementwise import add_norm, apply_rotary
from marft.models.fused_linear import FusedLinear, mlp_forward
from marft.models.lora import LoraStack, Routing

FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
FIXED_ANGLES = ("default", "linear", "llama3", "yarn")  # the others depend on how long a text has become


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What all layers have in common."""

    heads: tuple[int, int]  # of queries, and of keys and values
    dim: int  # of a head
    eps: float
    dtype: torch.dtype

    @classmethod
    def of(cls, config: Any, layer: Any, dtype: torch.dtype) -> Shape:
        """From a model's config and one of its layers."""
        heads = (int(config.num_attention_heads), int(config.num_key_value_heads))
        dim = layer.self_attn.q_proj.out_features // heads[0]
        return cls(heads=heads, dim=dim, eps=float(config.rms_norm_eps), dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a forward pass over ids [B, T] gives to each layer; M = B · T."""

    shape: torch.Size  # of the ids
    positions: Tensor  # [M]
    cos: Tensor  # [positions, d/2]
    sin: Tensor
    attend: AttentionFn
    routing: Routing | None


class Layer(nn.Module):
    """One layer's norms and fused linear layers; norms of q and k only where the family has them."""

    def __init__(self, number: int, layer: Any, stacks: Mapping[str, LoraStack], shape: Shape) -> None:
        super().__init__()

        def fuse(*names: str, gated: bool = False) -> FusedLinear:
            own = [stacks.get(f"model.layers.{number}.{name}") for name in names]
            return FusedLinear([layer.get_submodule(name) for name in names], own, gated=gated)

        self.number, self.shape = number, shape
        self.attention_norm: nn.Parameter = layer.input_layernorm.weight
        self.mlp_norm: nn.Parameter = layer.post_attention_layernorm.weight
        has_norms = hasattr(layer.self_attn, "q_norm")
        self.q_norm: nn.Parameter | None = layer.self_attn.q_norm.weight if has_norms else None
        self.k_norm: nn.Parameter | None = layer.self_attn.k_norm.weight if has_norms else None
        self.qkv = fuse("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.o = fuse("self_attn.o_proj")
        self.gate_up = fuse("mlp.gate_proj", "mlp.up_proj")
        self.down = fuse("mlp.down_proj", gated=True)

    def forward(self, stream: Tensor, delta: Tensor | None, given: Pass) -> tuple[Tensor, Tensor]:
        """The stream [M, D] before the MLP, and what the MLP adds to it."""
        eps, dtype, (queries, keys), dim = self.shape.eps, self.shape.dtype, self.shape.heads, self.shape.dim
        stream, x = add_norm(stream, delta, self.attention_norm, eps, dtype)
        qkv = self._norm_heads(self.qkv(x, given.routing))
        rotated = apply_rotary(qkv, given.positions, given.cos, given.sin, queries + keys)
        q, k, v = rotated.view(*given.shape, -1, dim).transpose(1, 2).split([queries, keys, keys], dim=1)
        seen = given.attend(self.number, q, k, v, dim**-0.5).reshape(len(x), -1)
        stream, x = add_norm(stream, self.o(seen, given.routing), self.mlp_norm, eps, dtype)
        return stream, mlp_forward(self.gate_up, self.down, x, given.routing)

    def _norm_heads(self, qkv: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return qkv
        (queries, keys), dim = self.shape.heads, self.shape.dim
        q, k, v = qkv.split([queries * dim, keys * dim, keys * dim], dim=-1)
        normed = [
            rms_norm(part.reshape(len(qkv), -1, dim), (dim,), weight, self.shape.eps).flatten(1)
            for part, weight in ((q, self.q_norm), (k, self.k_norm))
        ]
        return torch.cat([*normed, v], dim=-1)


class Decoder(nn.Module):
    """ids [B, T] → last hidden states [B, T, D], as the transformers model computes them.

    It takes all weights of the transformers model, the output head's too; that model computes no longer.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, model: PreTrainedModel, stacks: Mapping[str, LoraStack], longest: int) -> None:
        super().__init__()
        backbone: Any = model.base_model
        self.embedding: nn.Parameter = backbone.embed_tokens.weight
        self.shape = Shape.of(model.config, backbone.layers[0], self.embedding.dtype)
        self.layers = nn.ModuleList(Layer(i, layer, stacks, self.shape) for i, layer in enumerate(backbone.layers))
        self.last_norm: nn.Parameter = backbone.norm.weight
        self.head = model.get_output_embeddings()
        cos, sin = self._angles(backbone.rotary_emb, longest)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.recompute = False  # activations of a layer in the backward pass, instead of keeping them

    def _angles(self, rotary: Any, longest: int) -> tuple[Tensor, Tensor]:
        """[positions, d/2] in fp32."""
        positions = torch.arange(longest, device=self.embedding.device)[None]
        tables = rotary(torch.zeros(1, device=self.embedding.device), positions)
        cos, sin = (table[0, :, : self.shape.dim // 2].contiguous() for table in tables)
        return cos, sin

    def forward(self, ids: Tensor, positions: Tensor, attend: AttentionFn, routing: Routing | None) -> Tensor:
        """The last hidden states; adapters count as `TeamModel.refresh` found them."""
        stream = self.embedding[ids.flatten()].float()
        given = Pass(
            shape=ids.shape, positions=positions.flatten(), cos=self.cos, sin=self.sin, attend=attend, routing=routing
        )
        return self.run_layers(stream, given).view(*ids.shape, -1)

    def run_layers(self, stream: Tensor, given: Pass) -> Tensor:
        """The last hidden states [M, D] of an embedded row [M, D]."""
        delta: Tensor | None = None
        recompute = self.recompute and torch.is_grad_enabled()
        for layer in self.layers:
            stream, delta = (
                checkpoint(layer, stream, delta, given, use_reentrant=False)
                if recompute
                else layer(stream, delta, given)
            )
        return add_norm(stream, delta, self.last_norm, self.shape.eps, self.shape.dtype)[1]


def has_decoder(model: PreTrainedModel) -> bool:
    """Whether the model is of a family that `Decoder` knows, in a form that it knows."""
    config: Any = model.config
    if type(model).__name__ not in FAMILIES or config.hidden_act != "silu":
        return False
    rotary: Any = model.base_model.rotary_emb
    return rotary.rope_type in FIXED_ANGLES
