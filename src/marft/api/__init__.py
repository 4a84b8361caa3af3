"""marft from Python: train, load, play, evaluate and compare, with classes and functions where a file has names.

Importing it loads neither torch nor the config's libraries; a call does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from marft.api.results import CompareResults, EvalResults, Summary
from marft.api.settings import AgentSettings, EnvSettings, WorkflowSettings, collect_settings
from marft.api.team import Team
from marft.import_paths import bind_import_paths
from marft.openmp import limit_spinning
from marft.types import Episode, MarftError, Task

__all__ = ["CompareResults", "EvalResults", "Summary", "Team", "compare", "evaluate", "load", "play", "train"]


def train(
    source: str | Path | None = None,
    *,
    run: str | Path | None = None,
    resume: bool = False,
    at: int | None = None,
    env: EnvSettings | None = None,
    workflow: WorkflowSettings | None = None,
    agents: Mapping[str, AgentSettings] | None = None,
    **settings: Any,
) -> Summary:
    """Train a team; the run's summary, as `summary.json` has it.

    `source` is a recipe (by default `duo`) or a YAML file; `settings` are config sections laid over it (`model="nano"`,
    `algorithm="grpo"`, `train={"iterations": 5}`); `algorithm`, `credit` and `engine` may also be classes of yours, alone or
    as the `"name"` of their settings. `env` is a name, a subclass of `marft.Environment`, or a mapping with
    one of the two under `"name"` and the environment's settings beside it; `workflow` a name or an async function;
    `agents` replaces the team: each agent's prompt, or a mapping of its settings, in which `"script"` may be a function.
    `run` is the run's folder, by default the first free of `runs/SOURCE-1`, `runs/SOURCE-2`, …

    `resume=True` goes on with the run in `run` (from its newest checkpoint, or from that of iteration `at`), with its own
    config: there `env`, `workflow`, `agents` and classes in `settings` give what only Python code knows, and must be what the run was made with.
    """
    limit_spinning()
    asked = collect_settings(settings, env=env, workflow=workflow, agents=agents)
    if at is not None and not resume:
        raise MarftError("at goes with resume=True: it names the checkpoint to go back to")
    if resume and (run is None or source is not None):
        raise MarftError("resume=True takes run=DIR, and not a recipe or a file: it goes on with that run's config")
    with bind_import_paths(asked.objects):
        config = None if resume else asked.config(source)  # before the heavy imports: a typo is answered at once
        from marft.terminal.display import start_display

        with start_display() as display:
            from marft.commands.train import next_run_path, resume_run, start_run

            if config is None:
                found = resume_run(Path(str(run)), asked.settings, at, display)
            else:
                found = start_run(config, Path(run) if run else next_run_path(str(source or "duo")), display)
    return cast(Summary, found)


def load(
    source: str | Path,
    *,
    at: int | None = None,
    env: EnvSettings | None = None,
    workflow: WorkflowSettings | None = None,
    agents: Mapping[str, AgentSettings] | None = None,
    **settings: Any,
) -> Team:
    """A team that is ready to play: trained, where `source` is a run's folder, else as a recipe or a YAML file has it.

    The other arguments are those of `train`, laid over the run's config or the recipe. `at` is the iteration of the run's
    checkpoint to take, by default the newest. Close the team when it is no longer needed, or use `with`.
    """
    limit_spinning()
    asked = collect_settings(settings, env=env, workflow=workflow, agents=agents)
    from marft.terminal.display import start_display

    with bind_import_paths(asked.objects), start_display(stderr=True) as display:
        from marft.training.loading import is_run, load_new_team, load_trained_team

        if is_run(str(source)):
            config, parts = load_trained_team(Path(source), asked.settings, at, display)
        elif at is not None:
            raise MarftError(f"at: {source} is no run and has no checkpoints; drop it")
        else:
            config = asked.config(source)
            parts = load_new_team(config, display)
    return Team(config, parts, asked.objects, str(source))


def play(
    source: str | Path,
    task: int | str | Task = 0,
    *,
    prompt: str | None = None,
    env: EnvSettings | None = None,
    workflow: WorkflowSettings | None = None,
    agents: Mapping[str, AgentSettings] | None = None,
    **settings: Any,
) -> Episode:
    """One episode of a team: `load`, `Team.play`, and closed again. Of several, load the team once and play with it."""
    with load(source, env=env, workflow=workflow, agents=agents, **settings) as team:
        return team.play(task, prompt=prompt)


def evaluate(
    source: str | Path,
    *,
    run: str | Path | None = None,
    env: EnvSettings | None = None,
    workflow: WorkflowSettings | None = None,
    agents: Mapping[str, AgentSettings] | None = None,
    **settings: Any,
) -> EvalResults:
    """A team's figures on held-out tasks or benchmarks: `load`, `Team.evaluate`, and closed again.

    `run` is the evaluation's folder, by default the first free of `runs/eval-SOURCE-1`, …; one that exists goes on.
    """
    with load(source, env=env, workflow=workflow, agents=agents, **settings) as team:
        return team.evaluate(run=run)


def compare(
    source: str | Path | None = None,
    *,
    run: str | Path | None = None,
    seeds: int = 3,
    single: str | None = None,
    frozen: Sequence[str] = (),
    env: EnvSettings | None = None,
    workflow: WorkflowSettings | None = None,
    agents: Mapping[str, AgentSettings] | None = None,
    **settings: Any,
) -> CompareResults:
    """Is the team worth it? The team, one agent alone and others, trained under one budget of tokens.

    `seeds` is how many, `single` what the agent alone is told, `frozen` which agents are kept untrained, a cell each; the
    other arguments are those of `train`. `run` is the comparison's folder; one that exists goes on.
    """
    limit_spinning()
    asked = collect_settings(settings, env=env, workflow=workflow, agents=agents)
    with bind_import_paths(asked.objects):
        from marft.evaluation.comparison.cells import make_question

        question = make_question(asked.config(source), seeds=seeds, single=single, frozen=frozen)
        from marft.commands.compare import compare
        from marft.commands.train import next_run_path

        path = Path(run) if run else next_run_path(f"compare-{Path(source or 'duo').name}")
        return CompareResults(path=path, report=compare(question, path))
