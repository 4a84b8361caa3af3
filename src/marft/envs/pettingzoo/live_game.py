"""A live game: who is to act, what each player has earned, and how it got there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marft.envs.pettingzoo.text import mask_of, parse_action

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


class LiveGame:
    """One game from its seed on. `earned` is what its turns brought their `players`, by turn; `totals` by player."""

    def __init__(self, game: Any, seed: int, illegal: float) -> None:
        self.game, self.illegal = game, illegal
        self.ended = False
        self.earned: dict[int, float] = {}
        self.players: dict[int, str] = {}  # whose turn was which
        self.latest: dict[str, int] = {}  # each player's last turn
        game.reset(seed=seed)
        self.totals = dict.fromkeys(game.possible_agents, 0.0)
        self._remove_finished_players()

    @property
    def player(self) -> str | None:
        """Who is to act; nobody when the game is over."""
        return None if self.ended or not self.game.agents else str(self.game.agent_selection)

    def last_observation(self) -> tuple[Any, Any]:
        """What the one who is to act observes, and the game's remarks."""
        observation, _, _, _, info = self.game.last()
        return observation, info

    def parse_action(self, text: str) -> int | str | None:
        """The legal action that a message means, or None."""
        observation, info = self.last_observation()
        return parse_action(text, self.game.action_space(self.game.agent_selection), mask_of(observation, info))

    def step(self, move: Move) -> None:
        """What a player is told to have earned when its next turn comes was earned by its last one."""
        player = str(self.game.agent_selection)
        self._pay(player, float(self.game.last(observe=False)[1]))
        self.latest[player], self.earned[move.turn], self.players[move.turn] = move.turn, 0.0, player
        if move.action is None:
            # as PettingZoo's TerminateIllegalWrapper has it: the mover pays, the others keep what they have
            waiting = self.game.unwrapped._cumulative_rewards
            for other in self.game.agents:
                self._pay(other, self.illegal if other == player else float(waiting[other]))
            self.ended = True
            return
        self.game.step(move.action)
        self._remove_finished_players()

    def _remove_finished_players(self) -> None:
        """Takes out those whose game is over, with what they earned last."""
        while self.game.agents:
            _, reward, terminated, truncated, _ = self.game.last(observe=False)
            if not (terminated or truncated):
                return
            self._pay(str(self.game.agent_selection), float(reward))
            self.game.step(None)

    def _pay(self, player: str, reward: float) -> None:
        self.totals[player] += reward
        if player in self.latest:
            self.earned[self.latest[player]] += reward


class LiveGames:
    """Live games by state. A game that moves on leaves its old state, which is then played again when asked for."""

    def __init__(self, make: Callable[..., Any], options: Mapping[str, Any], illegal: float) -> None:
        self._make, self._options, self._illegal = make, options, illegal
        self._live: OrderedDict[State, LiveGame] = OrderedDict()

    def game_at(self, state: State) -> LiveGame:
        """The game in that state; one that is not live any more is played again."""
        live = self._live.pop(state, None)
        if live is None:
            live = LiveGame(self._make(**self._options), state.seed, self._illegal)
            for move in state.moves:
                live.step(move)
        self._keep(state, live)
        return live

    def play_move(self, state: State, move: Move) -> State:
        """The state after `move`, with its game alive."""
        following = State(seed=state.seed, moves=(*state.moves, move))
        live = self.game_at(state)
        del self._live[state]
        live.step(move)
        self._keep(following, live)
        return following

    def _keep(self, state: State, live: LiveGame) -> None:
        self._live[state] = live
        while len(self._live) > MAX_LIVE_GAMES:
            self._live.popitem(last=False)[1].game.close()
