"""A server of OpenEnv as a program: `python openenv_server.py PORT`. A number is to be guessed, in three tries, and some
messages make trouble."""

from __future__ import annotations

import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Guess(Action):
    message: str
    mood: str = "calm"


class Hint(Observation):
    hint: str
    tries: int


class Guessing(Environment):  # type: ignore[misc]
    """Three tries; what is said is paid for by its letters."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    resets = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Hint:
        Guessing.resets += 1
        self.tries, self.seed = 3, seed
        luck = f", reset {Guessing.resets}" if options.get("unfair") else ""
        return Hint(hint=f"seed {seed}{luck}", tries=3)

    def step(self, action: Guess, timeout_s: float | None = None, **options: Any) -> Hint:
        if action.message == "hang":
            time.sleep(6)
        if action.message == "raise":
            raise RuntimeError("the board is broken")
        self.tries -= 1
        hint = f"{action.mood}, {action.message!r} of seed {self.seed}"
        return Hint(hint=hint, tries=self.tries, reward=worth(action.message), done=self.tries == 0)

    @property
    def state(self) -> State:
        return State(step_count=3 - self.tries)


def worth(text: str) -> float:
    return float(sum(map(ord, text)) % 5)


if __name__ == "__main__":
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=64)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
