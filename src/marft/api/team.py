"""A team in memory: watch it play, evaluate it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from marft.api.results import EvalResults
from marft.envs.base import Split
from marft.import_paths import bind_import_paths
from marft.types import Episode, MarftError, Reward, Task

if TYPE_CHECKING:
    from marft.config import Config
    from marft.training.build import Assembly


class Team:
    """Agents with their weights, ready to play. `marft.load` makes one; `with` or `close` ends its environment's processes.

    `config` is what it was made from.
    """

    def __init__(self, config: Config, parts: Assembly, objects: Mapping[str, Any], source: str) -> None:
        self.config = config
        self._parts: Assembly | None = parts
        self._objects, self._source = objects, source

    def __repr__(self) -> str:
        state = "" if self._parts is not None else ", closed"
        return f"<marft.Team {', '.join(self.config.team.agents)} from {self._source}{state}>"

    @property
    def _open(self) -> Assembly:
        if self._parts is None:
            raise MarftError(f"this team is closed; marft.load({self._source!r}) makes another")
        return self._parts

    def tasks(self, split: Split = "test") -> Sequence[Task]:
        """The environment's tasks: held out (`"test"`), or for training (`"train"`)."""
        return self._open.runner.host.tasks(split)

    def play(self, task: int | str | Task = 0, *, prompt: str | None = None, sample: int = 0) -> Episode:
        """One episode: on the held-out task of that number or id, on a task of the environment's, or on a `prompt` of yours.

        Samples differ in their seeds alone. What fails does not raise: `ended` is `"failed"`, and `error` says why. An
        episode on a prompt of yours is not graded: its reward is NaN.
        """
        from marft.commands.play import play_task

        episode = play_task(self.config, self._open, task=task, sample=sample, prompt=prompt).episode
        return episode if prompt is None else replace(episode, reward=Reward(team=math.nan))

    def evaluate(self, *, run: str | Path | None = None, **settings: Any) -> EvalResults:
        """Figures on held-out tasks or benchmarks, as `marft eval` works them out.

        `settings` are keys of the config's section `eval` (`tasks=128`, `samples=4`, `ablate=True`, …), laid over the
        team's. `run` is the evaluation's folder, by default the first free of `runs/eval-SOURCE-1`, …; one that exists
        goes on.
        """
        from marft.api.settings import collect_settings
        from marft.commands.train import next_run_path
        from marft.config import merge_settings, parse
        from marft.evaluation.evaluate import evaluate_benchmarks
        from marft.runs.lock import Lock
        from marft.terminal.display import Display

        parts = self._open
        asked = collect_settings({"eval": settings}, env=None, workflow=None, agents=None)
        path = Path(run) if run else next_run_path(f"eval-{Path(self._source).name}")
        with bind_import_paths({**self._objects, **asked.objects}), Lock(path), Display() as display:
            config = parse(merge_settings(self.config.model_dump(mode="json"), asked.settings))
            results = evaluate_benchmarks(config, parts, path, display)
        return EvalResults(path=path, benchmarks={result.name: result for result in results})

    def serve(self, *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None) -> None:
        """Each agent and the whole team behind an OpenAI-compatible endpoint, until an interrupt, as `marft serve` does it."""
        from marft.commands.listening import bind, check_token, chosen_token, require_http

        parts, token = self._open, chosen_token(token)
        require_http()
        with bind(host, port) as bound, bind_import_paths(self._objects):
            check_token(bound, token)
            from marft.commands.serve import serve, team_name
            from marft.terminal import say

            serve(self.config, parts, bound, name=team_name(self._source, self.config), token=token, ready=say)

    def close(self) -> None:
        """Ends the environment's processes and lets go of the weights; once more is no harm."""
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
