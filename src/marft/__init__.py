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
    resume: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train a team from Python; the run's summary.

    `source` is a recipe or a YAML file; `settings` are config sections laid over it (`model="nano"`,
    `algorithm="grpo"`, `train={"iterations": 5}`); `workflow` may be an async function; `agents` replaces the team.
    `resume=True` goes on with the run in `run`, with its own config and the given `workflow`.
    """
    rest_soon()
    from marft.config import merge_settings, parse, read_source
    from marft.game.workflows import check_workflow
    from marft.training.start import next_path, resume_run, start_run

    if resume:
        if run is None or settings or agents:
            raise MarftError("resume=True takes run=DIR (and workflow), and the rest from that run's config")
        return resume_run(Path(run), [], workflow=workflow)
    if workflow is not None:  # before merging: another workflow drops the old one's settings
        settings["team"] = {**settings.get("team", {}), "workflow": check_workflow(workflow, "workflow")}
    data = merge_settings(read_source(source), settings)
    if agents is not None:
        data["team"] = {**data.get("team", {}), "agents": agents}
    config = parse(data)
    return start_run(config, Path(run) if run else next_path(source), workflow)
