"""Whether a base model can be trained on, as far as its config tells: one line before any weights are loaded."""

from __future__ import annotations

import re
from typing import Any

from marft.types import MarftError

QUANTISED = ("quantization_config", "compression_config")  # keys of a config
BITS = {"load_in_4bit": 4, "load_in_8bit": 8, "_load_in_4bit": 4, "_load_in_8bit": 8}
OTHER_TASKS = re.compile(
    r"For(\w*Classification|QuestionAnswering|MaskedLM|MultipleChoice|PreTraining|NextSentence\w*)$"
)
SENSES = ("vision_config", "audio_config", "speech_config")
INSTEAD = "use an instruct/chat model that reads text alone"


def check_config(name: str, settings: Any) -> None:
    """Raises MarftError for a quantised base, and for one that was made for something else than continuing text."""
    if method := quantisation(settings):
        raise MarftError(
            f"model {name} is quantised ({method}), and adapters cannot be trained on such weights: give the unquantised "
            "checkpoint, or dequantise it first (in transformers: model.dequantize(), then model.save_pretrained(DIR))"
        )
    if getattr(settings, "is_encoder_decoder", False):
        raise MarftError(f"model {name} is an encoder-decoder ({settings.model_type}): {INSTEAD}")
    for made_for in getattr(settings, "architectures", None) or ():
        if OTHER_TASKS.search(str(made_for)):
            raise MarftError(f"model {name} is a {made_for}, not a causal language model: use an instruct/chat model")


def quantisation(settings: Any) -> str | None:
    """The method, with the bits of a weight where the config tells; None for plain weights."""
    for part in (settings, getattr(settings, "text_config", None)):  # the latter: of the language model inside it
        for key in QUANTISED:
            if (found := getattr(part, key, None)) is not None:
                return describe_quantisation(found if isinstance(found, dict) else getattr(found, "__dict__", {}))
    return None


def describe_quantisation(found: dict[str, Any]) -> str:
    """The method and the bits that a quantisation config names."""
    bits = found.get("bits") or next((bits for key, bits in BITS.items() if found.get(key)), None)
    method = found.get("quant_method") or (
        "bitsandbytes" if bits and "bits" not in found else "a method it does not name"
    )
    return str(getattr(method, "value", method)) + (f", {bits} bits" if bits else "")


def explain_not_causal(name: str, settings: Any) -> str:
    """Why transformers has no causal language model for a config."""
    if any(getattr(settings, key, None) is not None for key in SENSES):
        return f"model {name} is multimodal ({settings.model_type}): {INSTEAD}"
    return f"model {name} is not a causal language model: use an instruct/chat model"
