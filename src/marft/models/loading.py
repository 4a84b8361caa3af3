"""A frozen base model with its tokenizer, ready for agents: loaded, checked, and told where a turn ends."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers.utils.logging
from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever http library it uses
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from marft.models.chat import ChatFormat, render
from marft.models.registry import resolve
from marft.models.suitability import check_config, explain_not_causal
from marft.types import MarftError, Message

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>")
HUB_TIMEOUT = 10.0  # seconds
LONGEST = 1 << 17  # tokens of a sequence, whatever the model says


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """`name` is as the user gave it; `end_ids` are the tokens that end a turn; `fingerprint` tells weights apart."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    end_ids: frozenset[int]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInfo:
    """How a base model reads: its way to write chats, how many tokens it knows, and the most of a sequence."""

    chat: ChatFormat
    words: int
    longest: int


def load(name: str, device: str, dtype: str) -> Loaded:
    """The base model `name` with its tokenizer, frozen, checked and on the device."""
    where = pick_device(device)
    precision = pick_dtype(dtype, where)
    _, tokenizer, model = read_files(name, precision)
    rows = model.get_input_embeddings().weight.shape[0]
    if (highest := highest_token_id(tokenizer)) >= rows:
        raise MarftError(
            f"model {name} knows {rows} tokens, but its tokenizer writes token {highest}: the two do not belong together"
        )
    end_ids = end_of_turn_ids(tokenizer, model)
    if not end_ids:
        raise MarftError(
            f"model {name} has no end-of-turn token, so no turn would ever end: use an instruct/chat model"
        )
    digest = fingerprint(model)
    if where.type == "cuda" and where.index is not None:
        torch.cuda.set_device(where)  # where kernels of ours are launched
    with explain_lack_of_memory(name, where):
        model.requires_grad_(False).eval().to(where)
    return Loaded(model=model, tokenizer=tokenizer, name=name, end_ids=end_ids, fingerprint=digest)


@contextmanager
def explain_lack_of_memory(name: str, device: torch.device) -> Iterator[None]:
    """One line where a model that is brought to the device inside does not fit there."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MarftError(
            f"model {name} does not fit in the memory of {device}: use a smaller one, fewer bits (quantize=int8 or nf4) or "
            "device=cpu"
        ) from error


def pick_device(device: str) -> torch.device:
    """`auto` takes a CUDA GPU or the CPU. Apple's GPU has to be asked for: small models are faster on the CPU beside it, and
    only there does a resumed run end with the same bytes."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda", "mps"):
        meant = "; did you mean cuda?" if device.lower() in ("gpu", "nvidia", "rocm") else ""
        raise MarftError(f"unknown device {device!r}{meant}: use auto, cpu, cuda, cuda:N or mps")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise MarftError(
            f"device {device} is asked for, but torch finds no Apple GPU here: use device=cpu or device=auto"
        )
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise MarftError(
            f"device {device} is asked for, but this machine has no such GPU: use device=cpu or device=auto"
        )
    return chosen


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU, and on a GPU bfloat16 where it has that: NVIDIA's do from compute capability 8 on, and
    Apple's not all. Others have float16."""
    if dtype not in (*DTYPES, "auto"):
        raise MarftError(f"unknown dtype {dtype!r}: use auto, float32, bfloat16 or float16")
    if dtype != "auto":
        return DTYPES[dtype]
    match device.type:
        case "cuda":
            return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
        case "mps":
            return torch.float16
        case _:
            return torch.float32


def read_tokenizer(name: str) -> TokenizerInfo:
    """What is known of a base model without its weights, which stay where they are."""
    settings, tokenizer, _ = read_files(name, None)
    return TokenizerInfo(
        chat=ChatFormat(tokenizer, frozenset()),
        words=len(tokenizer),
        longest=context_limit(settings.get_text_config()),
    )


