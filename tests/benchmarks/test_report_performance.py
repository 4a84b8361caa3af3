from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_performance", ROOT / "benchmarks/report_performance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pair(peer: str, agents: int) -> dict[str, Any]:
    return {
        "agents": agents,
        "prompt_tokens": 41.2,
        "marft": {"episodes_per_second": 30.5},
        peer: {"episodes_per_second": 10.0, "packages": {peer: "1.2"}},
        "ratio": 3.05,
        "cpu_ratio": 2.9,
    }


def test_the_page_says_what_the_results_say(report: ModuleType) -> None:
    page = (ROOT / "docs/performance.md").read_text()
    assert report.fill(page, ROOT / "docs/results") == page, "run python benchmarks/report_performance.py"


def test_every_table_has_its_place_on_the_page(report: ModuleType) -> None:
    page = (ROOT / "docs/performance.md").read_text()
    for name in report.TABLES:
        assert page.count(f"<!-- {name} -->") == page.count(f"<!-- /{name} -->") == 1


def test_a_table_is_made_anew_and_the_rest_of_the_page_stays(report: ModuleType, tmp_path: Path) -> None:
    settings = {"size": "nano", "prompts": 16, "group": 8, "tokens": 32}
    result = {"settings": settings, "against": {"trl": pair("trl", 1), "comlrl": pair("comlrl", 2)}}
    (tmp_path / "episodes.json").write_text(json.dumps(result))
    page = report.fill("before\n<!-- episodes -->\nold\n<!-- /episodes -->\nafter\n", tmp_path)
    lines = page.splitlines()
    assert lines[:2] == ["before", "<!-- episodes -->"]
    assert lines[4:6] == [
        "| nano | 16 × 8 | 41 + 32 | trl 1.2 | 1 | 30.5 | 10.0 | **3.05×** | 2.9× |",
        "| nano | 16 × 8 | 41 + 32 | comlrl 1.2 | 2 | 30.5 | 10.0 | **3.05×** | 2.9× |",
    ]
    assert lines[6:] == ["<!-- /episodes -->", "after"]


def test_what_nobody_measured_is_said_to_be_missing(report: ModuleType, tmp_path: Path) -> None:
    page = report.fill("<!-- training -->\n<!-- /training -->\n", tmp_path)
    assert page == f"<!-- training -->\n{report.NOTHING}\n<!-- /training -->\n"
