"""The fused forward pass computes what the transformers model with its adapted layers does: values and gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from families import FAMILIES, GROUPED, tiny
from teams import fill_b, plain_model
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel

from marft.models import decoder
from marft.models.attention import NAME, PackedAttention
from marft.models.decoder import has_decoder
from marft.models.elementwise import add_norm
from marft.models.lora import AdapterSpec, Routing
from marft.models.team import TeamModel
from marft.types import MarftError

NAMES = ("planner", "solver", "critic")
LENGTHS, ADAPTERS = [7, 5, 9, 2], [0, 2, 2, None]
KNOWN: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**GROUPED),
    "llama with biases": LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama 3": LlamaConfig(
        **GROUPED,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": FAMILIES["qwen2"],
    "qwen3": FAMILIES["qwen3"],
}  # fmt: skip


def team_on(config: PreTrainedConfig, targets: list[str] | str = "all-linear") -> TeamModel:
    specs = [AdapterSpec(name=name, rank=rank, alpha=7) for name, rank in zip(NAMES, (4, 2, 3), strict=True)]
    team = TeamModel(tiny(config), agents=specs[:2], critics=specs[2:], targets=targets, seed=0)
    fill_b(team, 0.1)
    return team


def run(
    team: TeamModel, routing: Routing | None, model: PreTrainedModel | None = None
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Hidden states of packed sequences, and every adapter's gradients of a sum of them; by `model`, where it is given."""
    attend = PackedAttention(LENGTHS, team.device)
    ids = torch.randint(3, 448, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(0))
    parameters = {f"{name} {key}": p for name in NAMES for key, p in team.lora.adapter_parameters(name).items()}
    for parameter in parameters.values():
        parameter.grad = None
    if model is None:
        hidden = team(ids, attend.position_ids, attend, routing)
    else:
        model.set_attn_implementation(NAME)
        hidden = model.base_model(input_ids=ids, position_ids=attend.position_ids, attend=attend).last_hidden_state
    if hidden.requires_grad:
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    return hidden.detach(), {name: p.grad for name, p in parameters.items()}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5 * max(1.0, float(expected.abs().max())), rtol=0)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "down_proj"]])
@pytest.mark.parametrize("family", KNOWN)
def test_equals_the_transformers_model(family: str, targets: list[str] | str) -> None:
    team = team_on(KNOWN[family], targets)
    hidden, found = run(team, team.routing(ADAPTERS, LENGTHS))
    base = run(team, None)[0]
    assert team.decoder is not None
    expected, gradients = run(team, None, plain_model(team, tiny(KNOWN[family]).model, ADAPTERS, LENGTHS))
    close(base, run(team, None, tiny(KNOWN[family]).model)[0])
    assert (base - expected).abs().max() > 0.01
    close(hidden, expected)
    for name, gradient in gradients.items():
        own = found[name]
        assert (own is None) == (gradient is None), name
        if own is not None and gradient is not None:
            close(own, gradient)
    assert all(gradient is None for name, gradient in gradients.items() if name.startswith("solver"))


def test_without_gradient_it_computes_the_same() -> None:
    team = team_on(KNOWN["qwen2"])
    expected, _ = run(team, team.routing(ADAPTERS, LENGTHS))
    with torch.no_grad():
        close(run(team, team.routing(ADAPTERS, LENGTHS))[0], expected)


def test_the_weights_are_taken_from_the_model_and_not_copied() -> None:
    config, loaded = KNOWN["llama"], tiny(KNOWN["llama"])
    team = TeamModel(loaded, agents=[], critics=[], targets="all-linear", seed=0)
    own = dict(tiny(config).model.named_parameters())
    assert team.decoder is not None
    for number, layer in enumerate(team.decoder.layers):
        for names, product in (
            (("q", "k", "v"), layer.qkv), (("o",), layer.o), (("gate", "up"), layer.gate_up), (("down",), layer.down),
        ):  # fmt: skip
            block = "self_attn" if names[0] in "qkvo" else "mlp"
            places = [f"model.layers.{number}.{block}.{name}_proj.weight" for name in names]
            assert torch.equal(product.weight, torch.cat([own[place] for place in places]))
            assert not dict(loaded.model.named_parameters()).keys() & set(places)


def test_a_changed_parameter_counts_in_the_next_pass() -> None:
    team = team_on(KNOWN["llama"])
    before = run(team, team.routing(ADAPTERS, LENGTHS))[0]
    with torch.no_grad():
        for parameter in team.lora.adapter_parameters("planner").values():
            parameter.mul_(2)
    after = run(team, team.routing(ADAPTERS, LENGTHS))[0]
    own = slice(0, LENGTHS[0])
    assert (after[:, own] - before[:, own]).abs().max() > 0.01
    assert torch.equal(after[:, LENGTHS[0] :], before[:, LENGTHS[0] :])
    close(after, run(team, None, plain_model(team, tiny(KNOWN["llama"]).model, ADAPTERS, LENGTHS))[0])


