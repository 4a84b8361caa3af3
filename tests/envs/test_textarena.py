"""TextArena's games: who plays whom, what a player reads, rewards by player, and luck that belongs to a game."""

from __future__ import annotations

import importlib.util
import pickle
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys import rows
from turns import begun, played, said_by, trained_and_resumed

from marft.cli import main
from marft.envs import make_env
from marft.envs.textarena import TextArena
from marft.envs.textarena.live_game import Chance
from marft.types import MarftError, Reward

if importlib.util.find_spec("textarena") is None:
    pytest.skip("TextArena is not installed", allow_module_level=True)

import numpy
import textarena

TICTACTOE = "TicTacToe-v0"


def earned(turns: dict[int, float], players: list[str], done: bool = True, team: float = 0.0) -> Reward:
    return Reward(team=team, turns=turns, done=done, itemised=True, players=dict(enumerate(players)))


def test_tictactoe_by_hand() -> None:
    env = TextArena(TICTACTOE, ["ann", "bob"])
    assert env.tasks("train")[1].id == "textarena/TicTacToe-v0/train/2"
    assert env.tasks("train")[0].prompt == "You play TicTacToe-v0."
    state = played(env, ["[0]", "I take [3].", "[1]", "[4]"])
    assert env.whose_turn(state) == "ann"
    assert env.observe(state, "bob") == ""
    board = " O | O | 2 \n---+---+---\n X | X | 5 \n---+---+---\n 6 | 7 | 8 "
    shown = env.observe(state, "ann")
    assert shown.startswith("[GAME] You are Player 0 in Tic Tac Toe.")
    assert "[Player 1] I take [3]." in shown
    assert board in shown
    assert env.reward(state) == earned(dict.fromkeys(range(4), 0.0), ["0", "1", "0", "1"], done=False)
    won = env.transition(state, said_by("ann", "[2]", 4))
    assert env.whose_turn(won) is None
    assert env.reward(won) == earned({0: 0, 1: 0, 2: 0, 3: -1, 4: 1}, ["0", "1", "0", "1", "0"])
    assert env.transition(won, said_by("bob", "[8]", 5)) == won
    with pytest.raises(ValueError, match="bob acts, but it is the turn of ann"):
        env.transition(state, said_by("bob", "[2]", 4))


@pytest.mark.parametrize("text", ["", "[9]", "[0]", "nothing", "\ud83d", "[" * 5_000])
def test_the_game_answers_a_wrong_move_once_and_then_has_it_lost(text: str) -> None:
    env = TextArena(TICTACTOE, ["ann", "bob"])
    state = played(env, ["[0]", text])
    assert env.whose_turn(state) == "bob"
    assert "attempted an invalid move" in env.observe(state, "bob")
    lost = env.transition(state, said_by("bob", text, 2))
    assert env.reward(lost) == earned({0: 1, 1: 0, 2: -1}, ["0", "1", "1"])


def test_a_game_for_one_and_two_who_play_it_in_turn() -> None:
    env = TextArena("GuessTheNumber-v0", ["ann", "bob"], options={"max_number": 3}, players=1)
    state = begun(env, seed=4)
    said = []
    for index in range(3):
        agent = env.whose_turn(state)
        if agent is None:
            break
        assert agent == ("ann", "bob", "ann")[index]
        said.append("0")
        state = env.transition(state, said_by(agent, f"[{index + 1}]", index))
    reward = env.reward(state)
    assert reward == earned({**dict.fromkeys(range(len(said)), 0.0), len(said) - 1: 1.0}, said, team=1.0)


def test_three_players_and_one_agent_as_two_of_them() -> None:
    env = TextArena("LiarsDice-v0", ["ann", "bob", "ann"])
    state = begun(env, seed=2)
    for index in range(12):
        agent = env.whose_turn(state)
        if agent is None:
            break
        state = env.transition(state, said_by(agent, "what?", index))
    reward = env.reward(state)
    assert reward.done
    assert set(reward.players.values()) <= {"0", "1", "2"}
    assert env.games.game_at(state).totals == {"0": -1.0, "1": 0.0, "2": 1.0}  # the last one left


@pytest.mark.parametrize("game", ["KuhnPoker-v0", "LiarsDice-v0", "PigDice-v0"])
def test_luck_belongs_to_the_game(game: str) -> None:
    """Dice and cards are drawn from generators that all games share: whatever was played between, the same come."""
    words = ["[check]", "[roll]", "[A]", "[bet]", "[Bid: 1, 2]", "[Call]"]

    def trail(env: TextArena, seed: int, between: Any) -> list[Any]:
        state, seen = begun(env, seed), []
        for index, text in enumerate(words):
            agent = env.whose_turn(state)
            seen.append((agent, env.observe(state, agent or ""), env.reward(state)))
            if agent is None:
                break
            between()
            state = env.transition(state, said_by(agent, text, index))
        return seen

    env, other = TextArena(game, ["ann", "bob"]), TextArena(game, ["ann", "bob"])
    calm = [trail(env, seed, lambda: None) for seed in range(4)]
    assert len({str(one) for one in calm}) > 1
    random.seed(99)
    expected = random.Random(99).random()

    def disturb() -> None:
        played(other, ["[check]"], seed=11)

    copy = pickle.loads(pickle.dumps(env))
    assert [trail(copy, seed, disturb) for seed in range(4)] == calm
    assert random.random() == expected  # and nobody else's luck is touched


