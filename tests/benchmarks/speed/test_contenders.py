"""PEFT as the benchmark runs it: adapters in the base's precision, and names for the rows only where there are several."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.mark.parametrize("adapters", [0, 1, 2])
def test_adapters_are_in_the_base_s_precision_and_named_only_among_others(
    adapters: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    from benchmarks.speed.contenders import Generate, make_requests
    from benchmarks.speed.measure import copied, get_model, make_team, save_adapters

    base = get_model("random:tiny", "cpu", "bfloat16")
    options = Namespace(prompts=4, prompt_tokens=6, group=1, max_tokens=3)
    folders = save_adapters(make_team(base, adapters, 4), tmp_path)
    contender = Generate(copied(base), folders, make_requests(adapters, base, options), rows=4)
    sides = [each for name, each in contender.model.named_parameters() if "lora_" in name]
    assert bool(sides) == bool(adapters)
    assert {each.dtype for each in contender.model.parameters()} == {torch.bfloat16}
    asked: list[dict[str, Any]] = []
    generate = contender.model.generate

    def spy(**given: Any) -> Any:
        asked.append(given)
        return generate(**given)

    monkeypatch.setattr(contender.model, "generate", spy)
    assert 4 <= contender(0) <= 12
    assert [sorted(set(given.get("adapter_names", []))) for given in asked] == [["a0", "a1"] if adapters == 2 else []]
