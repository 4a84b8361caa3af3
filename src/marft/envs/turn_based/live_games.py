"""Games that run in this process: kept alive by state, and played again from their seed where they are not."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from marft.envs.turn_based.game import Game

MAX_LIVE_GAMES = 512  # games kept alive, to go on from where they stand: as many as a batch plays at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A turn as the game heard it; no action: the message held no legal one, and the game ended."""

    turn: int
    action: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that decides a position: the seed and the moves so far."""

    seed: int
    moves: tuple[Move, ...] = ()


class LiveGame(Game):
    """A game that somebody else's code plays, from its seed on."""

    @abstractmethod
    def parse_action(self, text: str) -> int | str | None:
        """The legal action that a message means, or None."""

    @abstractmethod
    def step(self, move: Move) -> None:
        """Plays the move of the one who is to act."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what it holds."""


class LiveGames:
    """Live games by state. A game that moves on leaves its old state, which is then played again when asked for."""

    def __init__(self, start: Callable[[int], LiveGame]) -> None:
        self._start = start
        self._live: OrderedDict[State, LiveGame] = OrderedDict()

    def first_state(self, seed: int) -> State:
        """The seed decides the first position."""
        return State(seed=seed)

    def game_at(self, state: State) -> LiveGame:
        """The game in that state; one that is not live any more is played again."""
        live = self._live.pop(state, None)
        if live is None:
            live = self._start(state.seed)
            for move in state.moves:
                live.step(move)
        self._keep(state, live)
        return live

    def play(self, state: State, turn: int, text: str) -> State:
        """The state after the move that the message means, with its game alive."""
        live = self.game_at(state)
        move = Move(turn=turn, action=live.parse_action(text))
        following = State(seed=state.seed, moves=(*state.moves, move))
        del self._live[state]
        live.step(move)
        self._keep(following, live)
        return following

    def _keep(self, state: State, live: LiveGame) -> None:
        self._live[state] = live
        while len(self._live) > MAX_LIVE_GAMES:
            self._live.popitem(last=False)[1].close()
