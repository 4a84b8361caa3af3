"""Expected advantages and steps of every credit with every estimator, against gradients worked out by hand.

All luck that a few episodes can have is enumerated: each way is played by the real game, credited, estimated, and weighs
what its probability is. Nothing is sampled and nothing learns.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from experience import Experience, estimated
from known_answers.games import Alone, Follow, Signal, Words

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Member
from marft.config import Config, parse
from marft.envs.hosting import InProcess
from marft.game.agent import Agent
from marft.game.play import seed_of
from marft.game.workflows import find_workflow
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit, Difference
from marft.rollouts.runner import EpisodeRunner, Start
from marft.types import Completion, Episode, Message, Request, Task, Turn

Policy = Mapping[tuple[str, str], float]  # probability of "1" by (agent, what it reads)
Play = tuple[str, int, int]  # colour, what ann said, what bob said
BETA, GAMMA = 0.5, 0.75
CREDITS: Mapping[str, dict[str, Any]] = {
    "equal": {"name": "equal"},
    "step_discounted": {"name": "step_discounted", "beta": BETA},
    "per_step": {"name": "per_step", "gamma": GAMMA},
    "difference": {"name": "difference"},
    "tree": {"name": "tree"},
}


# --- three games, and teams that play them at random ------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A game and a team's chances of saying "1", by what is read."""

    env: Words
    ann: Mapping[str, float]  # by the colour
    bob: Mapping[str, float]  # by ann's word; "-": he does not see her
    base: float = 0.5

    @property
    def hears(self) -> bool:
        return "-" not in self.bob

    def policy(self) -> Policy:
        """By the text that the real game shows."""
        found = {("ann", f"\n\n{colour}" if colour else ""): p for colour, p in self.ann.items()}
        found |= {("bob", f"\n\nann: {word}" if self.hears else ""): p for word, p in self.bob.items()}
        return found

    def move(self, key: tuple[str, str], by: float) -> Match:
        """The same team with one logit moved."""
        agent, read = key
        table = {"ann": dict(self.ann), "bob": dict(self.bob)}
        table[agent][read] = 1 / (1 + math.exp(-math.log(table[agent][read] / (1 - table[agent][read])) - by))
        return replace(self, ann=table["ann"], bob=table["bob"])

    def chance(self, play: Play) -> float:
        colour, a, b = play
        p, q = self.ann[colour], self.bob[str(a) if self.hears else "-"]
        return (p if a else 1 - p) * (q if b else 1 - q)

    def plays(self) -> Iterator[Play]:
        return product(self.env.colours, (0, 1), (0, 1))

    def scores(self, play: Play, credit: str) -> tuple[float, float]:
        """c_k of ann's turn and of bob's, where turns are chained."""
        colour, a, b = play
        team, own_a, own_b = self.env.pay(colour, str(a), str(b)), 0.2 * a, 0.1 * b
        match credit:
            case "step_discounted":
                return BETA * team, team
            case "per_step":
                return own_a + GAMMA * (own_b + team), own_b + team
        return team, team

    def expected(self, credit: str, turn: int, colour: str | None = None, heard: int | None = None) -> float:
        """E[c_k], or what is left of it to expect after the colour is known and ann has spoken."""
        known = [play for play in self.plays() if colour in (None, play[0]) and heard in (None, play[1])]
        total = sum(self.chance(play) for play in known)
        return sum(self.chance(play) * self.scores(play, credit)[turn] for play in known) / total

    def gradient(self, credit: str) -> dict[tuple[str, str], float]:
        """∂E[c_k of the agent's turn] / ∂ each of its logits, by differences."""
        found = {}
        for turn, (agent, reads) in enumerate((("ann", self.ann), ("bob", self.bob))):
            for read in reads:
                up, down = (self.move((agent, read), by).expected(credit, turn) for by in (1e-4, -1e-4))
                found[agent, read] = (up - down) / 2e-4
        return found


MATCHES = {
    "follow": Match(env=Follow(), ann={"": 0.4}, bob={"0": 0.3, "1": 0.6, "": 0.3}),
    "signal": Match(env=Signal(), ann={"red": 0.7, "blue": 0.4}, bob={"0": 0.3, "1": 0.6, "": 0.3}),
    "signal, deaf": Match(env=Signal(), ann={"red": 0.7, "blue": 0.4}, bob={"-": 0.6}),
    "alone": Match(env=Alone(), ann={"": 0.4}, bob={"-": 0.3}),
}


