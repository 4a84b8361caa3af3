"""The page says what the recorded results say, what made them, and what fell short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.docs import report_performance as report

ROOT = Path(__file__).parents[3]


def pair(peer: str, agents: int, ratio: float = 3.05) -> dict[str, Any]:
    return {
        "agents": agents,
        "prompt_tokens": 41.2,
        "marft": {"episodes_per_second": 30.5},
        peer: {"episodes_per_second": 10.0, "packages": {peer: "1.2"}},
        "ratio": ratio,
        "cpu_ratio": 2.9,
    }


def test_the_page_says_what_the_results_say() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    assert report.fill(page, ROOT / "docs/results") == page, "run python benchmarks/docs/report_performance.py"


def test_everything_has_its_place_on_the_page() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    for name in (*report.TABLES, "shortfalls"):
        assert page.count(f"<!-- {name} -->") == page.count(f"<!-- /{name} -->") == 1


def test_a_table_is_made_anew_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    settings = {"size": "nano", "prompts": 16, "group": 8, "tokens": 32, "rounds": 2, "lr": 1e-5, "left_out": None}
    result = {
        "benchmark": "episodes",
        "settings": settings,
        "against": {"trl": pair("trl", 1), "comlrl": pair("comlrl", 2)},
    }
    (tmp_path / "episodes-a.json").write_text(json.dumps(result))
    page = report.fill("before\n<!-- episodes -->\nold\n<!-- /episodes -->\nafter\n", tmp_path)
    lines = page.splitlines()
    assert lines[:2] == ["before", "<!-- episodes -->"]
    assert lines[4:6] == [
        "| nano | 16 × 8 | 41 + 32 | trl 1.2 | 1 | 30.5 | 10.0 | **3.05×** | 2.9× | 2 |",
        "| nano | 16 × 8 | 41 + 32 | comlrl 1.2 | 2 | 30.5 | 10.0 | **3.05×** | 2.9× | 2 |",
    ]
    assert lines[8] == (
        "python benchmarks/speed/episodes.py --peers peers/bin/python --size nano --prompts 16 --group 8 --tokens 32 --rounds 2 "
        "--lr 1e-05 --out docs/results/episodes-a.json"
    )
    assert lines[10:] == ["<!-- /episodes -->", "after"]


def generated(model: str, share: float) -> dict[str, Any]:
    def row(rate: int, theirs: int) -> dict[str, Any]:
        ours = {"tokens_per_second": rate, "runs": [rate, rate + 1], "peak_gib": 1.5, "start_up_seconds": 0.5}
        ours |= {"first_round_seconds": 0.25, "refresh": None}
        other = {"tokens_per_second": theirs, "runs": [theirs], "peak_gib": 1.0}
        return {"marft": ours, "generate": other, "ratio": {"generate": round(rate / theirs, 2)}}

    return {
        "benchmark": "generation",
        "settings": {"model": model, "adapters": [4, 0], "prompts": 64, "max_tokens": 8, "slots": 32},
        "machine": {"device": "a GPU", "threads": 1, "packages": {"torch": "2.11.0"}},
        "vllm_start_up_seconds": None,
        "adapters": {"4": row(7000, 700), "0": row(16000, 1600)},
        "four_over_none": share,
    }


def test_start_up_is_that_of_the_first_case_and_one_run_is_no_median(tmp_path: Path) -> None:
    (tmp_path / "generation.json").write_text(json.dumps(generated("m", 0.8)))
    page = report.fill("<!-- generation -->\n<!-- /generation -->\n", tmp_path)
    assert "| m | 64 × 8, 32 | 0 | **16,000** | 1,600 (10.0×) | – | – | 0.25 | – | 1.5 |" in page
    assert "| m | 64 × 8, 32 | 4 | **7,000** | 700 (10.0×) | – | 0.5 | 0.25 | – | 1.5 |" in page
    assert (
        "`m` against generate: a GPU, torch 2.11.0; marft: median of 2 runs, generate: one run; four adapters over none: 0.8\n"
        in page
    )


def test_a_page_names_folders_and_never_where_they_lie(tmp_path: Path) -> None:
    result = {
        "benchmark": "iteration",
        "settings": {"recipe": "/home/me/duo.yaml", "overrides": ["model=/home/me/qwen", "env.train=../me/a.jsonl", "b=c/d"]},
        "machine": {"device": "a GPU", "threads": 1, "packages": {"torch": "2.11.0"}},
        "episodes": 4,
        "seconds": 1.5,
        "phases": {"rollout": 1.0},
    }  # fmt: skip
    (tmp_path / "iteration-a.json").write_text(json.dumps(result))
    (tmp_path / "generation.json").write_text(json.dumps(generated("/home/me/smol", 0.5)))
    marks = "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ("generation", "iteration", "shortfalls"))
    page = report.fill(marks, tmp_path)
    assert "me/" not in page
    assert "| `duo.yaml` model=qwen env.train=a.jsonl b=c/d | a GPU, torch 2.11.0 | 4 | 1.5 | 1.0 |" in page
    assert "iteration.py duo.yaml model=qwen env.train=a.jsonl b=c/d --out docs/results/iteration-a.json" in page
    assert "generation.py --model smol " in page
    assert "four adapters on `smol`" in page


def test_what_fell_short_is_said_and_what_did_not_is_not() -> None:
    low, high = generated("low", 0.74), generated("high", 0.75)
    played = {"against": {"trl": pair("trl", 1, 4.99), "comlrl": pair("comlrl", 2, 5.0)}}
    found = {"generation": [low, high], "training": [], "iteration": [], "episodes": [played]}
    first, *middle, last = report.shortfalls(found).split("\n\n")
    assert first.startswith(
        "Generation with four adapters on `low` has 0.74 of the speed without, 0.75 was aimed at: runs of 7,000 and 7,001 "
        "tokens/s against 16,000 and 16,001. Without adapters 32 rows go through a step in 2.0 ms"
    )
    assert middle == ["vLLM has not been compared on a GPU yet.", "No whole iteration has been recorded on a GPU yet."]
    assert last.startswith(
        "Against trl 5× the episodes a second was aimed at; it is 4.99× with prompts of 41 tokens (2.9× in processor time)."
    )
    high["adapters"]["0"]["vllm"] = {}
    found |= {"generation": [high], "iteration": [high], "episodes": []}
    assert report.shortfalls(found) == "Nothing that is known."


def test_what_nobody_measured_is_said_to_be_missing(tmp_path: Path) -> None:
    page = report.fill("<!-- training -->\n<!-- /training -->\n", tmp_path)
    assert page == f"<!-- training -->\n{report.NOTHING}\n<!-- /training -->\n"