def read_files(name: str, dtype: torch.dtype | None) -> tuple[Any, Any, Any]:
    """The config, the tokenizer and, where it has a dtype, the model from a folder or the hub; a failure is one line."""
    source = resolve(name)
    local = Path(source).is_dir()
    # trust_remote_code=False also keeps transformers from asking a question on the terminal.
    options: dict[str, Any] = {"local_files_only": local or not is_hub_reachable(source), "trust_remote_code": False}
    causal: Any = AutoModelForCausalLM  # its annotations know no loading report
    settings: Any = None
    model: Any = None
    report: dict[str, list[str]] = {"missing_keys": []}
    try:
        with silence_transformers():
            settings = AutoConfig.from_pretrained(source, **options)
            check_config(name, settings)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            if dtype is not None:
                model, report = causal.from_pretrained(source, dtype=dtype, output_loading_info=True, **options)
    except MarftError:
        raise
    except Exception as error:  # a spoilt tokenizer.json raises nothing narrower
        raise MarftError(explain_failure(name, local, error, settings)) from error
    if missing := sorted(report["missing_keys"]):
        # transformers fills the gaps with random numbers, which is how an encoder passes for a causal model
        raise MarftError(f"model {name} is not a whole causal language model: {missing[0]} is missing")
    if not tokenizer.chat_template:
        raise MarftError(
            f"model {name} has no chat template, so agents cannot be told their roles: use an instruct/chat model"
        )
    return settings, tokenizer, model


@contextmanager
def silence_transformers() -> Iterator[None]:
    """No progress bars, and no log lines below an error, which is an exception too. What the caller had set is put back."""
    loggers = [logging.getLogger("transformers"), logging.getLogger("huggingface_hub")]
    levels = [logger.level for logger in loggers]
    progress: Any = transformers.utils.logging  # partly untyped
    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if shown:
            progress.enable_progress_bar()


def is_hub_reachable(name: str) -> bool:
    """One short question instead of transformers' retries, which take most of a minute to find that the hub is away."""
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except (OSError, ValueError, HTTPError):
        return False
    return True


def explain_failure(name: str, local: bool, error: Exception, settings: Any) -> str:
    """One line for what transformers raised."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "Unrecognized configuration class" in reason:
        return explain_not_causal(name, settings)
    if "custom code" in reason:
        return f"model {name} brings its own code, which is never run: use a model of a family that transformers has"
    if local or not isinstance(error, OSError):
        return f"cannot load model {name!r}: {reason}"
    return f"cannot load model {name!r} ({reason}): give a folder (model=DIR) or connect to the Hugging Face hub"


def highest_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Of the ordinary tokens and those of a prompt. Some tokenizers have special ones beyond, which nothing ever writes."""
    try:
        prompt = render(tokenizer, [Message(role="system", content="Add."), Message(role="user", content="1 + 1")])
    except MarftError:  # said when agents have something to say
        prompt = ()
    return max(int(tokenizer.vocab_size) - 1, *prompt, -1)


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> frozenset[int]:
    """What the tokenizer and the generation settings name, and the usual chat markers where they are special tokens.

    The padding token is never asked for: it ends a turn only where it is also one of these.
    """
    settings = model.generation_config
    declared = settings.eos_token_id if settings is not None else None
    ids = set(declared) if isinstance(declared, list) else {declared}
    ids.add(tokenizer.eos_token_id)
    specials = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids.update(specials.get(marker) for marker in TURN_ENDS)
    return frozenset(i for i in ids if i is not None)


def context_limit(settings: Any) -> int:
    """The most tokens a sequence may have. Our attention knows no sliding window, so none may be longer than it."""
    limits = (getattr(settings, key, None) for key in ("max_position_embeddings", "sliding_window"))
    return min([LONGEST, *(int(limit) for limit in limits if limit)])


def fingerprint(model: nn.Module) -> str:
    """Cheap: the first values of each parameter stand for the rest, which training would have moved together."""
    digest = hashlib.sha256()
    for name, values in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(values.shape)} {values.dtype} ".encode())
        digest.update(values.detach().flatten()[:8].float().cpu().numpy().tobytes())
    return digest.hexdigest()
