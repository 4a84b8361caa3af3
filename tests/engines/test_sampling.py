from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from marft.engines import sampling
from marft.engines.sampling import (
    apply_temperature,
    sample_by_blocks,
    sample_tokens,
    seeded_uniform,
    truncate_logits,
)

WORD = (1 << 64) - 1


Draw = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.fixture(params=[sample_tokens, sample_by_blocks])
def draw_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Draw:
    """At once, and as CUDA does it: first a block of the vocabulary, here of four tokens, then a token in it."""
    monkeypatch.setattr(sampling, "BLOCK", 4)
    chosen: Draw = request.param
    return chosen


def splitmix(seed: int, step: int) -> float:
    """splitmix64 as published, on Python's integers: the (step + 1)-th number of the generator seeded with `seed`."""
    x = (seed + (step + 1) * 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


def one(seed: int, step: int) -> float:
    return float(seeded_uniform(torch.tensor([seed]), torch.tensor([step])))


def row(*chances: float) -> Tensor:
    return torch.tensor([chances]).log()


@pytest.mark.parametrize("seed", [0, 1, 1234567, 2**62 + 12345, 2**63 - 1])
@pytest.mark.parametrize("step", [0, 1, 500])
def test_uniform_is_splitmix64(seed: int, step: int) -> None:
    assert one(seed, step) == splitmix(seed, step)


def test_uniform_has_its_golden_value() -> None:
    """The first output of splitmix64 with seed 1234567 is 6457827717110365317 in every published test vector."""
    assert one(1234567, 0) == (6457827717110365317 >> 11) * 2.0**-53


def test_uniform_is_uniform() -> None:
    n = 20_000
    numbers = seeded_uniform(torch.arange(n), torch.zeros(n, dtype=torch.int64))
    assert numbers.dtype == torch.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01  # five standard errors
    counts = torch.histc(numbers, bins=20, min=0, max=1)
    expected = n / 20
    assert float(((counts - expected) ** 2 / expected).sum()) < 50  # chi-square with 19 degrees: 1 in 10,000


def test_uniform_differs_by_seed_and_by_step() -> None:
    seeds, steps = torch.meshgrid(torch.arange(100), torch.arange(100), indexing="ij")
    numbers = seeded_uniform(seeds.flatten(), steps.flatten())
    assert len(numbers.unique()) == 10_000
    grid = numbers.view(100, 100)
    assert abs(float(torch.corrcoef(torch.stack([grid[:-1].flatten(), grid[1:].flatten()]))[0, 1])) < 0.05
    assert abs(float(torch.corrcoef(torch.stack([grid[:, :-1].flatten(), grid[:, 1:].flatten()]))[0, 1])) < 0.05


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_softmax(draw_at: Draw, temperature: float) -> None:
    n = 20_000
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, 0.5])
    numbers = seeded_uniform(torch.arange(n), torch.zeros(n, dtype=torch.int64))
    tokens, logprobs = draw_at(logits.expand(n, 5), torch.full((n,), temperature), numbers)
    chances = (logits / temperature).softmax(0)
    counts = torch.bincount(tokens, minlength=5)
    assert float(((counts - n * chances) ** 2 / (n * chances)).sum()) < 24  # chi-square, 4 degrees: 1 in 10,000
    torch.testing.assert_close(logprobs, chances.log()[tokens])


def test_each_row_has_its_own_settings(draw_at: Draw) -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5]]).expand(3, 3)
    tokens, logprobs = draw_at(logits, torch.tensor([0.0, 1.0, 0.1]), torch.tensor([0.0, 0.0, 0.0]).double())
    assert tokens.tolist() == [1, 0, 0]
    expected = [0.0, float(logits[0].log_softmax(0)[0]), float((logits[0] / 0.1).log_softmax(0)[0])]
    assert logprobs.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("number", "token"), [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.3999, 1), (0.4001, 2), (0.999999, 2)]
)
def test_a_number_falls_into_its_interval(draw_at: Draw, number: float, token: int) -> None:
    tokens, logprobs = draw_at(row(0.1, 0.3, 0.6), torch.ones(1), torch.tensor([number]).double())
    assert int(tokens) == token
    assert float(logprobs) == pytest.approx(math.log([0.1, 0.3, 0.6][token]), abs=1e-6)


