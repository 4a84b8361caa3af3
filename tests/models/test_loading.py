from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, T5Config

from marft.models.attention import runs_flash
from marft.models.chat import render
from marft.models.loading import Loaded, load, pick_device, pick_dtype
from marft.models.registry import NANO
from marft.types import MarftError, Message

SYSTEM = Message(role="system", content="Add.")
USER = Message(role="user", content="12+7")
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


@pytest.fixture(scope="module")
def nano() -> Loaded:
    return load("nano", device="cpu", dtype="auto")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The nano folder, to be spoilt."""
    return Path(shutil.copytree(NANO, tmp_path / "model"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def error_of(folder: Path) -> str:
    with pytest.raises(MarftError) as caught:
        load(str(folder), device="cpu", dtype="auto")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nano_loads_frozen(nano: Loaded) -> None:
    assert nano.name == "nano"
    assert not nano.model.training
    assert {p.requires_grad for p in nano.model.parameters()} == {False}
    assert {p.dtype for p in nano.model.parameters()} == {torch.float32}
    assert {p.device.type for p in nano.model.parameters()} == {"cpu"}


def test_loading_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    load("nano", device="cpu", dtype="auto")
    assert capfd.readouterr() == ("", "")


def test_nano_renders_chatml(nano: Loaded) -> None:
    ids = render(nano.tokenizer, [SYSTEM, USER])
    expected = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n12+7<|im_end|>\n<|im_start|>assistant\n"
    assert nano.tokenizer.decode(list(ids)) == expected
    assert isinstance(ids, tuple)
    assert all(type(i) is int for i in ids)


def test_special_tokens_come_from_the_template_alone(copy: Path) -> None:
    """A tokenizer that opens every text with `<|endoftext|>` must not open a prompt with it."""
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    opening = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
    tokenizer["post_processor"]["single"].insert(0, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}})
    tokenizer["post_processor"]["special_tokens"] = {"<|endoftext|>": opening}
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    loaded = load(str(copy), device="cpu", dtype="auto")
    assert loaded.tokenizer.encode("x")[0] == 0
    assert 0 not in render(loaded.tokenizer, [USER])


def test_nano_ends_a_turn_with_im_end_and_not_with_padding(nano: Loaded) -> None:
    assert nano.end_ids == {nano.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert nano.tokenizer.pad_token_id not in nano.end_ids


def test_end_ids_join_the_tokenizer_and_the_generation_settings(copy: Path) -> None:
    edit(copy / "generation_config.json", eos_token_id=[2, 5])
    edit(copy / "tokenizer_config.json", eos_token="<|im_start|>")
    assert load(str(copy), device="cpu", dtype="auto").end_ids == {1, 2, 5}


def test_an_ordinary_token_that_looks_like_an_end_is_none(copy: Path) -> None:
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    added, free = tokenizer["added_tokens"], len(tokenizer["model"]["vocab"])
    added.append({**added[0], "id": free, "content": "<|end|>", "special": False})
    added.append({**added[0], "id": free + 1, "content": "<|eot_id|>"})
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    loaded = load(str(copy), device="cpu", dtype="auto")
    assert loaded.end_ids == {2, loaded.tokenizer.convert_tokens_to_ids("<|eot_id|>")}


def test_the_fingerprint_tells_weights_and_precisions_apart(nano: Loaded, copy: Path) -> None:
    again = load(str(copy), device="cpu", dtype="float32")
    assert again.fingerprint == nano.fingerprint
    assert load("nano", device="cpu", dtype="bfloat16").fingerprint != nano.fingerprint
    next(iter(again.model.parameters())).data.flatten()[0] += 1
    again.model.save_pretrained(copy)
    assert load(str(copy), device="cpu", dtype="float32").fingerprint != nano.fingerprint


def test_no_chat_template(copy: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    assert "has no chat template, so agents cannot be told their roles: use an instruct/chat model" in error_of(copy)


def test_no_end_of_turn(copy: Path) -> None:
    for file in ("tokenizer.json", "chat_template.jinja"):
        (copy / file).write_text((copy / file).read_text().replace("<|im_end|>", "<|over|>"))
    edit(copy / "tokenizer_config.json", eos_token=None)
    edit(copy / "config.json", eos_token_id=None)
    edit(copy / "generation_config.json", eos_token_id=None)
    assert "has no end-of-turn token" in error_of(copy)


def test_a_template_that_refuses_the_system_role(copy: Path) -> None:
    template = copy / "chat_template.jinja"
    template.write_text(NO_SYSTEM + template.read_text())
    tokenizer = load(str(copy), device="cpu", dtype="auto").tokenizer
    expected = "<|im_start|>user\nAdd.\n\n12+7<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(list(render(tokenizer, [SYSTEM, USER]))) == expected
    alone = "<|im_start|>user\nAdd.<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(list(render(tokenizer, [SYSTEM]))) == alone


def test_a_template_that_refuses_everything(copy: Path) -> None:
    (copy / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
    tokenizer = load(str(copy), device="cpu", dtype="auto").tokenizer
    with pytest.raises(MarftError, match="refuses messages of the roles system, user: never"):
        render(tokenizer, [SYSTEM, USER])


def test_an_encoder_decoder_is_no_causal_model(copy: Path) -> None:
    T5Config().save_pretrained(copy)
    assert error_of(copy).endswith("is an encoder-decoder (t5): use an instruct/chat model that reads text alone")


def test_an_encoder_is_no_causal_model(copy: Path) -> None:
    """transformers would give it a random head and go on."""
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    model: Any = BertModel  # untyped
    model(config).save_pretrained(copy)
    assert "is not a whole causal language model" in error_of(copy)


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def reshape(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=128)


@pytest.mark.parametrize(
    "harm",
    [
        truncate,
        reshape,
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        lambda folder: (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE"}}'),
        lambda folder: edit(folder / "config.json", hidden_size="wide"),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text('{"model_type": "no-such-type"}'),
    ],
)
def test_a_spoilt_folder_is_one_line(harm: Callable[[Path], object], copy: Path) -> None:
    harm(copy)
    assert "cannot load model" in error_of(copy)


def test_a_hub_name_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("marft.models.loading.is_hub_reachable", lambda name: False)
    with pytest.raises(
        MarftError, match=r"cannot load model 'no-org/no-model' .*give a folder \(model=DIR\) or connect"
    ):
        load("no-org/no-model", device="cpu", dtype="auto")


@pytest.mark.parametrize("device", ["gpu", "xpu", "cpu:x", ""])
def test_unknown_device(device: str) -> None:
    with pytest.raises(MarftError, match="unknown device"):
        load("nano", device=device, dtype="auto")


def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(MarftError, match="no such GPU: use device=cpu"):
        load("nano", device="cuda", dtype="auto")


def test_an_apple_gpu_is_taken_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MarftError, match="torch finds no Apple GPU here: use device=cpu"):
        load("nano", device="mps", dtype="auto")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto").type == "cpu"
    assert pick_dtype("auto", pick_device("mps")) == torch.float16


def test_unknown_dtype() -> None:
    with pytest.raises(MarftError, match="unknown dtype 'int8'"):
        load("nano", device="cpu", dtype="int8")


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [
        ("cpu", (0, 0), torch.float32),
        ("mps", (0, 0), torch.float16),
        ("cuda", (7, 5), torch.float16),
        ("cuda", (8, 0), torch.bfloat16),
        ("cuda", (9, 0), torch.bfloat16),
    ],
)
def test_a_gpu_computes_in_the_half_precision_that_it_has(
    device: str, capability: tuple[int, int], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where: capability)
    assert pick_dtype("auto", torch.device(device)) == expected
    assert pick_dtype("float16", torch.device(device)) == torch.float16
    assert runs_flash(torch.device(device), torch.float16) == (expected == torch.bfloat16)
    assert not runs_flash(torch.device(device), torch.float32)
