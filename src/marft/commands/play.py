"""One episode of a team, played as evaluation plays it: the very sample that was evaluated can be seen again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.commands.prompts import prompt_parts, speaker
from marft.config import Config
from marft.config.section import nearest
from marft.envs.task_validation import validate_task
from marft.evaluation.benchmarks import benchmarks_of, evaluation_runner
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import Start
from marft.runs.directory import HELD_OUT
from marft.training.build import Assembly
from marft.types import Episode, MarftError, Task

YOURS = "yours"  # the id of a task that the user has typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An episode, and the right answer of its task where the environment says it."""

    episode: Episode
    gold: str | None
    benchmark: str | None = None

    @property
    def is_graded(self) -> bool:
        """Whether its reward means anything: for a task that the user has typed it does not."""
        return self.episode.task.id != YOURS


def play_task(
    config: Config,
    parts: Assembly,
    *,
    task: int | str | Task = 0,
    sample: int = 0,
    prompt: str | None = None,
    benchmark: str | None = None,
) -> Replay:
    """Sample `sample` of a held-out task, by its number or its id; or of a task that consists of `prompt`.

    Seed and sampling are evaluation's, so what is said is what was said there, up to roundings: a batch of another size
    may be computed in another order.
    """
    if sample < 0:
        raise MarftError(f"--sample {sample}: samples are counted from 0")
    with evaluation_runner(config, parts, benchmark or config.env.name, benchmark_env(config, benchmark)) as runner:
        if prompt is not None and not runner.host.env.takes_prompts:
            name = benchmark or config.env.name
            raise MarftError(f"--prompt: a task of {name} is more than its prompt; choose one of its own with --task")
        tasks = runner.host.tasks("test")
        own = None if prompt is None else Task(id=YOURS, prompt=prompt, data=tasks[0].data)
        chosen = validate_task(own or find_task(tasks, task), YOURS)
        [episode] = run_async(runner.episodes([Start(task=chosen, sample=sample)], f"{config.seed}/eval"))
        gold = runner.host.gold(chosen) if prompt is None else None
    return Replay(episode=episode, gold=gold, benchmark=benchmark)


def benchmark_env(config: Config, benchmark: str | None) -> dict[str, Any] | None:
    """A benchmark's environment; None without a name. Raises a MarftError for a name the config does not have."""
    known = benchmarks_of(config)
    if benchmark is not None and benchmark not in known:
        listed = f"; those of the config are {', '.join(known)}" if known else "; give one with eval.benchmarks=[NAME]"
        raise MarftError(f"--benchmark {benchmark}: unknown benchmark{nearest(benchmark, known)}{listed}")
    return None if benchmark is None else known[benchmark]


def find_task(tasks: Sequence[Task], which: int | str | Task) -> Task:
    """By its number in the split, or by its id. Tasks that are made on demand are not all made for it if the id ends in
    the number, as those of the built-in environments do."""
    if isinstance(which, Task):
        return which
    text, count = str(which), len(tasks)
    if re.fullmatch(r"\d+", text) and int(text) < count:
        return tasks[int(text)]
    ending = re.search(r"\d+$", text)
    if ending and int(ending[0]) < count and tasks[int(ending[0])].id == text:
        return tasks[int(ending[0])]
    if re.fullmatch(r"-?\d+", text) and not isinstance(tasks, list):
        raise MarftError(f"--task {text}: the environment has {count} held-out tasks")
    for task in tasks:
        if task.id == text:
            return task
    raise MarftError(
        f"--task {text}: the environment has {count} held-out tasks, and none has this id; give a number below {count}, "
        f"or an id such as {tasks[0].id!r}"
    )


# --- for people ------------------------------------------------------------------------------------------------------
def describe_replay(replay: Replay, *, prompts: bool) -> Iterator[str]:
    """The episode line by line; with `prompts`, also all that agents saw."""
    episode = replay.episode
    yield f"task: {episode.task.prompt}"
    if replay.is_graded:
        yield f"id: {episode.task.id}, sample {episode.sample}"
    for turn in episode.turns:
        if prompts:
            for kind, text in prompt_parts(turn):
                yield f"\n  [{turn.agent} saw, {kind}]\n  " + text.replace("\n", "\n  ")
        cut = " (cut at its limit of tokens)" if turn.completion.finish == "length" else ""
        yield f"\n{speaker(turn)}{cut}:\n{turn.text}"
    if replay.is_graded and replay.gold is not None:
        yield f"\ngold answer: {replay.gold}"
    if replay.is_graded and episode.error is None:
        verdict = {None: "", True: "right, ", False: "wrong, "}[episode.reward.correct]
        yield f"{'' if replay.gold is not None else chr(10)}{verdict}reward: {episode.reward.team:g}"


def match_transcript(replay: Replay, held_out: Iterable[Mapping[str, Any]]) -> str | None:
    """Whether this is an episode whose transcript the run has kept; None: it has kept none of this sample."""
    episode = replay.episode
    key = (replay.benchmark, episode.task.id, episode.sample)
    kept = [row for row in held_out if (row["benchmark"], row["task"], row["sample"]) == key]
    said = [(turn.agent, turn.text) for turn in episode.turns]
    for row in reversed(kept):
        if [(turn["agent"], turn["text"]) for turn in row["turns"]] == said:
            return f"the same texts as evaluated {row['when']} training, iteration {row['iteration']} ({HELD_OUT})"
    if kept:
        return (
            f"{HELD_OUT} has other texts of this sample (iteration {kept[-1]['iteration']}): of another checkpoint, with "
            "other settings, or computed in a batch that rounds otherwise"
        )
    return None
