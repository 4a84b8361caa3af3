"""A live environment of Gymnasium: what it shows, and what each step earned."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from marft.envs.turn_based.live_games import LiveGame, Move
from marft.envs.turn_based.words import (
    action_text,
    legal_actions,
    legal_actions_text,
    mask_of,
    observation_text,
    parse_action,
)

PLAYER = "player"
COLOURED = re.compile(r"\x1b\[[1-9][0-9;]*m(.*?)\x1b\[0?m", re.DOTALL)  # how `ansi` renderings mark a place
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How the config has a game put into words: a function of the user's, and names of actions."""

    text: Callable[..., Any] | None
    actions: tuple[str, ...]


class GymnasiumGame(LiveGame):
    """One game from its seed on, for one player."""

    def __init__(self, game: Any, seed: int, words: Words, illegal: float) -> None:
        super().__init__([PLAYER])
        self.game, self.words, self.illegal = game, words, illegal
        self.ended = False
        self.observation, self.info = game.reset(seed=seed)

    @property
    def player(self) -> str | None:
        """The one player, until the game is over."""
        return None if self.ended else PLAYER

    def shown(self) -> str:
        """The rendering where it is made of text, else the observation; and what may be done."""
        if self.words.text is not None:
            return str(self.words.text(self.observation, self.info, PLAYER))
        space = self.game.action_space
        legal = []
        if hasattr(space, "n"):
            numbers = legal_actions(space, mask_of(self.observation, self.info))
            legal = [legal_actions_text(numbers, self.words.actions, int(space.start))]
        ansi = self.game.render_mode == "ansi"
        return "\n".join([rendering_text(self.game.render()) if ansi else observation_text(self.observation), *legal])

    def parse_action(self, text: str) -> int | str | None:
        """The legal action that a message means, by its name or its number, or None."""
        space, mask = self.game.action_space, mask_of(self.observation, self.info)
        said = action_text(text).casefold().rstrip(".!")
        names = [name.casefold() for name in self.words.actions]
        if said in names:
            text = f"Action: {int(space.start) + names.index(said)}"
        return parse_action(text, space, mask)

    def step(self, move: Move) -> None:
        """Each step pays its own turn."""
        self.open_turn(PLAYER, move.turn)
        if move.action is None:
            self.pay(PLAYER, self.illegal)
            self.ended = True
            return
        self.observation, reward, terminated, truncated, self.info = self.game.step(move.action)
        self.pay(PLAYER, float(reward))
        self.ended = bool(terminated or truncated)

    def close(self) -> None:
        """Closes the game."""
        self.game.close()


def rendering_text(rendering: Any) -> str:
    """A rendering for terminals, what it highlights in brackets: FrozenLake marks the player by colour alone."""
    return ESCAPES.sub("", COLOURED.sub(r"[\1]", str(rendering))).strip("\n")
