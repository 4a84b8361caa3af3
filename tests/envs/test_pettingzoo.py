"""PettingZoo games: whose turn it is, what is shown, what a move earns, and states that are values."""

from __future__ import annotations

import asyncio
import importlib.util
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.algorithms.credit import (
    RewardStream,
    difference,
    equal,
    per_player,
    per_step,
    replayed,
    step_discounted,
    tree_scores,
)
from marft.envs.pettingzoo import PettingZoo
from marft.envs.turn_based.live_games import MAX_LIVE_GAMES, Move, State
from marft.envs.turn_based.words import legal_actions_text, observation_text, parse_action
from marft.game.workflows.built_in import turns
from marft.types import Completion, Episode, MarftError, Reward, Task, Turn

if importlib.util.find_spec("pettingzoo") is None:
    pytest.skip("PettingZoo is not installed", allow_module_level=True)

import numpy
from gymnasium import spaces
from pettingzoo import AECEnv

TICTACTOE, RPS = "pettingzoo.classic.tictactoe_v3", "pettingzoo.classic.rps_v2"


def turn(agent: str, text: str, index: int = 0) -> Turn:
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    return Turn(agent=agent, index=index, nth=0, shown="", observation=(), prompt_ids=(), completion=said)


def start(env: PettingZoo, seed: int = 0) -> State:
    return env.reset(Task(id="t", prompt="", data={"seed": seed}))


def played(env: PettingZoo, texts: list[Any], seed: int = 0) -> State:
    """The state after these messages; a number is that action."""
    state = start(env, seed)
    for index, text in enumerate(texts):
        agent = env.whose_turn(state)
        assert agent is not None
        state = env.transition(state, turn(agent, text if isinstance(text, str) else f"Action: {text}", index))
    return state


def earned(
    team: float, turns: dict[int, float], done: bool = True, names: tuple[str, str] = ("player_1", "player_2")
) -> Reward:
    """Of a game of two who take turns."""
    players = {k: names[k % 2] for k in turns}
    return Reward(team=team, turns=turns, done=done, itemised=True, players=players)


