"""Runs of two ranks: from the first iteration to the last, with another number of ranks after a checkpoint, and with a
rank that is killed."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from quick import config_of, resume, seated, start
from safetensors.torch import load_file

from marft.learners.base import RankLost
from marft.learners.replicated import ReplicatedLearner
from marft.learners.wire import Order
from marft.runs.directory import RunDirectory
from marft.training import rank_process
from marft.training.ranks import rank_device, require_ranks
from marft.types import MarftError

RANKS: dict[str, Any] = {
    "algorithm": "marft-token",
    "train": {"tasks": 4, "iterations": 4},
    "learner": {"ranks": 2},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, from its beginning to its end."""
    return start(tmp_path_factory.mktemp("whole") / "run", **RANKS)


def weights(run: Path, iteration: int = 4) -> dict[str, torch.Tensor]:
    files = sorted((run / "checkpoints" / f"{iteration:06d}").rglob("*.safetensors"))
    return {f"{file.parent.name}/{key}": tensor for file in files for key, tensor in load_file(file).items()}


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=2e-4, msg=key)


def test_a_run_of_two_ranks_is_that_of_one(whole: Path, tmp_path: Path) -> None:
    alone = start(tmp_path / "run", **{**RANKS, "learner": {"ranks": 1}})
    rows, expected = RunDirectory(whole).metrics(), RunDirectory(alone).metrics()
    assert [row["tokens"] for row in rows] == [row["tokens"] for row in expected]
    assert_close(weights(whole), weights(alone))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(
    whole: Path, tmp_path: Path, before: int, after: int
) -> None:
    run = tmp_path / "run"
    if before == 2:
        shutil.copytree(whole, run)
        shutil.rmtree(run / "checkpoints" / "000004")
    else:
        start(run, **{**RANKS, "learner": {"ranks": 1}, "train": {"tasks": 4, "iterations": 2}})
    resume(run, 2, f"learner.ranks={after}", "train.iterations=4")
    assert RunDirectory(run).config().learner.ranks == after
    if before == 2:  # the rate falls with the iterations that a run is to have
        assert_close(weights(run), weights(whole))


@pytest.mark.parametrize("step", [5, 6])
def test_a_run_whose_rank_is_killed_ends_as_if_it_had_not_been(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """In the first or second step of the third iteration. It goes back to the newest checkpoint, and from there on takes the
    same steps, byte for byte: also with gradients of a sum that never came."""
    real, calls = ReplicatedLearner._clip, 0

    def kill(learner: ReplicatedLearner, names: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step:
            assert learner.peers is not None
            os.kill(learner.peers.pids[0], signal.SIGKILL)
        return real(learner, names)

    monkeypatch.setattr(ReplicatedLearner, "_clip", kill)
    run = start(tmp_path / "run", **RANKS)
    events = RunDirectory(run).events()
    [restart] = [event for event in events if event["event"] == "restarted"]
    assert (restart["iteration"], restart["reason"]) == (2, "rank 1 of the learner has ended by signal 9")
    found, expected = weights(run), weights(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert [row["iteration"] for row in RunDirectory(run).metrics()] == [1, 2, 3, 4]


def test_a_run_whose_ranks_die_again_and_again_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ReplicatedLearner._clip

    def kill(learner: ReplicatedLearner, names: Any) -> Any:
        assert learner.peers is not None
        os.kill(learner.peers.pids[0], signal.SIGKILL)
        return real(learner, names)

    monkeypatch.setattr(ReplicatedLearner, "_clip", kill)
    with pytest.raises(MarftError, match=r"has ended by signal 9, again; .* marft train --resume --run "):
        start(tmp_path / "run", **RANKS)


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (RankLost("rank 2 has lost another"), False),
        (RuntimeError("[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), False),
        (RuntimeError("a bug of ours"), True),
    ],
)
def test_a_rank_whose_neighbour_has_gone_leaves_it_to_rank_0_to_say_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_told: bool
) -> None:
    """Else its own failure, which may be heard of first, would pass for the cause: one that cannot be tried again."""

    def fail(*given: Any) -> None:
        raise error

    monkeypatch.setattr(rank_process, "build_learner", lambda arguments: None)
    monkeypatch.setattr(rank_process, "carry_out", fail)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for order in (Order(call="build", arguments={"rank": 2}), Order(call="join", arguments={})):
        frames.put(*order.frames())
    raised: list[Exception] = []

    def serve() -> None:
        try:
            rank_process.serve(Mock(), frames)
        except RuntimeError as found:
            raised.append(found)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join(timeout=1)
    assert thread.is_alive() is not is_told
    assert raised == [error] * is_told


# --- where ranks can be -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("device", "ranks", "line"),
    [
        ("cuda", 4, "learner.ranks: 4 ranks from cuda:0 on need a GPU each, and this machine has 2; lower it, or say device=cpu"),
        ("cuda:1", 2, "learner.ranks: 2 ranks from cuda:1 on need a GPU each, and this machine has 2; lower it, or say device=cpu"),
    ],
)  # fmt: skip
def test_every_rank_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, device: str, ranks: int, line: str) -> None:
    config_of()  # its model is made before there seem to be GPUs
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(MarftError) as found:
        require_ranks(config_of(device=device, learner={"ranks": ranks}))
    assert str(found.value) == line


def test_ranks_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    config_of()  # its model is made before there seem to be GPUs
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    config = config_of(device="cuda:1", learner={"ranks": 3})
    require_ranks(config)
    assert [rank_device(config, rank) for rank in range(3)] == ["cuda:1", "cuda:2", "cuda:3"]
    on_ray = config_of(device="cuda:3", learner={"ranks": 3}, cluster={"address": "auto"})
    require_ranks(on_ray)  # whose GPUs are elsewhere
    assert [rank_device(on_ray, rank) for rank in range(3)] == ["cuda:3", "cuda", "cuda"]
    assert rank_device(config_of(device="cuda"), 0) == "cuda"  # alone: as the config says
    assert rank_device(config_of(learner={"ranks": 2}), 1) == "cpu"


def test_ranks_have_the_threads_that_are_given() -> None:
    with seated(learner={"ranks": 2}, rollout={"threads": 3}) as parts:
        assert isinstance(parts.learner, ReplicatedLearner)
        assert parts.learner.threads == 3


def test_other_processes_must_find_the_algorithm() -> None:
    config = config_of(learner={"ranks": 2})
    own = config.algorithm.model_copy(update={"name": "__main__:Own"})
    with pytest.raises(MarftError, match="algorithm '__main__:Own' cannot be found by other processes"):
        require_ranks(config.model_copy(update={"algorithm": own}))
