"""The players that self-play is measured against, and how their games are counted."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from benchmarks.learning import tictactoe
from marft.types import Completion, Episode, Message, Reward, Task, Turn

if importlib.util.find_spec("pettingzoo") is None:
    pytest.skip("PettingZoo is not installed", allow_module_level=True)


def shown(board: str) -> list[Message]:
    return [Message(role="user", content=f"Play.\nWrite your move.\n\n{board}")]


@pytest.mark.parametrize(
    ("board", "move"),
    [
        ("X X 2 O O 5 6 7 8", "2"),  # wins, though it could stop the other
        ("X 1 2 O O 5 6 7 X", "5"),  # stops a row
        ("O 1 2 3 O 5 X 7 8", "8"),  # a diagonal
        ("O X 2 O 4 5 6 7 X", "6"),  # a column
    ],
)
def test_one_move_ahead(board: str, move: str) -> None:
    assert tictactoe.one_ahead(shown(board)) == move


def test_otherwise_any_free_cell() -> None:
    assert {tictactoe.one_ahead(shown("X O 2 3 4 5 6 7 8")) for _ in range(200)} == set("2345678")


def game(*own: float) -> Episode:
    said = Completion(text="0", token_ids=(), logprobs=(), finish="stop", version=0)
    turns = tuple(
        Turn(agent=("cross", "nought")[k % 2], index=k, nth=0, shown="", observation=(), prompt_ids=(), completion=said)
        for k in range(len(own))
    )
    return Episode(
        task=Task(id="t", prompt=""), sample=0, turns=turns, reward=Reward(team=0.0, turns=dict(enumerate(own)))
    )


@pytest.mark.parametrize(
    ("own", "cross", "nought"),
    [
        ((0, 0, 0, -1, 1), "won", "lost"),
        ((0, 0, 0, 0, -1, 1), "lost", "won"),
        ((0, 0, -1), "no move", "drawn"),  # who cannot move loses, and nobody wins it
        ((0.0,) * 9, "drawn", "drawn"),
    ],
)
def test_how_games_are_counted(own: tuple[float, ...], cross: str, nought: str) -> None:
    assert (tictactoe.outcome(game(*own), "cross"), tictactoe.outcome(game(*own), "nought")) == (cross, nought)


def test_games_begin_with_up_to_five_moves_that_the_seed_decides() -> None:
    def position(seed: int) -> str:
        made = tictactoe.opened()
        made.reset(seed=seed)
        board: str = tictactoe.board(made.last()[0], {}, "")
        return board

    found = [position(seed) for seed in range(40)]
    assert found == [position(seed) for seed in range(40)]
    assert {sum(cell in "XO" for cell in board.split()) for board in found} == set(range(6))


def test_the_table() -> None:
    def point(won: float, iteration: int = 0) -> dict[str, Any]:
        rest = {"drawn": 0.25, "lost": 0.75 - won, "no move": 0.0}
        return {"iteration": iteration, **{name: {"won": won, **rest} for name in tictactoe.OPPONENTS}}

    runs = [{"credit": "per_player", "points": [point(w), point(w + 0.2, 40)]} for w in (0.1, 0.3)]
    lines = tictactoe.table({"reference": point(0.5), "runs": runs}).splitlines()[2:]
    assert lines == [
        "| at random | – | 50 / 25 / 25 / 0 | 50 / 25 / 25 / 0 |",
        "| `per_player` | 0 | 20 / 25 / 55 / 0 | 20 / 25 / 55 / 0 |",
        "| `per_player` | 40 | 40 / 25 / 35 / 0 | 40 / 25 / 35 / 0 |",
    ]
