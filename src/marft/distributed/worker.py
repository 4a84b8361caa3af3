"""A worker: a process with the team, an engine and an environment of its own, which plays what it is told to.

`python -m marft.distributed.worker`, driven by `WorkerFleet`: messages come by standard input and go to standard output. It
ends when its input does, also in the middle of a play: that is how it ends with its trainer.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from marft.envs.processes import adopt_orphans, claim_stdout, read_frames, receive_in_thread, to_frame
from marft.openmp import limit_spinning

if TYPE_CHECKING:
    from marft.distributed.messages import Setup

BEAT_S = 1.0
T = TypeVar("T")


class Mouth:
    """Says one message at a time, from any thread; and once a second that it lives, as long as what it plays moves on."""

    def __init__(self, output: int) -> None:
        self._output, self._lock = os.fdopen(output, "wb"), threading.Lock()
        self.playing = False
        self.moved = True  # since the last beat
        threading.Thread(target=self._beat, daemon=True).start()

    def say(self, message: bytes) -> None:
        """Write a whole message; a trainer that has gone reads nothing."""
        with self._lock, suppress(OSError):
            self._output.write(to_frame(message))
            self._output.flush()

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


def main() -> None:
    """A thread reads the messages and another says that we live: the main thread belongs to the team."""
    adopt_orphans()
    told = os.fdopen(os.dup(0), "rb")
    mouth = Mouth(claim_stdout(prints_to=2))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    receive_in_thread(read_frames(told), inbox.put)
    limit_spinning()
    try:
        work(mouth, inbox)
    except BaseException as error:
        from marft.distributed.messages import Failure, pack_failure
        from marft.types import MarftError

        ours = not isinstance(error, (MarftError, OSError, MemoryError))
        line = str(error) or type(error).__name__
        mouth.say(pack_failure(Failure(line=line, trace=traceback.format_exc(), ours=ours)))
        os._exit(1)


def work(mouth: Mouth, inbox: queue.SimpleQueue[bytes]) -> None:
    """Build the team, then play assignment after assignment."""
    from marft.distributed import messages
    from marft.distributed.swapping import Swapping
    from marft.rollouts.event_loop import one_loop, run_async
    from marft.rollouts.players import Played, playing
    from marft.training.build import assemble
    from marft.version import __version__

    setup = messages.SETUPS.validate_json(inbox.get()[1:])
    config = prepare(setup, __version__)
    with one_loop(), assemble(config, specs=setup.adapters, reads=("train",)) as parts:
        swapping = Swapping(inbox.get_nowait, lambda: mouth.idly(inbox.get), parts.publish)
        if config.rollout.swap == "token":
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
            swapping.begin(assignment.swaps)
            mouth.playing = True
            episodes = run_async(mouth.watch(playing(config, parts.runner, assignment)))
            mouth.playing = False
            played = Played(episodes=episodes, tokens=parts.tokens - before, swaps=tuple(swapping.done))
            mouth.say(messages.pack_played(played))


def prepare(setup: Setup, version: str) -> Any:
    """The config of this worker, whose engine is on its device; threads are set."""
    import torch

    from marft.config import parse
    from marft.types import MarftError

    if setup.version != version:
        raise MarftError(
            f"the trainer has marft {setup.version} and a worker {version}; install the same version in both places"
        )
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    return parse({**setup.config, "device": setup.device})


if __name__ == "__main__":
    main()
