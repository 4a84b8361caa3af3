"""A clean process that has built the environment and forks workers from itself: a new worker costs milliseconds.

Run as `python -m marft.envs.hosting.fork_server FD`. Through the socket FD come the environment's name and settings, and then
one socket for each worker that is wanted. It ends when that socket is closed, and its workers end with it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress

from marft.envs.hosting.worker_process import build_answer, build_env, serve
from marft.processes import adopt_orphans, end_with_parent, kill_descendants, parent_watched, read_frames, to_frame


def main(control: socket.socket) -> None:
    """Answers whether the environment could be built, and then forks for as long as it is asked."""
    adopt_orphans()
    with control.makefile("rb") as pipe, parent_watched():  # nobody sees yet whether our socket is closed
        env = build_env(next(read_frames(pipe)))
    control.sendall(build_answer(env))
    if isinstance(env, str):
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers: the kernel buries them
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:  # the other end is closed
            return
        server = os.getpid()
        if os.fork() == 0:
            control.close()
            os.setsid()  # a group of its own, so that it can be killed with all it started
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an environment may wait for processes of its own
            end_with_parent(server)
            with suppress(OSError), socket.socket(fileno=descriptors[0]) as asker, asker.makefile("rb") as pipe:
                questions = read_frames(pipe)
                next(questions, None)  # who it is, so that it can be killed
                asker.sendall(to_frame(os.getpid().to_bytes(8, "big")))
                serve(env, questions, asker.sendall)
            os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    try:
        main(socket.socket(fileno=int(sys.argv[1])))
    finally:
        kill_descendants(os.getpid())
