"""A player in a process of its own.

`python -m marft.distributed.worker`, driven by `WorkerFleet`: messages come by standard input and go to standard output. It
ends when its input does, also in the middle of a play: that is how it ends with its trainer.
"""

from __future__ import annotations

import os
import queue

from marft.distributed.player import Mouth, work
from marft.envs.processes import FrameWriter, adopt_orphans, claim_stdout, read_frames, receive_in_thread
from marft.openmp import limit_spinning


def main() -> None:
    """A thread reads the messages and another says that we live: the main thread belongs to the team."""
    adopt_orphans()
    told = os.fdopen(os.dup(0), "rb")
    mouth = Mouth(FrameWriter(claim_stdout(prints_to=2)).write)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    receive_in_thread(read_frames(told), inbox.put)
    limit_spinning()
    work(mouth, inbox)
    os._exit(1)


if __name__ == "__main__":
    main()
