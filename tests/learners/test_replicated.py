"""A learner of two processes: what one has the other has, whoever is lost is noticed, and nobody is left behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from quick import plays_of, settings_of, trainer_of

from marft.algorithms.batch import Batch
from marft.learners import peers as peers_module
from marft.learners import ranks as ranks_module
from marft.learners import replicated
from marft.learners.base import NotFinite, RankFailed, RankLost
from marft.learners.group import Alone
from marft.learners.ranks import host_store, join_ranks
from marft.learners.replicated import ReplicatedLearner
from marft.training.trainer import Trainer

CHANGES: dict[str, Any] = {"algorithm": "marft-token", "train": {"tasks": 4, "minibatches": 2}}
NOTICED_S = 60.0


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    found = trainer_of(tmp_path_factory.mktemp("ranks"), learner={"ranks": 2}, **CHANGES)
    found.learner.start()
    yield found
    found.parts.close()


@pytest.fixture
def learner(trainer: Trainer) -> ReplicatedLearner:
    assert isinstance(trainer.learner, ReplicatedLearner)
    trainer.learner.start()
    return trainer.learner


@pytest.fixture
def batch(trainer: Trainer) -> Batch:
    return trainer.source.next_batch(0, 0).batch


def pids_of(learner: ReplicatedLearner) -> list[int]:
    assert learner.peers is not None
    return learner.peers.pids


def is_running(pid: int) -> bool:
    """Also a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for_end(pids: list[int], seconds: float) -> float:
    """How long it took until none of them ran."""
    started = time.monotonic()
    while any(map(is_running, pids)):
        assert time.monotonic() - started < seconds
        time.sleep(0.02)
    return time.monotonic() - started


def test_two_processes_learn_what_one_does(trainer: Trainer, tmp_path: Path) -> None:
    alone = trainer_of(tmp_path, **CHANGES)
    for one in (trainer, alone):
        assert [play.update.tokens > 0 for play in plays_of(one)] == [True]
    expected = alone.learner.adapters()
    for name, own in trainer.learner.adapters().items():
        for key, tensor in own.items():
            torch.testing.assert_close(tensor, expected[name][key], rtol=0, atol=1e-5)


def test_weights_that_come_from_elsewhere_are_sent(learner: ReplicatedLearner, batch: Batch) -> None:
    """Whoever has other weights than rank 0 is found out."""
    bias = learner.parameters("critic")["value_head.bias"]
    with torch.no_grad():
        bias.add_(0.5)
    values = learner.score(batch).values
    assert values is not None
    with torch.no_grad():
        bias.sub_(0.5)
    before = learner.score(batch).values
    torch.testing.assert_close(values - 0.5, before, rtol=0, atol=1e-5)


def test_listeners_are_on_the_loopback_interface(learner: ReplicatedLearner) -> None:
    addresses = [address for pid in (os.getpid(), *pids_of(learner)) for address in listening(pid)]
    assert addresses
    assert set(addresses) == {"0100007F"}  # 127.0.0.1, as the kernel writes it


def listening(pid: int) -> list[str]:
    """The addresses of a process's listening sockets."""
    links = (os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink())
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]


def test_numbers_that_are_not_finite_leave_the_ranks_alive(learner: ReplicatedLearner, batch: Batch) -> None:
    """A run that goes back to a checkpoint goes on with them."""
    pids, bias = pids_of(learner), learner.parameters("critic")["value_head.bias"]
    before = bias.detach().clone()
    with torch.no_grad():
        bias.fill_(math.inf)
    with pytest.raises(NotFinite):
        learner.score(batch)
    with torch.no_grad():
        bias.copy_(before)
    values = learner.score(batch).values
    assert values is not None
    assert values.isfinite().all()
    assert pids_of(learner) == pids


def test_a_rank_that_has_drifted_is_found_out(learner: ReplicatedLearner, batch: Batch) -> None:
    learner.score(batch)
    bias = learner.parameters("critic")["value_head.bias"]
    with torch.no_grad():
        bias.add_(0.5)
    learner._known = learner._versions()  # as if it had been sent
    with pytest.raises(RuntimeError, match="rank 1 of the learner has other weights than rank 0"):
        learner.score(batch)
    with torch.no_grad():
        bias.sub_(0.5)