class Letters(AECEnv):  # type: ignore[misc]
    """A small game in words, for two who work together: in turn each says one letter of the word; all earn for a right one."""

    def __init__(self, words: tuple[str, ...] = ("cat", "dog", "owl")) -> None:
        super().__init__()
        self.words = words
        self.possible_agents = ["first", "second"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Text(100)

    def action_space(self, agent: str) -> Any:
        return spaces.Text(1, charset="abcdefghijklmnopqrstuvwxyz")

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.word = random.Random(seed).choice(self.words)
        self.said = ""
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = "first"

    def observe(self, agent: str) -> str:
        return f"The word is {self.word}; so far: {self.said or 'nothing'}."

    def step(self, action: str | None) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        right = self.word[len(self.said)] == action
        self.said += str(action)
        self.rewards = dict.fromkeys(self.agents, 1.0 if right else 0.0)
        self.terminations = dict.fromkeys(self.agents, len(self.said) == len(self.word))
        self.agent_selection = self.possible_agents[len(self.said) % 2]
        self._accumulate_rewards()


def letters(**options: Any) -> Any:
    return Letters(**options)


def in_words(observation: Any, info: Any, agent: str) -> str:
    return f"{agent} looks: {observation}"


def not_aec() -> object:
    return object()


def boxed() -> Any:
    game = Letters()
    game.action_space = lambda agent: spaces.Box(0, 1)  # type: ignore[method-assign]
    return game


def raising() -> Any:
    raise RuntimeError("no such table")


HERE = f"{__name__}:"


# --- classic games ----------------------------------------------------------------------------------------------------
def test_tictactoe_by_hand() -> None:
    env = PettingZoo(TICTACTOE, ["cross", "nought"])
    state = played(env, [0, 3, 1, 4])
    assert env.whose_turn(state) == "cross"
    assert env.observe(state, "cross") == (
        "You are player_1.\nX: yours, O: the other player's, .: empty\nXX.\nOO.\n...\nLegal actions: 2, 5, 6, 7, 8"
    )
    assert env.observe(state, "nought") == ""  # not its turn
    assert env.reward(state) == earned(team=0.0, turns={0: 0, 1: 0, 2: 0, 3: 0}, done=False)
    won = env.transition(state, turn("cross", "I win. Action: 2", 4))
    assert env.whose_turn(won) is None
    assert env.observe(won, "nought") == ""
    assert env.reward(won) == earned(team=0.0, turns={0: 0, 1: 0, 2: 0, 3: -1, 4: 1}, done=True)
    assert env.transition(won, turn("nought", "Action: 8", 5)) == won  # it is over


def test_a_draw_earns_nothing() -> None:
    env = PettingZoo(TICTACTOE, ["cross", "nought"])
    assert env.reward(played(env, [0, 1, 2, 4, 3, 5, 7, 6, 8])) == earned(team=0, turns=dict.fromkeys(range(9), 0.0))


@pytest.mark.parametrize(
    "text", ["Action: 0", "Action: 9", "Action: -1", "Action: x", "Action:", "4 or 5", "action: 4", "", "Action: 4\nAction: 0",
             "Action: 99999999999999999999", "\ud83d", "Action: " * 10_000, "Action: " + "9" * 100_000],
)  # fmt: skip
def test_what_is_no_legal_move_ends_the_game(text: str) -> None:
    env = PettingZoo(TICTACTOE, ["cross", "nought"])
    state = played(env, [0, text])
    assert state.moves[1] == Move(turn=1, action=None)
    assert env.whose_turn(state) is None
    assert env.reward(state) == earned(team=-0.5, turns={0: 0.0, 1: -1.0}, done=True)
    dear = PettingZoo(TICTACTOE, ["cross", "nought"], illegal=-3)
    assert dear.reward(state) == earned(team=-1.5, turns={0: 0.0, 1: -3.0}, done=True)


def test_each_turn_earns_what_came_until_the_players_next() -> None:
    env = PettingZoo(RPS, ["a", "b"], options={"max_cycles": 3})
    state = played(env, [0, 1, 2, 2, 1, 0])  # rock < paper, a draw, paper > rock
    assert env.reward(state) == earned(
        team=0.0, turns={0: -1, 1: 1, 2: 0, 3: 0, 4: 1, 5: -1}, names=("player_0", "player_1")
    )
    broken = played(env, [0, 1, "what?"])  # b has won a round and has not been told yet
    assert env.reward(broken) == earned(team=-0.5, turns={0: -1, 1: 1, 2: -1}, names=("player_0", "player_1"))


@pytest.mark.parametrize("game", ["connect_four_v3", "leduc_holdem_v4", "texas_holdem_v4", "tictactoe_v3", "rps_v2"])
def test_a_state_decides_everything(game: str) -> None:
    """Whatever was asked between, in whichever copy: the same state shows and earns the same."""
    pytest.importorskip("rlcard" if "holdem" in game else "pettingzoo")
    env = PettingZoo(f"pettingzoo.classic.{game}", ["a", "b"])
    rng = random.Random(game)
    trail, state = [start(env, seed=7)], start(env, seed=7)
    while (agent := env.whose_turn(state)) is not None and len(trail) < 30:
        legal = env.observe(state, agent).rpartition(": ")[2].split(", ")
        state = env.transition(state, turn(agent, f"Action: {rng.choice(legal)}", len(trail) - 1))
        trail.append(state)
    seen = [(env.whose_turn(s), env.observe(s, env.whose_turn(s) or ""), env.reward(s)) for s in trail]
    order = rng.sample(range(len(trail)), len(trail))
    copy = pickle.loads(pickle.dumps(env))
    for each in (env, copy, PettingZoo(f"pettingzoo.classic.{game}", ["a", "b"])):
        for k in order:
            s = pickle.loads(pickle.dumps(trail[k]))
            assert (each.whose_turn(s), each.observe(s, each.whose_turn(s) or ""), each.reward(s)) == seen[k]
    assert len(trail) > 1
    assert len(env.games._live) <= MAX_LIVE_GAMES


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-1, 9), max_size=9))
def test_forks_do_not_disturb_one_another(actions: list[int]) -> None:
    env = PettingZoo(TICTACTOE, ["a", "b"])
    state, fresh = start(env), start(env)
    for index, action in enumerate(actions):
        agent = env.whose_turn(state)
        if agent is None:
            break
        before = (state, env.reward(state))
        for other in (0, 4, 8):
            env.transition(state, turn(agent, f"Action: {other}", index))
        assert (state, env.reward(state)) == before
        state = env.transition(state, turn(agent, f"Action: {action}", index))
    assert start(env) == fresh
    reward = env.reward(state)
    assert set(reward.turns) == {move.turn for move in state.moves}
    assert reward.team == pytest.approx(sum(reward.turns.values()) / 2)
    assert PettingZoo(TICTACTOE, ["a", "b"]).reward(state) == reward


def test_chance_goes_by_the_seed() -> None:
    pytest.importorskip("rlcard")
    env = PettingZoo("pettingzoo.classic.leduc_holdem_v4", ["a", "b"])
    hands = [env.observe(start(env, seed), env.whose_turn(start(env, seed)) or "") for seed in range(20)]
    assert len(set(hands)) > 2
    assert hands == [env.observe(start(env, seed), env.whose_turn(start(env, seed)) or "") for seed in range(20)]


