"""What a worker does, wherever it runs: it builds a team, an engine and an environment of its own, and plays what it is told to."""

from __future__ import annotations

import asyncio
import platform
import queue
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # torch comes with them; it is loaded by the thread that plays
    from marft.config import Config
    from marft.distributed.messages import Failure, Setup
    from marft.rollouts.players import Assignment
    from marft.rollouts.runner import EpisodeRunner
    from marft.training.build import Assembly

BEAT_S = 1.0
T = TypeVar("T")


class Mouth:
    """Says one message at a time, from any thread; and once a second that it lives, as long as what it plays moves on."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self.say = say
        self.playing = False
        self.moved = True  # since the last beat
        threading.Thread(target=self._beat, daemon=True).start()

    async def watch(self, play: Coroutine[Any, Any, T]) -> T:
        """What the play gives; while the event loop turns, it moves on."""

        async def turn() -> None:
            while True:
                self.moved = True
                await asyncio.sleep(BEAT_S / 4)

        turning = asyncio.create_task(turn())
        try:
            return await play
        finally:
            turning.cancel()

    def idly(self, receive: Callable[[], bytes]) -> bytes:
        """A message that is waited for in the middle of a play, which need not move on meanwhile."""
        self.playing = False
        try:
            return receive()
        finally:
            self.playing = self.moved = True

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            if self.moved or not self.playing:
                self.moved = False
                self.say(b"H")


def work(mouth: Mouth, inbox: queue.SimpleQueue[bytes]) -> None:
    """Build the team, then play assignment after assignment; returns only when it cannot go on, and has said why."""
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
            mouth.playing = True
            episodes = run_async(mouth.watch(playing(config, runner, assignment, chosen)))
            mouth.playing = False
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
    from marft.types import MarftError

    for package, ours in versions.items():
        if (theirs := setup.versions.get(package)) != ours:
            raise MarftError(
                f"the trainer has {package} {theirs} and a worker on {platform.node()} {ours}; install the same version in "
                "both places"
            )
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    config = parse(setup.config).alone(setup.device)
    return config.model_copy(update={"engine": config.engine.model_copy(update={"memory": setup.memory})})


def package_versions() -> dict[str, str]:
    """What a trainer and its workers must have in common."""
    import torch

    from marft.version import __version__

    return {
        "marft": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__.partition("+")[0],  # the rest says for which device it was built
    }
