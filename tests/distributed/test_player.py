"""What a worker opens, and what it says when it cannot go on."""

from __future__ import annotations

import errno
import os
import platform
from contextlib import ExitStack
from typing import Any

import pytest
from quick import config_of, seated

from marft.distributed.player import Runners, describe_failure
from marft.evaluation import benchmarks
from marft.rollouts.players import Assignment, Key
from marft.types import MarftError

BENCHMARKS = {name: {"name": "toys:Echo", "size": size} for name, size in (("small", 3), ("large", 7))}


def assignment(held_out: bool, shard: int = 0, benchmark: str | None = None) -> Assignment:
    key = Key(held_out, 0, 0, shard)
    return Assignment(key=key, version=0, seed="s", tasks=(0,), first_samples=(0,), samples=1, benchmark=benchmark)


def test_a_benchmark_is_opened_once_and_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    open_host = benchmarks.open_host
    closed: list[Any] = []

    def counted(env: Any, lockstep: Any) -> Any:
        host = open_host(env, lockstep)
        opened.append(host)
        monkeypatch.setattr(host, "close", lambda: closed.append(host))
        return host

    monkeypatch.setattr(benchmarks, "open_host", counted)
    settings = {"eval": {"tasks": 2, "benchmarks": BENCHMARKS}}
    with seated(**settings) as parts, ExitStack() as stack:
        runners = Runners(config_of(**settings), parts, stack)
        assert runners.choose(assignment(held_out=False)) is parts.runner
        chosen = [
            runners.choose(assignment(True, shard, name)) for shard in range(3) for name in (None, "small", "large")
        ]
        assert [len(runner.host.tasks("test")) for runner in chosen] == [5, 3, 7] * 3
        assert len(opened) == 2
        assert closed == []
    assert sorted(map(id, closed)) == sorted(map(id, opened))


def test_a_full_disk_is_one_line_that_says_where() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/adapter")
    found = describe_failure(error)
    assert (found.ours, found.trace) == (False, "")
    assert found.line == (
        f"a disk of {platform.node()} is full: [Errno {errno.ENOSPC}] No space left on device: '/dev/shm/adapter'; "
        "free space there"
    )
    assert "is full: I/O error: No space left on device (os error 28)" in (
        describe_failure(RuntimeError("I/O error: No space left on device (os error 28)")).line
    )


def test_only_our_own_bugs_show_our_own_code() -> None:
    try:
        raise KeyError("ours")
    except KeyError as error:
        ours = describe_failure(error)
    assert ours.ours
    assert "KeyError: 'ours'" in ours.trace
    theirs = describe_failure(MarftError("env.size: no number", trace="in your code"))
    assert (theirs.ours, theirs.line, theirs.trace) == (False, "env.size: no number", "in your code")
    assert describe_failure(FileNotFoundError(2, "No such file", "model")).trace == ""
