from __future__ import annotations

import pytest
import torch
from teams import fill_b, peft_of, plain_model, team_of
from torch import Tensor

from marft.models.attention import PackedAttention, attend_on_grid
from marft.models.loading import load
from marft.models.lora import LoraStack, Routing
from marft.models.scoring import Span, hidden_states
from marft.models.team import TeamModel
from marft.types import MarftError

IDS = {"planner": (1, 40, 41, 42, 43, 44), "solver": (1, 90, 91, 92, 93, 94), "critic": (1, 300, 301, 302, 303, 304)}
RANKS = {"planner": 4, "solver": 7, "critic": 2}


def logits_of(team: TeamModel, *adapters: str | None, ids: tuple[tuple[int, ...], ...]) -> Tensor:
    spans = [Span(adapter=a, ids=i, asked=len(i)) for a, i in zip(adapters, ids, strict=True)]
    logits: Tensor = team.head(hidden_states(team, spans)).float()  # with gradient
    return logits


def gradients(team: TeamModel, name: str) -> dict[str, Tensor | None]:
    return {key: parameter.grad for key, parameter in team.trainable_parameters(name).items()}


def close(one: Tensor, other: Tensor) -> None:
    """To 1e-5 of the largest number, which is what fp32 allows: nano's logits reach 30."""
    torch.testing.assert_close(one, other, atol=1e-5 * max(1.0, float(other.detach().abs().max())), rtol=0)


@pytest.mark.parametrize("name", ["planner", "solver"])
def test_equals_peft_forward_and_gradient(name: str) -> None:
    team = team_of(RANKS)
    peft = peft_of(team, name)
    ours = logits_of(team, name, ids=(IDS[name],))
    theirs = peft(input_ids=torch.tensor([IDS[name]])).logits[0]
    close(ours, theirs)
    target = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0))
    (ours.softmax(-1) * target).mean().backward()
    (theirs.softmax(-1) * target).mean().backward()
    grads = gradients(team, name)
    assert len(grads) == 2 * 7 * 4
    for layer in team.lora.stacks:
        lora = peft.base_model.model.get_submodule(layer)
        for side, transpose in (("lora_A", False), ("lora_B", True)):
            theirs_grad = getattr(lora, side)["default"].weight.grad
            ours_grad = grads[f"{layer}.{side[-1].lower()}"]
            assert ours_grad is not None
            assert ours_grad.abs().max() > 1e-6
            close(ours_grad, theirs_grad.T if transpose else theirs_grad)


def test_adapters_matter_and_differ() -> None:
    team = team_of(RANKS)
    ids = (IDS["planner"],)
    base, planner, solver = (logits_of(team, name, ids=ids) for name in (None, "planner", "solver"))
    assert (planner - base).abs().max() > 0.05
    assert (planner - solver).abs().max() > 0.05


def test_a_fresh_team_is_the_base() -> None:
    team = team_of(RANKS, std=0.0)
    ids = (IDS["planner"],)
    assert torch.equal(logits_of(team, "planner", ids=ids), logits_of(team, None, ids=ids))


def test_mixed_batch_equals_separate_batches() -> None:
    together, apart = team_of(RANKS), team_of(RANKS)
    order = ("planner", "planner", "solver", None)
    ids = (IDS["planner"], IDS["solver"][:4], IDS["critic"][:5], IDS["planner"])
    mixed = logits_of(together, *order, ids=ids)
    (mixed.softmax(-1) ** 2).mean().backward()
    separate = [logits_of(apart, adapter, ids=(i,)) for adapter, i in zip(order, ids, strict=True)]
    for piece in separate:
        if piece.requires_grad:
            ((piece.softmax(-1) ** 2).sum() / mixed.numel()).backward()
    close(mixed, torch.cat(separate))
    for name in ("planner", "solver"):
        for (key, one), other in zip(gradients(together, name).items(), gradients(apart, name).values(), strict=True):
            assert one is not None, key
            assert other is not None, key
            close(one, other)


def test_agents_without_rows_get_no_gradient() -> None:
    team = team_of(RANKS, critics=["critic"])
    logits_of(team, "solver", ids=(IDS["solver"],)).logsumexp(-1).sum().backward()
    for name in ("planner", "critic"):
        assert all(grad is None or not grad.any() for grad in gradients(team, name).values())
    assert all(grad is not None and grad.any() for grad in gradients(team, "solver").values())
    assert all(p.grad is None for p in team.base.parameters())


def test_rows_of_a_step_equal_packed_sequences_and_plain_arithmetic() -> None:
    team = team_of(RANKS)
    rows: list[int | None] = [1, None, 0, 2, 1]
    ids = torch.arange(5 * 6).view(5, 6) + 50
    masks = team.lora.masks(team.device)
    routing = Routing(masks[[len(masks) - 1 if i is None else i for i in rows]].repeat_interleave(6, 0))
    attend = PackedAttention([6] * 5, team.device)
    plain = plain_model(team, load("nano", "cpu", "float32").model, rows, [6] * 5)
    with torch.no_grad():
        masked = team(ids, torch.arange(6).expand(5, 6), Causal(), routing)
        packed = team(ids.view(1, -1), attend.position_ids, attend, team.routing(rows, [6] * 5)).view_as(masked)
        expected = plain.base_model(input_ids=ids).last_hidden_state
    close(masked, expected)
    close(packed, expected)


