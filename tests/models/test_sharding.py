"""FSDP2 takes hold of the base: sharded layer by layer between two processes, a team computes and trains bit for bit as
before, and each process holds half of the layers' weights."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from teams import team_of
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from marft.models.recompute import recompute_layers
from marft.models.scoring import Span, hidden_states
from marft.models.team import TeamModel

SPANS = [
    Span(adapter="planner", ids=tuple(range(50, 80)), asked=3),
    Span(adapter="planner", ids=(*range(50, 75), 7, 8), asked=2),
    Span(adapter="solver", ids=tuple(range(90, 100)), asked=4),
    Span(adapter=None, ids=tuple(range(60, 90)), asked=1),
]


def made(recompute: bool) -> TeamModel:
    team = team_of({"planner": 4, "solver": 3})
    if recompute:
        recompute_layers(team)
    return team


def train(team: TeamModel) -> list[Tensor]:
    """Hidden states and adapters' gradients of two steps, so that the second sees changed adapters; then without gradient."""
    trained = [p for p in team.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    found: list[Tensor] = []
    for _ in range(2):
        hidden = hidden_states(team, SPANS)
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        gradients = [p.grad.clone() for p in trained if p.grad is not None]
        assert len(gradients) == len(trained)
        found += [hidden.detach(), *gradients]
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return [*found, hidden_states(team, SPANS)]


def held(team: TeamModel) -> int:
    """Bytes that tensors as wide as the layers' weights take, whoever in the process holds them."""
    widths = {product.weight.shape[1] for product in team.products}
    gc.collect()
    storages = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in gc.get_objects()
        if type(x) in (Tensor, torch.nn.Parameter) and x.dim() == 2 and x.shape[1] in widths and not x.requires_grad
    }
    return sum(storages.values())


def run_rank(rank: int, store: str, recompute: bool, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    team = made(recompute)
    assert team.decoder is not None
    before = held(team)
    for layer in team.decoder.layers:
        fully_shard(layer, reshard_after_forward=True)  # each is a root of its own, which by default stays whole
    with torch.no_grad():
        hidden_states(team, SPANS)
    freed = before - held(team)
    found = train(team)
    own = sum(p.to_local().nbytes for p in team.decoder.layers.parameters())  # type: ignore[operator]
    torch.save({"found": found, "own": own, "freed": freed}, Path(out) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("recompute", [False, True])
def test_a_base_sharded_by_layers_trains_as_a_whole_one(recompute: bool, tmp_path: Path) -> None:
    mp.spawn(run_rank, (str(tmp_path / "store"), recompute, str(tmp_path)), nprocs=2)
    whole = made(recompute)
    assert whole.decoder is not None
    size = sum(p.nbytes for p in whole.decoder.layers.parameters())
    expected = train(whole)
    for rank in range(2):
        shard = torch.load(tmp_path / f"{rank}.pt")
        assert len(shard["found"]) == len(expected)
        for one, other in zip(shard["found"], expected, strict=True):
            assert torch.equal(one, other)
        assert shard["own"] <= 0.51 * size
        assert shard["freed"] >= 0.49 * size
