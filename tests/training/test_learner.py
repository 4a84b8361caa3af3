"""The learner on the embedded nano model. Episodes are hand-made, their log-probs the model's own: ratios start at 1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.credit import equal
from marft.algorithms.experience import Algorithm, Estimate
from marft.algorithms.grpo import Grpo
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken
from marft.engines.local import LocalEngine
from marft.game.observation import central_state
from marft.models.loading import load, render
from marft.models.lora import AdapterSpec
from marft.models.scoring import Span, action_span, hidden_states, logprobs
from marft.models.team import TeamModel
from marft.training.batch import Batch, build_batch
from marft.training.learner import Learner, LearnerSettings, Sums
from marft.types import Completion, Episode, MarftError, Message, Request, Reward, Sampling, Task, Turn

TOKEN = MarftToken(
    lam=0.95, token_gamma=1.0, token_lam=1.0, whiten=False, clip_low=0.2, clip_high=0.2, aggregation="turn"
)
ACTION = MarftAction(lam=0.95, whiten=False, clip_low=0.2, clip_high=0.2, normalise="token")
GRPO = Grpo(std_floor=1e-4, clip_low=0.2, clip_high=0.2, aggregation="turn")
DUO = ("planner", "solver")
Script = Sequence[tuple[str, str]]  # who says what
SCRIPTS: Sequence[tuple[Script, float]] = (
    ((("planner", "17+5, *3"), ("solver", "17+5=22, 22*3=66. Answer: 66")), 1.0),
    ((("planner", "Be careful."), ("solver", "Answer: 7")), 0.0),
    ((("planner", "12-4"), ("solver", "12-4=8. Answer: 8"), ("planner", "good")), 0.5),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_team(agents: Sequence[str] = DUO, dtype: str = "float32", stir: float = 0.05) -> TeamModel:
    """A small team; `stir` is the spread of B and value heads, which start at 0 and would hide half the gradients."""
    team = TeamModel(
        load("nano", "cpu", dtype),
        agents=[AdapterSpec(name=name, rank=4, alpha=8.0) for name in agents],
        critics=[AdapterSpec(name="critic", rank=4, alpha=8.0)],
        targets=("q_proj", "down_proj"),
        seed=0,
    )
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in (*agents, "critic"):
            for key, parameter in team.parameters(name).items():
                if key.endswith(".b") or key.startswith("value_head"):
                    parameter.copy_(stir * torch.randn(parameter.shape, generator=g))
    return team


def score(
    team: TeamModel, agent: str | None, prompt: tuple[int, ...], ids: tuple[int, ...], temperature: float
) -> Tensor:
    with torch.no_grad():
        hidden = hidden_states(team, [action_span(agent, prompt, ids)])
        return logprobs(team, hidden, torch.tensor(ids), torch.full((len(ids),), temperature))[0]


def episode(
    team: TeamModel, script: Script, reward: float, *, temperature: float = 1.0, end: bool = True, task: str = "t"
) -> Episode:
    turns: list[Turn] = []
    for k, (agent, text) in enumerate(script):
        told = Message(role="system", content=f"You are {agent}.")
        said = "\n\n".join(["Start with 17.", *(f"{t.agent}: {t.text}" for t in turns)])
        observation = (told, Message(role="user", content=said))
        prompt = render(team.tokenizer, observation)
        ids = tuple(team.tokenizer.encode(text, add_special_tokens=False)) + ((2,) if end else ())
        old = tuple(score(team, agent, prompt, ids, temperature).tolist())
        finish: Any = "stop" if end else "length"
        completion = Completion(text=text, token_ids=ids, logprobs=old, finish=finish, version=0)
        nth = sum(t.agent == agent for t in turns)
        turns.append(
            Turn(
                agent=agent,
                index=k,
                nth=nth,
                shown="",
                observation=observation,
                prompt_ids=prompt,
                completion=completion,
            )
        )
    return Episode(
        task=Task(id=task, prompt="Start with 17."), sample=0, turns=tuple(turns), reward=Reward(team=reward)
    )


def episodes(team: TeamModel, temperature: float = 1.0) -> list[Episode]:
    return [episode(team, script, reward, temperature=temperature) for script, reward in SCRIPTS]


def make_batch(team: TeamModel, played: Sequence[Episode], temperature: float = 1.0, critic: bool = True) -> Batch:
    return build_batch(
        played,
        agents=team.agents,
        temperatures=dict.fromkeys(team.agents, temperature),
        credit=equal,
        encode_state=(lambda messages: render(team.tokenizer, messages)) if critic else None,
    )


def make_learner(team: TeamModel, algorithm: Algorithm = TOKEN, **changes: Any) -> Learner:
    critic = "critic" if algorithm.values_at else None
    settings = LearnerSettings(
        lr=dict.fromkeys([*team.agents, *([critic] if critic else [])], 1e-3), weight_decay=0.1, grad_clip=1.0,
        epochs=1, minibatches=1, tokens=8192, entropy=0.0, kl=0.0, value_clip=None, value_loss="mse",
    )  # fmt: skip
    return Learner(team, algorithm, critic, replace(settings, **changes))


def judge(learner: Learner, batch: Batch) -> tuple[Tensor | None, Estimate]:
    values = learner.values(batch)
    return values, learner.algorithm.estimate(batch.experience(values, learner.final_values(batch)))


def update(learner: Learner, batch: Batch, policy: bool = True) -> dict[str, dict[str, float]]:
    values, estimate = judge(learner, batch)
    generator = torch.Generator().manual_seed(0)
    return learner.update(batch, estimate, values, lr_factor=1.0, policy=policy, generator=generator)


def gradients(learner: Learner, batch: Batch, estimate: Estimate | None = None) -> dict[str, Tensor]:
    """Of all adapters on the whole batch as one minibatch; then cleared. Adapters without a gradient are absent."""
    values, own = judge(learner, batch)
    sums = Sums(by_agent=torch.zeros(len(batch.agents), 4))
    turns = torch.arange(len(batch.turns))
    learner._accumulate(batch, estimate or own, values, learner.reference(batch), turns, sums, True)
    found = {}
    for name in learner.optimizers:
        for key, parameter in learner.team.parameters(name).items():
            if parameter.grad is not None:
                found[f"{name}/{key}"] = parameter.grad.clone()
                parameter.grad = None
    return found


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    largest = max(tensor.abs().max().item() for tensor in one.values())
    assert largest > 1e-4
    for key in one:
        assert (one[key] - other[key]).abs().max().item() <= 1e-5 * max(largest, 1.0), key


def snapshot(team: TeamModel, name: str) -> dict[str, Tensor]:
    return {key: parameter.detach().clone() for key, parameter in team.parameters(name).items()}


def changed(team: TeamModel, name: str, before: Mapping[str, Tensor]) -> bool:
    return any(not torch.equal(before[key], parameter) for key, parameter in team.parameters(name).items())


# --- one minibatch, however it is computed ----------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", [TOKEN, ACTION, GRPO], ids=lambda a: type(a).__name__)
def test_passes_of_few_tokens_give_the_same_gradients(algorithm: Algorithm) -> None:
    team = make_team()
    batch = make_batch(team, episodes(team), critic=algorithm.values_at is not None)
    extras = {"entropy": 0.01, "kl": 0.1}
    whole = gradients(make_learner(team, algorithm, **extras), batch)
    assert_same(whole, gradients(make_learner(team, algorithm, tokens=64, **extras), batch))


def test_a_mixed_batch_is_its_episodes_added_up() -> None:
    """The gradient of a turn does not depend on what shares its pass."""
    team = make_team()
    played = episodes(team)[:2]
    learner = make_learner(team)
    mixed = gradients(learner, make_batch(team, played))
    sizes = [sum(len(t.completion.token_ids) for t in e.turns) for e in played]
    total = {key: torch.zeros_like(tensor) for key, tensor in mixed.items()}
    for one, size in zip(played, sizes, strict=True):
        for key, tensor in gradients(learner, make_batch(team, [one])).items():
            # both agents have a turn in each episode: turns weigh ½; the critic's mean is over tokens
            total[key] += tensor * (size / sum(sizes) if key.startswith("critic/") else 0.5)
    assert_same(mixed, total)


def test_the_order_of_episodes_changes_nothing() -> None:
    team = make_team()
    learner = make_learner(team)
    played = episodes(team)
    assert_same(gradients(learner, make_batch(team, played)), gradients(learner, make_batch(team, played[::-1])))


def test_values_come_in_the_order_of_the_turns() -> None:
    team = make_team()
    batch = make_batch(team, episodes(team))
    for algorithm in (TOKEN, ACTION):
        together = make_learner(team, algorithm).values(batch)
        in_pieces = make_learner(team, algorithm, tokens=64).values(batch)
        alone = [make_learner(team, algorithm).values(make_batch(team, [e])) for e in batch.episodes]
        assert together is not None
        assert in_pieces is not None
        assert len(together) == (len(batch.tokens_N) if algorithm.values_at == "token" else len(batch.turns))
        assert_close(together, in_pieces, atol=1e-5, rtol=0)
        assert_close(together, torch.cat([v for v in alone if v is not None]), atol=1e-5, rtol=0)


def test_the_value_of_a_turn_is_read_before_its_first_token() -> None:
    team = make_team()
    batch = make_batch(team, episodes(team))
    tokens, turns = make_learner(team, TOKEN).values(batch), make_learner(team, ACTION).values(batch)
    assert tokens is not None
    assert turns is not None
    assert_close(tokens[batch.starts_K], turns, atol=1e-5, rtol=0)


def test_an_episode_cut_off_is_worth_what_the_critic_expects_of_it() -> None:
    team = make_team()
    ended = episode(team, SCRIPTS[0][0], 0.0)
    cut = replace(ended, ended="cut_off", cut_before="planner")
    batch = make_batch(team, [ended, cut])
    learner = make_learner(team, ACTION)
    final = learner.final_values(batch)
    assert final[0] == 0
    state = central_state(task=cut.task, shown="", turns=cut.turns, next_agent="planner")
    with torch.no_grad():
        ids = render(team.tokenizer, state)
        hidden = hidden_states(team, [Span(adapter="critic", ids=ids, asked=1)])
    assert_close(final[1:], team.values("critic", hidden).detach(), atol=1e-5, rtol=0)
    assert final[1].abs() > 1e-4
    values, estimate = judge(learner, batch)
    assert values is not None
    last = torch.tensor([1, 3])  # A = r + γ V(s_K) − V, and r = 0
    assert_close(estimate.advantages_N[batch.starts_K][last], final - values[last], atol=1e-5, rtol=0)


# --- what an update does ----------------------------------------------------------------------------------------------
def test_a_first_step_starts_at_ratio_one() -> None:
    team = make_team()
    found = update(make_learner(team), make_batch(team, episodes(team)))
    for agent in DUO:
        assert found[agent]["kl"] == pytest.approx(0, abs=1e-8)
        assert found[agent]["clip_fraction"] == 0
        assert found[agent]["entropy"] > 0
        assert found[agent]["grad_norm"] > 0
    assert found["critic"]["loss"] > 0


def test_rewarded_tokens_become_likelier_and_punished_ones_rarer() -> None:
    team = make_team(stir=0.0)
    played = episodes(team)[:2]
    batch = make_batch(team, played, critic=False)
    learner = make_learner(team, GRPO)
    update(learner, batch)
    for one, sign in zip(played, (1, -1), strict=True):
        for turn in one.turns:
            new = score(team, turn.agent, turn.prompt_ids, turn.completion.token_ids, 1.0)
            assert sign * (new - torch.tensor(turn.completion.logprobs)).mean() > 0


def test_the_critic_learns_the_return() -> None:
    team = make_team(stir=0.0)
    learner = make_learner(team, epochs=10)
    batch = make_batch(team, [episode(team, SCRIPTS[0][0], 1.0)])
    first = update(learner, batch)["critic"]["loss"]
    assert update(learner, batch)["critic"]["loss"] < 0.5 * first


def test_warm_up_trains_the_critic_alone() -> None:
    team = make_team()
    before = {name: snapshot(team, name) for name in (*DUO, "critic")}
    learner = make_learner(team)
    update(learner, make_batch(team, episodes(team)), policy=False)
    assert [name for name in before if changed(team, name, before[name])] == ["critic"]
    assert not any(learner.optimizers[name].state for name in DUO)


def test_the_kl_term_pulls_back_to_the_untrained_base() -> None:
    team = make_team()
    batch = make_batch(team, [episode(team, SCRIPTS[0][0], 0.0)], critic=False)  # a group of one: advantage 0
    learner = make_learner(team, GRPO, kl=1.0, epochs=5, weight_decay=0.0)

    def distance() -> float:
        d = [
            score(team, None, t.prompt_ids, t.completion.token_ids, 1.0)
            - score(team, t.agent, t.prompt_ids, t.completion.token_ids, 1.0)
            for t in batch.turns
        ]
        return float(torch.cat([x.exp() - x - 1 for x in d]).mean())

    first = distance()
    update(learner, batch)
    assert distance() < first


def test_the_entropy_bonus_raises_entropy() -> None:
    team = make_team()
    batch = make_batch(team, [episode(team, SCRIPTS[0][0], 0.0)], critic=False)
    learner = make_learner(team, GRPO, entropy=1.0, weight_decay=0.0)
    first = update(learner, batch)
    second = update(learner, batch)
    for agent in DUO:
        assert second[agent]["entropy"] > first[agent]["entropy"]


def test_gradients_are_clipped_for_each_adapter_on_its_own() -> None:
    """A planner that could be pushed hard leaves the solver's step as it is."""
    steps = []
    for factor in (1.0, 1000.0):
        team = make_team(stir=0.05)
        before = snapshot(team, "solver")
        batch = make_batch(team, episodes(team))
        learner = make_learner(team, grad_clip=1e-3)
        values, estimate = judge(learner, batch)
        planner = (batch.agent_K == 0)[batch.experience(values, torch.zeros(3)).turn_N]
        louder = torch.where(planner, factor * estimate.advantages_N, estimate.advantages_N)
        learner.update(
            batch, Estimate(advantages_N=louder, returns=estimate.returns), values,
            lr_factor=1.0, policy=True, generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        steps.append({key: tensor - before[key] for key, tensor in snapshot(team, "solver").items()})
    for key in steps[0]:
        assert_close(steps[0][key], steps[1][key])


def test_defect_16_a_gradient_that_is_no_number_stops_the_run_before_anybody_steps() -> None:
    team = make_team()
    before = {name: snapshot(team, name) for name in (*DUO, "critic")}
    learner = make_learner(team)
    batch = make_batch(team, episodes(team))
    values, estimate = judge(learner, batch)
    broken = Estimate(advantages_N=torch.full_like(estimate.advantages_N, float("nan")), returns=estimate.returns)
    with pytest.raises(MarftError, match="diverged"):
        learner.update(batch, broken, values, lr_factor=1.0, policy=True, generator=torch.Generator().manual_seed(0))
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
    found = update(make_learner(team, GRPO), make_batch(team, played, temperature=0.6, critic=False))
    assert found["solver"]["kl"] == pytest.approx(0, abs=1e-7)
    wrong = update(make_learner(make_team(), GRPO), make_batch(team, played, temperature=1.0, critic=False))
    assert wrong["solver"]["kl"] > 1e-3


@pytest.mark.parametrize("algorithm", [TOKEN, ACTION, GRPO], ids=lambda a: type(a).__name__)
def test_defect_08_the_end_of_turn_token_is_trained(algorithm: Algorithm) -> None:
    """One turn that is nothing but its end: rewarded, it must become likelier."""
    team = make_team(("solver",))
    played = [episode(team, [("solver", "")], 1.0), episode(team, [("solver", "Answer: 7")], 0.0)]
    (turn,) = played[0].turns
    assert turn.completion.token_ids == (2,)
    update(make_learner(team, algorithm), make_batch(team, played, critic=algorithm.values_at is not None))
    after = score(team, "solver", turn.prompt_ids, (2,), 1.0)
    assert after.item() > turn.completion.logprobs[0]


def test_defect_08_every_token_of_a_turn_has_a_gradient() -> None:
    """With the advantage of one token at 1 and the others' at 0, the gradient is that token's: none is left out."""
    team = make_team(("solver",))
    batch = make_batch(team, [episode(team, [("solver", "Answer: 66")], 1.0)])
    learner = make_learner(team)
    _, estimate = judge(learner, batch)
    for position in range(len(batch.tokens_N)):
        only = torch.zeros_like(estimate.advantages_N)
        only[position] = 1.0
        found = gradients(learner, batch, Estimate(advantages_N=only, returns=estimate.returns))
        assert max(g.abs().max().item() for key, g in found.items() if key.startswith("solver/")) > 1e-6


def test_defect_09_adapters_are_told_apart_by_whole_names() -> None:
    team = make_team(("agent_1", "agent_10", "agent"))
    names = ("agent_1", "agent_10", "agent")
    before = {name: snapshot(team, name) for name in names}
    learner = make_learner(team)
    batch = make_batch(team, [episode(team, [("agent_1", "17+5")], 1.0), episode(team, [("agent_1", "no")], 0.0)])
    found = update(learner, batch)
    assert [name for name in names if changed(team, name, before[name])] == ["agent_1"]
    assert learner.optimizers["agent_1"].state
    for name in ("agent_10", "agent"):
        assert not learner.optimizers[name].state
        assert all(parameter.grad is None for parameter in team.parameters(name).values())
        assert found[name]["grad_norm"] == 0


def test_defect_09_every_adapter_has_an_optimizer_of_its_own() -> None:
    team = make_team(("agent_1", "agent_10"))
    learner = make_learner(team, lr={"agent_1": 1e-3, "agent_10": 1e-4, "critic": 1e-2})
    owned = {
        name: {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, optimizer in learner.optimizers.items()
    }
    assert owned.keys() == {"agent_1", "agent_10", "critic"}
    for name, own in owned.items():
        assert own == {id(p) for p in team.parameters(name).values()}
        assert all(own.isdisjoint(other) for key, other in owned.items() if key != name)
    assert learner.optimizers["agent_10"].param_groups[0]["lr"] == 1e-4


def test_defect_09_an_agent_keeps_its_moments_while_others_train() -> None:
    team = make_team()
    learner = make_learner(team)
    update(learner, make_batch(team, episodes(team)))
    before = snapshot(team, "solver")
    moments = [state["exp_avg"].clone() for state in learner.optimizers["solver"].state.values()]
    update(learner, make_batch(team, [episode(team, [("planner", "17+5")], 1.0)]))
    assert not changed(team, "solver", before)
    now = [state["exp_avg"] for state in learner.optimizers["solver"].state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, now, strict=True))


def test_defect_10_what_trains_is_float32_on_a_bfloat16_base() -> None:
    team = make_team(dtype="bfloat16")
    assert {p.dtype for p in team.backbone.parameters() if not p.requires_grad} == {torch.bfloat16}
    before = {name: snapshot(team, name) for name in (*DUO, "critic")}
    learner = make_learner(team, lr=dict.fromkeys((*DUO, "critic"), 1e-6), weight_decay=0.0)
    update(learner, make_batch(team, episodes(team)))
    for name, old in before.items():
        assert {p.dtype for p in team.parameters(name).values()} == {torch.float32}
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
    team = make_team(("solver",))
    batch = make_batch(team, [episode(team, [("solver", "Answer: 66")], 1.0, end=False)])
    learner = make_learner(team)
    values, estimate = judge(learner, batch)
    assert values is not None
    assert len(values) == len(estimate.advantages_N) == len(batch.tokens_N)
    weight = learner.algorithm.weights(batch.length_K, batch.agent_K)
    assert float(weight * len(batch.tokens_N)) == pytest.approx(1)
