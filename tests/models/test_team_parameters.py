"""A team is an nn.Module whose parameters torch's own machinery finds: once each, under stable names."""

from __future__ import annotations

import torch
import torch.distributed as dist
from families import FAMILIES, tiny
from teams import team_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from marft.models.loading import load
from marft.models.scoring import Span, action_span, hidden_states
from marft.models.team import TeamModel

RANKS = {"planner": 4, "train": 7, "keys": 2, "critic": 3}  # names that methods have too


def team() -> TeamModel:
    return team_of(RANKS, critics=["critic"])


def spans() -> list[Span]:
    return [action_span("planner", (5, 6, 7), (8, 9)), action_span("critic", (5, 6), (7, 8, 2))]


def loss_of(team: TeamModel) -> Tensor:
    return hidden_states(team, spans()).square().sum()


def test_every_trained_tensor_is_registered_once_and_the_base_is_frozen() -> None:
    made = team()
    names = dict(made.named_parameters())
    trained = {name: p for name, p in names.items() if p.requires_grad}
    own = [p for name in RANKS for p in made.trainable_parameters(name).values()]
    assert sorted(map(id, trained.values())) == sorted(map(id, own))
    assert len(own) == len(set(map(id, own)))
    assert {name.split(".")[0] for name in trained} == {"adapters", "value_heads"}
    assert {name.split(".")[0] for name in names.keys() - trained.keys()} == {"base"}
    layer = "model.layers.0.self_attn.q_proj"
    ours = made.trainable_parameters("train")
    assert names[f"adapters.train.{layer}.lora_A"] is ours[f"{layer}.a"]
    assert names[f"adapters.train.{layer}.lora_B"] is ours[f"{layer}.b"]
    assert names["value_heads.critic.weight"] is made.trainable_parameters("critic")["value_head.weight"]
    assert list(made.adapters) == list(RANKS)


def test_the_base_is_whole_and_its_weights_lie_in_memory_once() -> None:
    loaded = load("nano", "cpu", "float32")
    model = sum(p.numel() for p in loaded.model.parameters())
    made = team_of(RANKS, critics=["critic"], loaded=loaded)
    assert sum(p.numel() for p in made.base.parameters()) == model
    inside = {id(p) for p in made.base.parameters()}
    assert {id(p) for p in loaded.model.parameters()} < inside


def test_a_model_without_a_decoder_is_registered_itself() -> None:
    made = team_of({"planner": 2}, loaded=tiny(FAMILIES["phi"]))
    assert made.decoder is None
    assert isinstance(made.base, PreTrainedModel)
    assert not any(p.requires_grad for p in made.base.parameters())
    assert {name.split(".")[0] for name in dict(made.named_parameters())} == {"base", "adapters"}


def test_a_state_dict_is_the_team() -> None:
    made, other = team(), team_of(RANKS, critics=["critic"], std=0.2)
    with torch.no_grad():
        made.value_heads["critic"].bias.fill_(0.5)  # type: ignore[operator, union-attr]
        before, unlike = hidden_states(made, spans()), hidden_states(other, spans())
    assert not torch.equal(before, unlike)
    assert {key.split(".")[0] for key in made.state_dict()} == {"base", "adapters", "value_heads"}
    other.load_state_dict(made.state_dict())
    with torch.no_grad():
        assert torch.equal(hidden_states(other, spans()), before)
    assert torch.equal(other.state_dict()["value_heads.critic.bias"], torch.tensor([0.5]))


def moved(made: nn.Module) -> None:
    """As `to` another device does: every tensor comes to lie in other memory."""
    made._apply(torch.clone)


def test_a_team_that_has_moved_computes_and_trains_as_before() -> None:
    made, still = team(), team()
    assert made.to("cpu") is made
    moved(made)
    assert [p.data_ptr() for p in made.parameters()] != [p.data_ptr() for p in still.parameters()]
    for step in range(2):
        results = [hidden_states(each, spans()) for each in (made, still)]
        assert torch.equal(*results), step
        for each in (made, still):
            loss_of(each).backward()
            torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.01).step()
            each.zero_grad()
    assert all(torch.equal(one, other) for one, other in zip(made.parameters(), still.parameters(), strict=True))
    for product in made.products:  # the copies of A lie behind W again
        assert product.joined.data_ptr() == product.weight.data_ptr()


def test_a_data_parallel_team_of_one_process_has_the_same_gradients() -> None:
    made, alone = team(), team()
    loss_of(alone).backward()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(made, find_unused_parameters=True)
        hidden = hidden_states(Through(made, parallel), spans())  # type: ignore[arg-type]
        hidden.square().sum().backward()
    finally:
        dist.destroy_process_group()
    expected = {name: p.grad for name, p in alone.named_parameters()}
    found = {name: p.grad for name, p in made.named_parameters()}
    present = {name for name, grad in expected.items() if grad is not None}
    assert {name.split(".")[1] for name in present} == {"planner", "critic"}
    for name in present:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
    assert not any(grad.any() for name, grad in found.items() if grad is not None and name not in present)


class Through:
    """A team whose passes go through the wrapper around it."""

    def __init__(self, team: TeamModel, wrapper: nn.Module) -> None:
        self.team, self.wrapper = team, wrapper

    def __call__(self, *given: object) -> object:
        return self.wrapper(*given)

    def __getattr__(self, name: str) -> object:
        return getattr(self.team, name)
