"""Gymnasium's environments in words: what is shown, which action a message means, what a step earns."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
from toys import rows
from turns import begun, played, said_by, trained_and_resumed

from marft.cli import main
from marft.envs import make_env
from marft.envs.gymnasium import Gymnasium
from marft.envs.gymnasium.live_game import rendering_text
from marft.envs.turn_based.live_games import MAX_LIVE_GAMES, Move
from marft.types import MarftError, Reward, Task

if importlib.util.find_spec("gymnasium") is None:
    pytest.skip("Gymnasium is not installed", allow_module_level=True)

import gymnasium
from gymnasium_toys import Guess, worth

FROZEN = {"render_mode": "ansi", "is_slippery": False, "max_episode_steps": 8}
LAKE: dict[str, Any] = {"id": "FrozenLake-v1", "options": FROZEN, "actions": ["left", "down", "right", "up"]}


HERE = "gymnasium_toys:"


def earned(turns: dict[int, float], done: bool = True) -> Reward:
    players = dict.fromkeys(turns, "player")
    return Reward(team=sum(turns.values()), turns=turns, done=done, itemised=True, players=players)


def letter(seed: int) -> str:
    game = Guess()
    game.reset(seed=seed)
    return game.letter


# --- what is shown, and what it earns ---------------------------------------------------------------------------------
def test_a_real_environment_in_a_terminals_words() -> None:
    env = Gymnasium(agents=["ann", "bob"], **LAKE)
    assert env.tasks("train")[1] == Task(
        id="gymnasium/FrozenLake-v1/train/2",
        prompt='You play FrozenLake-v1.\nWrite your move as "Action: NAME".',
        data={"seed": 2},
    )
    state = played(env, ["Action: down"])
    legal = "Legal actions: left, down, right, up"
    assert env.observe(state, "bob") == f"  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG\n{legal}"
    assert env.observe(state, "ann") == ""  # they take turns
    way = ["Action: down", "1", "Hm. Action: Right!", "Action: down", "action: left", "Action: 2"]
    assert env.reward(played(env, way[:4])) == earned(dict.fromkeys(range(4), 0.0), done=False)
    assert env.reward(played(env, way[:5])) == earned({0: 0, 1: 0, 2: 0, 3: 0, 4: -1})  # no move, as it is spelled
    goal = played(env, [*way[:4], "Action: right", "right"])
    assert env.whose_turn(goal) is None
    assert env.reward(goal) == earned({0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 1})
    assert env.transition(goal, said_by("ann", "left", 6)) == goal


def test_cards_as_numbers() -> None:
    env = Gymnasium("Blackjack-v1", ["ann"], rules="Blackjack: 0 sticks, 1 hits.")
    game = gymnasium.make("Blackjack-v1")
    for seed in range(5):
        (hand, dealer, ace), _ = game.reset(seed=seed)
        assert env.observe(begun(env, seed), "ann") == f"{hand} {dealer} {ace}\nLegal actions: 0, 1"
        _, reward, over, _, _ = game.step(0)
        assert env.reward(played(env, ["Action: 0"], seed)) == earned({0: float(reward)}, done=over)


@pytest.mark.parametrize("text", ["Action: z", "Action:", "", "Action: ab", "\ud83d", "Action: 3"])
def test_what_is_no_move_ends_the_game(text: str) -> None:
    env = Gymnasium(f"{HERE}MarftGuess-v0", ["ann"], illegal=-0.5)
    wrong = next(one for one in "abcdefgh" if one != letter(0))
    state = played(env, [wrong, text])
    assert state.moves[1] == Move(turn=1, action=None)
    assert env.whose_turn(state) is None
    assert env.reward(state) == earned({0: 0.0, 1: -0.5})


def test_a_game_in_words_and_one_with_a_mask() -> None:
    env = Gymnasium(f"{HERE}MarftGuess-v0", ["ann"])
    assert env.tasks("test")[0].prompt == 'You play MarftGuess-v0.\nWrite your move as "Action: …".'
    assert env.observe(begun(env), "ann") == "Guess a letter of a to h."
    assert env.reward(played(env, [f"Perhaps. Action: {letter(3)}"], seed=3)) == earned({0: 1.0})
    masked = Gymnasium(f"{HERE}MarftMixed-v0", ["ann"], actions=["rest", "swim", "buy"])
    assert masked.observe(begun(masked), "ann") == "place: cave\ncoins: 2\nLegal actions: rest, buy"
    assert masked.reward(played(masked, ["Action: swim"])) == earned({0: -1.0})
    state = played(masked, ["Action: buy"])
    assert masked.reward(state) == earned({0: 7.0}, done=False)
    assert masked.observe(state, "ann") == "place: shop\ncoins: 0\nLegal actions: swim"


def test_words_of_ones_own() -> None:
    env = Gymnasium("Blackjack-v1", ["ann"], text=f"{HERE}in_words")
    assert env.observe(begun(env), "ann").startswith("player looks: (")


def test_renderings_keep_what_colour_says() -> None:
    assert rendering_text("\n\x1b[41mS\x1b[0mF\n\x1b[1m\x1b[0mG\x1b[0m") == "[S]F\n[]G"


# --- states are values ------------------------------------------------------------------------------------------------
def test_a_state_decides_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the ice is slippery, and where most games are not live any more."""
    assert MAX_LIVE_GAMES > 2
    monkeypatch.setattr("marft.envs.turn_based.live_games.MAX_LIVE_GAMES", 2)
    env = Gymnasium("FrozenLake-v1", ["ann"], options={"render_mode": "ansi"})
    states = [played(env, ["Action: 2", "Action: 1"][:moves], seed) for seed in range(6) for moves in range(3)]
    seen = [(env.whose_turn(s), env.observe(s, "ann"), env.reward(s)) for s in states]
    assert len({text for _, text, _ in seen}) > 3
    for each in (env, pickle.loads(pickle.dumps(env))):
        again = [pickle.loads(pickle.dumps(s)) for s in reversed(states)]
        assert [(each.whose_turn(s), each.observe(s, "ann"), each.reward(s)) for s in again] == seen[::-1]