def test_a_rank_that_is_killed_in_an_update(
    trainer: Trainer, learner: ReplicatedLearner, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    """One line, soon; nobody is left, and the next batch starts new ranks."""
    pids, clip = pids_of(learner), learner._clip
    killed = 0.0

    def kill(names: Any) -> Any:
        nonlocal killed
        killed = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        return clip(names)

    monkeypatch.setattr(learner, "_clip", kill)
    with pytest.raises(RankLost) as found:
        plays_of(trainer)
    seconds = time.monotonic() - killed
    record_property("seconds", seconds)
    print(f"a killed rank was noticed after {seconds:.2f} s")
    assert seconds < NOTICED_S
    assert str(found.value) == "rank 1 of the learner has ended by signal 9"
    assert not any(map(is_running, pids))
    assert isinstance(learner.group, Alone)
    monkeypatch.undo()
    trainer.interruption.release()
    plays_of(trainer)
    assert pids_of(learner) != pids


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGKILL, "^rank 1 of the learner has ended by signal 9$"),
        (signal.SIGCONT, "^rank 0 has not found the others"),
    ],
)
def test_a_rank_that_is_lost_while_ranks_join(
    learner: ReplicatedLearner, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, line: str
) -> None:
    """It hears nothing of the store; then it is killed, or goes on when nobody waits for it any more."""
    learner.close()
    monkeypatch.setattr(ranks_module, "LONGEST_JOIN", timedelta(seconds=60 if number == signal.SIGKILL else 2))
    began = 0.0

    def join(*given: Any, **named: Any) -> Any:
        nonlocal began
        began, pid = time.monotonic(), pids_of(learner)[0]
        threading.Timer(1 if number == signal.SIGKILL else 4, os.kill, (pid, number)).start()
        return join_ranks(*given, **named)

    def stopped_before(host: str) -> Any:
        os.kill(pids_of(learner)[0], signal.SIGSTOP)
        return host_store(host)

    monkeypatch.setattr(replicated, "host_store", stopped_before)
    monkeypatch.setattr(replicated, "join_ranks", join)
    with pytest.raises(RankLost, match=line):
        learner.start()
    assert time.monotonic() - began < 20
    assert learner.peers is None


def test_a_rank_that_stands_still_is_ended(
    learner: ReplicatedLearner, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "SILENCE_S", 2.0)
    pids = pids_of(learner)
    os.kill(pids[0], signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(RankLost, match="rank 1 of the learner has given no sign of life for 2 s"):
        learner.score(batch)
    assert time.monotonic() - started < NOTICED_S
    assert not any(map(is_running, pids))


def test_whatever_ends_an_update_here_ends_the_ranks(
    learner: ReplicatedLearner, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = pids_of(learner)

    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(learner, "final_values", interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.score(batch)
    assert not any(map(is_running, pids))


def test_a_rank_that_cannot_begin_says_why(trainer: Trainer, learner: ReplicatedLearner) -> None:
    learner.close()
    told = learner.plan.arguments
    broken = {**told, "config": {**told["config"], "model": "/nowhere/at/all"}}
    learner.plan = replace(learner.plan, arguments=broken)
    with pytest.raises(RankFailed, match=r"^rank 1 of the learner has failed: .*/nowhere/at/all"):
        learner.start()
    assert learner.peers is None
    learner.plan = replace(learner.plan, arguments=told)


ORPHANS = """
import sys, time
from quick import trainer_of
from pathlib import Path
trainer = trainer_of(Path(sys.argv[1]), learner={"ranks": 2}, model=sys.argv[2])
trainer.learner.start()
print(*trainer.learner.peers.pids, flush=True)
time.sleep(600)
"""


def test_ranks_end_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS, str(tmp_path), settings_of()["model"]],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    ) as started:  # fmt: skip
        assert started.stdout is not None
        pids = [int(pid) for pid in started.stdout.readline().split()]
        assert len(pids) == 1
        assert is_running(pids[0])
        started.kill()
        wait_for_end(pids, 10.0)
