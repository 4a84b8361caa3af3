"""Small random models of many families."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPTNeoXConfig,
    GraniteConfig,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from marft.models.loading import Loaded, load

SMALL = {
    "vocab_size": 448, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
FAMILIES: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**GROUPED),  # bias in q, k and v
    "qwen3": Qwen3Config(**GROUPED, head_dim=32),  # norms of q and k, heads wider than hidden/heads
    "gemma2": Gemma2Config(**GROUPED, head_dim=16, attn_logit_softcapping=None, final_logit_softcapping=2.0),
    "gpt-neox": GPTNeoXConfig(**SMALL),  # fused q/k/v, parallel residual, partial rotary
    "phi": PhiConfig(**GROUPED),  # bias everywhere, in the head too
    "granite": GraniteConfig(**GROUPED, logits_scaling=3.0, attention_multiplier=0.4),
    "cohere": CohereConfig(**GROUPED, logit_scale=0.5),
}


def tiny(config: PreTrainedConfig) -> Loaded:
    """A random model of a family, with biases and norms that do something, and nano's tokenizer."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter) * 0.1)
        else:
            parameter.mul_(3)
    nano = load("nano", "cpu", "float32")
    return Loaded(model=model, tokenizer=nano.tokenizer, name="tiny", end_ids=nano.end_ids, fingerprint="")
