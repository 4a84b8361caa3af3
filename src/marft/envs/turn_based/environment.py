"""An environment of games: seeds for tasks, the team's agents at the table, the players' rewards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

from marft import import_paths
from marft.envs.base import Environment, Split, check_text
from marft.envs.turn_based.game import Game, Games
from marft.types import MarftError, Reward, Task, Turn

SIZES: dict[Split, int] = {"train": 10_000, "test": 1_000}
State = TypeVar("State")


class TurnBasedEnv(Environment[State]):
    """The k-th player is the agent that `agents` lists k-th; one agent may play several. A game for one player is played by
    all of them in turn.

    The team's reward is the mean of what its players earned, and so sums up the turns' own: each turn's is what its player
    earned from it until that player's next.
    """

    takes_prompts = False  # the game is its seed's
    kind: ClassVar[str]  # its name in a config

    def __init__(
        self, title: str, agents: Sequence[str], rules: str, text: str | None, options: Mapping[str, Any]
    ) -> None:
        if not isinstance(agents, list | tuple) or not agents or not all(type(name) is str for name in agents):
            raise ValueError(f"agents must list who plays, in the order of the game's players, not {agents!r}")
        check_text("rules", rules)
        if text is not None and (type(text) is not str or ":" not in text):
            raise ValueError(f"text must be package.module:function, not {text!r}")
        if not isinstance(options, Mapping):
            raise ValueError(f"options must be a mapping of what the game is made with, not {options!r}")
        self.agents: tuple[str, ...] = tuple(agents)
        self.title, self.rules, self.text, self.options = title, rules, text, dict(options)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "games"}  # live games stay here

    @cached_property
    def games(self) -> Games[State]:
        """Made on first use, so that a copy in another process has its own."""
        return self._open_games()

    @abstractmethod
    def _open_games(self) -> Games[State]:
        """The games, none of them begun."""

    @abstractmethod
    def _move_form(self) -> str:
        """How to write a move; MarftError, in one line, for a game that cannot be played like this."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """Seeds: even numbers for training, odd ones for testing."""
        prompt = "\n".join(filter(None, [self.rules or self._default_rules(), self._move_form()]))
        name = f"{self.kind}/{self.title}/{split}"
        seeds = range(split == "test", 2 * SIZES[split], 2)
        return [Task(id=f"{name}/{seed}", prompt=prompt, data={"seed": seed}) for seed in seeds]

    def reset(self, task: Task) -> State:
        """The seed decides the first position."""
        return self.games.first_state(task.data["seed"])

    def whose_turn(self, state: State) -> str | None:
        """The agent that plays the game's next player."""
        return self._agent(self.games.game_at(state))

    def observe(self, state: State, agent: str) -> str:
        """What its player observes and may do, in words; nothing for agents whose turn it is not."""
        game = self.games.game_at(state)
        return game.shown() if self._agent(game) == agent else ""

    def transition(self, state: State, turn: Turn) -> State:
        """Plays the action that the message names."""
        expected = self._agent(self.games.game_at(state))
        if expected is None:
            return state
        if turn.agent != expected:
            raise ValueError(f"{turn.agent} acts, but it is the turn of {expected}; use team.workflow=turns")
        return self.games.play(state, turn.index, turn.text)

    def reward(self, state: State) -> Reward:
        """The players' mean for the team, and each turn's own part of it."""
        game = self.games.game_at(state)
        team = sum(game.totals.values()) / len(game.totals)
        return Reward(
            team=team, turns=dict(game.earned), done=game.player is None, itemised=True, players=dict(game.players)
        )

    def _default_rules(self) -> str:
        return f"You play {self.title}."

    def _agent(self, game: Game) -> str | None:
        return None if game.player is None else self.agents[game.seat % len(self.agents)]


def check_illegal(illegal: object) -> float:
    """What a message without a legal move costs; ValueError where it is no number."""
    if type(illegal) not in (int, float):
        raise ValueError(f"illegal must be a number, not {illegal!r}")
    return float(illegal)  # type: ignore[arg-type]


def check_name(key: str, value: object, example: str) -> str:
    """ValueError where the name of a game is none."""
    if type(value) is not str or not value:
        raise ValueError(f"{key} must be {example}, not {value!r}")
    return value


def require_library(module: str, line: str) -> None:
    """MarftError with the line where a library is not installed."""
    if find_spec(module) is None:
        raise MarftError(line)


def find_function(name: str, key: str) -> Callable[..., Any]:
    """The function `module:name` that the config says under `key`."""
    found: Callable[..., Any] = import_paths.find(name, key)
    if not callable(found):
        raise MarftError(f"{key}: {name!r} is not a function")
    return found
