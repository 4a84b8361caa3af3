"""Memory from a config alone: what is counted is what a real team holds, and recorded peaks are near."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, GROUPED, tiny
from transformers import PreTrainedConfig, Qwen2Config

from benchmarks.speed.measure import SIZES
from marft.commands.plan import weight_bytes
from marft.models.lora import AdapterSpec
from marft.models.memory import BaseShape, Use, estimate_needs, playing_bytes, training_bytes
from marft.models.quantized import Kind
from marft.models.team import TeamModel

RESULTS = Path(__file__).parents[2] / "docs" / "results"
USE = Use(ranks=(4, 2), tokens=64, recompute=False, slots=8, positions=64, prefill=512, dtype_bytes=4)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
@pytest.mark.parametrize("kind", [None, "int8", "nf4"])
@pytest.mark.parametrize(
    "config", [Qwen2Config(**GROUPED), Qwen2Config(**GROUPED, tie_word_embeddings=True), FAMILIES["qwen3"]]
)
def test_weights_and_adapters_are_those_of_a_real_team(
    config: PreTrainedConfig, kind: Kind | None, targets: list[str] | str
) -> None:
    specs = [AdapterSpec(name=f"a{rank}", rank=rank, alpha=4) for rank in (4, 2)]
    team = TeamModel(tiny(config), agents=specs, critics=[], targets=targets, seed=0)
    if kind is not None:
        team.quantize(kind, torch.device("cpu"))
    needs = estimate_needs(BaseShape.of(config, targets), replace(USE, quantize=kind))
    copies = [product.b.nbytes for product in team.products]
    copies += [product.rank * product_width(product) * 4 for product in team.products]
    held = sum(p.nbytes for spec in specs for p in team.trainable_parameters(spec.name).values())
    assert needs.adapters == held + sum(copies)
    assert needs.optimizers == 3 * held
    beside_weights = sum(copies[len(team.products) :]) if kind is None else 0  # A lies behind W
    zeros = sum(product.rank * 4 for product in team.products if product.bias is not None)
    assert needs.base == weight_bytes(team) - beside_weights - zeros
    assert BaseShape.of(config, targets).parameters == sum(p.numel() for p in tiny(config).model.parameters())


def product_width(product: Any) -> int:
    if product.quantized is not None:
        return int(product.quantized.shape[1])
    return int(product.weight.shape[1])


def test_a_slot_holds_keys_and_values_of_every_layer() -> None:
    needs = estimate_needs(BaseShape.of(FAMILIES["qwen3"], "all-linear"), USE)
    assert needs.cache == 8 * 64 * 2 * 3 * (2 * 32) * 4  # rows, positions, keys and values, layers, heads of 32, bytes
    assert needs.total == needs.without_cache + needs.cache


def test_recorded_peaks_are_near() -> None:
    """Of an H200: 1.5B, an update with passes of 16,384 tokens; and generation, 256 rows of at most 256 tokens."""
    shape = BaseShape.of(SIZES["1.5b"](), "all-linear")
    use = Use(ranks=(16,), tokens=16384, recompute=False, slots=256, positions=256, prefill=32768)
    needs = estimate_needs(shape, use)
    training = json.loads((RESULTS / "training-1.5b.json").read_text())
    learnt = needs.base + needs.adapters + needs.optimizers + training_bytes(shape, use)
    assert learnt == pytest.approx(peaks(training)[0], rel=0.08)
    two = replace(use, ranks=(16, 16))
    more = estimate_needs(shape, two)
    generation = json.loads((RESULTS / "generation-1.5b.json").read_text())["adapters"]["2"]
    played = more.base + more.adapters + more.cache + playing_bytes(shape, two)
    assert played == pytest.approx(peaks(generation["marft"])[0], rel=0.08)


def peaks(data: Any) -> list[float]:
    """Every `peak_gib`, in bytes, in the order of the file."""
    if isinstance(data, dict):
        own = [data["peak_gib"] * 2**30] if data.get("peak_gib") else []
        return own + [peak for value in data.values() for peak in peaks(value)]
    return [peak for value in data for peak in peaks(value)] if isinstance(data, list) else []


def test_less_is_kept_where_layers_are_recomputed_and_bits_are_few() -> None:
    shape = BaseShape.of(SIZES["7b"](), "all-linear")
    use = Use(ranks=(16, 16), tokens=8192, recompute=False, slots=256, positions=1024, prefill=32768)
    assert training_bytes(shape, replace(use, recompute=True)) < training_bytes(shape, use) / 4
    plain, int8, nf4 = (estimate_needs(shape, replace(use, quantize=kind)).base for kind in (None, "int8", "nf4"))
    assert plain == 2 * shape.parameters
    assert plain / 1e9 == pytest.approx(15.2, abs=0.1)
    assert int8 / 1e9 == pytest.approx(8.7, abs=0.1)
    assert nf4 / 1e9 == pytest.approx(5.6, abs=0.1)
