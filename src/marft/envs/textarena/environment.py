"""The environment: any game of TextArena whose players are agents of the team."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from marft.config.section import nearest
from marft.envs.textarena.live_game import TextArenaGame
from marft.envs.turn_based.environment import TurnBasedEnv, check_name, require_library
from marft.envs.turn_based.live_games import LiveGames, State
from marft.types import MarftError
from marft.untrusted_values import described

NETWORK_SECONDS = (
    5.0  # some games ask for word lists on the network when they are imported, and go on without an answer
)


class TextArena(TurnBasedEnv[State]):
    """The players of the game are the agents that `agents` lists; a game for one (`players=1`) they play in turn. The game itself answers wrong moves, and scores."""

    kind = "textarena"

    def __init__(
        self, id: str, agents: Sequence[str], rules: str = "", options: Mapping[str, Any] = MappingProxyType({}),
        players: int | None = None,
    ) -> None:  # fmt: skip
        self.id = check_name("id", id, "a game such as TicTacToe-v0")
        super().__init__(id, agents, rules, None, options)
        if players not in (None, 1, len(self.agents)) or type(players) is bool:
            raise ValueError(f"players must be 1, whom all agents play in turn, or as many as agents, not {players!r}")
        self.players = players or len(self.agents)
        require_library("textarena", "env: textarena needs TextArena; pip install 'marft[textarena]'")

    def _open_games(self) -> LiveGames:
        return LiveGames(self._start)

    def _start(self, seed: int) -> TextArenaGame:
        return TextArenaGame(self._make, players=self.players, seed=seed)

    def _make(self) -> Any:
        import textarena

        with brief_network():
            return textarena.make(self.id, **self.options)

    def _move_form(self) -> str:
        """The game says itself how to write a move. One that cannot be played ends here, in one line."""
        import textarena

        known = textarena.envs.registration.ENV_REGISTRY
        if self.id not in known:
            raise MarftError(f"env.id: TextArena has no game {self.id!r}{nearest(self.id, list(known))}")
        try:
            self._start(seed=0).close()
        except LookupError as error:
            if "NLTK" not in str(error):
                raise MarftError(self._refusal(error)) from None
            raise MarftError(
                f"env.id: {self.id} needs word lists of NLTK, which could not be downloaded; where there is a network: "
                "python -m nltk.downloader words averaged_perceptron_tagger_eng"
            ) from None
        except Exception as error:  # the library's game: anything may come
            raise MarftError(self._refusal(error)) from None
        return ""

    def _refusal(self, error: Exception) -> str:
        return f"env.id: {self.id} with {self.players} players: {' '.join(described(error).split())}"


@contextmanager
def brief_network() -> Iterator[None]:
    """What asks the network within it waits for seconds, not for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
