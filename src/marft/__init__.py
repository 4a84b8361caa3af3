"""marft: multi-agent reinforcement fine-tuning of language-model teams. Importing it loads neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.envs.base import Environment
from marft.threads import rest_soon
from marft.types import Episode, MarftError, Message, Reward, Task, Turn
from marft.version import __version__

if TYPE_CHECKING:
    from marft.game.play import Game

__all__ = ["Environment", "Episode", "MarftError", "Message", "Reward", "Task", "Turn", "__version__", "train"]


def train(
    source: str = "duo",
    *,
    run: str | Path | None = None,
    workflow: Callable[[Game], Awaitable[None]] | None = None,
    agents: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train a team from Python; the run's summary.

    `source` is a recipe or a YAML file; `settings` are config sections laid over it (`model="nano"`,
    `algorithm="grpo"`, `train={"iterations": 5}`); `workflow` may be an async function; `agents` replaces the team.
    """
    rest_soon()
    from marft.config import merge_settings, parse, read_source
    from marft.game.workflows import check_workflow
    from marft.training.start import next_path, start_run

    data = merge_settings(read_source(source), settings)
    if agents is not None:
        data["team"] = {**data.get("team", {}), "agents": agents}
    if workflow is not None:
        name = check_workflow(workflow, "workflow")
        data["team"] = {**data.get("team", {}), "workflow": name}
    config = parse(data)
    return start_run(config, Path(run) if run else next_path(source), workflow)
