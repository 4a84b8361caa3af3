from __future__ import annotations

import random

import pytest
import torch
from families import FAMILIES, GROUPED, tiny
from teams import plain_model, team_of
from torch import Tensor
from transformers import (
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    GPTJConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
)

from marft.models import logprobs as logprobs_room
from marft.models import scoring
from marft.models.layout import Layout
from marft.models.loading import load
from marft.models.scoring import Span, action_span, hidden_states, logprobs, passes
from marft.models.team import TeamModel
from marft.types import MarftError

RANKS = {"planner": 4, "solver": 3}
PROMPTS = [(1, 50, 51, 52), (1, 60), (1, 70, 71, 72, 73, 74, 75), (1, 80, 81)]
ACTIONS = [(90, 91, 2), (92, 93, 94, 95, 2), (96,), (97, 98, 99, 2)]
ADAPTERS = ["planner", "planner", "solver", None]

TINY = {"vocab_size": 448, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
REFUSED: dict[str, PreTrainedConfig] = {
    "bloom": BloomConfig(**TINY, hidden_size=64),  # attention of its own, which would mix packed sequences
    "gpt-j": GPTJConfig(**TINY, n_embd=64, rotary_dim=8, n_positions=256),  # the same, noticed only when decoding
    "mamba": MambaConfig(vocab_size=448, hidden_size=32, num_hidden_layers=2, state_size=4, eos_token_id=2),  # none
    "gpt2": GPT2Config(**TINY, n_embd=64, n_positions=256),  # no nn.Linear to adapt
    "gemma2": Gemma2Config(
        **GROUPED, head_dim=16, query_pre_attn_scalar=16, attn_logit_softcapping=0.1
    ),  # soft cap inside attention
}


def score(team: TeamModel, which: list[int], temperature: float = 1.0) -> Tensor:
    """Log-probs of the tokens of some actions, all in one pass."""
    hidden = hidden_states(team, [action_span(ADAPTERS[i], PROMPTS[i], ACTIONS[i]) for i in which])
    tokens = torch.tensor([token for i in which for token in ACTIONS[i]])
    return logprobs(team, hidden, tokens, torch.full((len(tokens),), temperature))[0]


def padded(team: TeamModel, which: list[int]) -> Tensor:
    """The same by the model's own forward on a right-padded batch of one adapter, with the attention it came with."""
    rows = [PROMPTS[i] + ACTIONS[i] for i in which]
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    adapter = ADAPTERS[which[0]]
    model = load("nano", "cpu", "float32").model
    model.set_attn_implementation("eager")
    plain_model(team, model, [None if adapter is None else team.lora.index[adapter]])
    full = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float().log_softmax(-1)
    found = []
    for row, i in enumerate(which):
        start = len(PROMPTS[i])
        found += [full[row, start + t - 1, token] for t, token in enumerate(ACTIONS[i])]
    return torch.stack(found)


def close(one: Tensor, other: Tensor) -> None:
    """To 1e-5 of the largest number: log-probs of unlikely tokens reach -20, where fp32 is coarser than at 1."""
    torch.testing.assert_close(one, other, atol=1e-5 * max(1.0, float(other.detach().abs().max())), rtol=0)


def test_packed_equals_padded_equals_one_by_one() -> None:
    team = team_of(RANKS)
    packed = score(team, [0, 1, 2, 3])
    close(packed, torch.cat([score(team, [i]) for i in range(4)]))
    close(packed, torch.cat([padded(team, [0, 1]), padded(team, [2]), padded(team, [3])]))


def test_gradients_of_packed_equal_padded_and_one_by_one() -> None:
    found = []
    for way in ("packed", "padded", "alone"):
        team = team_of(RANKS)
        groups = {"packed": [[0, 1, 2]], "padded": [[0, 1], [2]], "alone": [[0], [1], [2]]}[way]
        for group in groups:
            scored = padded(team, group) if way == "padded" else score(team, group)
            (scored.exp().sum() / 9).backward()
        found.append({f"{n}/{key}": p.grad for n in RANKS for key, p in team.trainable_parameters(n).items()})
    packed, *others = found
    for key, grad in packed.items():
        assert grad is not None
        assert grad.abs().max() > 0, key
        for other in others:
            close(grad, other[key])


def test_order_and_company_of_a_span_do_not_matter() -> None:
    team = team_of(RANKS)
    first, second = score(team, [0, 1]), score(team, [1, 0])
    close(first, torch.cat([second[5:], second[:5]]))


def test_the_last_token_is_scored_and_never_read() -> None:
    """The end of a turn is an action like any other; no position after it is computed."""
    span = action_span("planner", (1, 5, 6), (7, 8, 2))
    assert span == Span(adapter="planner", ids=(1, 5, 6, 7, 8), asked=3)
    team = team_of(RANKS)
    assert len(score(team, [0])) == 3
    other = (*ACTIONS[0][:-1], 44)
    hidden = hidden_states(team, [action_span("planner", PROMPTS[0], other)])
    found = logprobs(team, hidden, torch.tensor(other), torch.ones(3))[0]
    close(found[:2], score(team, [0])[:2])
    assert (found[2] - score(team, [0])[2]).abs() > 1e-3


def test_logprobs_are_those_of_the_tempered_distribution() -> None:
    team = team_of(RANKS)
    hidden = hidden_states(team, [action_span("planner", PROMPTS[0], ACTIONS[0])])
    tokens = torch.tensor(ACTIONS[0])
    temperature = torch.tensor([0.5, 1.0, 2.0])
    found, entropy = logprobs(team, hidden, tokens, temperature)
    full = team.logits(hidden)
    for t in range(3):
        chances = torch.softmax(full[t].double() / temperature[t].double(), 0)
        torch.testing.assert_close(found[t].double(), chances[tokens[t]].log(), atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy[t].double(), -(chances * chances.log()).sum(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("entropy_trains", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_part_by_part_is_the_same_as_at_once(monkeypatch: pytest.MonkeyPatch, rows: int, entropy_trains: bool) -> None:
    team = team_of({"a": 4})
    ids = tuple(range(3, 20))
    found = []
    for most in (logprobs_room.MOST_LOGITS, rows * team.config.vocab_size):
        monkeypatch.setattr(logprobs_room, "MOST_LOGITS", most)
        hidden = hidden_states(team, [action_span("a", ids[:3], ids[3:])])
        temperature = torch.linspace(0.5, 1.5, len(ids) - 3)
        new, entropy = logprobs(team, hidden, torch.tensor(ids[3:]), temperature, entropy_trains=entropy_trains)
        (new.sum() + (entropy.sum() if entropy_trains else 0.0)).backward()
        gradients = [p.grad for p in team.lora.adapter_parameters("a").values()]
        found.append((new.detach(), entropy.detach(), [g.clone() for g in gradients if g is not None]))
        assert entropy.requires_grad == entropy_trains
        for parameter in team.lora.adapter_parameters("a").values():
            parameter.grad = None
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert len(found[0][2]) > 0


def test_asked_positions_are_the_last_ones() -> None:
    team = team_of(RANKS)
    ids = (1, 50, 51, 52, 53)
    whole = hidden_states(team, [Span(adapter="solver", ids=ids, asked=5)])
    some = hidden_states(team, [Span(adapter="planner", ids=ids, asked=2), Span(adapter="solver", ids=ids, asked=3)])
    assert some.shape == (5, 128)
    close(some[2:], whole[2:])


def distinct(spans: list[Span], order: list[str | None]) -> int:
    """Tokens that a pass over these spans computes."""
    return len(Layout.of([(order.index(span.adapter), span.ids) for span in spans], worth=scoring.WORTH).ids)


@pytest.mark.parametrize("budget", [1, 40, 100, 10_000])
@pytest.mark.parametrize("alike", [0, 15, 60])  # first tokens that are the same in a third of all spans
def test_passes_cover_every_span_once_within_the_budget(budget: int, alike: int) -> None:
    rng = random.Random(0)
    order: list[str | None] = ["planner", "solver", None]
    spans = [
        Span(
            adapter=rng.choice(order),
            ids=(
                *[rng.randint(5, 7)] * rng.randint(0, alike),
                *(rng.randint(8, 400) for _ in range(rng.randint(1, 60))),
            ),
            asked=1,
        )
        for _ in range(50)
    ]
    cut = passes(spans, order, budget)
    assert sorted(i for chunk in cut for i in chunk) == list(range(50))
    for chunk in cut:
        own = [spans[i] for i in chunk]
        assert distinct(own, order) <= budget or len(chunk) == 1  # one span may be longer than any budget
        assert sum(len(span.ids) for span in own) <= scoring.MOST_KEYS * budget or len(chunk) == 1
        assert own == sorted(own, key=lambda span: (order.index(span.adapter), span.ids))
    longest = [max(len(spans[i].ids) for i in chunk) for chunk in cut]
    assert longest == sorted(longest, reverse=True)


def test_spans_that_begin_alike_stay_together() -> None:
    """Eight tasks of four samples each, whose prompts are most of them: every pass holds whole tasks."""
    spans = [
        Span(adapter="planner", ids=(1, 2, *[100 + task] * (20 + task), *[200 + sample] * 5), asked=5)
        for sample in range(4)
        for task in range(8)
    ]
    cut = passes(spans, ["planner"], 2 * (29 + 4 * 5))
    tasks = [[spans[i].ids[2] - 100 for i in chunk] for chunk in cut]
    assert tasks == [[6] * 4 + [7] * 4, [4] * 4 + [5] * 4, [2] * 4 + [3] * 4, [0] * 4 + [1] * 4]
    assert distinct([spans[i] for i in cut[0]], ["planner"]) == 28 + 4 * 5 + 29 + 4 * 5


def test_a_pass_copies_few_keys_for_the_tokens_it_computes() -> None:
    """One long prompt with many short answers: few tokens, but everybody's keys."""
    spans = [Span(adapter=None, ids=(*[7] * 100, 8 + n), asked=1) for n in range(50)]
    cut = passes(spans, [None], 120)
    assert [len(chunk) for chunk in cut] == [4] * 12 + [2]


def test_no_spans_need_no_pass() -> None:
    assert passes([], [None], 10) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_run_as_they_do_alone(family: str) -> None:
    loaded = tiny(FAMILIES[family])
    rows = [p + a for p, a in zip(PROMPTS, ACTIONS, strict=True)]
    with torch.no_grad():
        own = [loaded.model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1) for row in rows]
    team = team_of(RANKS, loaded=loaded)
    spans = [Span(adapter=None, ids=row, asked=len(row)) for row in rows]
    found = team.logits(hidden_states(team, spans)).log_softmax(-1)
    assert own[0].std() > 0.1
    close(found, torch.cat(own))
    adapted = hidden_states(team, [Span(adapter="planner", ids=row, asked=len(row)) for row in rows])
    assert (team.logits(adapted).log_softmax(-1) - found).abs().max() > 1e-3


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_would_be_computed_wrongly_is_refused(family: str) -> None:
    with pytest.raises(MarftError, match="use another"):
        team_of(RANKS, loaded=tiny(REFUSED[family]))


def test_no_sequence_is_longer_than_a_sliding_window() -> None:
    """Ours sees every earlier token, so beyond the window it would not compute what the model does."""
    loaded = tiny(MistralConfig(**GROUPED, sliding_window=8))
    ids = tuple(range(50, 60))
    with torch.no_grad():
        own = loaded.model(input_ids=torch.tensor([ids])).logits[0]
    team = team_of(RANKS, loaded=loaded)
    assert team.longest == 8
    found = team.logits(hidden_states(team, [Span(adapter=None, ids=ids, asked=len(ids))]))
    close(found[: team.longest], own[: team.longest])
    assert (found[-1] - own[-1]).abs().max() > 1e-3
    assert team_of(RANKS).longest == 1024
