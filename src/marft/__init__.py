"""marft: multi-agent reinforcement fine-tuning of language-model teams. Importing it loads neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marft.api import CompareResults, EvalResults, Summary, Team, compare, evaluate, load, play, train
from marft.envs.base import Environment
from marft.types import Collapse, Episode, Interrupted, MarftError, Message, Reward, Task, Turn
from marft.version import __version__

if TYPE_CHECKING:
    from marft.game.play import Game

__all__ = [
    "Collapse",
    "CompareResults",
    "Environment",
    "Episode",
    "EvalResults",
    "Game",
    "Interrupted",
    "MarftError",
    "Message",
    "Reward",
    "Summary",
    "Task",
    "Team",
    "Turn",
    "__version__",
    "compare",
    "evaluate",
    "load",
    "play",
    "train",
]


def __getattr__(name: str) -> Any:
    """`marft.Game`, for annotations of workflows, is loaded when it is asked for: the config comes with it."""
    if name == "Game":
        from marft.game.play import Game

        return Game
    raise AttributeError(f"module 'marft' has no attribute {name!r}")
