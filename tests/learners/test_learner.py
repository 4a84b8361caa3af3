"""The learner on the embedded nano model: one minibatch however it is computed, what an update does, known defects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from lessons import (
    ACTION,
    DUO,
    GRPO,
    SCRIPTS,
    TOKEN,
    Seat,
    assert_same,
    changed,
    episode,
    episodes,
    gradients,
    learn,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    said_in,
    score,
    seat,
    snapshot,
    update,
)
from torch.testing import assert_close

from marft.algorithms.base import Algorithm
from marft.engines.local import LocalEngine
from marft.game.observation import central_state
from marft.learners.base import NotFinite
from marft.models.chat import render
from marft.models.scoring import Span, hidden_states
from marft.types import Completion, Episode, Message, Request, Reward, Sampling, Task, Turn


def seats(algorithm: Algorithm, agents: Sequence[str] = DUO) -> list[Seat]:
    """A team, with a critic where the algorithm needs one."""
    return seat(make_team(agents), critic="critic" if algorithm.values_at else None)


# --- one minibatch, however it is computed ----------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", [TOKEN, ACTION, GRPO], ids=lambda a: type(a).__name__)
def test_passes_of_few_tokens_give_the_same_gradients(algorithm: Algorithm) -> None:
    members = seats(algorithm)
    batch = make_batch(members, episodes(members))
    whole, pieces = (make_learner(members, algorithm, tokens=tokens, entropy=0.01) for tokens in (8192, 64))
    assert_same(gradients(whole, lesson_of(whole, batch, kl=0.1)), gradients(pieces, lesson_of(pieces, batch, kl=0.1)))


@pytest.mark.parametrize(
    ("tasks", "minibatches", "whole"),
    [(4, 2, True), (4, 4, True), (9, 2, True), (5, 2, False), (5, 4, False), (2, 3, False), (1, 3, False)],
)
def test_minibatches_keep_tasks_whole_where_that_leaves_them_alike(tasks: int, minibatches: int, whole: bool) -> None:
    members = seats(GRPO)
    played = [
        episode(members, SCRIPTS[s % len(SCRIPTS)][0], 0.0, task=f"t{t}", sample=s)
        for s in range(3)  # a task's samples need not stand together
        for t in range(tasks)
    ]
    batch = make_batch(members, played)
    learner = make_learner(members, GRPO, epochs=2, minibatches=minibatches)
    found = list(learner.minibatches(batch, torch.Generator().manual_seed(0)))
    assert len(found) == 2 * minibatches
    for epoch in (found[:minibatches], found[minibatches:]):
        assert torch.cat(epoch).sort().values.tolist() == list(range(len(batch.length_K)))
    owners = [{played[e].task.id for e in batch.episode_K[turns_J].tolist()} for turns_J in found]
    assert (sum(map(len, owners)) == 2 * tasks) == whole
    sizes = [len(batch.episode_K[turns_J].unique()) for turns_J in found]
    assert max(sizes) <= 1.25 * min(sizes) or max(sizes) - min(sizes) == 1
    assert any(not torch.equal(a, b) for a, b in zip(found[:minibatches], found[minibatches:], strict=True))


def test_a_mixed_batch_is_its_episodes_added_up() -> None:
    """The gradient of a turn does not depend on what shares its pass."""
    members = seats(TOKEN)
    played = episodes(members)[:2]
    learner = make_learner(members)
    mixed = gradients(learner, lesson_of(learner, make_batch(members, played)))
    sizes = [sum(len(t.completion.token_ids) for t in e.turns) for e in played]
    total = {key: torch.zeros_like(tensor) for key, tensor in mixed.items()}
    for one, size in zip(played, sizes, strict=True):
        for key, tensor in gradients(learner, lesson_of(learner, make_batch(members, [one]))).items():
            # both agents have a turn in each episode: turns weigh ½; the critic's mean is over tokens
            total[key] += tensor * (size / sum(sizes) if key.startswith("critic/") else 0.5)
    assert_same(mixed, total)


def test_the_order_of_episodes_changes_nothing() -> None:
    members = seats(TOKEN)
    learner = make_learner(members)
    played = episodes(members)
    there, back = (lesson_of(learner, make_batch(members, order)) for order in (played, played[::-1]))
    assert_same(gradients(learner, there), gradients(learner, back))


def test_values_come_in_the_order_of_the_turns() -> None:
    members = seats(TOKEN)
    played = episodes(members)
    batch = make_batch(members, played)
    for algorithm in (TOKEN, ACTION):
        together = make_learner(members, algorithm).values(batch)
        in_pieces = make_learner(members, algorithm, tokens=64).values(batch)
        alone = [make_learner(members, algorithm).values(make_batch(members, [e])) for e in played]
        assert together is not None
        assert in_pieces is not None
        assert len(together) == (len(batch.tokens_N) if algorithm.values_at == "token" else len(batch.length_K))
        assert_close(together, in_pieces, atol=1e-5, rtol=0)
        assert_close(together, torch.cat([v for v in alone if v is not None]), atol=1e-5, rtol=0)


def test_the_value_of_a_turn_is_read_before_its_first_token() -> None:
    members = seats(TOKEN)
    batch = make_batch(members, episodes(members))
    tokens, turns = make_learner(members, TOKEN).values(batch), make_learner(members, ACTION).values(batch)
    assert tokens is not None
    assert turns is not None
    assert_close(tokens[batch.starts_K], turns, atol=1e-5, rtol=0)


def test_an_episode_cut_off_is_worth_what_the_critic_expects_of_it() -> None:
    team = make_team()
    members = seat(team)
    ended = episode(members, SCRIPTS[0][0], 0.0)
    cut = replace(ended, ended="cut_off", cut_before="planner")
    batch = make_batch(members, [ended, cut])
    learner = make_learner(members, ACTION)
    final = learner.final_values(batch)
    assert final[0] == 0
    state = central_state(task=cut.task, shown="", turns=cut.turns, next_agent="planner")
    with torch.no_grad():
        ids = render(team.tokenizer, state)
        hidden = hidden_states(team, [Span(adapter="critic", ids=ids, asked=1)])
    assert_close(final[1:], team.values("critic", hidden).detach(), atol=1e-5, rtol=0)
    assert final[1].abs() > 1e-4
    lesson = lesson_of(learner, batch)
    assert lesson.values is not None
    last = torch.tensor([1, 3])  # A = r + γ V(s_K) − V, and r = 0
    found = lesson.estimate.advantages_N[batch.starts_K][last]
    assert_close(found, final - lesson.values[last], atol=1e-5, rtol=0)


# --- what an update does ----------------------------------------------------------------------------------------------
def test_a_first_step_starts_at_ratio_one() -> None:
    members = seats(TOKEN)
    found = learn(make_learner(members), make_batch(members, episodes(members)))
    for agent in DUO:
        assert found[agent]["kl"] == pytest.approx(0, abs=1e-8)
        assert found[agent]["clip_fraction"] == 0
        assert found[agent]["entropy"] > 0
        assert found[agent]["grad_norm"] > 0
    assert found["critic"]["loss"] > 0


def test_rewarded_tokens_become_likelier_and_punished_ones_rarer() -> None:
    team = make_team(stir=0.0)
    members = seat(team, critic=None)
    played = episodes(members)[:2]
    learn(make_learner(members, GRPO), make_batch(members, played))
    for one, sign in zip(played, (1, -1), strict=True):
        for turn in one.turns:
            new = score(team, turn.agent, turn.prompt_ids, turn.completion.token_ids)
            assert sign * (new - torch.tensor(turn.completion.logprobs)).mean() > 0


def test_the_critic_learns_the_return() -> None:
    members = seat(make_team(stir=0.0))
    learner = make_learner(members, epochs=10)
    batch = make_batch(members, [episode(members, SCRIPTS[0][0], 1.0)])
    first = learn(learner, batch)["critic"]["loss"]
    assert learn(learner, batch)["critic"]["loss"] < 0.5 * first


def test_warm_up_trains_the_critic_alone() -> None:
    team = make_team()
    members = seat(team)
    before = {name: snapshot(team, name) for name in (*DUO, "critic")}
    learner = make_learner(members)
    update(learner, lesson_of(learner, make_batch(members, episodes(members))), (frozenset(),))
    assert [name for name in before if changed(team, name, before[name])] == ["critic"]
    assert not any(learner.optimizers[name].state for name in DUO)


def test_a_batch_that_teaches_nothing_moves_nobody() -> None:
    """Adam's momentum of the batch before would go on for a dozen steps."""
    team = make_team()
    members = seat(team, critic=None)
    learner = make_learner(members, GRPO, weight_decay=0.0)
    learn(learner, make_batch(members, episodes(members)))
    before = {name: snapshot(team, name) for name in DUO}
    batch = make_batch(members, episodes(members))
    found = update(learner, lesson_of(learner, batch, advantages=torch.zeros_like(batch.old_N)))
    assert not any(changed(team, name, before[name]) for name in DUO)
    assert [found.statistics[name]["grad_norm"] for name in DUO] == [0, 0]


