"""A game as the environment sees it: who is to act, what that player is shown, what every turn has earned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

State = TypeVar("State")


class Game(ABC):
    """A position. `earned` is what turns brought their `players`, by turn; `totals` by player."""

    def __init__(self, players: Iterable[str]) -> None:
        self.totals = dict.fromkeys(players, 0.0)
        self.earned: dict[int, float] = {}
        self.players: dict[int, str] = {}  # whose turn was which
        self.latest: dict[str, int] = {}  # each player's last turn

    @property
    @abstractmethod
    def player(self) -> str | None:
        """Who is to act; nobody when the game is over."""

    @property
    def seat(self) -> int:
        """Where the one who is to act sits. In a game for one, everybody at the table moves in turn."""
        if len(self.totals) == 1 or self.player is None:
            return len(self.earned)
        return list(self.totals).index(self.player)

    @abstractmethod
    def shown(self) -> str:
        """What the one who is to act is shown."""

    def open_turn(self, player: str, turn: int) -> None:
        """From now on, what the player is paid was earned by this turn."""
        self.latest[player], self.earned[turn], self.players[turn] = turn, 0.0, player

    def pay(self, player: str, reward: float) -> None:
        """What a player earned goes to its last turn; one who has not acted yet has it in the total alone."""
        self.totals[player] += reward
        if player in self.latest:
            self.earned[self.latest[player]] += reward


class Games(Protocol, Generic[State]):
    """Positions by their states, wherever the games run."""

    def first_state(self, seed: int) -> State:
        """The state before anybody has acted."""

    def game_at(self, state: State) -> Game:
        """The game in that state."""

    def play(self, state: State, turn: int, text: str) -> State:
        """The state after a message of the one who is to act."""