# --- play with known luck ---------------------------------------------------------------------------------------------
class Dice:
    """Says "1" where the luck of a turn is below the policy's chance of it; an adapter is None where the base speaks."""

    def __init__(self, policy: Policy, base: float, luck: Mapping[int, float]) -> None:
        self.policy, self.base, self.luck = policy, base, luck

    def encode(self, messages: Sequence[Message], *_: object) -> tuple[int, ...]:
        return (0,)

    async def generate(self, request: Request) -> Completion:
        agent, read = (message.content for message in request.messages)
        p = self.base if request.adapter is None else self.policy[agent, read]
        word = int(self.luck[request.seed] < p)
        logprob = math.log(p if word else 1 - p)
        return Completion(text=str(word), token_ids=(word,), logprobs=(logprob,), finish="stop", version=0)


def config_of(match: Match, credit: Mapping[str, Any], algorithm: Mapping[str, Any], samples: int) -> Config:
    agents = {"ann": {"prompt": "ann"}, "bob": {"prompt": "bob", "sees": ["ann"] if match.hears else []}}
    unchained = credit["name"] in ("difference", "tree")  # where λ has no meaning
    algorithm = {key: value for key, value in algorithm.items() if key != "lam" or not unchained}
    return parse({"team": {"agents": agents}, "credit": credit, "algorithm": algorithm, "train": {"samples": samples}})


