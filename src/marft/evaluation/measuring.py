"""`marft eval`: every benchmark, with everybody and with each agent silent, chunk by chunk in a folder that can go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from shlex import quote

from marft.config import Config
from marft.evaluation.asking import Benchmark, plan, question_of, read_benchmarks
from marft.evaluation.benchmarks import seated
from marft.evaluation.failures import Tolerance
from marft.evaluation.figures import Result, make_drop, make_figures
from marft.evaluation.folder import CONFIG, RESULTS, TABLE, Evaluation, Played
from marft.evaluation.playing import play_chunk, silence
from marft.evaluation.rehearsal import rehearse
from marft.evaluation.report import markdown, show
from marft.evaluation.results import as_json
from marft.evaluation.watching import Watch
from marft.files import is_there
from marft.rollouts.event_loop import one_loop
from marft.runs.directory import pretty
from marft.runs.lock import Lock
from marft.terminal.display import Display, shown
from marft.training.build import Assembly
from marft.training.loading import load_team
from marft.types import MarftError


def evaluate_team(
    source: str | None, overrides: Sequence[str], path: Path, display: Display | None = None
) -> list[Result]:
    """A run's team, or an untrained one, in the folder `path`, which nobody else writes meanwhile."""
    with Lock(path), one_loop(), shown(display) as showing:
        config, parts = load_team(source, overrides, status=showing)
        with parts.runner.host:
            return measure(config, parts, path, showing)


def measure(config: Config, parts: Assembly, path: Path, display: Display) -> list[Result]:
    """Plays what is still to be played, then writes the figures into the evaluation's folder, shows and returns them."""
    check(config)
    benchmarks = read_benchmarks(config, parts)
    if not is_there(path / CONFIG):
        rehearse_on(benchmarks, config, parts, "Nothing was written: mend it, then give the command again")
    evaluation = Evaluation.begin(path, question_of(config, parts, benchmarks))
    display.say(f"evaluation in {path}; should it be stopped, the same command with --run {quote(str(path))} goes on")
    play_rest(config, parts, benchmarks, evaluation)
    results = make_results(config, evaluation.played(), benchmarks)
    title = f"{', '.join(config.team.agents)} with {config.model}"
    evaluation.write(TABLE, markdown(results, title).encode())
    evaluation.write(RESULTS, pretty(as_json(results)))
    display.rest()
    show(display.console, results)
    display.say(f"see {path / TABLE} and {RESULTS}")
    return results


def check(config: Config) -> None:
    """Raise a MarftError for evaluation settings that leave nothing to play."""
    if not config.eval.tasks:
        raise MarftError("eval.tasks is 0: say how many held-out tasks to play, as in eval.tasks=512")
    if config.eval.ablate and len(config.team.agents) == 1:
        raise MarftError("eval.ablate: without its only agent the team says nothing; drop it")


def play_rest(config: Config, parts: Assembly, benchmarks: Sequence[Benchmark], evaluation: Evaluation) -> None:
    """Every chunk that is not there yet. What was played is kept also where so much of it failed that it ends here."""
    chunks = plan(config, benchmarks)
    goes_on = (
        f"What was played is kept: mend it, then the same command with --run {quote(str(evaluation.path))} goes on"
    )
    watch = Watch(Tolerance(share=config.train.failures, remedy=goes_on), chunks)
    whole = watch.resume(evaluation)
    left = {chunk[0].benchmark for chunk in chunks[whole:]}
    if whole:  # what goes on is rehearsed too: something may have changed
        rehearse_on([each for each in benchmarks if each.name in left], config, parts, goes_on)
    status = parts.runner.status
    status.begin("evaluating", total=sum(map(len, chunks)), unit="episodes")
    status.advance(sum(map(len, chunks[:whole])))
    for name, group in groupby(chunks[whole:], key=lambda chunk: chunk[0].benchmark):
        benchmark = next(each for each in benchmarks if each.name == name)
        with seated(config, parts, benchmark.name, benchmark.env) as runner:
            for chunk in group:
                playing = replace(runner, team=silence(runner.team, chunk[0].silent))
                found = play_chunk(playing, chunk, benchmark.tasks, config.seed)
                evaluation.append(found)
                watch.played(chunk, found)


def rehearse_on(benchmarks: Sequence[Benchmark], config: Config, parts: Assembly, remedy: str) -> None:
    """All of them before the first is paid for."""
    parts.runner.status.begin("rehearsing")
    for each in benchmarks:
        with seated(config, parts, each.name, each.env) as runner:
            tolerance = Tolerance(share=config.train.failures, remedy=remedy)
            rehearse(config, runner, list(each.tasks.values()), tolerance, f" on {each.name}")


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