class Causal:
    """Plain causal attention of a batch of equal lengths."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return attend_on_grid(q, k, v, scale).transpose(1, 2)


def test_no_gradient_mode_computes_the_same() -> None:
    """Without gradient the adapters' share is added in place."""
    team = team_of(RANKS)
    order, ids = ("planner", "solver"), (IDS["planner"], IDS["solver"])
    with torch.no_grad():
        quick = logits_of(team, *order, ids=ids)
    close(quick, logits_of(team, *order, ids=ids))


@pytest.mark.parametrize("routing", ["segments", "none"])
def test_base_alone_is_exact(routing: str) -> None:
    """Adapter None must be the reference policy bit for bit, in a packed row and with no routing at all."""
    plain = load("nano", "cpu", "float32").model
    team = team_of(RANKS)
    expected = team_of(RANKS, std=0.0)
    ids = IDS["planner"]
    if routing == "segments":
        found = logits_of(team, None, ids=(ids,))
    else:
        attend = PackedAttention([len(ids)], team.device)
        found = team.logits(team(torch.tensor([ids]), attend.position_ids, attend, None))[0]
    assert torch.equal(found, logits_of(expected, None, ids=(ids,)))
    close(found, plain(input_ids=torch.tensor([ids])).logits[0])


def test_parameters_are_views_that_mask_routing_sees_at_once() -> None:
    team = team_of(RANKS)
    stack: LoraStack = next(iter(team.lora.stacks.values()))
    before_a, before_b = stack.all_a.clone(), stack.all_b.clone()
    where = stack.all_a.data_ptr()
    routing = Routing(team.lora.masks(team.device)[[1]])
    ids = torch.tensor([[60]])

    def solver() -> Tensor:
        with torch.no_grad():
            return team(ids, torch.zeros(1, 1, dtype=torch.int64), Causal(), routing)

    before = solver()
    optimizer = torch.optim.AdamW(team.trainable_parameters("solver").values(), lr=0.01)
    logits_of(team, "solver", ids=(IDS["solver"],)).logsumexp(-1).sum().backward()
    optimizer.step()
    assert stack.all_a.data_ptr() == where
    assert all(p.data_ptr() != 0 and p.is_leaf for p in team.trainable_parameters("solver").values())
    solver_rows, others = slice(4, 11), [*range(4), 11, 12]
    for now, then in ((stack.all_a, before_a), (stack.all_b, before_b)):
        assert (now[solver_rows] != then[solver_rows]).any(dim=1).all()
        assert torch.equal(now[others], then[others])
    after = solver()
    assert (after - before).abs().max() > 1e-3
    close(after, hidden_states(team, [Span(adapter="solver", ids=(60,), asked=1)])[None].detach())


def test_a_stack_keeps_each_rank_and_scaling() -> None:
    team = team_of(RANKS)
    table = team.lora.masks(team.device)
    assert table.shape == (4, 13)
    assert (table > 0).sum(1).tolist() == [4, 7, 2, 0]
    for i, rank in enumerate(RANKS.values()):
        torch.testing.assert_close(table[i].max(), torch.tensor((2 * rank + 1) / rank))


def test_adapters_stay_fp32_on_a_bfloat16_base() -> None:
    """Steps far below bfloat16's resolution must not be lost."""
    team = team_of(RANKS, loaded=load("nano", "cpu", "bfloat16"))
    assert {p.dtype for p in team.base.parameters()} == {torch.bfloat16}
    parameters = team.trainable_parameters("solver")
    assert {p.dtype for p in parameters.values()} == {torch.float32}
    before = {key: p.detach().clone() for key, p in parameters.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=1e-6)
    logits = logits_of(team, "solver", ids=(IDS["solver"],))
    assert logits.dtype == torch.float32
    logits.logsumexp(-1).sum().backward()
    assert {p.grad.dtype for p in parameters.values() if p.grad is not None} == {torch.float32}
    optimizer.step()
    for key, parameter in parameters.items():
        assert (parameter != before[key]).any(), key
        assert (parameter - before[key]).abs().max() < 1e-3


def test_targets_choose_layers_by_their_last_name() -> None:
    team = team_of(RANKS, targets=["q_proj", "down_proj"])
    assert {name.rpartition(".")[2] for name in team.lora.stacks} == {"q_proj", "down_proj"}
    assert len(team.lora.stacks) == 8


def test_all_linear_leaves_the_head_alone() -> None:
    team = team_of(RANKS)
    assert "lm_head" not in team.lora.stacks
    assert len(team.lora.stacks) == 28


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(MarftError, match=r"'query'.*down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"):
        team_of(RANKS, targets=["q_proj", "query"])


def test_names_that_contain_each_other_are_kept_apart() -> None:
    names = {f"agent_{i}": 2 for i in range(12)}
    team = team_of(names)
    one, ten = team.trainable_parameters("agent_1"), team.trainable_parameters("agent_10")
    assert one.keys() == ten.keys()
    assert len(one) == 56
    assert {p.data_ptr() for p in one.values()}.isdisjoint(p.data_ptr() for p in ten.values())
    logits_of(team, "agent_10", ids=((5, 6, 7),)).logsumexp(-1).sum().backward()
    assert all(p.grad is not None for p in ten.values())
    assert all(p.grad is None for p in one.values())


def test_the_seed_alone_decides_the_start() -> None:
    torch.manual_seed(1)
    one = team_of(RANKS).trainable_parameters("planner")
    state = torch.get_rng_state()
    other_team = team_of(RANKS)
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are left alone
    fill_b(other_team, 0.05)
    for key, parameter in other_team.trainable_parameters("planner").items():
        assert torch.equal(parameter, one[key])
