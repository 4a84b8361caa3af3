"""Runs whose environment lives in other processes: the same numbers as in this one, and hangs and crashes on the way."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from quick import resume, start
from toys import files, rows

from marft.types import MarftError

HOSTED = {"name": "at_a_distance:Hosted", "workers": 2}


def without_times(run: Path) -> tuple[Any, ...]:
    adapters = {name: data for name, data in files(run / "checkpoints").items() if name.endswith(".safetensors")}
    return rows(run / "metrics.jsonl"), rows(run / "episodes.jsonl"), adapters


@pytest.mark.parametrize("forks", [True, False])
def test_a_hosted_environment_gives_the_very_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    monkeypatch.setattr("marft.envs.hosting.pool.forks_safely", lambda: forks)
    here = start(tmp_path / "here", env="at_a_distance:AtHome")
    there = start(tmp_path / "there", env=HOSTED)
    assert without_times(here) == without_times(there)


def test_a_hosted_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    steady = {"decay": "constant"}
    whole = start(tmp_path / "whole", env=HOSTED, optimizer=steady)
    start(tmp_path / "half", env=HOSTED, optimizer=steady, train={"iterations": 2})
    half = resume(tmp_path / "half", None, "train.iterations=4")
    assert without_times(whole) == without_times(half)


def children() -> list[str]:
    """Living processes that descend from this one."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, after = stat.read_text().rpartition(")")
        except OSError:
            continue
        if after.split()[0] != "Z":
            parents[int(stat.parent.name)], names[int(stat.parent.name)] = int(after.split()[1]), name
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return [names[pid] for pid in found[1:]]


def memory() -> int:
    """Megabytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_a_thousand_episodes_with_steps_that_hang_and_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, held = children(), memory()
    env = {"name": "at_a_distance:Bad", "deadline": 0.5, "workers": 4}
    run = start(tmp_path / "run", env=env, train={"iterations": 5, "tasks": 50, "samples": 4})
    found = rows(run / "metrics.jsonl")
    faults: Counter[str] = Counter()
    for row in found:
        faults.update(row["faults"])
        assert row["failed"] == sum(row["faults"].values())
    assert len(found) == 5
    last = found[-1]["faults"]
    told = ", ".join(f"{last[fault]} {fault}" for fault in sorted(last))
    assert f"{found[-1]['failed']} episodes failed ({told})" in capsys.readouterr().out
    assert faults["late"] > 5
    assert faults["raised"] > 5
    assert 0 < faults["discarded"] <= 3 * faults["late"]  # the other three of a task
    assert children() == before
    assert memory() < held + 200


def test_an_episode_that_was_cut_takes_its_whole_group_with_it(tmp_path: Path) -> None:
    env = {"name": "at_a_distance:Bad", "deadline": 0.5, "workers": 4, "one_in": 20}
    run = start(tmp_path / "run", env=env, train={"iterations": 1, "tasks": 20, "samples": 4}, track={"episodes": 100})
    groups: dict[str, Counter[str]] = {}
    for row in rows(run / "episodes.jsonl"):
        groups.setdefault(row["task"], Counter())[row.get("fault") or "played"] += 1
    late = [group for group in groups.values() if group["late"]]
    assert late
    assert all(not group["played"] for group in late)
    assert any(group["raised"] and group["played"] for group in groups.values() if not group["late"])
    assert not any(group["discarded"] for group in groups.values() if not group["late"])


@pytest.mark.parametrize(
    ("name", "line", "shown"),
    [
        (
            "AlwaysRaises",
            "5 of 5 episodes of the sanity check failed; the first: environment.reward raised RuntimeError",
            True,
        ),
        (
            "AlwaysLate",
            "5 of 5 episodes of the sanity check failed; the first: environment.reward took more than 0.3 s",
            False,
        ),
    ],
)
def test_past_the_stated_rate_the_run_stops_with_the_traceback(
    tmp_path: Path, name: str, line: str, shown: bool
) -> None:
    with pytest.raises(MarftError) as caught:
        start(tmp_path / "run", env={"name": f"at_a_distance:{name}", "deadline": 0.3})
    assert str(caught.value).startswith(line)
    assert ("at_a_distance.py" in caught.value.trace and "RuntimeError: out of paper" in caught.value.trace) == shown


def test_the_rate_is_the_users(tmp_path: Path) -> None:
    env = {"name": "at_a_distance:Bad", "deadline": 0.3, "one_in": 20}
    with pytest.raises(MarftError, match="episodes failed in iteration 1"):
        start(tmp_path / "run", env=env, train={"iterations": 1, "tasks": 20, "failures": 0.0})
