"""The chunks of an evaluation: the episodes of one are played side by side, and become rows."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from marft.config import Config
from marft.engines.scripted import ScriptedEngine
from marft.evaluation.benchmarks import Benchmark
from marft.evaluation.folder import Played, Record, Slot
from marft.game.agent import Agent
from marft.game.endings import EpisodeFailed
from marft.game.guarded_env import GuardedEnv
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import EpisodeRunner, Start
from marft.runs.transcripts import make_transcript
from marft.types import Episode, Task

CHUNK = 2  # times as many episodes as are generated at once: they are lost together when the process is killed
SILENT_ENGINE = ScriptedEngine(lambda request: "", ids=False)  # of an agent that is silent
LONGEST = 200  # characters of an answer or an error; a program can be pages long


def with_silent_agent(team: Mapping[str, Agent], name: str | None) -> dict[str, Agent]:
    """The team with one agent whose turns come as always, and are empty."""
    return {each: replace(agent, engine=SILENT_ENGINE) if each == name else agent for each, agent in team.items()}


def plan_chunks(config: Config, benchmarks: Sequence[Benchmark]) -> list[list[Slot]]:
    """What is played together, in order. Samples of a task stand side by side: their first prompt is computed once."""
    size = CHUNK * config.engine.slots
    chunks: list[list[Slot]] = []
    for benchmark in benchmarks:
        for silent in (None, *(config.team.agents if config.eval.ablate else ())):
            slots = [
                Slot(benchmark=benchmark.name, silent=silent, task=task, sample=sample)
                for task in benchmark.tasks
                for sample in range(config.eval.samples)
            ]
            chunks += [slots[i : i + size] for i in range(0, len(slots), size)]
    return chunks


def play_chunk(runner: EpisodeRunner, slots: Sequence[Slot], tasks: Mapping[str, Task], seed: int) -> list[Record]:
    """An episode's seed depends on `seed`, task and sample alone, so that all that are compared on a task share it."""
    started = time.perf_counter()
    starts = [Start(task=tasks[slot.task], sample=slot.sample) for slot in slots]
    episodes, found = run_async(play_and_extract_answers(runner, starts, f"{seed}/eval"))
    share = (time.perf_counter() - started) / len(slots)
    return [
        Record(played=make_played(s, e, a, share), transcript=make_transcript(e, runner.host.gold(e.task)))
        for s, e, a in zip(slots, episodes, found, strict=True)
    ]


async def play_and_extract_answers(
    runner: EpisodeRunner, starts: Sequence[Start], seed: str
) -> tuple[list[Episode], list[Hashable | None]]:
    """The episodes, and what each of them answers."""
    episodes = await runner.episodes(starts, seed)
    return episodes, await extract_answers(runner, episodes)


async def extract_answers(runner: EpisodeRunner, episodes: Sequence[Episode]) -> list[Hashable | None]:
    """What each episode's last message that the environment heard answers; None where nothing tells."""
    world = GuardedEnv(runner.host)

    async def answer(episode: Episode) -> Hashable | None:
        heard = [turn for turn in episode.turns if not turn.aside and turn.to is None]
        if episode.ended == "failed" or not heard:
            return None
        try:
            return await world.answer(heard[-1].text)
        except EpisodeFailed:  # it is no vote, and what the episode earned stands
            return None

    return list(await asyncio.gather(*map(answer, episodes)))


def make_played(slot: Slot, episode: Episode, answer: Hashable | None, seconds: float) -> Played:
    """What the figures need of an episode; long answers and errors are shortened."""
    tokens: Counter[str] = Counter()
    for turn in episode.turns:
        tokens[turn.agent] += len(turn.completion.token_ids)
    return Played(
        slot=slot,
        reward=episode.reward.team,
        correct=episode.reward.correct,
        answer=None if answer is None else text_with_digest(answer_text(answer)),
        tokens=dict(tokens),
        turns=dict(Counter(turn.agent for turn in episode.turns)),
        error=None if episode.error is None else text_with_digest(episode.error),
        seconds=seconds,
    )


def answer_text(answer: Hashable) -> str:
    """Equal answers have equal texts: 3 and 3.0, and two sets whatever their order."""
    match answer:
        case str():
            return answer
        case tuple():
            return f"({', '.join(map(answer_text, answer))})"
        case frozenset():
            return f"{{{', '.join(sorted(map(answer_text, answer)))}}}"
        case int():
            return str(int(answer))
        case float() if answer.is_integer():
            return str(int(answer))
    return repr(answer)


def text_with_digest(text: str) -> str:
    """A long text by its beginning and a hash of the whole."""
    if len(text) <= LONGEST:
        return text
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{text[:LONGEST]}… {digest}"