def test_one_agent_may_play_both_and_nobody_out_of_turn() -> None:
    env = PettingZoo(TICTACTOE, ["self", "self"])
    state = played(env, [0, 3, 1, 4, 2])
    assert env.reward(state).turns == {0: 0, 1: 0, 2: 0, 3: -1, 4: 1}
    assert list(env.reward(state).players.values()) == ["player_1", "player_2", "player_1", "player_2", "player_1"]
    with pytest.raises(ValueError, match="somebody acts, but it is the turn of self"):
        env.transition(start(env), turn("somebody", "Action: 0"))


# --- what each credit makes of a game ---------------------------------------------------------------------------------
def episode_of(env: PettingZoo, texts: list[Any]) -> Episode:
    """The game as an episode. Played again without its last two turns, it had been worth −¼ and ¼."""
    state, said = start(env), []
    for index, text in enumerate(texts):
        agent = env.whose_turn(state)
        assert agent is not None
        said.append(turn(agent, text if isinstance(text, str) else f"Action: {text}", index))
        state = env.transition(state, said[-1])
    credits = difference(env.reward(state).team, {len(said) - 2: -0.25, len(said) - 1: 0.25}, len(said))
    task = Task(id="t", prompt="")
    return Episode(task=task, sample=0, turns=tuple(said), reward=env.reward(state), credits=credits)


