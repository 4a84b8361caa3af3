"""The local engine on a GPU: what it says there is what a CPU would say, up to the precision's rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from asking import FREE, RANKS, WILD, ask, request, tokens_read
from teams import team_of

from marft.engines.cuda_graphs import CudaGraphStepper
from marft.engines.eager import EagerStepper
from marft.engines.local import LocalEngine
from marft.engines.sampling import sample_tokens
from marft.models.loading import load
from marft.models.quantized import Kind
from marft.models.scoring import action_span, hidden_states, logprobs
from marft.models.team import TeamModel
from marft.types import Completion, MarftError, Request

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def team_in(dtype: str, device: str = "cuda", quantize: Kind | None = None) -> TeamModel:
    team = team_of(RANKS, loaded=load("nano", "cpu" if quantize else device, dtype), std=0.05)  # adapters that matter
    if quantize is not None:
        team.quantize(quantize, torch.device(device))
    return team


def fp32_of(dtype: str, quantize: Kind | None) -> TeamModel:
    """On a CPU in fp32, of the numbers that `dtype` has: few bits of others would be other bits, wherever a number is
    between two."""
    team = team_of(RANKS, loaded=load("nano", "cpu", "float32"), std=0.05)
    for parameter in team.base.parameters():
        if not parameter.requires_grad:
            parameter.data.copy_(parameter.data.to(getattr(torch, dtype)))
    if quantize is not None:
        team.quantize(quantize, torch.device("cpu"))
    return team


def questions(count: int = 60) -> list[Request]:
    adapters = ("planner", "solver", None)
    return [
        request(
            i // 3, adapter=adapters[i % 3], seed=i, sampling=replace(WILD if i % 2 else FREE, max_tokens=5 + i % 30)
        )
        for i in range(count)
    ]


def distance(team: TeamModel, asked: Sequence[Request], said: Sequence[Completion]) -> float:
    """The mean k3 estimate of the KL between sampled log-probs and those that `team` computes."""
    total, tokens = 0.0, 0
    with torch.no_grad():
        for one, other in zip(asked, said, strict=True):
            ids = torch.tensor(other.token_ids, device=team.device)
            hidden = hidden_states(team, [action_span(one.adapter, one.prompt_ids, other.token_ids)])
            heat = torch.full(ids.shape, one.sampling.temperature, device=team.device)
            new = logprobs(team, hidden, ids, heat)[0].cpu()
            ratio = new - torch.tensor(other.logprobs)
            total, tokens = total + float((ratio.exp() - 1 - ratio).sum()), tokens + len(ids)
    return total / tokens


def test_fp32_says_what_a_cpu_says() -> None:
    asked = questions()
    engine = LocalEngine(team_in("float32"), 16)
    assert isinstance(engine.stepper, EagerStepper)
    there, here = ask(engine, *asked), ask(LocalEngine(team_in("float32", "cpu"), 16), *asked)
    same = sum(one.token_ids == other.token_ids for one, other in zip(there, here, strict=True))
    assert same >= 0.95 * len(asked)  # a draw may fall on a border


@pytest.mark.parametrize("slots", [4, 16, 100])
def test_captured_steps_draw_from_what_training_computes(slots: int) -> None:
    team, asked = team_in("bfloat16"), questions()
    engine = LocalEngine(team, slots)
    assert isinstance(engine.stepper, CudaGraphStepper)
    said = ask(engine, *asked)
    assert distance(team, asked, said) < 1e-3
    assert distance(team_in("float32", "cpu"), asked, said) < 1e-3
    bare = [replace(one, adapter=None) for one in asked]
    assert distance(team, bare, said) > 1e-2  # the bound would notice adapters that are left out
    assert {len(one.token_ids) for one in said} > {5}


@pytest.mark.parametrize(
    ("dtype", "quantize"), [("float16", None), ("bfloat16", "int8"), ("bfloat16", "nf4"), ("float16", "nf4")]
)
def test_captured_steps_of_other_bases_draw_from_what_training_computes(dtype: str, quantize: Kind | None) -> None:
    team, asked = team_in(dtype, quantize=quantize), questions()
    engine = LocalEngine(team, 16)
    assert isinstance(engine.stepper, CudaGraphStepper)
    for factor in (1.0, -2.0):  # graphs that were captured before find new weights
        with torch.no_grad():
            for name in RANKS:
                for parameter in team.trainable_parameters(name).values():
                    parameter.mul_(factor)
        said = ask(engine, *asked)
        assert distance(team, asked, said) < 1e-3
        there = fp32_of(dtype, quantize)
        there.load_adapters({name: team.trainable_parameters(name) for name in RANKS})
        assert distance(there, asked, said) < 1e-3
    bare = [replace(one, adapter=None) for one in asked]
    assert distance(team, bare, said) > 1e-2


@pytest.mark.parametrize(
    ("dtype", "quantize"), [("float16", None), ("bfloat16", "int8"), ("bfloat16", "nf4"), ("float16", "nf4")]
)
def test_gradients_of_other_bases_are_those_of_a_cpu_in_fp32(dtype: str, quantize: Kind | None) -> None:
    """However small a token's part of the loss is."""
    found = []
    for team, share in ((team_in(dtype, quantize=quantize), 1e-9), (fp32_of(dtype, quantize), 1.0)):
        hidden = hidden_states(team, [action_span("solver", (1, 40, 41, 42, 43), (44, 61, 62, 63))])
        tokens = torch.tensor([44, 61, 62, 63], device=team.device)
        new = logprobs(team, hidden, tokens, torch.ones(4, device=team.device))[0]
        (new * share).sum().backward()
        gradients = [p.grad for p in team.trainable_parameters("solver").values() if p.grad is not None]
        found.append(torch.cat([(gradient / share).flatten().cpu() for gradient in gradients]))
    bound = 0.02 if dtype == "float16" else 0.05  # of bfloat16's eight bits
    assert (found[0] - found[1]).norm() < bound * found[1].norm()


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_device_never_holds_the_whole_base_in_full(kind: Kind) -> None:
    torch.cuda.empty_cache()
    team = team_of(RANKS, loaded=load("nano", "cpu", "float32"))
    whole = sum(p.nbytes for p in team.base.parameters())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    team.quantize(kind, torch.device("cuda"))
    assert team.device.type == "cuda"
    assert torch.cuda.max_memory_allocated() - before < whole


