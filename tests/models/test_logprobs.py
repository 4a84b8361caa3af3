from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear

from marft.models import logprobs as room
from marft.models.logprobs import TokenLogProbs, head_logits, in_fp32

AFTER_THE_HEAD: dict[str, dict[str, float]] = {
    "nothing": {},
    "divided": {"logits_scaling": 3.0},
    "multiplied": {"logit_scale": 0.5},
    "capped": {"final_logit_softcapping": 2.0},
    "all": {"logits_scaling": 3.0, "logit_scale": 0.5, "final_logit_softcapping": 2.0},
}


def headed(width: int, words: int, *, bias: bool = False, dtype: torch.dtype = torch.float32, **after: float) -> Any:
    head = nn.Linear(width, words, bias=bias).requires_grad_(False).to(dtype)
    return SimpleNamespace(head=head, config=SimpleNamespace(**after))


def plain(team: Any, hidden: Tensor, tokens: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The same in fp64, by the formulas and autograd."""
    bias = team.head.bias
    z = linear(hidden, team.head.weight.double(), None if bias is None else bias.double())
    z = z / getattr(team.config, "logits_scaling", 1.0) * getattr(team.config, "logit_scale", 1.0)
    if cap := getattr(team.config, "final_logit_softcapping", None):
        z = torch.tanh(z / cap) * cap
    full = (z / temperature[:, None].double()).log_softmax(-1)
    return full.gather(1, tokens[:, None]).squeeze(1), -(full.exp() * full).sum(-1)


def gradients(way: Any, hidden: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values, entropies, and the gradient of a random mixture of both."""
    hidden = hidden.clone().requires_grad_()
    found, entropy = way(hidden)
    mix = torch.Generator().manual_seed(seed)
    weights = torch.randn(2, len(hidden), generator=mix, dtype=torch.float64)
    loss = (weights[0] * found).sum() + ((weights[1] * entropy).sum() if entropy.requires_grad else 0.0)
    (grad,) = torch.autograd.grad(loss, hidden)
    return found.detach(), entropy.detach(), grad


@pytest.mark.parametrize("after", AFTER_THE_HEAD)
@pytest.mark.parametrize("bias", [False, True])
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 9), width=st.integers(1, 12), words=st.integers(2, 30), most=st.integers(1, 200),
       hot=st.floats(0.2, 3.0), seed=st.integers(0, 99))  # fmt: skip
def test_values_and_gradients_are_those_of_the_formula(
    after: str, bias: bool, rows: int, width: int, words: int, most: int, hot: float, seed: int
) -> None:
    """Also cut into parts of any size."""
    torch.manual_seed(seed)
    team = headed(width, words, bias=bias, **AFTER_THE_HEAD[after])
    hidden, tokens = torch.randn(rows, width) * 3, torch.randint(0, words, (rows,))
    temperature = torch.rand(rows) + hot
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "MOST_LOGITS", most)
        ours = gradients(lambda h: TokenLogProbs.apply(h, tokens, temperature, team, True), hidden, seed)
    theirs = gradients(lambda h: plain(team, h, tokens, temperature), hidden.double(), seed)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=2e-5)


def test_the_entropy_has_a_gradient_only_where_it_is_trained() -> None:
    team, hidden = headed(4, 7), torch.randn(3, 4, requires_grad=True)
    given_ = (torch.tensor([0, 3, 6]), torch.ones(3), team)
    found, entropy = TokenLogProbs.apply(hidden, *given_, False)
    assert found.requires_grad
    assert not entropy.requires_grad
    trained, with_slope = TokenLogProbs.apply(hidden, *given_, True)
    assert with_slope.requires_grad
    assert torch.equal(found, trained)
    (alone,) = torch.autograd.grad(found.sum(), hidden)
    (untouched,) = torch.autograd.grad(trained.sum(), hidden)
    assert torch.equal(alone, untouched)


def test_nothing_as_wide_as_the_vocabulary_is_kept_for_the_backward_pass() -> None:
    team, hidden = headed(4, 1000), torch.randn(5, 4, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()), lambda _: None):
        TokenLogProbs.apply(hidden, torch.zeros(5, dtype=torch.int64), torch.ones(5), team, True)
    assert kept == [20, 20]


def test_half_precision_weights_give_logits_that_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    team = headed(32, 50, bias=True, dtype=torch.bfloat16)
    hidden = (torch.randn(6, 32) * 8).bfloat16()
    exact = linear(hidden.double(), team.head.weight.double(), team.head.bias.double())
    for most in (1, 100, 1 << 24):  # weights widened at once
        monkeypatch.setattr(room, "MOST_WIDENED", most)
        found = head_logits(team, hidden)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0)
    assert (exact - exact.bfloat16()).abs().max() > 1e-2  # what rounding would have done


def test_half_precision_gradients_are_rounded_once() -> None:
    torch.manual_seed(0)
    team = headed(32, 50, dtype=torch.bfloat16)
    hidden, tokens, temperature = torch.randn(6, 32).bfloat16(), torch.randint(0, 50, (6,)), torch.rand(6) + 0.5
    found, _, grad = gradients(lambda h: TokenLogProbs.apply(h, tokens, temperature, team, False), hidden, 0)
    exact, _, slope = gradients(lambda h: (plain(team, h, tokens, temperature)[0], torch.zeros(6)), hidden.double(), 0)
    assert grad.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0)
    torch.testing.assert_close(grad.double(), slope, atol=1e-4, rtol=1e-2)


def test_logits_keep_the_shape_of_what_they_are_asked_for() -> None:
    team, hidden = headed(4, 7), torch.randn(2, 3, 4, requires_grad=True)
    logits = head_logits(team, hidden)
    assert logits.shape == (2, 3, 7)
    assert not logits.requires_grad
    torch.testing.assert_close(logits, linear(hidden, team.head.weight).detach())


def test_a_product_with_narrow_columns_is_the_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    x, m = torch.randn(3, 5), torch.randn(5, 8).bfloat16()
    expected = x @ m.float()
    for most in (1, 5, 17, 1000):
        monkeypatch.setattr(room, "MOST_WIDENED", most)
        torch.testing.assert_close(in_fp32(x, m), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_in_half_precision_logits_are_not_rounded() -> None:
    torch.manual_seed(0)
    team = headed(64, 500, bias=True, dtype=torch.bfloat16)
    hidden, tokens, temperature = torch.randn(6, 64).bfloat16(), torch.randint(0, 500, (6,)), torch.rand(6) + 0.5
    there = [x.cuda() for x in (hidden, tokens, temperature)]
    expected = gradients(lambda h: TokenLogProbs.apply(h, tokens, temperature, team, True), hidden, 0)
    logits = head_logits(team, hidden)
    team.head.cuda()
    torch.testing.assert_close(head_logits(team, there[0]).cpu(), logits, atol=1e-4, rtol=0)
    leaf = there[0].requires_grad_()
    found, entropy = TokenLogProbs.apply(leaf, there[1], there[2], team, True)
    torch.testing.assert_close(found.cpu(), expected[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy.cpu(), expected[1], atol=1e-4, rtol=0)
    weights = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cuda()
    (grad,) = torch.autograd.grad((weights[0] * found).sum() + (weights[1] * entropy).sum(), leaf)
    torch.testing.assert_close(grad.cpu().float(), expected[2].float(), atol=1e-3, rtol=2e-2)
