"""Starting a program inside the sandbox, reading what it says, and ending it."""

from __future__ import annotations

import os
import re
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from marft.envs.sandbox.cgroup import RunGroup
from marft.envs.sandbox.command import bwrap_command
from marft.envs.sandbox.limits import Ended, Limits, Outcome
from marft.envs.sandbox.machine import Machine, require_sandbox, unprivileged_user
from marft.envs.sandbox.seccomp import seccomp_filter
from marft.envs.sandbox.watcher_client import PROCESS_WATCHER, Watch

CHUNK = 65536
TAIL = 4096  # how much of stderr is kept
CHILD = re.compile(rb'"child-pid": (\d+)\D')  # in what bubblewrap tells about itself
OUT_OF_MEMORY = (b"MemoryError", b"OSError: [Errno 12]")


class SandboxBroken(RuntimeError):
    """The sandbox itself did not come up: nothing can be said about the program."""


class Running:
    """A program inside the sandbox. Leaving the `with` block kills it and everything it started."""

    def __init__(self, process: subprocess.Popen[bytes], report: int, limits: Limits, began: float) -> None:
        self.process, self.report, self.limits, self.began = process, report, limits, began
        self.child: int | None = None  # the program's process, once there is one
        self.guard: RunGroup | Watch | None = None  # who limits its memory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        os.close(self.report)
        if self.child is not None:
            os.close(self.child)
        if self.guard is not None:
            self.guard.close()

    def kill(self) -> int:
        """End the program, so that bubblewrap buries it and follows; where there is none, bubblewrap itself."""
        if self.process.poll() is None:
            if self.child is None:
                self.process.kill()  # all that it has started dies with it
            else:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.child, signal.SIGKILL)
        return self.process.wait()

    def limit_memory(self, machine: Machine, info: int) -> None:
        """Have the program's memory limited; where bubblewrap tells of none, it has failed, and `finish` says so."""
        told = b""
        deadline = self.began + self.limits.seconds
        while b"}" not in told and is_readable(info, max(0.0, deadline - time.monotonic())):
            if not (chunk := os.read(info, CHUNK)):
                break
            told += chunk
        found = CHILD.search(told)
        if found is None:
            return
        pid = int(found[1])
        try:
            self.child = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        if machine.cgroup is None:
            self.guard = PROCESS_WATCHER.watch(machine, self.limits, pid, self.child)
        else:
            self.guard = machine.cgroup.child(self.limits)
            self.guard.add(pid)

    def came_up(self, wait: float = 0.0) -> bool:
        """Whether, within `wait` seconds from now, the limits are set and the program is given control."""
        return is_readable(self.report, wait) and os.read(self.report, 1) == b"1"

    def finish(self) -> Outcome:
        """Wait for the end, or bring it about at a limit; never holds more output than is allowed."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout.fileno(), self.process.stderr.fileno()
        said = {out: bytearray(), err: bytearray()}
        deadline = self.began + self.limits.seconds
        cut: Ended | None = None
        with selectors.DefaultSelector() as selector, os.fdopen(os.pidfd_open(self.process.pid), "rb", 0) as death:
            ended = death.fileno()
            for descriptor in (out, err, ended):
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
            while cut is None:
                ready = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
                for descriptor in ready - {ended}:
                    if not read_chunk(descriptor, said[descriptor]):
                        selector.unregister(descriptor)
                if any(len(each) > self.limits.output_bytes for each in said.values()):
                    cut = "output"
                elif ready == {ended}:  # and nothing is left to be read
                    break
                elif time.monotonic() >= deadline:
                    cut = "timeout"
        code = self.kill() if cut else self.process.wait()
        if cut is None and self.guard is not None and self.guard.exceeded_memory():
            cut = "memory"
        seconds = time.monotonic() - self.began
        if not self.came_up():
            raise SandboxBroken(
                f"the sandbox did not come up: {said[err][-200:].decode(errors='replace').strip() or cut}"
            )
        return Outcome(
            ended=cut or how_ended(code, bytes(said[err][-TAIL:])),
            stdout=said[out][: self.limits.output_bytes].decode(errors="replace"),
            stderr=said[err][-TAIL:].decode(errors="replace"),
            exit_code=None if cut else code,
            seconds=seconds,
        )


def is_readable(descriptor: int, wait: float) -> bool:
    """Whether something can be read, or never will be, within `wait` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * wait))