CREDITS: dict[str, Callable[[Episode], RewardStream]] = {
    "equal": equal,
    "step_discounted": partial(step_discounted, beta=0.5),
    "per_step, 0": partial(per_step, gamma=0.0),
    "per_step, ½": partial(per_step, gamma=0.5),
    "per_step, 1": partial(per_step, gamma=1.0),
    "per_player, 0": partial(per_player, gamma=0.0),
    "per_player, ½": partial(per_player, gamma=0.5),
    "per_player, 1": partial(per_player, gamma=1.0),
    "difference": replayed,
}
# turns' own rewards, in order of play, and what every turn comes to
GAMES: dict[str, tuple[PettingZoo, list[Any], list[float], dict[str, list[float]]]] = {
    "tic-tac-toe, won": (  # by cross with its third move
        PettingZoo(TICTACTOE, ["cross", "nought"]), [0, 3, 1, 4, 2], [0, 0, 0, -1, 1],
        {
            "equal": [0] * 5, "step_discounted": [0] * 5,
            "per_step, 0": [0, 0, 0, -1, 1], "per_step, ½": [-1 / 16, -1 / 8, -1 / 4, -1 / 2, 1],
            "per_step, 1": [0, 0, 0, 0, 1],  # −1 and 1 cancel
            "per_player, 0": [0, 0, 0, -1, 1], "per_player, ½": [1 / 4, -1 / 2, 1 / 2, -1, 1],
            "per_player, 1": [1, -1, 1, -1, 1], "difference": [0, 0, 0, 1 / 4, -1 / 4],
        },
    ),
    "tic-tac-toe, an illegal move": (  # of nought, whose second it is; R = −½
        PettingZoo(TICTACTOE, ["cross", "nought"]), [0, 3, 1, 0], [0, 0, 0, -1],
        {
            "equal": [-1 / 2] * 4, "step_discounted": [-1 / 16, -1 / 8, -1 / 4, -1 / 2],
            "per_step, 0": [0, 0, 0, -1], "per_step, ½": [-1 / 8, -1 / 4, -1 / 2, -1], "per_step, 1": [-1] * 4,
            "per_player, 0": [0, 0, 0, -1], "per_player, ½": [0, -1 / 2, 0, -1], "per_player, 1": [0, -1, 0, -1],
            "difference": [0, 0, -1 / 4, -3 / 4],
        },
    ),
    "tic-tac-toe, one agent as both": (
        PettingZoo(TICTACTOE, ["self", "self"]), [0, 3, 1, 4, 2], [0, 0, 0, -1, 1],
        {"per_player, ½": [1 / 4, -1 / 2, 1 / 2, -1, 1], "per_player, 1": [1, -1, 1, -1, 1]},
    ),
    "rock paper scissors": (  # two rounds, b wins the first and a the second
        PettingZoo(RPS, ["a", "b"], options={"max_cycles": 2}), [0, 1, 1, 0], [-1, 1, 1, -1],
        {
            "equal": [0] * 4, "step_discounted": [0] * 4,
            "per_step, 0": [-1, 1, 1, -1], "per_step, ½": [-3 / 8, 5 / 4, 1 / 2, -1], "per_step, 1": [0, 1, 0, -1],
            "per_player, 0": [-1, 1, 1, -1], "per_player, ½": [-1 / 2, 1 / 2, 1, -1], "per_player, 1": [0, 0, 1, -1],
            "difference": [0, 0, 1 / 4, -1 / 4],
        },
    ),
    "letters, together": (  # both earn for each right letter, c and t of cat; R = 2
        PettingZoo(f"{HERE}letters", ["ann", "bob"], options={"words": ["cat"]}), ["c", "x", "t"], [1, 1, 1],
        {
            "equal": [2] * 3, "step_discounted": [1 / 2, 1, 2],
            "per_step, 0": [1, 1, 1], "per_step, ½": [7 / 4, 3 / 2, 1], "per_step, 1": [3, 2, 1],
            "per_player, 0": [1, 1, 1], "per_player, ½": [3 / 2, 1, 1], "per_player, 1": [2, 1, 1],
            "difference": [0, 9 / 4, 7 / 4],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
def test_every_credit_of_a_game_by_hand(game: str) -> None:
    env, moves, own, expected = GAMES[game]
    episode = episode_of(env, moves)
    assert [episode.reward.turns[k] for k in range(len(moves))] == own
    for name, scores in expected.items():
        stream = CREDITS[name](episode)
        players = stream.players or ("",) * len(moves)
        found, following = [0.0] * len(moves), dict.fromkeys(players, 0.0)
        for k in reversed(range(len(moves))):
            found[k] = following[players[k]] = stream.rewards[k] + stream.discounts[k] * following[players[k]]
        assert found == scores, name


def test_what_a_tree_makes_of_a_game() -> None:
    """Trunk: won by cross, R = 0. Forked at nought's second move, which was illegal, R = −½."""
    env = PettingZoo(TICTACTOE, ["cross", "nought"])
    trunk, fork = episode_of(env, [0, 3, 1, 4, 2]), replace(episode_of(env, [0, 3, 1, 0]), trunk=0, forked_at=3)
    assert tree_scores(trunk, [fork]) == [(-0.25, -0.25, -0.25, 0, 0), (0, 0, 0, -0.5)]


# --- games in words ---------------------------------------------------------------------------------------------------
def test_a_game_in_words() -> None:
    env = PettingZoo(f"{HERE}letters", ["ann", "bob"], rules="Spell the word.", options={"words": ["cat"]})
    assert env.tasks("train")[0].prompt == 'Spell the word.\nWrite your move as "Action: …".'
    state = start(env)
    assert env.observe(state, "ann") == "You are first.\nThe word is cat; so far: nothing."
    state = played(env, ["c", "Hm. Action: x", "Action: t"])
    assert [move.action for move in state.moves] == ["c", "x", "t"]
    # both earn for each right letter: ann's first turn brings c (hers) and x (0), bob's brings t
    assert env.reward(state) == earned(team=2.0, turns={0: 1.0, 1: 1.0, 2: 1.0}, names=("first", "second"))
    lost = played(env, ["c", "two letters"])
    assert env.reward(lost) == earned(team=0.5, turns={0: 1.0, 1: -1.0}, names=("first", "second"))


def test_words_of_ones_own() -> None:
    env = PettingZoo(f"{HERE}letters", ["ann", "bob"], text=f"{HERE}in_words", options={"words": ["cat"]})
    assert env.observe(start(env), "ann") == "first looks: The word is cat; so far: nothing."


def test_the_seeds_of_the_splits() -> None:
    env = PettingZoo(TICTACTOE, ["a", "b"])
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test)) == (10_000, 1_000)
    assert [task.data["seed"] for task in train[:3]] == [0, 2, 4]
    assert [task.data["seed"] for task in test[:3]] == [1, 3, 5]
    assert train[1].id == "pettingzoo/tictactoe_v3/train/2"
    assert train[0].prompt == 'You play tictactoe_v3.\nWrite your move as "Action: N".'


def test_observations_in_words() -> None:
    assert observation_text("as it is") == "as it is"
    assert observation_text(numpy.array(3)) == "3"
    assert observation_text(numpy.array([0.5, 1, -2])) == "0.5 1 -2"
    assert observation_text(numpy.array([[1, 2], [3, 4]])) == "1 2\n3 4"
    assert observation_text({"cards": "king", "action_mask": [1], "pot": numpy.array([2])}) == "cards: king\npot: 2"
    assert legal_actions_text(list(range(100))) == "Legal actions: 100 numbers in 0…99"
    with pytest.raises(ValueError, match="name a function"):
        observation_text(numpy.zeros((8, 8, 111)))
    with pytest.raises(ValueError, match="name a function"):
        observation_text(numpy.array(["a"], dtype=object))


def test_actions_of_spaces_that_start_elsewhere() -> None:
    space = spaces.Discrete(3, start=5)
    assert [parse_action(f"Action: {n}", space, None) for n in (4, 5, 7, 8)] == [None, 5, 7, None]
    assert [parse_action(f"Action: {n}", space, [0, 1, 0]) for n in (5, 6, 7)] == [None, 6, None]
    assert parse_action("Action: 5. Or rather Action: 6, yes 7", space, None) == 6
    assert parse_action("Action: 5\nNo, Action:\n 6", space, None) == 6
    assert [parse_action(text, space, None) for text in ("6", " 6\n", "6.", "5 6", "six")] == [6, 6, None, None, None]


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"game": "pettingzoo.classic.nothing_v1"}, "cannot import 'pettingzoo.classic.nothing_v1:env'"),
        ({"game": f"{HERE}nothing"}, "cannot import"),
        ({"game": f"{HERE}TICTACTOE"}, "is not a function"),
        ({"game": f"{HERE}not_aec"}, "object is no AEC environment"),
        ({"game": f"{HERE}boxed"}, "has actions of kind Box"),
        ({"game": f"{HERE}raising"}, "no such table"),
        ({"game": "pettingzoo.classic.go_v5"}, "name a function in env.text"),
        ({"agents": ["a"]}, "it has 2 players, player_1, player_2; env.agents lists 1"),
        ({"options": {"no_such": 1}}, "unexpected keyword argument 'no_such'"),
        ({"text": f"{HERE}nothing"}, "env.text: cannot import"),
    ],
)
def test_games_that_cannot_be_played(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError) as refused:
        PettingZoo(**{"game": TICTACTOE, "agents": ["a", "b"], **arguments}).tasks("train")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"game": 3}, "game must be"),
        ({"agents": "ab"}, "agents must list"),
        ({"agents": []}, "agents must list"),
        ({"agents": ["a", 3]}, "agents must list"),
        ({"rules": None}, "rules must be"),
        ({"text": "describe"}, "text must be"),
        ({"options": [1]}, "options must be"),
        ({"illegal": "much"}, "illegal must be"),
    ],
)
def test_wrong_settings(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        PettingZoo(**{"game": TICTACTOE, "agents": ["a", "b"], **arguments})


def test_a_game_that_lacks_a_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rlcard", None)
    for name in [name for name in sys.modules if name.startswith("pettingzoo.classic.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MarftError, match=r"env\.game: cannot import .*; pip install 'marft\[games\]'$"):
        PettingZoo("pettingzoo.classic.leduc_holdem_v4", ["a", "b"]).tasks("train")


def test_a_function_of_a_notebook_is_to_be_put_into_a_file() -> None:
    with pytest.raises(MarftError, match=r"put it into one, say mine\.py in this folder, and give env\.text=mine:f"):
        PettingZoo(TICTACTOE, ["a", "b"], text="__main__:f").tasks("train")


def test_making_one_loads_no_game() -> None:
    import subprocess

    program = (
        f"import sys, marft.envs.pettingzoo as a; a.PettingZoo({TICTACTOE!r}, ['a', 'b'])\n"
        "print([m for m in ('pettingzoo', 'gymnasium', 'numpy', 'pygame') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the workflow -----------------------------------------------------------------------------------------------------
@dataclass
class Handle:
    """What the workflow needs of a game, with scripted players."""

    env: PettingZoo
    texts: list[str]
    team: dict[str, Any]
    state: State
    acted: list[tuple[str, Any]] = field(default_factory=list)

    async def whose_turn(self) -> str | None:
        return self.env.whose_turn(self.state)

    async def act(self, name: str, sees: Any = None) -> None:
        self.state = self.env.transition(self.state, turn(name, self.texts[len(self.acted)], len(self.acted)))
        self.acted.append((name, sees))


def test_turns_goes_on_until_nobody_is_named() -> None:
    env = PettingZoo(TICTACTOE, ["cross", "nought"])
    team = {"cross": SimpleNamespace(sees=None), "nought": SimpleNamespace(sees=("cross",))}
    game = Handle(env, [f"Action: {n}" for n in (0, 3, 1, 4, 2)], team, start(env))
    asyncio.run(turns(game))  # type: ignore[arg-type]
    # who is told nothing about whom to see sees the board alone
    assert game.acted == [("cross", ()), ("nought", None), ("cross", ()), ("nought", None), ("cross", ())]
    assert env.reward(game.state).turns[4] == 1