def test_trains_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    run = trained_and_resumed(tmp_path, name="gymnasium", agents=["ann", "bob"], id=f"{HERE}MarftLetters-v0")
    for row in rows(run / "episodes.jsonl"):  # paid by the environment's own rule, turn by turn
        assert [turn["agent"] for turn in row["turns"]] == ["ann", "bob", "ann"]
        assert row["reward"] == sum(worth(turn["text"].strip()) for turn in row["turns"])


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"id": "FrozenLak-v1"}, "Did you mean: `FrozenLake`?"),
        ({"id": "no_such_module:Game-v0"}, "No module named 'no_such_module'"),
        ({"id": "Pendulum-v1"}, "has actions of kind Box; Discrete or Text"),
        ({"options": {"no_such": 1}}, "unexpected keyword argument 'no_such'"),
        ({"actions": ["left", "right"]}, "env.actions lists 2 names; FrozenLake-v1 has 4 actions"),
        ({"id": f"{HERE}MarftGuess-v0", "actions": ["a"]}, "has no numbered actions"),
        ({"text": f"{HERE}nothing"}, "env.text: cannot import"),
    ],
)
def test_environments_that_cannot_be_played(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError) as refused:
        Gymnasium(**{"id": "FrozenLake-v1", "agents": ["ann"], **arguments}).tasks("train")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"id": 3}, "id must be a registered environment"),
        ({"agents": "ann"}, "agents must list"),
        ({"actions": "left"}, "actions must list"),
        ({"actions": ["left", "Left "]}, "actions names one twice"),
        ({"illegal": "much"}, "illegal must be"),
        ({"options": 3}, "options must be"),
    ],
)
def test_wrong_settings(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError, match=line):
        make_env("gymnasium", {"id": "FrozenLake-v1", "agents": ["ann"], **arguments})


def test_a_wrong_name_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "env=gymnasium", "env.id=FrozenLak-v1", "env.agents=[planner]", "team.workflow=turns"]
    assert main([*words, "--run", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith("Did you mean: `FrozenLake`?")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.envs.turn_based.environment.find_spec", lambda name: None)
    with pytest.raises(MarftError, match=r"^env: gymnasium needs Gymnasium; pip install 'marft\[gymnasium\]'$"):
        Gymnasium("FrozenLake-v1", ["ann"])
