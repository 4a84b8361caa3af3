"""The environment: any PettingZoo AEC game whose players are agents of the team."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from marft.envs.pettingzoo.live_game import PettingZooGame
from marft.envs.turn_based.environment import TurnBasedEnv, check_illegal, check_name, find_function, require_library
from marft.envs.turn_based.live_games import LiveGames, State
from marft.envs.turn_based.words import legal_actions, legal_actions_text, mask_of, move_form, observation_text
from marft.types import MarftError


class PettingZoo(TurnBasedEnv[State]):
    """The players of the game are the agents that `agents` lists. A message without a legal "Action: N" ends the game and costs
    its turn `illegal`."""

    kind = "pettingzoo"

    def __init__(
        self, game: str, agents: Sequence[str], rules: str = "", text: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}), illegal: float = -1.0,
    ) -> None:  # fmt: skip
        self.game = check_name("game", game, "a module such as pettingzoo.classic.tictactoe_v3")
        super().__init__(re.split(r"[.:]", game)[-1], agents, rules, text, options)
        self.illegal = check_illegal(illegal)
        require_library("pettingzoo", "env: pettingzoo needs PettingZoo; pip install 'marft[games]'")

    def _open_games(self) -> LiveGames:
        make = find_game(self.game)
        return LiveGames(lambda seed: PettingZooGame(make(**self.options), seed, self.illegal, self._words))

    def _words(self, observation: Any, info: Any, player: str, space: Any) -> str:
        if self.text is not None:
            return str(find_function(self.text, "env.text")(observation, info, player))
        legal = [legal_actions_text(legal_actions(space, mask_of(observation, info)))] if hasattr(space, "n") else []
        return "\n".join([f"You are {player}.", observation_text(observation), *legal])

    def _move_form(self) -> str:
        """How to answer in this game; a game that cannot be played like this ends here, in one line."""
        from pettingzoo import AECEnv

        make = find_game(self.game)
        try:
            game = make(**self.options)
            if not isinstance(game, AECEnv):
                raise TypeError(f"{type(game).__name__} is no AEC environment of PettingZoo")
            players = list(game.possible_agents)
            if len(players) != len(self.agents):
                raise ValueError(
                    f"it has {len(players)} players, {', '.join(players)}; env.agents lists {len(self.agents)}"
                )
            game.reset(seed=0)
            observation, _, _, _, info = game.last()
            self._words(observation, info, str(game.agent_selection), game.action_space(game.agent_selection))
            spaces = [game.action_space(player) for player in players]
            game.close()
        except MarftError:
            raise
        except Exception as error:  # the user's game: anything may come
            raise MarftError(f"env.game: {self.game}: {error or type(error).__name__}") from None
        return move_form(spaces, f"env.game: {self.game}")


def find_game(game: str) -> Callable[..., Any]:
    """What makes the game: `env` of a PettingZoo module such as pettingzoo.classic.tictactoe_v3, or `module:function`."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # which it would print into our output
    try:
        return find_function(game if ":" in game else f"{game}:env", "env.game")
    except MarftError as error:
        reason = error.__context__
        if not game.startswith("pettingzoo.") or not isinstance(reason, ModuleNotFoundError) or reason.name == game:
            raise
        raise MarftError(f"{error}; pip install 'marft[games]'") from None  # a library that PettingZoo's own games need
