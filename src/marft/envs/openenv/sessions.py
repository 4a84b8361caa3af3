"""Sessions with a server of OpenEnv. A state holds all that the server has answered, so that only a move needs a session."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marft.envs.turn_based.game import Game

PLAYER = "player"
LARGEST_MESSAGE = 8.0  # MiB, of a server's
OURS = ("metadata", "reward", "done")  # fields of every observation that are not for agents


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server said to a reset or a step."""

    shown: str
    reward: float
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A message, and the server's answer."""

    turn: int
    text: str
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that was said and answered since the reset with the seed."""

    seed: int
    first: Answer
    steps: tuple[Step, ...] = ()

    @property
    def last(self) -> Answer:
        """The server's last answer."""
        return self.steps[-1].answer if self.steps else self.first


class RecordedGame(Game):
    """A position as the state has it; after `turns` of them the game is over."""

    def __init__(self, state: State, turns: int) -> None:
        super().__init__([PLAYER])
        self.last, self.over = state.last, state.last.done or len(state.steps) >= turns
        self.pay(PLAYER, state.first.reward)
        for step in state.steps:
            self.open_turn(PLAYER, step.turn)
            self.pay(PLAYER, step.answer.reward)

    @property
    def player(self) -> str | None:
        """The one player, until the game is over."""
        return None if self.over else PLAYER

    def shown(self) -> str:
        """What the server showed last."""
        return self.last.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where the server is, what it is reset with, and how long it has for an answer."""

    url: str
    headers: Mapping[str, str]
    field: str
    options: Mapping[str, Any]
    seconds: float
    seconds_to_open: float


class Session:
    """One connection, which plays one game at a time."""

    def __init__(self, server: ServerSettings) -> None:
        from openenv.core.generic_client import GenericEnvClient

        self.server = server
        self.client = GenericEnvClient(
            base_url=server.url, connect_timeout_s=server.seconds_to_open, message_timeout_s=server.seconds,
            max_message_size_mb=LARGEST_MESSAGE, mode="simulation", headers=dict(server.headers),
        ).sync()  # fmt: skip

    def reset(self, seed: int) -> Answer:
        """A new game."""
        return self._answer(lambda: self.client.reset(seed=seed, **self.server.options))

    def step(self, text: str) -> Answer:
        """The next action of the game."""
        return self._answer(lambda: self.client.step({self.server.field: text}))

    def replay(self, state: State) -> None:
        """The game of that state. ValueError where the server does not answer as it did."""
        answers = [self.reset(state.seed), *(self.step(step.text) for step in state.steps)]
        if answers != [state.first, *(step.answer for step in state.steps)]:
            raise ValueError(
                f"{self.server.url} answers otherwise to the same seed and actions; a game that goes on in another session "
                "is played again, so a server must go by its seed"
            )

    def close(self) -> None:
        """Tells the server, which may have gone."""
        self.client.close()

    def _answer(self, ask: Callable[[], Any]) -> Answer:
        try:
            result = ask()
        except TimeoutError:
            raise TimeoutError(f"{self.server.url} gave no answer within {self.server.seconds:g} s") from None
        if not isinstance(result.observation, dict):
            raise ValueError(f"{self.server.url} gave an observation that is no mapping")
        reward = 0.0 if result.reward is None else float(result.reward)
        return Answer(shown=observation_text(result.observation), reward=reward, done=bool(result.done))


class Sessions:
    """At most `most` sessions at once. One whose game has moved on, or is not needed now, is given to another game."""

    def __init__(self, server: ServerSettings, *, turns: int, most: int) -> None:
        self._server, self._turns, self._most = server, turns, most
        self._live: OrderedDict[State, Session] = OrderedDict()
        self._free: list[Session] = []

    def first_state(self, seed: int) -> State:
        """The server's answer to a reset with the seed."""
        session = self._take()
        return self._kept(session, lambda: State(seed=seed, first=session.reset(seed)))

    def game_at(self, state: State) -> RecordedGame:
        """From the record: the server is not asked."""
        return RecordedGame(state, self._turns)

    def play(self, state: State, turn: int, text: str) -> State:
        """The state after the server's answer to a message."""
        live = self._live.pop(state, None)
        session = live or self._take()

        def answered() -> State:
            if live is None:
                session.replay(state)
            step = Step(turn=turn, text=text, answer=session.step(text))
            return State(seed=state.seed, first=state.first, steps=(*state.steps, step))

        return self._kept(session, answered)

    def _take(self) -> Session:
        if self._free:
            return self._free.pop()
        if len(self._live) < self._most:
            return Session(self._server)
        return self._live.popitem(last=False)[1]

    def _kept(self, session: Session, answered: Callable[[], State]) -> State:
        """What was answered, with the session live; after a failure it is closed, for nobody knows where it stands."""
        try:
            state = answered()
        except BaseException:
            session.close()
            raise
        if self.game_at(state).player is None or state in self._live:
            self._free.append(session)
        else:
            self._live[state] = session
        return state


def observation_text(observation: Mapping[str, Any]) -> str:
    """One field as it is, several by their names."""
    shown = {key: value_text(value) for key, value in observation.items() if key not in OURS and value is not None}
    if len(shown) == 1:
        return next(iter(shown.values()))
    return "\n".join(f"{key}: {value}" for key, value in shown.items())


def value_text(value: Any) -> str:
    """A text as it is, anything else as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
