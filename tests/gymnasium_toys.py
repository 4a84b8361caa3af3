"""Small environments for Gymnasium, registered where this module is imported; workers import nothing else."""

from __future__ import annotations

from string import printable
from typing import Any

import gymnasium
from gymnasium import spaces


class Guess(gymnasium.Env):  # type: ignore[misc]
    """A game in words: guess the letter, in three tries; a wrong one is told whether it comes earlier."""

    observation_space, action_space = spaces.Text(100), spaces.Text(1, charset="abcdefgh")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.letter, self.tries = "abcdefgh"[self.np_random.integers(8)], 0
        return "Guess a letter of a to h.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.tries += 1
        right = action == self.letter
        return "earlier" if action > self.letter else "later", float(right), right, self.tries == 3, {}


class Mixed(gymnasium.Env):  # type: ignore[misc]
    """Observations of several kinds, and a mask."""

    observation_space = spaces.Dict({"place": spaces.Text(9), "coins": spaces.Discrete(9)})
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"place": "cave", "coins": 2}, {"action_mask": [1, 0, 1]}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return {"place": "shop", "coins": 0}, float(action), False, False, {"action_mask": [0, 1, 0]}


class Letters(gymnasium.Env):  # type: ignore[misc]
    """Pays for a text, three times: something that a model that has learnt nothing yet earns more or less of."""

    observation_space, action_space = spaces.Text(9), spaces.Text(min_length=0, max_length=999, charset=printable)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.steps = 0
        return "Letters?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return "More?", worth(action), self.steps == 3, False, {}


def worth(text: str) -> float:
    return float(sum(map(ord, text)) % 5)


def in_words(observation: Any, info: Any, player: str) -> str:
    return f"{player} looks: {observation}"


for name, kind in {"MarftGuess-v0": Guess, "MarftMixed-v0": Mixed, "MarftLetters-v0": Letters}.items():
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=kind)
