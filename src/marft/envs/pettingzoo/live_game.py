"""A live game of PettingZoo: who is to act, what each player has earned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marft.envs.turn_based.live_games import LiveGame, Move
from marft.envs.turn_based.words import mask_of, parse_action


class PettingZooGame(LiveGame):
    """One game from its seed on; `words` puts an observation into them."""

    def __init__(self, game: Any, seed: int, illegal: float, words: Callable[[Any, Any, str, Any], str]) -> None:
        self.game, self.illegal, self.words = game, illegal, words
        self.ended = False
        game.reset(seed=seed)
        super().__init__(map(str, game.possible_agents))
        self._remove_finished_players()

    @property
    def player(self) -> str | None:
        """Who is to act; nobody when the game is over."""
        return None if self.ended or not self.game.agents else str(self.game.agent_selection)

    def last_observation(self) -> tuple[Any, Any]:
        """What the one who is to act observes, and the game's remarks."""
        observation, _, _, _, info = self.game.last()
        return observation, info

    def shown(self) -> str:
        """The observation in words."""
        selected = self.game.agent_selection
        return self.words(*self.last_observation(), str(selected), self.game.action_space(selected))

    def parse_action(self, text: str) -> int | str | None:
        """The legal action that a message means, or None."""
        observation, info = self.last_observation()
        return parse_action(text, self.game.action_space(self.game.agent_selection), mask_of(observation, info))

    def step(self, move: Move) -> None:
        """What a player is told to have earned when its next turn comes was earned by its last one."""
        player = str(self.game.agent_selection)
        self.pay(player, float(self.game.last(observe=False)[1]))
        self.open_turn(player, move.turn)
        if move.action is None:
            # as PettingZoo's TerminateIllegalWrapper has it: the mover pays, the others keep what they have
            waiting = self.game.unwrapped._cumulative_rewards
            for other in self.game.agents:
                self.pay(other, self.illegal if other == player else float(waiting[other]))
            self.ended = True
            return
        self.game.step(move.action)
        self._remove_finished_players()

    def close(self) -> None:
        """Closes the game."""
        self.game.close()

    def _remove_finished_players(self) -> None:
        """Takes out those whose game is over, with what they earned last."""
        while self.game.agents:
            _, reward, terminated, truncated, _ = self.game.last(observe=False)
            if not (terminated or truncated):
                return
            self.pay(str(self.game.agent_selection), float(reward))
            self.game.step(None)
