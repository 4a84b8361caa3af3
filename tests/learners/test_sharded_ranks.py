"""Two ranks that hold half of every layer each learn, bit by bit, what two with a whole base each do; also where one has more
to read than the other, or one has nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from lessons import ACTION, GRPO, TOKEN
from test_ranks import CASES, SEQUENTIAL, Case, Outcome, learner_of, outcome_of

from marft.channels import LOOPBACK
from marft.learners import microbatches
from marft.learners.ranks import ShardedRanks, dist, join_ranks
from marft.models.recompute import recompute_layers
from marft.models.team import TeamModel

SHORT = {"epochs": 1, "minibatches": 2}
SHARDED = {
    "marft-token": Case(algorithm=TOKEN, critics="critic", changes={"epochs": 2}),
    "marft-action": Case(algorithm=ACTION, critics="critic", changes=SHORT),
    "grpo": Case(algorithm=GRPO, changes=SHORT),
    "sequential, critics of their own": replace(CASES["critics of their own"], steps=SEQUENTIAL, changes=SHORT),
    "KL in the reward": replace(CASES["KL in the reward"], changes=SHORT),
    "a trust region that is reached": replace(CASES["a trust region that is reached"], changes={"trust_region": 1e-4, **SHORT}),
    "more passes on one rank": Case(algorithm=GRPO, tasks=("a", "b", "c"), changes={"tokens": 128, **SHORT}),
    "one rank has nothing": Case(algorithm=TOKEN, critics="critic", tasks=("a",), changes={"epochs": 2, "minibatches": 1}),
    "recompute": Case(algorithm=GRPO, tasks=("a", "b", "c"), changes={"tokens": 128, **SHORT}),
}  # fmt: skip
WAIT_S = 400  # for all of them, on a machine with other work
DEVICE = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one rank made of a case."""

    outcome: Outcome
    idle: int  # passes without a sample
    held: float  # of the layers' bytes


def made(name: str, path: Path, rank: int, *, shard: bool) -> Found:
    case = SHARDED[name]
    learner, members = learner_of(case)
    [team] = learner.bases
    if name == "recompute":
        recompute_layers(team)
    whole = layer_bytes(team)
    store = dist.FileStore(str(path), 2)
    learner.group = group = join_ranks(store, rank, 2, DEVICE, LOOPBACK, shard=shard)
    group.divide(learner.bases)
    idle = count_idle_passes()
    outcome = outcome_of(case, learner, members)
    held = layer_bytes(team) / whole
    if isinstance(group, ShardedRanks):
        group.leave()
    return Found(outcome=outcome, idle=len(idle), held=held)


def layer_bytes(team: TeamModel) -> int:
    """That this process holds."""
    assert team.decoder is not None
    parameters: Iterator[Any] = team.decoder.layers.parameters()
    return sum((p.to_local() if hasattr(p, "to_local") else p).nbytes for p in parameters)


def count_idle_passes() -> list[TeamModel]:
    made: list[TeamModel] = []
    real = getattr(microbatches.idle_pass, "real", microbatches.idle_pass)

    def counted(team: TeamModel) -> None:
        made.append(team)
        real(team)

    counted.real = real  # type: ignore[attr-defined]
    microbatches.idle_pass = counted
    return made


def run_rank(rank: int, names: Sequence[str], folder: str) -> None:
    torch.set_num_threads(1)
    for number, name in enumerate(names):
        found = [made(name, Path(folder) / f"{number}-{shard}", rank, shard=shard) for shard in (False, True)]
        torch.save(found, Path(folder) / f"{name}-{rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    ranks = mp.spawn(run_rank, (list(SHARDED), str(folder)), nprocs=2, join=False)
    assert ranks is not None
    deadline = time.monotonic() + WAIT_S
    while not ranks.join(timeout=1):
        if time.monotonic() > deadline:
            for process in ranks.processes:
                process.kill()
            pytest.fail("the ranks wait for one another")
    return folder


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_ranks_learn_what_ranks_with_a_whole_base_learn(name: str, results: Path) -> None:
    idle = []
    for rank in range(2):
        whole, sharded = torch.load(results / f"{name}-{rank}.pt", weights_only=False)
        for expected, found in (
            (whole.outcome.weights, sharded.outcome.weights),
            (whole.outcome.optimizers, sharded.outcome.optimizers),
        ):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert sharded.outcome.update.statistics == whole.outcome.update.statistics
        assert sharded.outcome.update.tokens == whole.outcome.update.tokens
        assert whole.held == 1
        assert 0.49 < sharded.held < 0.51
        assert whole.idle == 0
        idle.append(sharded.idle)
        before, weights = whole.outcome.before, whole.outcome.weights
        assert any(not torch.equal(before[key], weights[key]) for key in before)  # there was something to learn
    if name in ("more passes on one rank", "recompute"):
        assert max(idle) > 0
    if name == "one rank has nothing":
        assert min(idle) == 0
        assert max(idle) > 0