def read_chunk(descriptor: int, said: bytearray) -> bool:
    """Read one chunk; False at the end of the stream."""
    try:
        chunk = os.read(descriptor, CHUNK)
    except BlockingIOError:
        return True
    said += chunk
    return bool(chunk)


def how_ended(code: int, stderr: bytes) -> Ended:
    """What exit code and last line of stderr say about a program that we did not kill."""
    if code == 0:
        return "ok"
    if code == 128 + signal.SIGXCPU:
        return "timeout"
    if stderr.rstrip().rpartition(b"\n")[2].startswith(OUT_OF_MEMORY):
        return "memory"
    return "killed" if code > 128 else "error"


def launch(
    main: str,
    *,
    limits: Limits,
    stdin: str = "",
    files: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    channel: int | None = None,
    quiet: bool = False,
    machine: Machine | None = None,
) -> Running:
    """Start `main`, with `files` beside it in /program. It inherits `channel` and no other descriptor of ours.

    `quiet` programs are not listened to: what they print goes nowhere.
    """
    machine = machine or require_sandbox()
    import fcntl  # Windows has none, and macOS no seals: only `require_sandbox` may say that this needs Linux

    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    with ExitStack() as ours, ExitStack() as failing:  # what `failing` closes unless a `Running` takes it over
        with ExitStack() as its:

            def sealed(data: bytes) -> int:
                descriptor = os.memfd_create("sandbox", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
                its.callback(os.close, descriptor)
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.lseek(descriptor, 0, os.SEEK_SET)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
                return descriptor

            def pipe(mine: int, stack: ExitStack) -> list[int]:
                ends = os.pipe()
                stack.callback(os.close, ends[mine])
                its.callback(os.close, ends[1 - mine])
                return [ends[mine], ends[1 - mine]]

            sources = {
                name: sealed(encode_replacing(text)) for name, text in {"main.py": main, **(files or {})}.items()
            }
            bpf = seccomp_filter()
            seccomp = None if bpf is None else sealed(bpf)
            (report, told), (info, informed), (opened, gate) = pipe(0, failing), pipe(0, ours), pipe(1, ours)
            line = bwrap_command(
                machine, limits, files=sources, arguments=arguments,
                report=told, gate=gate, info=informed, seccomp=seccomp,
            )  # fmt: skip
            inherited = [*sources.values(), told, gate, informed]
            inherited += [each for each in (seccomp, channel) if each is not None]
            voice = subprocess.DEVNULL if quiet else subprocess.PIPE
            began = time.monotonic()
            process = subprocess.Popen(
                line, stdin=sealed(encode_replacing(stdin)), stdout=voice, stderr=voice,
                pass_fds=inherited, env={}, cwd="/", bufsize=0, **unprivileged_user(),
            )  # fmt: skip
            failing.pop_all()
        running = Running(process, report, limits, began)
        try:
            running.limit_memory(machine, info)
            with suppress(BrokenPipeError):
                os.write(opened, b"1")
        except BaseException:
            running.__exit__(None, None, None)
            raise
    return running


def encode_replacing(text: str) -> bytes:
    """Lone surrogates have no bytes; a program that holds one is wrong, and says so itself."""
    return text.encode(errors="replace")


def run(program: str, *, stdin: str = "", limits: Limits | None = None) -> Outcome:
    """Run Python source inside the sandbox and wait for its end. Safe to call from several threads."""
    with launch(program, limits=limits or Limits(), stdin=stdin) as running:
        return running.finish()
