"""The environment: anything that `gymnasium.make` makes, with actions that words can say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from marft.envs.gymnasium.live_game import GymnasiumGame, Words
from marft.envs.turn_based.environment import TurnBasedEnv, check_illegal, check_name, find_function, require_library
from marft.envs.turn_based.live_games import LiveGames, State
from marft.envs.turn_based.words import move_form
from marft.types import MarftError
from marft.untrusted_values import described


class Gymnasium(TurnBasedEnv[State]):
    """One player, whom the listed agents play in turn. `actions` names the numbers of a discrete action space. A message without
    a legal "Action: …" ends the game and costs its turn `illegal`."""

    kind = "gymnasium"

    def __init__(
        self, id: str, agents: Sequence[str], rules: str = "", text: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}), actions: Sequence[str] = (), illegal: float = -1.0,
    ) -> None:  # fmt: skip
        self.id = check_name("id", id, "a registered environment such as FrozenLake-v1")
        super().__init__(id.rpartition(":")[2].rpartition("/")[2], agents, rules, text, options)
        if not isinstance(actions, list | tuple) or not all(type(name) is str and name.strip() for name in actions):
            raise ValueError(f"actions must list the actions' names in order, not {actions!r}")
        if len({name.strip().casefold() for name in actions}) < len(actions):
            raise ValueError(f"actions names one twice: {', '.join(actions)}")
        self.actions, self.illegal = tuple(name.strip() for name in actions), check_illegal(illegal)
        require_library("gymnasium", "env: gymnasium needs Gymnasium; pip install 'marft[gymnasium]'")

    def _open_games(self) -> LiveGames:
        return LiveGames(self._start)

    def _start(self, seed: int) -> GymnasiumGame:
        import gymnasium

        text = None if self.text is None else find_function(self.text, "env.text")
        game = gymnasium.make(self.id, disable_env_checker=True, **self.options)
        return GymnasiumGame(game, seed, Words(text=text, actions=self.actions), self.illegal)

    def _move_form(self) -> str:
        """How to answer; an environment that cannot be played like this ends here, in one line."""
        try:
            live = self._start(seed=0)
            form = self._form_of(live.game.action_space)
            live.shown()
            live.close()
        except MarftError:
            raise
        except Exception as error:  # the user's environment: anything may come
            raise MarftError(f"env.id: {self.id}: {' '.join(described(error).split())}") from None
        return form

    def _form_of(self, space: Any) -> str:
        form = move_form([space], f"env.id: {self.id}")
        if not self.actions:
            return form
        count = int(space.n) if hasattr(space, "n") else "no numbered"
        if count != len(self.actions):
            raise MarftError(f"env.actions lists {len(self.actions)} names; {self.id} has {count} actions")
        return 'Write your move as "Action: NAME".'
