"""A base whose layers lie in shards on several processes, each with a part of every weight (FSDP2). A layer is gathered when
it is computed, forwards and backwards, so all processes must make as many passes. Adapters, value heads, embedding and
output head stay whole on each."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn

from marft.models.attention import PackedAttention
from marft.models.decoder import Decoder, Pass
from marft.models.loading import Loaded
from marft.models.team import TeamModel
from marft.types import MarftError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def place_around_layers(team: TeamModel, device: torch.device) -> None:
    """All but the layers goes to the device; they stay in main memory until they are sharded, so that no device ever holds
    all of them."""
    decoder = sharded_decoder(team)
    layers, decoder.layers = decoder.layers, nn.ModuleList()
    team.to(device)
    decoder.layers = layers


def shard_layers(team: TeamModel, mesh: DeviceMesh) -> None:
    """Keep this process's part of every layer, on the mesh's device, one layer after the other."""
    from torch.distributed.fsdp import fully_shard  # its libraries are loaded by those who need them

    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")  # which nobody writes to
    for layer in sharded_decoder(team).layers:
        # said, since each is a root of its own, which by default stays whole
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)


def reload_base(team: TeamModel, loaded: Loaded) -> None:
    """The same base once more, whole but for the device, instead of the shard that was left of it; adapters stay."""
    device = team.device
    team.reload(loaded)
    place_around_layers(team, device)


def idle_pass(team: TeamModel) -> None:
    """Through all layers, and back where gradients are kept, with a token that nobody said: its part in gathering them for
    processes that have more to compute. No adapter takes part, so nothing is learnt from it."""
    decoder, device = sharded_decoder(team), team.device
    stream = torch.ones(1, decoder.embedding.shape[1], device=device, requires_grad=torch.is_grad_enabled())
    attend = PackedAttention([1], device)
    given = Pass(
        shape=torch.Size((1, 1)), positions=attend.position_ids.flatten(), cos=decoder.cos, sin=decoder.sin,
        attend=attend, routing=None,
    )  # fmt: skip
    hidden = decoder.run_layers(stream, given)
    if hidden.requires_grad:
        hidden.sum().backward()


def sharded_decoder(team: TeamModel) -> Decoder:
    """The team's decoder, whose layers know how to be gathered; raises a MarftError where it has none."""
    if team.decoder is None:
        raise MarftError(
            f"learner.shard: model {team.name!r} runs on transformers' own forward pass, whose layers cannot be sharded; "
            "drop it, or use a Llama, Qwen2 or Qwen3"
        )
    return team.decoder
