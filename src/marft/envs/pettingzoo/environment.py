"""The environment: any PettingZoo AEC game whose players are agents of the team."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from marft import import_paths
from marft.envs.base import Environment, Split, check_text
from marft.envs.pettingzoo.live_game import LiveGames, Move, State
from marft.envs.pettingzoo.text import legal_actions, legal_actions_text, mask_of, observation_text
from marft.types import MarftError, Reward, Task, Turn

SIZES: dict[Split, int] = {"train": 10_000, "test": 1_000}


class PettingZoo(Environment[State]):
    """The k-th player of the game is the agent that `agents` lists k-th; one agent may play several.

    The team's reward is the mean of what its players earned, and so sums up the turns' own: each turn's is what its player
    earned from it until that player's next. A message without a legal "Action: N" ends the game and costs its turn `illegal`.
    """

    def __init__(
        self, game: str, agents: Sequence[str], rules: str = "", text: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}), illegal: float = -1.0,
    ) -> None:  # fmt: skip
        if type(game) is not str or not game:
            raise ValueError(f"game must be a module such as pettingzoo.classic.tictactoe_v3, not {game!r}")
        if not isinstance(agents, list | tuple) or not agents or not all(type(name) is str for name in agents):
            raise ValueError(f"agents must list who plays, in the order of the game's players, not {agents!r}")
        check_text("rules", rules)
        if text is not None and (type(text) is not str or ":" not in text):
            raise ValueError(f"text must be package.module:function, not {text!r}")
        if not isinstance(options, Mapping):
            raise ValueError(f"options must be a mapping of what the game is made with, not {options!r}")
        if type(illegal) not in (int, float):
            raise ValueError(f"illegal must be a number, not {illegal!r}")
        if find_spec("pettingzoo") is None:
            raise MarftError("env: pettingzoo needs PettingZoo; pip install 'marft[games]'")
        self.agents: tuple[str, ...] = tuple(agents)
        self.game, self.rules, self.text = game, rules, text
        self.title = re.split(r"[.:]", game)[-1]
        self.options, self.illegal = dict(options), float(illegal)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "live_games"}  # live games stay here

    @cached_property
    def live_games(self) -> LiveGames:
        """Made on first use, so that a copy in another process has its own."""
        return LiveGames(find_game(self.game), self.options, self.illegal)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Seeds: even numbers for training, odd ones for testing."""
        prompt = f"{self.rules or f'You play {self.title}.'}\n{self._form()}"
        name = f"pettingzoo/{self.title}/{split}"
        seeds = range(split == "test", 2 * SIZES[split], 2)
        return [Task(id=f"{name}/{seed}", prompt=prompt, data={"seed": seed}) for seed in seeds]

    def reset(self, task: Task) -> State:
        """The seed decides the first position."""
        return State(seed=task.data["seed"])

    def whose_turn(self, state: State) -> str | None:
        """The agent that plays the game's next player."""
        live = self.live_games.game_at(state)
        return None if live.player is None else self._agent(live.player, live.game)

    def observe(self, state: State, agent: str) -> str:
        """What its player observes and may do, in words; nothing for agents whose turn it is not."""
        live = self.live_games.game_at(state)
        if live.player is None or self._agent(live.player, live.game) != agent:
            return ""
        observation, info = live.last_observation()
        return self._words(observation, info, live.player, live.game.action_space(live.player))

    def transition(self, state: State, turn: Turn) -> State:
        """Plays the action that the message names."""
        live = self.live_games.game_at(state)
        if live.player is None:
            return state
        expected = self._agent(live.player, live.game)
        if turn.agent != expected:
            raise ValueError(f"{turn.agent} acts, but it is the turn of {expected}; use team.workflow=turns")
        return self.live_games.play_move(state, Move(turn=turn.index, action=live.parse_action(turn.text)))

    def reward(self, state: State) -> Reward:
        """The players' mean for the team, and each turn's own part of it."""
        live = self.live_games.game_at(state)
        team = sum(live.totals.values()) / len(live.totals)
        return Reward(
            team=team, turns=dict(live.earned), done=live.player is None, itemised=True, players=dict(live.players)
        )

    def _agent(self, player: str, game: Any) -> str:
        return self.agents[list(map(str, game.possible_agents)).index(player)]

    def _words(self, observation: Any, info: Any, player: str, space: Any) -> str:
        if self.text is not None:
            return str(find_function(self.text, "env.text")(observation, info, player))
        legal = [legal_actions_text(legal_actions(space, mask_of(observation, info)))] if hasattr(space, "n") else []
        return "\n".join([f"You are {player}.", observation_text(observation), *legal])

    def _form(self) -> str:
        """How to answer in this game; a game that cannot be played like this ends here, in one line."""
        import gymnasium
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
            kinds = {type(game.action_space(player)) for player in players}
            game.close()
        except MarftError:
            raise
        except Exception as error:  # the user's game: anything may come
            raise MarftError(f"env.game: {self.game}: {error or type(error).__name__}") from None
        if kinds == {gymnasium.spaces.Discrete}:
            return 'Write your move as "Action: N".'
        if kinds == {gymnasium.spaces.Text}:
            return 'Write your move as "Action: …".'
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise MarftError(f"env.game: {self.game} has actions of kind {found}; Discrete or Text can be played in words")


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


def find_function(name: str, key: str) -> Callable[..., Any]:
    """The function `module:name` that the config says under `key`."""
    found: Callable[..., Any] = import_paths.find(name, key)
    if not callable(found):
        raise MarftError(f"{key}: {name!r} is not a function")
    return found