def test_a_critic_that_is_right_from_the_start_takes_no_step() -> None:
    """A value head begins at 0, and so do the rewards of a hard task: nothing to learn, and no division by it."""
    team = make_team()
    members = seat(team)
    with torch.no_grad():
        for parameter in team.value_heads["critic"].parameters():
            parameter.zero_()
    before = snapshot(team, "critic")
    learner = make_learner(members, weight_decay=0.0)
    batch = make_batch(members, [episode(members, script, 0.0) for script, _ in SCRIPTS])
    found = learn(learner, batch)
    assert found["critic"]["grad_norm"] == 0
    assert not changed(team, "critic", before)


def test_the_kl_term_pulls_back_to_the_untrained_base() -> None:
    team = make_team()
    members = seat(team, critic=None)
    batch = make_batch(members, [episode(members, SCRIPTS[0][0], 0.0)])  # a group of one: advantage 0
    learner = make_learner(members, GRPO, epochs=5, weight_decay=0.0)

    def distance() -> float:
        d = [
            score(team, None, turn.prompt, turn.ids) - score(team, turn.agent, turn.prompt, turn.ids)
            for turn in said_in(batch)
        ]
        return float(torch.cat([x.exp() - x - 1 for x in d]).mean())

    first = distance()
    learn(learner, batch, kl=1.0)
    assert distance() < first


