from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from teams import team_of
from torch import Tensor

from marft.models import scoring
from marft.models.attention import PackedAttention
from marft.models.layout import Layout, sharing_order
from marft.models.prefix_attention import PrefixAttention, RowCopies
from marft.models.scoring import Span, hidden_states
from marft.models.team import TeamModel

CPU = torch.device("cpu")
PROMPT, OTHER = tuple(range(50, 70)), tuple(range(90, 105))
SPANS = [
    Span(adapter="planner", ids=PROMPT, asked=1),  # the beginning of the next ones
    Span(adapter="planner", ids=(*PROMPT, 3, 4, 5), asked=4),
    Span(adapter="planner", ids=(*PROMPT, 3, 4, 5), asked=4),  # the same once more
    Span(adapter="planner", ids=(*PROMPT, 3, 4, 6, 7, 8, 9), asked=7),  # nested: shares part of an answer too
    Span(adapter="planner", ids=(*PROMPT, 9), asked=2),
    Span(adapter="planner", ids=OTHER, asked=3),
    Span(adapter="solver", ids=(*PROMPT, 3, 4, 5), asked=4),  # another adapter shares nothing with the first
    Span(adapter="solver", ids=(*PROMPT, 44), asked=2),
    Span(adapter=None, ids=(*PROMPT, 3, 4, 5), asked=4),
    Span(adapter=None, ids=(*PROMPT, 3), asked=3),
]


