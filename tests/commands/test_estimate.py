"""What a plan says before any weights are loaded: which GPUs have room, and for how many rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from quick import config_of

from benchmarks.speed.measure import SIZES
from marft.commands.estimate import KINDS, describe_estimates, estimate_kind, estimate_run, name_cards, rows_on, use_of
from marft.config import load_config
from marft.models import loading
from marft.models.memory import Needs
from marft.types import MarftError

GB = 10**9
NEEDS = Needs(base=3 * GB, adapters=GB // 2, optimizers=GB // 2, cache=10 * GB, activations=2 * GB)


def test_a_card_has_rows_for_its_engine_s_share_of_what_is_free() -> None:
    """Of 16 GB the base and the adapters leave 12.5, two fifths of which are half of the cache; of 8 GB 4.5."""
    config = load_config(None, [])
    assert rows_on(config, NEEDS, 256, 16) == 128
    assert rows_on(config, NEEDS, 256, 8) is None  # 6 GB and 1.8 GB of keys are more than 7.2 GB
    assert rows_on(config, replace(NEEDS, activations=GB), 256, 8) == 46
    assert rows_on(config, NEEDS, 256, 80) == 256
    assert rows_on(config, replace(NEEDS, cache=1000 * GB), 256, 80) is None  # 7 rows


def test_a_team_is_all_adapters_and_critics_and_what_is_said_in_an_episode() -> None:
    config = load_config("gsm8k-duo-token", ["team.agents.actor.rank=4", "engine.slots=1000"])
    use = use_of(config, config.model, 32768, "nf4")
    assert sorted(use.ranks) == [4, 16, 16]  # the critic's is the run's
    assert (use.slots, use.positions, use.tokens, use.quantize) == (512, 1024, 16384, "nf4")
    assert use_of(config, config.model, 500, None).positions == 512
    assert use_of(load_config(None, ["dtype=float32"]), "nano", 512, None).dtype_bytes == 4


def test_no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: Any, **others: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", read)
    found = estimate_run(config_of())
    assert [each.kept_in for each in found] == ["bfloat16", "int8", "nf4"]
    assert found[0].needs.base > found[1].needs.base > found[2].needs.base > 0


def test_two_bases_are_added_up() -> None:
    agents = {"ann": {}, "bob": {"model": "nano"}}
    one, both = estimate_run(config_of())[0], estimate_run(config_of(team={"agents": agents}))[0]
    assert both.needs.base > one.needs.base + 1_500_000  # nano's in half precision


def test_the_table_names_the_cards() -> None:
    config = load_config("gsm8k-duo-token", ["train.recompute=true", "train.tokens=8192"])
    found = [estimate_kind(config, [(config.model, SIZES["1.5b"]())], kind) for kind in KINDS]
    lines = list(describe_estimates(config, found))
    assert "passes of 8,192 tokens, recomputed; 512 rows of 1,024 tokens" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["bfloat16", "int8", "nf4"]
    assert lines[2].endswith("16 (170 rows), 24 (279 rows), 80 GB")
    assert name_cards(replace(found[0], rows={8: None, 80: 435})) == "80 (435 rows) GB"
    assert name_cards(replace(found[0], rows={8: None, 80: None})) == "none of 8, 16, 24, 80 GB"


def test_targets_that_no_layer_has_are_one_line() -> None:
    with pytest.raises(MarftError, match="foo"):
        estimate_run(config_of(lora={"targets": ["foo"]}))


def test_half_precision_goes_by_its_name() -> None:
    assert estimate_run(config_of(dtype="float16"))[0].kept_in == "float16"