def test_the_entropy_bonus_raises_entropy() -> None:
    members = seats(GRPO)
    batch = make_batch(members, [episode(members, SCRIPTS[0][0], 0.0)])
    learner = make_learner(members, GRPO, entropy=1.0, weight_decay=0.0)
    first = learn(learner, batch)
    second = learn(learner, batch)
    for agent in DUO:
        assert second[agent]["entropy"] > first[agent]["entropy"]


def test_gradients_are_clipped_for_each_adapter_on_its_own() -> None:
    """A planner that could be pushed hard leaves the solver's step as it is."""
    steps = []
    for factor in (1.0, 1000.0):
        team = make_team(stir=0.05)
        members = seat(team)
        before = snapshot(team, "solver")
        batch = make_batch(members, episodes(members))
        learner = make_learner(members, grad_clip=1e-3)
        lesson = lesson_of(learner, batch)
        planner = (batch.agent_K == 0)[batch.turn_N]
        advantages_N = lesson.estimate.advantages_N
        louder = torch.where(planner, factor * advantages_N, advantages_N)
        update(learner, lesson_of(learner, batch, advantages=louder))
        steps.append({key: tensor - before[key] for key, tensor in snapshot(team, "solver").items()})
    for key in steps[0]:
        assert_close(steps[0][key], steps[1][key])


def test_defect_16_a_gradient_that_is_no_number_stops_the_run_before_anybody_steps() -> None:
    team = make_team()
    members = seat(team)
    before = {name: snapshot(team, name) for name in (*DUO, "critic")}
    learner = make_learner(members)
    batch = make_batch(members, episodes(members))
    broken = lesson_of(learner, batch, advantages=torch.full_like(batch.old_N, float("nan")))
    with pytest.raises(NotFinite, match="the gradient of 'planner' is not finite"):
        update(learner, broken)
    assert not any(changed(team, name, old) for name, old in before.items())