def seat(config: Config, match: Match, luck: Mapping[int, float]) -> EpisodeRunner:
    voice = Dice(match.policy(), match.base, luck)
    team = {
        name: Agent(name=name, prompt=name, sees=agent.sees, adapter=name, sampling=agent.sampling, engine=voice)
        for name, agent in config.team.agents.items()
    }
    return EpisodeRunner(team=team, host=InProcess(match.env), workflow=find_workflow("sequential"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """One way in which the dice can fall: what came of it, and its probability."""

    chance: float
    episodes: Sequence[Episode]
    batch: Batch

    @property
    def turns(self) -> list[tuple[Episode, Turn]]:
        """Of the batch, each with its episode."""
        places = zip(self.batch.episode_K.tolist(), self.batch.index_K.tolist(), strict=True)
        return [(self.episodes[e], self.episodes[e].turns[index]) for e, index in places]


async def deal(match: Match, config: Config, task: Task, seed: str = "seed") -> list[Dealt]:
    """All ways of `samples` episodes on a task. A turn's luck matters only as to where it lies between chances of "1"."""
    samples = config.train.samples
    credit = config.credit
    assert isinstance(credit, Credit)
    based = isinstance(credit, Difference) and credit.baseline == "base"
    cuts: dict[int, list[float]] = {}  # by the seed of a turn
    for sample, (turn, chances) in product(range(samples), enumerate((match.ann, match.bob))):
        own = sorted({0.0, 1.0, *chances.values()})
        cuts[seed_of(f"{seed}/{task.id}/{sample}", turn)] = own
        if based:
            cuts[seed_of(f"{seed}/base/{task.id}/{sample}", turn)] = sorted({*own, match.base})
    luck: dict[int, float] = {}
    runner = seat(config, match, luck)
    members = [Member(agent=name, adapter=name) for name in config.team.agents]
    found: list[Dealt] = []
    for way in product(*(list(pairwise(own)) for own in cuts.values())):
        luck.update(zip(cuts, ((low + high) / 2 for low, high in way), strict=True))
        starts = [Start(task=task, sample=i) for i in range(samples)]
        episodes = await credit.play(runner, starts, seed, samples=samples, learns=runner.team)
        assert all(episode.ended == "terminated" for episode in episodes)
        batch = build_batch(episodes, members=members, agents=runner.team, credit=credit)
        found.append(Dealt(chance=math.prod(high - low for low, high in way), episodes=episodes, batch=batch))
    assert math.isclose(sum(dealt.chance for dealt in found), 1)
    return found


def dealt(match: Match, config: Config, seed: str = "seed") -> list[Dealt]:
    """Over all tasks, each as likely."""
    tasks = match.env.tasks("train")
    ways = [way for task in tasks for way in asyncio.run(deal(match, config, task, seed))]
    return [replace(way, chance=way.chance / len(tasks)) for way in ways]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A turn of one of the ways: its weight in the loss of its batch, and its advantage."""

    chance: float
    agent: str
    read: str  # the colour, or ann's word
    word: str
    weight: float
    advantage: float


def judge(match: Match, config: Config, ways: Sequence[Dealt], *, wrong_by: float = 0.0) -> list[Judged]:
    """Every turn of every way, by the config's algorithm. A critic knows what to expect in every state, or errs in each.

    All ways go into one batch, in which the agents, groups and episodes of each way are its own.
    """
    algorithm, credit, batches = config.algorithm, config.credit.name, [way.batch for way in ways]
    assert isinstance(algorithm, Algorithm)
    expects = {
        (turn, colour, a): match.expected(credit, turn, colour, None if turn == 0 else a)
        + wrong_by * (1 + 2 * turn * a)
        for turn, colour, a in product((0, 1), match.env.colours, (0, 1))
    }
    turns = [
        (way, turn, episode.task.data["colour"], episode.turns[0].text) for way in ways for episode, turn in way.turns
    ]
    agent_K = torch.cat([batch.agent_K + 2 * i for i, batch in enumerate(batches)])
    group_K = torch.cat([batch.group_K + 8 * i for i, batch in enumerate(batches)])
    counts = torch.tensor([len(way.episodes) for way in ways])
    firsts = (counts.cumsum(0) - counts).tolist()
    length_K = torch.cat([batch.length_K for batch in batches])
    experience = Experience(
        episode_K=torch.cat([batch.episode_K + first for batch, first in zip(batches, firsts, strict=True)]),
        agent_K=agent_K,
        group_K=group_K,
        task_K=agent_K // 2,
        play_K=torch.cat([batch.play_K + first for batch, first in zip(batches, firsts, strict=True)]),
        length_K=length_K,
        reward_K=torch.cat([batch.reward_K for batch in batches]),
        discount_K=torch.cat([batch.discount_K for batch in batches]),
        final_E=torch.zeros(int(counts.sum())),
        values=torch.tensor([expects[turn.index, colour, int(word)] for _, turn, colour, word in turns]),
        baseline_A=torch.tensor([0.3, -0.2]).repeat(len(ways)),
    )
    found = zip(
        turns,
        algorithm.weights(length_K, agent_K, agent_K).tolist(),
        estimated(algorithm, experience).advantages_N.tolist(),
        strict=True,
    )
    return [
        Judged(
            chance=way.chance, agent=turn.agent, word=turn.text, weight=weight, advantage=advantage,
            read=colour if turn.index == 0 else heard if match.hears else "-",
        )
        for (way, turn, colour, heard), weight, advantage in found
    ]  # fmt: skip


@cache
def known(name: str, credit: str, samples: int, seed: str = "seed") -> list[Dealt]:
    """Played once for all estimators."""
    return dealt(MATCHES[name], config_of(MATCHES[name], CREDITS[credit], {"name": "rae"}, samples), seed)


def expected_step(match: Match, config: Config, ways: Sequence[Dealt], *, wrong_by: float = 0.0) -> dict[Any, float]:
    """The mean of Σ_k weight · A_k · ∂ log π(a_k) / ∂ logit, for each logit of the team."""
    step = {("ann", read): 0.0 for read in match.ann} | {("bob", read): 0.0 for read in match.bob}
    for one in judge(match, config, ways, wrong_by=wrong_by):
        p = (match.ann if one.agent == "ann" else match.bob)[one.read]
        step[one.agent, one.read] += one.chance * one.weight * one.advantage * (int(one.word) - p)
    return step


def assert_near(found: Mapping[Any, float], exact: Mapping[Any, float]) -> None:
    assert found == pytest.approx(exact, abs=2e-6)  # advantages are single precision


# --- the best team ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "best", "how"),
    [
        ("follow", 1.0, {("ann", ""): 1, ("bob", "1"): 1}),
        ("signal", 1.0, {}),  # two codes
        ("signal, deaf", 0.5, {}),
        ("alone", 1.0, {("bob", "-"): 1}),
    ],
)
def test_the_best_team_of_all(name: str, best: float, how: Mapping[Any, int]) -> None:
    """All teams without chance are played; of those of the highest reward, all do what `how` says."""
    match = MATCHES[name]
    keys = [("ann", read) for read in match.ann] + [("bob", read) for read in match.bob if read]
    config = config_of(match, {"name": "equal"}, {"name": "rae"}, 1)
    rewards = {}
    for words in product((0, 1), repeat=len(keys)):
        chosen = dict(zip(keys, words, strict=True))
        pure = replace(
            match,
            ann={read: float(chosen["ann", read]) for read in match.ann},
            bob={read: float(chosen.get(("bob", read), 0)) for read in match.bob},
        )
        rewards[words] = sum(way.chance * way.episodes[0].reward.team for way in dealt(pure, config))
    assert max(rewards.values()) == best
    winners = [dict(zip(keys, words, strict=True)) for words, reward in rewards.items() if reward == best]
    assert all(winner[key] == word for winner in winners for key, word in how.items())


# --- estimators that are right in the mean ----------------------------------------------------------------------------
UNBIASED: Mapping[str, tuple[dict[str, Any], float]] = {  # and how wrong the critic is
    "rloo": ({"name": "rloo"}, 0.0),
    "dr_grpo": ({"name": "dr_grpo"}, 0.0),
    "rae": ({"name": "rae"}, 0.0),
    "token, right critic": ({"name": "marft-token", "lam": 0.3, "whiten": False}, 0.0),
    "token, lam 1": ({"name": "marft-token", "lam": 1.0, "whiten": False}, 0.4),
    "action, right critic": ({"name": "marft-action", "lam": 0.3, "whiten": False}, 0.0),
    "action, lam 1": ({"name": "marft-action", "lam": 1.0, "whiten": False}, 0.4),
}


def scale(agent: str, method: str, credit: str, samples: int) -> float:
    """What a step is of the gradient: a group of n centred on its own mean loses 1/n; of a tree's turns only siblings
    teach, which are 2 of bob's 3 turns: his word after the other word of ann has none."""
    grouped = method in ("rloo", "dr_grpo")
    group = 2 if credit == "tree" else samples
    shrink = (group - 1) / group if method == "dr_grpo" else 1.0
    return shrink * (2 / 3 if grouped and credit == "tree" and agent == "bob" else 1.0)


@pytest.mark.parametrize("method", UNBIASED)
@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("name", MATCHES)
def test_the_mean_step_is_the_gradient(name: str, credit: str, method: str) -> None:
    match, (algorithm, wrong_by) = MATCHES[name], UNBIASED[method]
    samples = 3 if credit == "tree" else 2 if method in ("rloo", "dr_grpo") else 1
    config = config_of(match, CREDITS[credit], algorithm, samples)
    found = expected_step(match, config, known(name, credit, samples), wrong_by=wrong_by)
    exact = match.gradient(credit)
    assert any(abs(slope) > 0.01 for slope in exact.values()) or name == "signal, deaf"
    assert_near(found, {key: scale(key[0], method, credit, samples) * slope for key, slope in exact.items()})


@pytest.mark.parametrize("method", ["rloo", "dr_grpo"])
def test_three_samples_instead_of_two(method: str) -> None:
    match = MATCHES["follow"]
    config = config_of(match, CREDITS["equal"], UNBIASED[method][0], 3)
    found = expected_step(match, config, known("follow", "equal", 3))
    assert_near(found, {key: scale(key[0], method, "equal", 3) * s for key, s in match.gradient("equal").items()})


@pytest.mark.parametrize("method", ["token, right critic", "action, right critic"])
def test_a_wrong_critic_misleads_unless_lambda_is_one(method: str) -> None:
    match = MATCHES["follow"]
    config = config_of(match, CREDITS["equal"], UNBIASED[method][0], 1)
    found = expected_step(match, config, known("follow", "equal", 1), wrong_by=0.4)
    assert abs(found["ann", ""] - match.gradient("equal")["ann", ""]) > 0.01


@pytest.mark.parametrize(("seed", "forked"), [("seed", "ann"), ("third", "bob")])
def test_one_fork_teaches_the_agent_whose_turn_it_forks_at(seed: str, forked: str) -> None:
    match = MATCHES["follow"]
    config = config_of(match, CREDITS["tree"], {"name": "rloo"}, 2)
    found = expected_step(match, config, known("follow", "tree", 2, seed))
    exact = match.gradient("tree")
    assert_near(found, {(agent, read): slope if agent == forked else 0.0 for (agent, read), slope in exact.items()})


def test_a_turn_of_the_trunk_is_worth_the_mean_of_all_that_grew_from_it() -> None:
    for way in known("follow", "tree", 3):
        trunk, *forks = sorted(way.episodes, key=lambda episode: (episode.trunk is not None, episode.forked_at))
        early, late = forks
        assert (early.forked_at, late.forked_at) == (0, 1)
        assert late.turns[0] == trunk.turns[0]
        assert trunk.credits == ((trunk.reward.team + late.reward.team) / 2, trunk.reward.team)
        assert (early.credits, late.credits) == ((early.reward.team,) * 2, (0.0, late.reward.team))


@pytest.mark.parametrize("p", [0.4, 0.5])
def test_a_message_of_the_base_is_a_baseline(p: float) -> None:
    """Also where the agent still speaks as the base does (p = 0.5): with the same luck it would never learn."""
    match = replace(MATCHES["follow"], ann={"": p}, bob={"0": 0.5, "1": 0.6, "": 0.5})
    config = config_of(match, {"name": "difference", "baseline": "base"}, {"name": "rae"}, 1)
    assert_near(expected_step(match, config, dealt(match, config)), match.gradient("difference"))


# --- estimators that divide -------------------------------------------------------------------------------------------
DIVIDED: Mapping[str, dict[str, Any]] = {
    "grpo": {"name": "grpo"},
    "gspo": {"name": "gspo"},
    "reinforce++": {"name": "reinforce++"},
    "token, whitened": {"name": "marft-token"},
    "action, whitened": {"name": "marft-action"},
}


@pytest.mark.parametrize("method", DIVIDED)
@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("name", ["follow", "signal", "alone"])
def test_the_mean_step_goes_uphill_in_every_logit(name: str, credit: str, method: str) -> None:
    match, samples = MATCHES[name], 3 if credit == "tree" else 2
    found = expected_step(
        match, config_of(match, CREDITS[credit], DIVIDED[method], samples), known(name, credit, samples)
    )
    for key, slope in match.gradient(credit).items():
        if abs(slope) > 1e-3:
            assert found[key] * slope > 1e-2 * abs(slope), key


@pytest.mark.parametrize("method", ["grpo", "gspo", "reinforce++"])
def test_a_better_play_has_a_higher_advantage_in_the_mean(method: str) -> None:
    match = MATCHES["follow"]
    config = config_of(match, CREDITS["equal"], DIVIDED[method], 3)
    total: dict[Play, float] = defaultdict(float)
    weight: dict[Play, float] = defaultdict(float)
    judged = judge(match, config, known("follow", "equal", 3))
    for ann, bob in zip(judged[::2], judged[1::2], strict=True):
        play = "", int(ann.word), int(bob.word)
        total[play] += ann.chance * ann.advantage
        weight[play] += ann.chance
    mean = {play: total[play] / weight[play] for play in total}
    assert sorted(mean, key=lambda play: mean[play]) == sorted(mean, key=lambda play: match.scores(play, "equal")[0])
    assert len(mean) == 4


# --- an agent that does not matter ------------------------------------------------------------------------------------
@pytest.mark.parametrize("samples", [1, 2])
def test_the_difference_of_an_agent_that_does_not_matter_is_nothing(samples: int) -> None:
    for way in known("alone", "difference", samples):
        for episode in way.episodes:
            assert episode.credits == (0.0, float(episode.turns[1].text == "1"))


@pytest.mark.parametrize("method", ["rloo", "dr_grpo", "grpo", "gspo"])
def test_in_a_tree_an_agent_that_does_not_matter_has_no_advantage_in_the_mean(method: str) -> None:
    match, algorithm = MATCHES["alone"], {"name": method}
    config = config_of(match, CREDITS["tree"], algorithm, 3)
    mean: dict[tuple[str, str], float] = defaultdict(float)
    most = 0.0
    for one in judge(match, config, known("alone", "tree", 3)):
        mean[one.agent, one.word] += one.chance * one.advantage
        most = max(most, abs(one.advantage)) if one.agent == "ann" else most
    assert most > 0.4  # by luck
    assert mean["ann", "0"] == pytest.approx(0, abs=1e-6)
    assert mean["ann", "1"] == pytest.approx(0, abs=1e-6)
    assert mean["bob", "1"] > 0.05
    assert mean["bob", "0"] < -0.05
