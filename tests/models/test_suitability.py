"""Bases that cannot be trained on: each is one line that says what to do, and before its weights are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BertConfig,
    CLIPVisionConfig,
    EncoderDecoderConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    LlavaConfig,
    PreTrainedConfig,
    WhisperConfig,
)

from marft.cli import main
from marft.models.loading import load, read_tokenizer
from marft.models.registry import NANO
from marft.models.team import TeamModel
from marft.types import MarftError

SMALL = {
    "vocab_size": 448, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
BERT = BertConfig(vocab_size=448, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The nano folder, to be changed."""
    return Path(shutil.copytree(NANO, tmp_path / "model"))


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without_weights(folder: Path, config: PreTrainedConfig | None = None, **changes: object) -> None:
    """So that nothing but the config can be what is refused."""
    (folder / "model.safetensors").unlink()
    if config is not None:
        config.save_pretrained(folder)
    edit(folder, **changes)


def error_of(folder: Path) -> str:
    with pytest.raises(MarftError) as caught:
        load(str(folder), device="cpu", dtype="auto")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes, 4 bits"),
        ({"load_in_8bit": True}, "bitsandbytes, 8 bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq, 4 bits"),
        ({"quant_method": "awq", "bits": 4}, "awq, 4 bits"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": []}, "mxfp4"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors"),
        ({"quant_method": "of-tomorrow"}, "of-tomorrow"),
        ({}, "a method it does not name"),
    ],
)
def test_a_quantised_base_is_refused_before_its_weights_are_read(
    folder: Path, config: dict[str, Any], method: str
) -> None:
    without_weights(folder, quantization_config=config)
    line = error_of(folder)
    assert line.startswith(f"model {folder} is quantised ({method})")
    assert "give the unquantised checkpoint, or dequantise it first" in line
    with pytest.raises(MarftError, match="is quantised"):  # as does a run that loads no weights
        read_tokenizer(str(folder))


def test_quantisation_inside_a_multimodal_config_is_found(folder: Path) -> None:
    text = {**SMALL, "model_type": "llama", "quantization_config": {"quant_method": "fp8"}}
    without_weights(folder, LlavaConfig(vision_config=CLIPVisionConfig()), text_config=text)
    assert "is quantised (fp8)" in error_of(folder)


def test_no_quantisation_is_none(folder: Path) -> None:
    edit(folder, quantization_config=None)
    assert load(str(folder), device="cpu", dtype="auto").end_ids == {2}


def test_on_the_command_line_it_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_weights(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    assert main(["train", f"model={folder}", "--run", str(folder.parent / "run")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"marft: model {folder} is quantised (bitsandbytes, 4 bits)")
    assert not (folder.parent / "run").exists()


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (BartConfig(vocab_size=448), "is an encoder-decoder (bart)"),
        (WhisperConfig(vocab_size=448), "is an encoder-decoder (whisper)"),
        (EncoderDecoderConfig.from_encoder_decoder_configs(BERT, BERT), "is an encoder-decoder"),
        (LlavaConfig(text_config=LlamaConfig(**SMALL), vision_config=CLIPVisionConfig()), "is multimodal (llava)"),
    ],
)
def test_what_does_not_continue_text_is_named(folder: Path, config: PreTrainedConfig, line: str) -> None:
    without_weights(folder, config)
    assert line in error_of(folder)


@pytest.mark.parametrize("tied", [False, True])
def test_a_classifier_is_no_language_model(folder: Path, tied: bool) -> None:
    """Where the embedding is also the head, all of a language model's weights would be there."""
    model: Any = LlamaForSequenceClassification
    model(LlamaConfig(**SMALL, tie_word_embeddings=tied)).save_pretrained(folder)
    assert "is a LlamaForSequenceClassification, not a causal language model" in error_of(folder)


def test_a_missing_head_is_named_unless_it_is_the_embedding(folder: Path) -> None:
    model: Any = LlamaModel
    model(LlamaConfig(**SMALL)).save_pretrained(folder)
    assert "not a whole causal language model: lm_head.weight is missing" in error_of(folder)
    model(LlamaConfig(**SMALL, tie_word_embeddings=True)).save_pretrained(folder)
    assert load(str(folder), device="cpu", dtype="auto").model.get_output_embeddings() is not None


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    model: Any = LlamaForCausalLM
    model(LlamaConfig(**{**SMALL, "vocab_size": 100})).save_pretrained(folder)
    assert "knows 100 tokens, but its tokenizer writes token 447" in error_of(folder)


def test_a_chat_template_with_tokens_that_the_model_does_not_know(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added, beyond = tokenizer["added_tokens"], len(tokenizer["model"]["vocab"])
    added.append({**added[0], "id": beyond, "content": "<|user|>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load(str(folder), device="cpu", dtype="auto").end_ids == {2}  # nothing writes it
    template = folder / "chat_template.jinja"
    template.write_text("<|user|>" + template.read_text())
    assert f"its tokenizer writes token {beyond}: the two do not belong together" in error_of(folder)


def test_a_model_with_its_own_code(folder: Path) -> None:
    without_weights(folder, model_type="own", auto_map={"AutoConfig": "own.Config"})
    assert "brings its own code, which is never run: use a model of a family" in error_of(folder)


def test_an_adapter_and_a_file_are_no_models(folder: Path) -> None:
    assert "model.safetensors is a file: give the folder" in error_of(folder / "model.safetensors")
    (folder / "config.json").rename(folder / "adapter_config.json")
    assert "holds an adapter, not a model: give its base" in error_of(folder)


def test_weights_that_are_no_numbers(folder: Path) -> None:
    weights = folder / "model.safetensors"
    spoilt = {name: torch.full_like(tensor, torch.nan) for name, tensor in load_file(weights).items()}
    save_file(spoilt, weights, metadata={"format": "pt"})
    loaded = load(str(folder), device="cpu", dtype="auto")
    with pytest.raises(MarftError, match="computes numbers that are not finite: its files are damaged"):
        TeamModel(loaded, agents=[], critics=[], targets="all-linear", seed=0)