# --- defects of published systems -------------------------------------------------------------------------------------
def test_defect_06_scoring_uses_the_temperature_of_sampling() -> None:
    team = make_team()
    engine = LocalEngine(team, slots=4)
    prompt = render(team.tokenizer, [Message(role="user", content="Start with 17. Add 5.")])
    sampling = Sampling(temperature=0.6, max_tokens=12)

    async def ask() -> list[Completion]:
        requests = [Request(adapter="solver", prompt_ids=prompt, sampling=sampling, seed=seed) for seed in range(3)]
        return list(await asyncio.gather(*(engine.generate(request) for request in requests)))

    played = [
        Episode(
            task=Task(id="t", prompt="p"), sample=i, reward=Reward(team=float(i)),
            turns=(Turn(agent="solver", index=0, nth=0, shown="", observation=(), prompt_ids=prompt, completion=completion),),
        )
        for i, completion in enumerate(asyncio.run(ask()))
    ]  # fmt: skip
    for one in played:
        (turn,) = one.turns
        again = score(team, "solver", prompt, turn.completion.token_ids, 0.6)
        assert_close(again, torch.tensor(turn.completion.logprobs), atol=1e-4, rtol=0)
    right = seat(team, critic=None, temperature=0.6)
    assert learn(make_learner(right, GRPO), make_batch(right, played))["solver"]["kl"] == pytest.approx(0, abs=1e-7)
    wrong = seat(make_team(), critic=None, temperature=1.0)
    assert learn(make_learner(wrong, GRPO), make_batch(wrong, played))["solver"]["kl"] > 1e-3


@pytest.mark.parametrize("algorithm", [TOKEN, ACTION, GRPO], ids=lambda a: type(a).__name__)
def test_defect_08_the_end_of_turn_token_is_trained(algorithm: Algorithm) -> None:
    """One turn that is nothing but its end: rewarded, it must become likelier."""
    members = seats(algorithm, ("solver",))
    played = [episode(members, [("solver", "")], 1.0), episode(members, [("solver", "Answer: 7")], 0.0)]
    (turn,) = played[0].turns
    assert turn.completion.token_ids == (2,)
    learn(make_learner(members, algorithm), make_batch(members, played))
    after = score(members[0].team, "solver", turn.prompt_ids, (2,))
    assert after.item() > turn.completion.logprobs[0]


def test_defect_08_every_token_of_a_turn_has_a_gradient() -> None:
    """With the advantage of one token at 1 and the others' at 0, the gradient is that token's: none is left out."""
    members = seats(TOKEN, ("solver",))
    batch = make_batch(members, [episode(members, [("solver", "Answer: 66")], 1.0)])
    learner = make_learner(members)
    for position in range(len(batch.tokens_N)):
        alone = torch.zeros_like(batch.old_N)
        alone[position] = 1.0
        found = gradients(learner, lesson_of(learner, batch, advantages=alone))
        assert max(g.abs().max().item() for key, g in found.items() if key.startswith("solver/")) > 1e-6


def test_defect_09_adapters_are_told_apart_by_whole_names() -> None:
    team = make_team(("agent_1", "agent_10", "agent"))
    names = ("agent_1", "agent_10", "agent")
    members = seat(team)
    before = {name: snapshot(team, name) for name in names}
    learner = make_learner(members)
    played = [episode(members, [("agent_1", "17+5")], 1.0), episode(members, [("agent_1", "no")], 0.0)]
    found = learn(learner, make_batch(members, played))
    assert [name for name in names if changed(team, name, before[name])] == ["agent_1"]
    assert learner.optimizers["agent_1"].state
    for name in ("agent_10", "agent"):
        assert not learner.optimizers[name].state
        assert all(parameter.grad is None for parameter in team.trainable_parameters(name).values())
        assert found[name]["grad_norm"] == 0


