"""FSDP2 takes hold of the base: sharded layer by layer between two processes, a team computes and trains bit for bit as
before, and each process holds half of the layers' weights."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from families import FAMILIES, tiny
from teams import team_of
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from marft.models.loading import load
from marft.models.recompute import recompute_layers
from marft.models.scoring import Span, hidden_states
from marft.models.sharding import idle_pass, place_around_layers, reload_base, shard_layers
from marft.models.team import TeamModel

SPANS = [
    Span(adapter="planner", ids=tuple(range(50, 80)), asked=3),
    Span(adapter="planner", ids=(*range(50, 75), 7, 8), asked=2),
    Span(adapter="solver", ids=tuple(range(90, 100)), asked=4),
    Span(adapter=None, ids=tuple(range(60, 90)), asked=1),
]


FAMILY = {"qwen2": FAMILIES["qwen2"], "qwen3": FAMILIES["qwen3"]}  # biases, and norms of heads
KINDS = ("nano", "recompute", *FAMILY)


def made(kind: str) -> TeamModel:
    team = team_of({"planner": 4, "solver": 3}, loaded=tiny(FAMILY[kind]) if kind in FAMILY else None)
    if kind == "recompute":
        recompute_layers(team)
    return team


def train(team: TeamModel, idle: int | None = None) -> list[Tensor]:
    """Hidden states and adapters' gradients of two steps, so that the second sees changed adapters; then without gradient.
    A step has two passes in shards, of which one is idle, on rank 1 the first."""
    trained = [p for p in team.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01)
    found: list[Tensor] = []
    for _ in range(2):
        if idle == 1:
            idle_pass(team)
        hidden = hidden_states(team, SPANS)
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        gradients = [p.grad.clone() for p in trained if p.grad is not None]
        assert len(gradients) == len(trained)
        if idle == 0:
            idle_pass(team)
            gradients = [p.grad.clone() for p in trained if p.grad is not None]
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


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for kind in KINDS:
        team = made(kind)
        place_around_layers(team, torch.device("cpu"))
        assert team.decoder is not None
        before = held(team)
        shard_layers(team, mesh)
        with torch.no_grad():
            hidden_states(team, SPANS)
        freed = before - held(team)
        found = train(team, idle=rank)
        own = sum(p.to_local().nbytes for p in team.decoder.layers.parameters())  # type: ignore[operator]
        torch.save({"found": found, "own": own, "freed": freed}, Path(folder) / f"{kind}-{rank}.pt")
        del team
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    mp.spawn(run_rank, (str(folder),), nprocs=2)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_sharded_by_layers_trains_as_a_whole_one(kind: str, results: Path) -> None:
    whole = made(kind)
    assert whole.decoder is not None
    size = sum(p.nbytes for p in whole.decoder.layers.parameters())
    expected = train(whole)
    for rank in range(2):
        shard = torch.load(results / f"{kind}-{rank}.pt")
        assert len(shard["found"]) == len(expected)
        for one, other in zip(shard["found"], expected, strict=True):
            assert torch.equal(one, other)
        assert shard["own"] <= 0.52 * size
        assert shard["freed"] >= 0.48 * size


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_pass_leaves_no_gradient(kind: str) -> None:
    team = made(kind)
    idle_pass(team)
    with torch.no_grad():
        idle_pass(team)
    assert all(parameter.grad is None for parameter in team.parameters())


def test_layers_stay_in_main_memory_until_they_are_sharded() -> None:
    """A device that is no memory stands for one that would not hold them."""
    team = made("nano")
    place_around_layers(team, torch.device("meta"))
    assert team.decoder is not None
    layers = set(team.decoder.layers.parameters())
    assert layers
    assert {parameter.device.type for parameter in layers} == {"cpu"}
    others = [tensor for tensor in (*team.parameters(), team.masks, team.decoder.cos) if tensor not in layers]
    assert {tensor.device.type for tensor in others} == {"meta"}


def test_a_base_is_loaded_again_beneath_its_adapters() -> None:
    team = made("recompute")
    adapters, hidden = dict(team.adapters.named_parameters()), hidden_states(team, SPANS)
    assert team.decoder is not None
    with torch.no_grad():
        for parameter in team.decoder.parameters():  # as if it had gone
            parameter.zero_()
    assert not torch.equal(hidden_states(team, SPANS), hidden)
    before = team.decoder
    reload_base(team, load("nano", "cpu", "float32"))
    assert team.decoder is not before
    assert team.decoder.recompute
    assert all(parameter is adapters[name] for name, parameter in team.adapters.named_parameters())
    assert torch.equal(hidden_states(team, SPANS), hidden)