def test_half_precision_keeps_the_stream_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, loaded = team_on(KNOWN["llama"]), tiny(KNOWN["llama"])
    loaded.model.to(torch.bfloat16)
    specs = [AdapterSpec(name=name, rank=rank, alpha=7) for name, rank in zip(NAMES, (4, 2, 3), strict=True)]
    half = TeamModel(loaded, agents=specs[:2], critics=specs[2:], targets="all-linear", seed=0)
    fill_b(half, 0.1)
    kinds: set[tuple[torch.dtype, torch.dtype]] = set()

    def watched(stream: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        total, normed = add_norm(stream, *others)
        kinds.add((total.dtype, normed.dtype))
        return total, normed

    monkeypatch.setattr(decoder, "add_norm", watched)
    found, _ = run(half, half.routing(ADAPTERS, LENGTHS))
    assert kinds == {(torch.float32, torch.bfloat16)}
    expected, _ = run(whole, whole.routing(ADAPTERS, LENGTHS))
    assert (found - expected).abs().mean() < 0.02


@pytest.mark.parametrize(
    ("dtype", "wrong"), [(torch.float32, 0.01), (torch.bfloat16, 1.0), (torch.bfloat16, float("nan"))]
)
@pytest.mark.parametrize(("tokens", "right"), [(slice(0, 1), True), (slice(0, 2), False), (slice(4, 8), False)])
def test_a_decoder_that_is_wrong_is_refused(
    dtype: torch.dtype, wrong: float, tokens: slice, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first token: attention sinks of real models have activations there that half precision cannot tell."""
    plain = decoder.Decoder.__call__

    def bent(self: decoder.Decoder, *given: Any) -> Tensor:
        out = plain(self, *given)
        out[:, tokens] *= 1 + wrong
        return out

    monkeypatch.setattr(decoder.Decoder, "__call__", bent)
    loaded = tiny(KNOWN["qwen2"])
    loaded.model.to(dtype)
    with nullcontext() if right else pytest.raises(AssertionError, match="the decoder is wrong"):
        assert TeamModel(loaded, agents=[], critics=[], targets="all-linear", seed=0).decoder is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mistake", ["scale", "mixture", "nan"])
def test_attention_that_computes_something_else_is_refused(
    dtype: torch.dtype, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: PackedAttention, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        if mistake == "mixture":  # the second sequence sees the first
            self = PackedAttention([q.shape[2]], q.device)
        out = right(self, layer, q, k, v, 3 * scale if mistake == "scale" else scale)
        if mistake == "nan":
            out[:, 5:] = torch.nan  # all of the second sequence
        return out

    right, loaded = PackedAttention.__call__, tiny(KNOWN["qwen2"])
    loaded.model.to(dtype)
    monkeypatch.setattr(PackedAttention, "__call__", wrong)
    with pytest.raises(MarftError, match=r"differs from its own forward by .* on our attention; use another model"):
        TeamModel(loaded, agents=[], critics=[], targets="all-linear", seed=0)


@pytest.mark.parametrize("family", ["gemma2", "gpt-neox", "phi", "granite", "cohere"])
def test_other_families_say_once_that_they_are_slower(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    team = team_on(FAMILIES[family])
    assert team.decoder is None
    for _ in range(2):
        run(team, team.routing(ADAPTERS, LENGTHS))
    assert capsys.readouterr().err.count("is no Llama, Qwen2 or Qwen3 as our decoder knows them") == 1


@pytest.mark.parametrize("targets", ["all-linear", "some"])
@pytest.mark.parametrize("family", ["gemma2", "gpt-neox", "phi", "granite", "cohere"])
def test_other_families_compute_what_plain_arithmetic_does(family: str, targets: str) -> None:
    some = ["query_key_value"] if family == "gpt-neox" else ["q_proj", "v_proj"]
    team = team_on(FAMILIES[family], targets if targets == "all-linear" else some)
    hidden, found = run(team, team.routing(ADAPTERS, LENGTHS))
    expected, gradients = run(team, None, plain_model(team, tiny(FAMILIES[family]).model, ADAPTERS, LENGTHS))
    close(hidden, expected)
    assert {name for name, own in found.items() if own is None} == {n for n in found if n.startswith("solver")}
    for name, gradient in gradients.items():
        own = found[name]
        assert (own is None) == (gradient is None), name
        if own is not None and gradient is not None:
            close(own, gradient)


def test_angles_that_depend_on_the_length_are_left_to_transformers() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert has_decoder(tiny(KNOWN["llama 3"]).model)
    assert not has_decoder(tiny(LlamaConfig(**GROUPED, rope_parameters=dynamic)).model)
    assert not has_decoder(tiny(LlamaConfig(**GROUPED, hidden_act="gelu")).model)
