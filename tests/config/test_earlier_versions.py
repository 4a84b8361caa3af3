"""What a run of an earlier version has written means the same to this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from marft.config import load_config, to_yaml
from marft.config.earlier_versions import with_present_keys
from marft.config.reading import read_config
from marft.types import MarftError


@pytest.mark.parametrize("limit", [None, 3.0])
@pytest.mark.parametrize("lag", [0, 1])
def test_a_correction_that_was_the_engine_s_is_the_algorithm_s(tmp_path: Path, limit: float | None, lag: int) -> None:
    config = load_config("duo", [f"train.lag={lag}"])
    data = yaml.safe_load(to_yaml(config))
    del data["algorithm"]["correction"]
    data["engine"]["correction"] = limit
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    found = read_config(path)
    assert found.correction == limit
    assert found.algorithm.name == "marft-token"
    assert found.engine == config.engine


@pytest.mark.parametrize("engine", [{"correction": 3, "colour": "red"}, {"correction": -1}, {"colour": "red"}])
def test_what_was_never_a_config_still_is_none(tmp_path: Path, engine: dict[str, Any]) -> None:
    data = yaml.safe_load(to_yaml(load_config("duo")))
    del data["algorithm"]["correction"]
    data["engine"] |= engine
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(MarftError, match="is not a config of this version"):
        read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "data", [{}, {"engine": "vllm"}, {"engine": {"correction": 2}}, {"algorithm": {"name": "grpo"}}]
)
def test_whatever_has_no_old_key_stays_as_it_is(data: dict[str, Any]) -> None:
    assert with_present_keys(data) == data
