"""`marft eval`: every benchmark, with everybody and with each agent silent, chunk by chunk in a folder that can go on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from shlex import quote

from marft.config import Config
from marft.evaluation.benchmarks import Benchmark, evaluation_runner, read_benchmarks
from marft.evaluation.chunks import plan_chunks, play_chunk, with_silent_agent
from marft.evaluation.failures import FailureWatch, Tolerance
from marft.evaluation.figures import Result, make_drop, make_figures
from marft.evaluation.folder import CONFIG, RESULTS, TABLE, EvalRequest, Evaluation, Played
from marft.evaluation.report import print_results, results_json, results_markdown
from marft.evaluation.sanity_check import check_team_plays
from marft.files import is_there
from marft.rollouts.event_loop import one_loop
from marft.runs.directory import json_bytes
from marft.runs.lock import Lock
from marft.terminal.display import Display, ensure_display
from marft.training.build import Assembly
from marft.training.loading import load_team
from marft.types import MarftError, Task


def evaluate_team(
    source: str | None, overrides: Sequence[str], path: Path, display: Display | None = None
) -> list[Result]:
    """A run's team, or an untrained one, in the folder `path`, which nobody else writes meanwhile."""
    with Lock(path), one_loop(), ensure_display(display) as showing:
        config, parts = load_team(source, overrides, status=showing)
        with parts:
            return evaluate_benchmarks(config, parts, path, showing)


def evaluate_benchmarks(config: Config, parts: Assembly, path: Path, display: Display) -> list[Result]:
    """Plays what is still to be played, then writes the figures into the evaluation's folder, shows and returns them."""
    check_eval_config(config)
    benchmarks = read_benchmarks(config, parts)
    if not is_there(path / CONFIG):
        check_team_on(benchmarks, config, parts, "Nothing was written: mend it, then give the command again")
    evaluation = Evaluation.begin(path, make_request(config, parts, benchmarks))
    display.say(f"evaluation in {path}; should it be stopped, the same command with --run {quote(str(path))} goes on")
    play_missing_chunks(config, parts, benchmarks, evaluation)
    results = make_results(config, evaluation.read_played(), benchmarks)
    title = f"{', '.join(config.team.agents)} with {config.model}"
    evaluation.write(TABLE, results_markdown(results, title).encode())
    evaluation.write(RESULTS, json_bytes(results_json(results)))
    display.rest()
    print_results(display.console, results)
    display.say(f"see {path / TABLE} and {RESULTS}")
    return results


def check_eval_config(config: Config) -> None:
    """Raise a MarftError for evaluation settings that leave nothing to play."""
    if not config.eval.tasks:
        raise MarftError("eval.tasks is 0: say how many held-out tasks to play, as in eval.tasks=512")
    if config.eval.ablate and len(config.team.agents) == 1:
        raise MarftError("eval.ablate: without its only agent the team says nothing; drop it")


def play_missing_chunks(
    config: Config, parts: Assembly, benchmarks: Sequence[Benchmark], evaluation: Evaluation
) -> None:
    """Every chunk that is not there yet. What was played is kept also where so much of it failed that it ends here."""
    chunks = plan_chunks(config, benchmarks)
    goes_on = (
        f"What was played is kept: mend it, then the same command with --run {quote(str(evaluation.path))} goes on"
    )
    watch = FailureWatch(Tolerance(share=config.train.failures, remedy=goes_on), chunks)
    whole = watch.resume(evaluation)
    left = {chunk[0].benchmark for chunk in chunks[whole:]}
    if whole:  # what goes on is checked too: something may have changed
        check_team_on([each for each in benchmarks if each.name in left], config, parts, goes_on)
    status = parts.runner.status
    status.begin("evaluating", total=sum(map(len, chunks)), unit="episodes")
    status.advance(sum(map(len, chunks[:whole])))
    for name, group in groupby(chunks[whole:], key=lambda chunk: chunk[0].benchmark):
        benchmark = next(each for each in benchmarks if each.name == name)
        with evaluation_runner(config, parts, benchmark.name, benchmark.env) as runner:
            for chunk in group:
                playing = replace(runner, team=with_silent_agent(runner.team, chunk[0].silent))
                found = play_chunk(playing, chunk, benchmark.tasks, config.seed)
                evaluation.append(found)
                watch.record_chunk(chunk, found)


def check_team_on(benchmarks: Sequence[Benchmark], config: Config, parts: Assembly, remedy: str) -> None:
    """All of them before the first is paid for."""
    parts.runner.status.begin("checking that the team can play")
    for each in benchmarks:
        with evaluation_runner(config, parts, each.name, each.env) as runner:
            tolerance = Tolerance(share=config.train.failures, remedy=remedy)
            check_team_plays(config, runner, list(each.tasks.values()), tolerance, f" on {each.name}")


def make_results(config: Config, played: Sequence[Played], benchmarks: Sequence[Benchmark]) -> list[Result]:
    """A result for each benchmark from all played episodes, in the order of `benchmarks`."""
    rows: dict[tuple[str, str | None], list[Played]] = {}
    for row in played:
        rows.setdefault((row.slot.benchmark, row.slot.silent), []).append(row)
    ks, agents = config.eval.ks, list(config.team.agents) if config.eval.ablate else []
    return [
        Result(
            name=each.name,
            team=make_figures(rows[each.name, None], ks),
            drops=tuple(make_drop(agent, rows[each.name, None], rows[each.name, agent], ks) for agent in agents),
        )
        for each in benchmarks
    ]


# --- what is asked ---------------------------------------------------------------------------------------------------
def make_request(config: Config, parts: Assembly, benchmarks: Sequence[Benchmark]) -> EvalRequest:
    """What an evaluation is asked: its config, and hashes of the weights and tasks it is about."""
    tasks = {each.name: tasks_digest(each.tasks.values()) for each in benchmarks}
    return EvalRequest(config=config, weights=weights_digest(parts), tasks=tasks)


def tasks_digest(tasks: Iterable[Task]) -> str:
    """SHA-256 of the tasks' ids and prompts, in their order, in hexadecimal."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.id}\0{task.prompt}\0".encode(errors="replace"))
    return digest.hexdigest()


def weights_digest(parts: Assembly) -> str:
    """Of all adapters and of the bases below them."""
    digest = hashlib.sha256(parts.fingerprint.encode())
    for team in parts.teams:
        for name in team.adapters:
            for key, weight in sorted(team.trainable_parameters(name).items()):
                digest.update(f"{name}/{key}".encode())
                digest.update(weight.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
