"""A learner of two processes with half of the base each: what it listens on, what it holds, and that it comes back whole after
one of them was lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
from quick import seated, trainer_of
from test_replicated import is_running, listening, pids_of

from marft.algorithms.batch import Batch
from marft.learners.base import RankLost
from marft.learners.group import Alone
from marft.learners.microbatches import Microbatch
from marft.learners.ranks import GLOO_HERE, Ranks, ShardedRanks
from marft.learners.replicated import ReplicatedLearner
from marft.training.build import Assembly
from marft.types import MarftError

CHANGES: dict[str, Any] = {"algorithm": "marft-token", "train": {"tasks": 4, "minibatches": 2}}


@pytest.fixture(scope="module")
def parts() -> Iterator[Assembly]:
    with seated(**CHANGES, learner={"ranks": 2, "shard": True}, rollout={"workers": 1}) as found:
        yield found


@pytest.fixture
def learner(parts: Assembly) -> ReplicatedLearner:
    assert isinstance(parts.learner, ReplicatedLearner)
    parts.learner.start()
    return parts.learner


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    """What another process would have played."""
    return trainer_of(tmp_path_factory.mktemp("player"), **CHANGES).source.next_batch(0, 0).batch


def test_both_ranks_listen_on_the_loopback_interface_alone(learner: ReplicatedLearner) -> None:
    assert isinstance(learner.group, ShardedRanks)
    assert torch.distributed.get_backend() == GLOO_HERE  # torch's own listens where the machine's name leads
    addresses = [address for pid in (os.getpid(), *pids_of(learner)) for address in listening(pid)]
    assert addresses
    assert set(addresses) == {"0100007F"}


def test_layers_are_divided_and_all_else_is_whole(learner: ReplicatedLearner) -> None:
    [team] = learner.bases
    assert team.decoder is not None
    for parameter in team.decoder.layers.parameters():
        local = parameter.to_local()  # type: ignore[operator]
        assert len(local) == -(-len(parameter) // 2)
    divided = {id(parameter) for parameter in team.decoder.layers.parameters()}
    others = [parameter for parameter in team.parameters() if id(parameter) not in divided]
    assert len(others) > len(divided)
    assert not any(hasattr(parameter, "to_local") for parameter in others)


def test_the_process_has_no_engine(parts: Assembly) -> None:
    [engine] = parts.engines
    assert engine.tokens == 0
    parts.publish(3)
    with pytest.raises(RuntimeError, match="this process has no engine"):
        engine.generate(None).send(None)  # type: ignore[arg-type]


def test_a_rank_that_is_killed_in_a_pass(
    learner: ReplicatedLearner, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part of the base is gone with it: this process loads the base again, and computes the same with a new rank."""
    before, pids = learner.score(batch, reference=True), pids_of(learner)
    hidden = Microbatch.hidden

    def kill(micro: Microbatch) -> torch.Tensor:
        os.kill(pids[0], signal.SIGKILL)
        return hidden(micro)

    with monkeypatch.context() as context:
        context.setattr(Microbatch, "hidden", kill)
        with pytest.raises(RankLost, match="rank 1 of the learner has ended by signal 9"):
            learner.score(batch, reference=True)
    assert not any(map(is_running, pids))
    assert isinstance(learner.group, Alone)
    assert not torch.distributed.is_initialized()
    after = learner.score(batch, reference=True)
    assert pids_of(learner) != pids
    for one, other in ((before.values, after.values), (before.reference_N, after.reference_N)):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_torchs_default_group_must_be_free(learner: ReplicatedLearner) -> None:
    """It is the learner's as long as it runs."""
    assert isinstance(learner.group, Ranks)
    with pytest.raises(MarftError, match=r"^learner.shard: this process is in a torch.distributed group already"):
        ShardedRanks(torch.distributed.HashStore(), 0, 1, torch.device("cpu"))
    learner.close()
    assert not torch.distributed.is_initialized()
