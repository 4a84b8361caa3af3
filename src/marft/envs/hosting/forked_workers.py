"""Workers that are forked from one process, which has built the environment once; where a system forks safely."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from marft.envs.processes import ChildProcess, kill_tree
from marft.types import MarftError


class ForkedWorker:
    """One process that answers one question at a time."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self.connection, self.pid = connection, pid

    async def answer(self, question: bytes, deadline: float) -> bytes:
        """The reply to a question, packed as it came; TimeoutError after `deadline` seconds."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        self.connection.send_bytes(question)
        loop.add_reader(self.connection.fileno(), arrived.set)
        try:
            await asyncio.wait_for(arrived.wait(), deadline)
        except TimeoutError:
            if not self.connection.poll():  # it may have come while this process was busy
                raise
        finally:
            loop.remove_reader(self.connection.fileno())
        return self.connection.recv_bytes()

    def kill(self) -> None:
        """It and all that it started."""
        kill_tree(self.pid)
        self.connection.close()


class ForkServer:
    """The process that workers are forked from."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = ChildProcess(
                "marft.envs.hosting.fork_server", str(theirs.fileno()), variables={"OMP_NUM_THREADS": "1"}, pipes=False,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        with Connection(os.dup(self.control.fileno())) as first:
            first.send((name, dict(settings), sys.path))
            try:
                build_error = first.recv()
            except (EOFError, OSError):
                build_error = "its process ended while it was being built"
        if build_error is not None:
            self.close()
            raise MarftError(build_error)

    async def start(self) -> ForkedWorker:
        """A worker more."""
        ours, theirs = socket.socketpair()
        pid = 0
        with theirs, suppress(OSError):
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
            pid = int.from_bytes(self.control.recv(8, socket.MSG_WAITALL), "big")
        if not pid:
            ours.close()
            raise MarftError(
                "the process that hosts the environment has ended, perhaps for want of memory; start again"
            )
        return ForkedWorker(Connection(ours.detach()), pid)

    def close(self) -> None:
        """Its end is the end of all its workers, at work or not."""
        self.control.close()
        self.process.wait()
