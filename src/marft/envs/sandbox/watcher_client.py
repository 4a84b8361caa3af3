"""Where no cgroup limits a run's memory: one process that watches all runs of this one."""

from __future__ import annotations

import socket
import subprocess
import threading
from importlib.resources import files

from marft.envs.sandbox.limits import Limits
from marft.envs.sandbox.machine import Machine, unprivileged_user
from marft.processes import at_exit_and_fork, own_group

WATCHER = files("marft.envs.sandbox").joinpath("memory_watcher.py").read_text(encoding="utf-8")


class Watch:
    """One run that is being watched, until `close`."""

    def __init__(self, alarm: socket.socket) -> None:
        self.alarm = alarm
        alarm.setblocking(False)

    def exceeded_memory(self) -> bool:
        """Whether it was killed because it took too much."""
        try:
            return self.alarm.recv(1) == b"1"
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Tells the watcher that the run is over."""
        self.alarm.close()


class Watcher:
    """The process that watches. It ends with whoever holds `control`, and is started anew if somebody ended it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.control: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def watch(self, machine: Machine, limits: Limits, pid: int, process: int) -> Watch:
        """Has a run watched from now on; a watcher that has died is replaced."""
        ours, theirs = socket.socketpair()
        told = f"{pid} {limits.memory} {limits.tmpfs}".encode()
        with theirs, self.lock:
            try:
                self.announce(machine, told, process, theirs)
            except ConnectionError:
                self.stop()
                self.announce(machine, told, process, theirs)
        return Watch(ours)

    def announce(self, machine: Machine, told: bytes, process: int, alarm: socket.socket) -> None:
        """Sends the run to the watcher, which is started where there is none."""
        if self.control is None:
            self.start(machine)
        assert self.control is not None
        socket.send_fds(self.control, [told], [process, alarm.fileno()])

    def start(self, machine: Machine) -> None:
        """Starts the process, as a user without rights."""
        self.control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self.process = subprocess.Popen(
                [machine.python, "-I", "-S", "-B", "-c", WATCHER, str(its.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()], env={}, cwd="/", **own_group(), **unprivileged_user(),
            )  # fmt: skip

    def stop(self) -> None:
        """Ends the process and waits for it."""
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            self.process.wait()
        self.control = self.process = None

    def forget(self) -> None:
        """After a fork: the watcher is the parent's, and the lock may be held by a thread that is not here."""
        if self.control is not None:
            self.control.close()
        self.__init__()  # type: ignore[misc]


PROCESS_WATCHER = Watcher()
at_exit_and_fork(stop=PROCESS_WATCHER.stop, forget=PROCESS_WATCHER.forget)
