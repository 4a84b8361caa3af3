"""A language model of a dozen words whose first answer is known exactly, and whole runs with it in a fraction of a second."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from marft.commands.train import start_run
from marft.config import parse
from marft.models.loading import Loaded, load, silence_transformers

MARKS = ("<end>", "<system>", "<user>", "<assistant>")
# also what an orchestrator says, in one token
WORDS = ("0", "1", "2", "red", "blue", "ann", "bob", "cat", "majority", "Done", "Next: bob", "Next: cat")
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
WIDTH = 16  # of each half of the hidden state
FOLDER = tempfile.TemporaryDirectory()  # one a process, gone with it
MEMORY = Path("/dev/shm")
MANIFEST = {"model": {"name": "tiny", "fingerprint": ""}}


def write_model(folder: Path, favourites: Sequence[str]) -> None:
    """A Llama of one layer. It reads and thinks in one half of its hidden state, and its head listens to the other half,
    where the base is silent: without an adapter all tokens are equally likely, whatever the prompt. Only `favourites` are
    some twenty times as likely as the rest, and each as likely as the other: the head gives them a bonus on a dimension
    that is the same for all prompts."""
    vocabulary = {word: i for i, word in enumerate((*MARKS, *WORDS))}
    spelled = Tokenizer(models.WordLevel(vocabulary, unk_token=MARKS[0]))
    known = "|".join(word for word in WORDS if " " not in word)
    # what it has no word for it does not read
    spelled.pre_tokenizer = pre_tokenizers.Split(Regex(rf"\b({known})\b"), behavior="removed", invert=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=spelled, eos_token=MARKS[0], extra_special_tokens=list(MARKS[1:]), chat_template=TEMPLATE
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=2 * WIDTH, intermediate_size=WIDTH, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=0,
        pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(std=1 if "embed" in name else WIDTH**-0.5)
        model.model.embed_tokens.weight[:, WIDTH:] = 0
        model.model.embed_tokens.weight[:, 0] = 4
        for written in (model.model.layers[0].self_attn.o_proj.weight, model.model.layers[0].mlp.down_proj.weight):
            written[WIDTH:] = 0
            written[0] = 0
        model.lm_head.weight *= 2
        model.lm_head.weight[:, :WIDTH] = 0
        model.lm_head.weight[[vocabulary[word] for word in favourites], 0] = 1
    with silence_transformers():
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)


@cache
def model_folder(*favourites: str) -> Path:
    folder = Path(FOLDER.name) / "-".join(("model", *favourites))
    write_model(folder, favourites)
    return folder


@cache
def loaded_once(name: str, device: str, dtype: str) -> Loaded:
    return load(name, device, dtype)


def load_again(name: str, device: str, dtype: str) -> Loaded:
    """A copy in memory is ten times as fast as reading files."""
    known = loaded_once(name, device, dtype)
    return replace(known, model=copy.deepcopy(known.model))


def scratch() -> tempfile.TemporaryDirectory[str]:
    """For one run, in memory where that is possible: a checkpoint waits for the disk some thirty times."""
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


def train(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole run with the tiny model; its rows of metrics. It neither reads the model anew nor asks git and pip for their
    versions."""
    config = parse({"device": "cpu", **settings})
    with (
        patch("marft.training.build.load", load_again),
        patch("marft.commands.train.make_manifest", lambda config, parts: MANIFEST | {"seed": config.seed}),
    ):
        start_run(config, path)
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