def test_defect_09_every_adapter_has_an_optimizer_of_its_own() -> None:
    team = make_team(("agent_1", "agent_10"))
    learner = make_learner(seat(team), lr={"agent_1": 1e-3, "agent_10": 1e-4, "critic": 1e-2})
    owned = {
        name: {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, optimizer in learner.optimizers.items()
    }
    assert owned.keys() == {"agent_1", "agent_10", "critic"}
    for name, own in owned.items():
        assert own == {id(p) for p in team.trainable_parameters(name).values()}
        assert all(own.isdisjoint(other) for key, other in owned.items() if key != name)
    assert learner.optimizers["agent_10"].param_groups[0]["lr"] == 1e-4


def test_defect_09_an_agent_keeps_its_moments_while_others_train() -> None:
    team = make_team()
    members = seat(team)
    learner = make_learner(members)
    learn(learner, make_batch(members, episodes(members)))
    before = snapshot(team, "solver")
    moments = [state["exp_avg"].clone() for state in learner.optimizers["solver"].state.values()]
    learn(learner, make_batch(members, [episode(members, [("planner", "17+5")], 1.0)]))
    assert not changed(team, "solver", before)
    now = [state["exp_avg"] for state in learner.optimizers["solver"].state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, now, strict=True))


def test_defect_10_what_trains_is_float32_on_a_bfloat16_base() -> None:
    team = make_team(dtype="bfloat16")
    assert {p.dtype for p in team.base.parameters() if not p.requires_grad} == {torch.bfloat16}
    before = {name: snapshot(team, name) for name in (*DUO, "critic")}
    members = seat(team)
    learner = make_learner(members, lr=dict.fromkeys((*DUO, "critic"), 1e-6), weight_decay=0.0)
    learn(learner, make_batch(members, episodes(members)))
    for name, old in before.items():
        assert {p.dtype for p in team.trainable_parameters(name).values()} == {torch.float32}
        for state in learner.optimizers[name].state.values():
            assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
        new = snapshot(team, name)
        moved = [key for key in old if not torch.equal(old[key], new[key])]
        assert len(moved) > 0.9 * len(old)
        # in bfloat16 a step of 1e-6 would have been lost almost everywhere
        lost = sum(int((old[key].bfloat16() == new[key].bfloat16()).sum()) for key in old)
        assert lost > 0.9 * sum(tensor.numel() for tensor in old.values())


def test_defect_12_how_a_turn_ended_is_seen_at_its_last_token() -> None:
    """Of rows that share a batch, the same turn given exactly its length stops, and given one token less is cut off."""
    team = make_team(stir=0.0)
    engine = LocalEngine(team, slots=8)
    prompt = render(team.tokenizer, [Message(role="user", content="Start with 17. Add 5.")])

    async def ask(limits: Sequence[int]) -> list[Completion]:
        requests = [
            Request(adapter="solver", prompt_ids=prompt, sampling=Sampling(max_tokens=limit), seed=3)
            for limit in limits
        ]
        return list(await asyncio.gather(*(engine.generate(request) for request in requests)))

    (free,) = asyncio.run(ask([200]))
    n = len(free.token_ids)
    assert free.finish == "stop"
    assert 2 < n < 200
    exact, short, longer = asyncio.run(ask([n, n - 1, n + 40]))
    assert (exact.finish, exact.token_ids) == ("stop", free.token_ids)
    assert (longer.finish, longer.token_ids) == ("stop", free.token_ids)
    assert (short.finish, short.token_ids) == ("length", free.token_ids[:-1])


def test_defect_12_a_turn_without_an_end_is_trained_on_all_its_tokens() -> None:
    members = seats(TOKEN, ("solver",))
    batch = make_batch(members, [episode(members, [("solver", "Answer: 66")], 1.0, end=False)])
    learner = make_learner(members)
    lesson = lesson_of(learner, batch)
    assert lesson.values is not None
    assert len(lesson.values) == len(lesson.estimate.advantages_N) == len(batch.tokens_N)
    weight = learner.algorithm.weights(batch.length_K, batch.agent_K, batch.adapter_K)
    assert float(weight * len(batch.tokens_N)) == pytest.approx(1)