def score(team: TeamModel, spans: list[Span], worth: float) -> tuple[Tensor, dict[str, Tensor]]:
    """States and every parameter's gradient; worth 2 is never reached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "WORTH", worth)
        hidden = hidden_states(team, spans)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    (hidden * weights).sum().backward()
    found = {
        f"{n}/{k}": p.grad for n in team.adapters for k, p in team.trainable_parameters(n).items() if p.grad is not None
    }
    for name in team.adapters:
        for parameter in team.trainable_parameters(name).values():
            parameter.grad = None
    return hidden.detach(), found


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=3e-5 * max(1.0, float(other.abs().max())), rtol=0)


@pytest.fixture(scope="module")
def small_team() -> TeamModel:
    return team_of({"a": 2, "b": 2}, targets=["q_proj", "v_proj", "down_proj"])


def test_shared_beginnings_change_no_state_and_no_gradient() -> None:
    team = team_of({"planner": 4, "solver": 3})
    plain, plain_gradients = score(team, SPANS, worth=2.0)
    shared, gradients = score(team, SPANS, worth=0.25)
    close(shared, plain)
    assert gradients.keys() == plain_gradients.keys()
    assert len(gradients) == 4 * len(team.lora.stacks)
    for key, grad in gradients.items():
        assert grad.abs().max() > 0
        close(grad, plain_gradients[key])


@settings(max_examples=25, deadline=None)
@given(
    drawn=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.lists(st.integers(5, 6), min_size=1, max_size=8)), min_size=1, max_size=7),
    data=st.data(),
)  # fmt: skip
def test_whatever_they_share(small_team: TeamModel, drawn: list[tuple[str, list[int]]], data: st.DataObject) -> None:
    spans = [Span(adapter=a, ids=tuple(ids), asked=data.draw(st.integers(1, len(ids)))) for a, ids in sorted(drawn)]
    plain, plain_gradients = score(small_team, spans, worth=2.0)
    shared, gradients = score(small_team, spans, worth=0.01)
    close(shared, plain)
    for key, grad in gradients.items():
        close(grad, plain_gradients[key])


def test_everything_but_attention_works_on_distinct_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    team, seen = team_of({"planner": 4}), list[int]()
    own = team.forward
    monkeypatch.setattr(team, "forward", lambda ids, *rest: (seen.append(ids.shape[1]), own(ids, *rest))[1])
    hidden_states(team, SPANS[:5])
    assert seen == [20 + 3 + 4 + 1]


def test_what_is_little_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    team, kinds = team_of({"planner": 4}), list[type]()
    own = team.forward
    monkeypatch.setattr(team, "forward", lambda i, p, attend, r: (kinds.append(type(attend)), own(i, p, attend, r))[1])
    alike = [Span(adapter="planner", ids=(1, 2, *range(10 + n, 17 + n)), asked=1) for n in range(3)]
    hidden_states(team, alike)  # 2 of 9 tokens
    hidden_states(team, [Span(adapter="planner", ids=(*span.ids[:5], 3), asked=1) for span in alike])  # 2 of 6
    assert kinds == [PackedAttention, PrefixAttention]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_to_copies_is_attention_inside_each_sequence(groups: int) -> None:
    """Grouped heads as well; keys and values that several sequences read collect all their gradients."""
    torch.manual_seed(0)
    sequences = [(None, span.ids) for span in SPANS if span.adapter == "planner"]
    layout = Layout.of([sequences[i] for i in sharing_order(sequences)])
    row = [torch.randn(1, heads, len(layout.ids), 8, requires_grad=True) for heads in (4, groups, groups)]
    out = PrefixAttention(layout, CPU)(0, *row, 0.3)
    whole = [x[:, :, layout.origin] for x in row]
    expected = PackedAttention(layout.lengths.tolist(), CPU)(0, *whole, 0.3)
    torch.testing.assert_close(out[:, layout.origin], expected, atol=1e-5, rtol=0)
    weights = torch.randn_like(out)
    ours = torch.autograd.grad((out * weights).sum(), row)
    sequence = torch.repeat_interleave(torch.arange(len(layout.lengths)), layout.lengths)
    place = torch.cat([torch.arange(n) for n in layout.lengths.tolist()])
    new = (place >= layout.common[sequence]).float()[None, :, None, None]
    theirs = torch.autograd.grad((expected * weights[:, layout.origin] * new).sum(), row)
    for one, other in zip(ours, theirs, strict=True):
        close(one, other)


def test_copies_add_up_in_fp32_and_in_any_order_of_names() -> None:
    index = torch.tensor([2, 0, 2, 2, 4])
    x = torch.arange(10.0).view(5, 2).bfloat16().requires_grad_()
    copied = RowCopies(index, 5, CPU)(x)
    assert torch.equal(copied, x[index])
    given_ = torch.tensor([[256.0, 1], [3, 4], [1, 1], [1, 1], [9, 8]]).bfloat16()
    (grad,) = torch.autograd.grad(copied, x, given_)
    # 256 + 1 + 1 one after the other in bf16 would stay 256
    assert grad.tolist() == [[3, 4], [0, 0], [258, 3], [0, 0], [9, 8]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the varlen flash kernel needs a GPU")
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_on_a_gpu_in_half_precision_the_same(groups: int) -> None:
    torch.manual_seed(0)
    cuda = torch.device("cuda")
    sequences = [(None, span.ids) for span in SPANS if span.adapter == "planner"]
    layout = Layout.of([sequences[i] for i in sharing_order(sequences)])
    exact = [torch.randn(1, heads, len(layout.ids), 64, requires_grad=True) for heads in (4, groups, groups)]
    half = [x.detach().to(cuda, torch.bfloat16).requires_grad_() for x in exact]
    out, found = PrefixAttention(layout, CPU)(0, *exact, 0.1), PrefixAttention(layout, cuda)(0, *half, 0.1)
    torch.testing.assert_close(found.float().cpu(), out, atol=2e-2, rtol=2e-2)
    weights = torch.randn_like(out)
    ours = torch.autograd.grad((found * weights.to(found)).sum(), half)
    for one, other in zip(ours, torch.autograd.grad((out * weights).sum(), exact), strict=True):
        torch.testing.assert_close(one.float().cpu(), other, atol=3e-2, rtol=3e-2)
