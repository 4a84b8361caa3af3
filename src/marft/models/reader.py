"""How a base model reads, found out without loading its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from marft.models.loading import context_limit, explain_failure, is_hub_reachable, render
from marft.models.registry import resolve
from marft.models.suitability import check_config
from marft.models.transformers_logging import silence_transformers
from marft.types import MarftError, Message

Encode = Callable[[Sequence[Message]], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How one base model reads: its tokenizer, and how many tokens it can take in."""

    encode: Encode
    words: int
    longest: int


def read_model(name: str) -> Reader:
    """The tokenizer and the settings of a base model; its weights stay where they are."""
    source = resolve(name)
    local = Path(source).is_dir()
    options: dict[str, Any] = {"local_files_only": local or not is_hub_reachable(source), "trust_remote_code": False}
    try:
        with silence_transformers():
            settings = AutoConfig.from_pretrained(source, **options)
            check_config(name, settings)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except MarftError:
        raise
    except Exception as error:  # a spoilt tokenizer.json raises nothing narrower
        raise MarftError(explain_failure(name, local, error)) from error
    if not tokenizer.chat_template:
        raise MarftError(
            f"model {name} has no chat template, so agents cannot be told their roles: use an instruct/chat model"
        )
    longest = context_limit(settings.get_text_config())
    return Reader(encode=lambda messages: render(tokenizer, messages), words=len(tokenizer), longest=longest)
