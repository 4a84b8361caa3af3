"""A process of its own that looks at what sandboxes take from the machine, and kills those that take too much.

The limit of the address space counts neither page tables nor files, and one process has to look every few milliseconds,
which a thread of a busy trainer cannot. Its text is handed to an interpreter that sees nothing of marft. Argument: the
socket on which runs are announced, each with two descriptors: the process, and a socket whose end is the run's end.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
import time

COUNTED = re.compile(rb"^(?:RssAnon|VmPTE|VmSwap):\s+(\d+) kB", re.MULTILINE)
STATUS = 16384  # bytes: more than the kernel says about a process
INODE = 2048  # bytes of kernel memory that an empty file with a long name takes, and some more
FASTEST = 8e9  # bytes per second: no program takes more than that without the address space counting it
SHORTEST, LONGEST = 0.002, 0.05  # seconds between two looks


class Run:
    """One sandbox that is watched: how much it may take, and when to look next."""

    def __init__(self, pid: int, memory: int, tmpfs: int, process: int, alarm: socket.socket) -> None:
        self.pid, self.memory, self.tmpfs, self.process, self.alarm = pid, memory, tmpfs, process, alarm
        self.status = os.open(f"/proc/{pid}/status", os.O_RDONLY)
        self.due = 0.0

    def memory_used(self) -> int:
        """Memory of its own, swap, page tables, and all that is in /tmp."""
        counts, place = COUNTED.findall(os.pread(self.status, STATUS, 0)), f"/proc/{self.pid}"
        if not counts:  # the first thread has ended; the memory is that of the others
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                place = f"/proc/{self.pid}/task/{thread}"
                with open(f"{place}/status", "rb") as status:
                    counts = COUNTED.findall(status.read())
                if counts:
                    break
        return 1024 * sum(map(int, counts)) + self.file_bytes(f"{place}/root/tmp")

    def file_bytes(self, folder: str) -> int:
        """Bytes of the files in its /tmp, inodes included."""
        try:
            found = os.statvfs(folder)
        except OSError:  # it is being set up, or has ended
            return 0
        if found.f_blocks * found.f_frsize != self.tmpfs:  # not yet its own /tmp
            return 0
        return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * INODE

    def check(self) -> None:
        """Kills the run if it took too much; otherwise the next look is due before it could."""
        taken = self.memory_used()
        if taken > self.memory:
            self.alarm.send(b"1")  # before the end of the run can be seen
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
        spare = max(0.0, 1.25 * self.memory - taken)
        self.due = time.monotonic() + min(LONGEST, max(SHORTEST, spare / FASTEST))

    def close(self) -> None:
        """Closes what is held open for it."""
        self.alarm.close()
        os.close(self.process)
        os.close(self.status)


def next_run(control: socket.socket) -> Run | None:
    """The next run; None at the end. One that is already over is of no interest."""
    while True:
        told, descriptors, _, _ = socket.recv_fds(control, 256, 2)
        if not told:
            return None
        process, alarm = descriptors
        pid, memory, tmpfs = map(int, told.split())
        try:
            return Run(pid, memory, tmpfs, process, socket.socket(fileno=alarm))
        except OSError:
            os.close(process)


def watch_runs(control: socket.socket) -> None:
    """Looks at each run when it is due, until the control socket is closed."""
    runs: dict[int, Run] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        due = min((run.due for run in runs.values()), default=None)
        wait = None if due is None else max(0.0, 1000 * (due - time.monotonic()))
        for descriptor, _ in poll.poll(wait):
            if descriptor != control.fileno():
                over = runs.pop(descriptor)
                poll.unregister(descriptor)
                over.close()
            elif (run := next_run(control)) is None:
                return
            else:
                runs[run.alarm.fileno()] = run
                poll.register(run.alarm, select.POLLIN)
        now = time.monotonic()
        for descriptor, run in list(runs.items()):
            if run.due <= now:
                try:
                    run.check()
                except OSError:  # it has ended
                    poll.unregister(descriptor)
                    runs.pop(descriptor).close()


if __name__ == "__main__":
    watch_runs(socket.socket(fileno=int(sys.argv[1])))