def test_what_a_game_draws_when_it_is_made_is_its_seeds_too() -> None:
    """Countdown draws its numbers and its target before it begins."""

    def first_seen(seed: int) -> str:
        env = TextArena("Countdown-v0", ["ann"], options={"numbers": None, "target": None})
        return env.observe(begun(env, seed), "ann")

    seen = [first_seen(seed) for seed in range(4)]
    random.seed(99)
    assert [first_seen(seed) for seed in range(4)] == seen
    assert len(set(seen)) == 4
    assert random.random() == random.Random(99).random()


def test_numpys_luck_too() -> None:
    """IteratedStagHunt draws from it."""
    chance, before = Chance(7), numpy.random.get_state()[1].tolist()
    with chance.drawn():
        first = numpy.random.randint(1000)
    with Chance(8).drawn():
        numpy.random.randint(1000)
    with chance.drawn():
        second = numpy.random.randint(1000)
    assert [first, second] == numpy.random.RandomState(7).randint(1000, size=2).tolist()
    assert numpy.random.get_state()[1].tolist() == before


def test_messages_as_they_come() -> None:
    env = TextArena("TicTacToe-v0-raw", ["ann", "bob"])
    shown = env.observe(played(env, ["[4]"]), "bob")
    assert shown.startswith("[GAME] You are Player 1 in Tic Tac Toe.")
    assert "\n[Player 0] [4]\n" in shown


def test_trains_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    options = {"max_number": 9, "max_turns": 3}
    env = {"name": "textarena", "id": "GuessTheNumber-v0", "agents": ["ann", "bob"], "options": options, "players": 1}
    run = trained_and_resumed(tmp_path, max_tokens=1, **env)  # often a digit
    for row in rows(run / "episodes.jsonl"):  # scored as the library scores the same messages
        game = textarena.make("GuessTheNumber-v0", **options)
        game.reset(num_players=1, seed=int(row["task"].rpartition("/")[2]))
        over = [game.step(action=turn["text"])[0] for turn in row["turns"]]
        assert over == [False] * (len(over) - 1) + [True]
        assert row["reward"] == game.close()[0][0]


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"id": "TicTacTo-v0"}, "env.id: TextArena has no game 'TicTacTo-v0'; did you mean 'TicTacToe-v0'?"),
        ({"agents": ["ann"]}, "TicTacToe-v0 with 1 players: AssertionError: The number of players has to be 2"),
        ({"options": {"no_such": 1}}, "unexpected keyword argument 'no_such'"),
        ({"id": "Debate-v0"}, "OPENROUTER_API_KEY"),
    ],
)
def test_games_that_cannot_be_played(arguments: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(MarftError) as refused:
        TextArena(**{"id": TICTACTOE, "agents": ["ann", "bob"], **arguments}).tasks("train")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_word_lists_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such games ask the network when they are imported; here nobody answers, and no file is there."""
    import nltk

    asked: list[Any] = []
    monkeypatch.setattr(nltk, "download", lambda *names, **options: asked.append(names))
    monkeypatch.setattr(nltk.data, "path", [])
    for name in ("textarena.envs.Hangman.env", "textarena.envs.utils.word_lists"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(nltk.corpus, "words", SimpleNamespace(words=lambda *_: nltk.data.find("corpora/words")))
    with pytest.raises(
        MarftError, match=r"^env\.id: Hangman-v0 needs word lists of NLTK.*python -m nltk\.downloader words"
    ):
        TextArena("Hangman-v0", ["ann"]).tasks("train")
    assert asked


@pytest.mark.parametrize(
    ("arguments", "line"),
    [({"id": ""}, "id must be a game"), ({"agents": []}, "agents must list"), ({"players": 3}, "players must be 1")],
)
def test_wrong_settings(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError, match=line):
        make_env("textarena", {"id": TICTACTOE, "agents": ["ann", "bob"], **arguments})


def test_a_wrong_name_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "env=textarena", "env.id=TicTacTo-v0", "env.agents=[planner, solver]", "team.workflow=turns"]
    assert main([*words, "--run", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith("did you mean 'TicTacToe-v0'?")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.envs.turn_based.environment.find_spec", lambda name: None)
    with pytest.raises(MarftError, match=r"^env: textarena needs TextArena; pip install 'marft\[textarena\]'$"):
        TextArena(TICTACTOE, ["ann", "bob"])
