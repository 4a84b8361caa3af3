"""The actor's own part, without Ray: a mailbox for a player in a thread."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from marft.channels import ALIVE
from marft.distributed import messages, ray_actor
from marft.distributed.player import work
from marft.distributed.ray_actor import WorkActor


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actor, "adopt_orphans", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(os.getcwd())


def test_it_works_where_the_trainer_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    known = list(sys.path)
    WorkActor(str(tmp_path), [known[0], "/of/the/trainer"], work)
    assert Path.cwd() == tmp_path
    assert sys.path == [*known, "/of/the/trainer"]
    assert "RAY_AUTH_TOKEN" not in os.environ
    WorkActor("/no/such/folder", [], work)
    assert Path.cwd() == tmp_path


def test_what_the_player_says_is_heard_once() -> None:
    actor = WorkActor(os.getcwd(), [], work)
    assert actor.pid() == os.getpid()
    actor.tell(b"S{}")
    said: list[bytes] = []
    while not said or said[-1][:1] != messages.FAILED:
        said += actor.listen(1.0)
    assert "config" in messages.unpack_failure(said[-1][1:]).line
    assert set(said[:-1]) <= {ALIVE}
    while ALIVE not in (later := actor.listen(5.0)):
        assert later == []
    assert actor.listen(0.0) == []