def test_graphs_are_captured_anew_where_what_they_know_has_moved() -> None:
    """Longer rows, more tokens, a new stop string: the cache, the drawn tokens and the stop tokens' table lie elsewhere."""
    team, asked = team_in("bfloat16"), questions()
    engine = LocalEngine(team, 16)
    ask(engine, *asked)
    longer = [replace(one, sampling=replace(WILD, max_tokens=300)) for one in asked[:20]]
    stopped = [replace(one, sampling=replace(one.sampling, stop=("-",))) for one in asked]
    for questions_ in (longer, stopped, asked):
        assert distance(team, questions_, ask(engine, *questions_)) < 1e-3


def test_the_same_question_has_the_same_answer_in_any_company() -> None:
    """Up to rounding: most replies are equal, token by token."""
    team, asked = team_in("bfloat16"), questions()
    together = ask(LocalEngine(team, 64), *asked)
    alone = [ask(LocalEngine(team, 1), one)[0] for one in asked[:12]]
    assert sum(one.token_ids == other.token_ids for one, other in zip(alone, together, strict=False)) >= 9


def test_new_weights_are_used_by_graphs_that_were_captured_before() -> None:
    team, asked = team_in("bfloat16"), questions()
    engine = LocalEngine(team, 16)
    ask(engine, *asked)
    with torch.no_grad():
        for name in RANKS:
            for parameter in team.trainable_parameters(name).values():
                parameter.mul_(2.0)
    said = ask(engine, *asked)
    assert distance(team, asked, said) < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("slots", [4, 100])
def test_conversations_go_on_from_what_was_kept(dtype: str, slots: int) -> None:
    """Captured steps write a key for idle rows too; what a turn left must not be among what they overwrite."""
    team, asked = team_in(dtype), [replace(one, episode=i) for i, one in enumerate(questions())]
    engine = LocalEngine(team, slots, keep=len(asked))
    for _ in range(4):
        said = ask(engine, *asked)
        assert len(engine.kept) == len(asked)
        assert distance(team, asked, said) < 1e-3
        asked = [
            replace(one, prompt_ids=(*one.prompt_ids, *other.token_ids, 60, 61, 62))
            for one, other in zip(asked, said, strict=True)
        ]


def test_what_is_kept_reads_less_and_gives_way_to_new_weights() -> None:
    team, asked = team_in("bfloat16"), [replace(one, episode=i) for i, one in enumerate(questions(12))]
    engine = LocalEngine(team, 16, keep=len(asked))
    said = ask(engine, *asked)
    asked = [
        replace(one, prompt_ids=(*one.prompt_ids, *other.token_ids, 60, 61))
        for one, other in zip(asked, said, strict=True)
    ]
    seen, _ = tokens_read(team, engine, *asked)
    assert seen[0] == 3 * len(asked)
    with torch.no_grad():
        for name in RANKS:
            for parameter in team.trainable_parameters(name).values():
                parameter.mul_(2.0)
    seen, said = tokens_read(team, engine, *asked)
    assert seen[0] > 10 * len(asked)
    assert distance(team, asked, said) < 1e-3


def test_greedy_truncated_and_stopped_rows() -> None:
    team = team_in("bfloat16")
    kinds = (
        replace(FREE, temperature=0.0),
        replace(WILD, top_k=2),
        replace(WILD, top_p=0.3),
        replace(FREE, stop=("-",)),
    )
    asked = [replace(one, sampling=kinds[i % 4]) for i, one in enumerate(questions(40))]
    said = ask(LocalEngine(team, 16), *asked)
    assert all(not any(one.logprobs) for one in said[::4])
    assert any(one.stop == "-" for one in said[3::4])
    assert all("-" not in one.text for one in said[3::4])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_no_numbers_name_their_adapter_and_leave_the_device_usable(dtype: str) -> None:
    team, asked = team_in(dtype), questions()
    asked += [replace(one, sampling=replace(one.sampling, temperature=0.0)) for one in asked[:9]]
    engine = LocalEngine(team, 16)
    expected = ask(engine, *asked)
    weight = team.lora.adapter_parameters("solver")["model.layers.0.self_attn.v_proj.b"]
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
        with pytest.raises(MarftError, match="adapter 'solver' has weights that are NaN or infinite"):
            ask(engine, *asked)
        weight.copy_(kept)
    assert [one.token_ids for one in ask(engine, *asked)] == [one.token_ids for one in expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 5, 2047, 49151, slice(None)])
def test_logits_that_are_no_distribution_give_some_token_and_no_number(
    temperature: float, broken: float, place: int | slice
) -> None:
    logits = torch.zeros(4, 49152, device="cuda")
    logits[1, place] = broken
    heat, uniform_number = torch.full((4,), temperature, device="cuda"), torch.rand(4, device="cuda").double()
    token, logprob = sample_tokens(logits, heat, uniform_number)
    assert logprob.isnan().tolist() == [False, True, False, False]
    assert int(token.min()) >= 0
    assert int(token.max()) < 49152