def test_the_last_number_before_one_stays_in_the_vocabulary(draw_at: Draw) -> None:
    almost = torch.full((200,), 1 - 2.0**-53, dtype=torch.float64)
    logits = torch.randn(200, 977, generator=torch.Generator().manual_seed(0)) * 4
    tokens, logprobs = draw_at(logits, torch.ones(200), almost)
    assert tokens.max() < 977
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-53])
def test_a_token_without_mass_is_never_drawn(draw_at: Draw, number: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    tokens, logprobs = draw_at(logits, torch.ones(1), torch.tensor([number]).double())
    assert int(tokens) == (1 if number == 0 else 3)
    assert torch.isfinite(logprobs).all()


def test_greedy_takes_the_likeliest_with_certainty(draw_at: Draw) -> None:
    logits = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = draw_at(logits, torch.zeros(50), torch.rand(50).double())
    assert torch.equal(tokens, logits.argmax(-1))
    assert not logprobs.any()


def kept(chances: tuple[float, ...], top_k: int, top_p: float) -> list[int]:
    cut = truncate_logits(row(*chances), torch.tensor([top_k]), torch.tensor([top_p]))
    return torch.isfinite(cut[0]).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("top_k", "top_p", "expected"),
    [
        (0, 1.0, [0, 1, 2, 3]),
        (1, 1.0, [2]),
        (2, 1.0, [1, 2]),
        (9, 1.0, [0, 1, 2, 3]),
        (0, 0.399, [2]),  # 0.4 alone reaches it
        (0, 0.401, [1, 2]),  # 0.4 is not enough, 0.7 is
        (0, 0.699, [1, 2]),
        (0, 0.701, [1, 2, 3]),
        (0, 0.901, [0, 1, 2, 3]),
        (0, 1e-9, [2]),  # the likeliest always stays
        (1, 0.95, [2]),  # both apply
        (3, 0.5, [1, 2]),
    ],
)
def test_truncation_by_hand(top_k: int, top_p: float, expected: list[int]) -> None:
    assert kept((0.1, 0.3, 0.4, 0.2), top_k, top_p) == expected


def test_truncation_is_row_by_row_and_keeps_what_stays() -> None:
    logits = row(0.1, 0.3, 0.4, 0.2).expand(3, 4)
    cut = truncate_logits(logits, torch.tensor([2, 0, 0]), torch.tensor([1.0, 0.35, 1.0]))
    inf = -math.inf
    assert cut[0].tolist() == [inf, *logits[0, 1:3].tolist(), inf]
    assert cut[1].tolist() == [inf, inf, float(logits[1, 2]), inf]
    assert torch.equal(cut[2], logits[2])


def test_a_row_without_truncation_is_left_as_it_is() -> None:
    """Its neighbour asks for top_k; rounding must not cut this one's tail, whose mass is below 1e-8."""
    logits = torch.tensor([[20.0, 0.0, -1.0, -30.0]]).expand(2, 4)
    cut = truncate_logits(logits, torch.tensor([1, 0]), torch.tensor([1.0, 1.0]))
    assert torch.equal(cut[1], logits[1])


def test_logprobs_are_those_of_the_truncated_distribution(draw_at: Draw) -> None:
    cut = truncate_logits(row(0.1, 0.3, 0.4, 0.2), torch.tensor([0]), torch.tensor([0.6]))
    for number, token, chance in ((0.0, 1, 3 / 7), (0.42, 1, 3 / 7), (0.44, 2, 4 / 7), (0.99, 2, 4 / 7)):
        tokens, logprobs = draw_at(cut, torch.ones(1), torch.tensor([number]).double())
        assert int(tokens) == token
        assert float(logprobs) == pytest.approx(math.log(chance), abs=1e-6)


def test_the_nucleus_is_that_of_the_tempered_distribution() -> None:
    """p = (0.6, 0.3, 0.1): at temperature 1 a nucleus of 0.55 keeps one token. At temperature 2 the chances go with the
    square roots, (0.473, 0.334, 0.193), and the same nucleus keeps two."""
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    for temperature, kept in ((1.0, 1), (2.0, 2)):
        cut = truncate_logits(
            apply_temperature(logits, torch.tensor([temperature])), torch.tensor([0]), torch.tensor([0.55])
        )
        assert int(cut.isfinite().sum()) == kept


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize(("place", "width"), [(0, 10), (3, 10), (9, 10), (None, 10), (0, 3), (2, 3), (None, 3)])
@pytest.mark.parametrize("uniform_number", [0.0, 0.5, 1 - 2**-53])
def test_logits_that_are_no_distribution_give_some_token_and_no_number(
    draw_at: Draw, temperature: float, broken: float, place: int | None, width: int, uniform_number: float
) -> None:
    logits = torch.zeros(2, width)
    logits[0, slice(None) if place is None else place] = broken
    token, logprob = draw_at(
        logits, torch.full((2,), temperature), torch.full((2,), uniform_number, dtype=torch.float64)
    )
    assert logprob.isnan().tolist() == [True, False]
    assert int(token.min()) >= 0
    assert int(token.max()) < width
