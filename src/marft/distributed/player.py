"""What a worker does, wherever it runs: it builds a team, an engine and an environment of its own, and plays what it is told to."""

from __future__ import annotations

import asyncio
import platform
import queue
import traceback
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from marft.channels import BEAT_S, Heartbeat, Say

if TYPE_CHECKING:  # torch comes with them; it is loaded by the thread that plays
    from marft.config import Config
    from marft.distributed.messages import Failure, Setup
    from marft.rollouts.players import Assignment
    from marft.rollouts.runner import EpisodeRunner
    from marft.training.build import Assembly

T = TypeVar("T")


class Mouth(Heartbeat):
    """Says one message at a time, from any thread; and that it lives, as long as what it plays moves on."""

    async def watch(self, play: Coroutine[Any, Any, T]) -> T:
        """What the play gives; while the event loop turns, it moves on."""

        async def turn() -> None:
            while True:
                self.moved = True
                await asyncio.sleep(BEAT_S / 4)

        turning, self.busy = asyncio.create_task(turn()), True
        try:
            return await play
        finally:
            turning.cancel()
            self.busy = False

    def idly(self, receive: Callable[[], bytes]) -> bytes:
        """A message that is waited for in the middle of a play, which need not move on meanwhile."""
        self.busy = False
        try:
            return receive()
        finally:
            self.busy = self.moved = True


def work(say: Say, inbox: queue.SimpleQueue[bytes]) -> None:
    """Build the team, then play assignment after assignment; returns only when it cannot go on, and has said why."""
    mouth = Mouth(say)
    try:
        build_and_play(mouth, inbox)
    except BaseException as error:
        from marft.distributed.messages import pack_failure

        mouth.say(pack_failure(describe_failure(error)))


def describe_failure(error: BaseException) -> Failure:
    """What the trainer is told of an error: what surrounds us refuses is one line, with the user's own trace where there is
    one; our own bugs have theirs."""
    from marft.distributed.messages import Failure
    from marft.runs.disk import is_disk_full
    from marft.types import MarftError

    line = str(error) or type(error).__name__
    if is_disk_full(error):
        return Failure(line=f"a disk of {platform.node()} is full: {line}; free space there", trace="", ours=False)
    if isinstance(error, MarftError):
        return Failure(line=line, trace=error.trace, ours=False)
    known = isinstance(error, OSError | MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
    return Failure(line=line, trace="" if known else "".join(traceback.format_exception(error)), ours=not known)


def build_and_play(mouth: Mouth, inbox: queue.SimpleQueue[bytes]) -> None:
    """The first message is the setup."""
    from marft.distributed import messages
    from marft.distributed.swapping import Swapping
    from marft.rollouts.event_loop import one_loop, run_async
    from marft.rollouts.players import Played, playing
    from marft.training.build import assemble
    from marft.training.packages import package_versions

    setup = messages.SETUPS.validate_json(inbox.get()[1:])
    config = prepare(setup, package_versions())
    with (
        one_loop(),
        assemble(config, specs=setup.adapters, reads=("train",)) as parts,
        ExitStack() as opened,
    ):
        runners = Runners(config, parts, opened)
        swapping = Swapping(inbox.get_nowait, lambda: mouth.idly(inbox.get), parts.publish)
        if setup.config["rollout"]["swap"] == "token":
            parts.lockstep.before_step = swapping.before_step
        mouth.say(messages.READY)
        while True:
            message = inbox.get()
            kind, body = message[:1], message[1:]
            if kind == messages.ADAPTERS:
                version, adapters = messages.unpack_adapters(body)
                parts.publish(version, adapters)
                continue
            assignment, before = messages.ASSIGNMENTS.validate_json(body), parts.tokens
            runner = runners.choose(assignment)
            tasks = runner.host.tasks(assignment.split)
            chosen = [tasks[i] for i in assignment.tasks]
            swapping.begin(() if assignment.key.held_out else assignment.swaps)
            episodes = run_async(mouth.watch(playing(config, runner, assignment, chosen)))
            played = Played(episodes=episodes, tokens=parts.tokens - before, swaps=tuple(swapping.done))
            mouth.say(messages.pack_played(played))


class Runners:
    """The team wherever assignments are played; an evaluation is at its own environment, with its own sampling.

    The environment of a benchmark is opened with its first shard, and closed with `opened`.
    """

    def __init__(self, config: Config, parts: Assembly, opened: ExitStack) -> None:
        self.config, self.parts, self.opened = config, parts, opened
        self._held_out: dict[str | None, EpisodeRunner] = {}  # by benchmark; None: the run's own environment

    def choose(self, assignment: Assignment) -> EpisodeRunner:
        """Where this one is played."""
        from marft.evaluation.benchmarks import benchmarks_of, evaluation_runner

        if not assignment.key.held_out:
            return self.parts.runner
        if (name := assignment.benchmark) not in self._held_out:
            env = None if name is None else benchmarks_of(self.config)[name]
            runner = evaluation_runner(self.config, self.parts, name or self.config.env.name, env)
            self._held_out[name] = self.opened.enter_context(runner)
        return self._held_out[name]


def prepare(setup: Setup, versions: dict[str, str]) -> Config:
    """The config of this worker, whose engine is on its device; threads are set."""
    import torch

    from marft.config import parse
    from marft.training.packages import require_same_packages

    require_same_packages(setup.versions, versions, "a worker")
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    config = parse(setup.config).alone(setup.device)
    return config.model_copy(update={"engine": config.engine.model_copy(update={"memory": setup.memory})})
