"""A live game of TextArena: whose turn it is, what that player reads, and the rewards at the end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from marft.envs.turn_based.live_games import LiveGame, Move


class Chance:
    """A game's own luck. TextArena draws from the generators that all of Python shares, and seeds them when a game begins;
    so every game is given back the generators as it left them."""

    def __init__(self, seed: int) -> None:
        import numpy

        with self._generators_restored():
            random.seed(seed)
            numpy.random.seed(seed)
            self._left = self._generators()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Within it, what is drawn is this game's."""
        with self._generators_restored():
            self._set_generators(self._left)
            try:
                yield
            finally:
                self._left = self._generators()

    @contextmanager
    def _generators_restored(self) -> Iterator[None]:
        before = self._generators()
        try:
            yield
        finally:
            self._set_generators(before)

    def _generators(self) -> tuple[Any, Any]:
        import numpy

        return random.getstate(), numpy.random.get_state()

    def _set_generators(self, states: tuple[Any, Any]) -> None:
        import numpy

        random.setstate(states[0])
        numpy.random.set_state(states[1])


class TextArenaGame(LiveGame):
    """One game from its seed on. Players are numbered; rewards come when it is over, and belong to their last turns."""

    def __init__(self, make: Callable[[], Any], *, players: int, seed: int) -> None:
        super().__init__(map(str, range(players)))
        self.chance, self.done = Chance(seed), False
        with self.chance.drawn():
            self.game = make()  # some games draw here
            self.game.reset(num_players=players, seed=seed)
            self._look()

    @property
    def player(self) -> str | None:
        """The number of who is to act; nobody when the game is over."""
        return None if self.done else self.current

    def shown(self) -> str:
        """What the player has been told so far, the rules first."""
        return self.observation

    def parse_action(self, text: str) -> str:
        """The message as it is: the game reads it."""
        return text

    def step(self, move: Move) -> None:
        """Plays the message; at the end every player is paid."""
        self.open_turn(self.current, move.turn)
        with self.chance.drawn():
            self.done = bool(self.game.step(action=move.action)[0])
            if not self.done:
                self._look()
                return
            rewards, _ = self.game.close()
        for player, reward in (rewards or {}).items():
            self.pay(str(player), float(reward))

    def close(self) -> None:
        """There is nothing to let go of: closing a game of TextArena asks for its rewards."""

    def _look(self) -> None:
        """An observation can be read once."""
        player, observation = self.game.get_observation()
        self.current, self.observation = str(player), observation_text(observation)


def observation_text(observation: Any) -> str:
    """As the game's wrappers have it; without any (`-raw`), message by message."""
    if isinstance(observation, str):
        return observation.strip("\n")
    return "\n".join(f"[{'GAME' if sender < 0 else f'Player {sender}'}] {said}" for sender, said, _ in observation)
