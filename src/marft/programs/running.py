"""How a program runs for one episode: as an async function here, as a plain function in a process of its own, or as a
command."""

from __future__ import annotations

import asyncio
import inspect
import io
import itertools
import json
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from marft import import_paths
from marft.config.team import ProgramConfig
from marft.game.endings import EpisodeFailed
from marft.processes import ChildProcess, kill_tree, own_group, read_frames, to_frame
from marft.programs.endpoint import Session
from marft.types import MarftError, Task
from marft.untrusted_values import described, traced

LARGEST_OUTPUT = 1 << 20  # bytes that a command may print
SHOWN_OUTPUT = 300  # characters of what a failed command printed, at most
POLL_S = 0.02  # between two looks whether a command has ended
KNOWN = ("task", "base_url", "api_key", "agents")  # what a function may ask for, by its parameters' names


class Program(Protocol):
    """Plays an episode by asking its endpoint."""

    def place(self) -> AbstractAsyncContextManager[None]:
        """Entered when there is room for one more episode."""

    async def run(self, task: Task, session: Session) -> object:
        """What the program returns; EpisodeFailed where it fails. Cancelled, it leaves nothing running."""

    def close(self) -> None:
        """End what was kept for later episodes."""


def make_program(config: ProgramConfig) -> Program:
    """The program that a config names."""
    if config.cmd is not None:
        return Command(config.cmd)
    assert config.function is not None
    function = import_paths.find(config.function, "team.program.function")
    if not callable(function):
        raise MarftError(f"team.program.function: {config.function!r} is not a function")
    check_parameters(function, config.function)
    if inspect.iscoroutinefunction(function):
        return AsyncFunction(function)
    return PlainFunction(config.function)


def check_parameters(function: Callable[..., Any], name: str) -> None:
    """Raise a MarftError for a function that asks for what there is not."""
    unknown = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.name not in KNOWN and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if unknown:
        raise MarftError(
            f"team.program.function: {name!r} asks for {unknown[0]!r}; a program is given {', '.join(KNOWN)}, by name"
        )


def call_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of what is given that the function asks for."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    return {key: value for key, value in given.items() if takes_all or key in parameters}


def given_to(task: Task, session: Session) -> dict[str, Any]:
    """What a program may know."""
    known = {"id": task.id, "prompt": task.prompt, "data": dict(task.data)}
    return {
        "task": known,
        "base_url": session.base_url,
        "api_key": session.api_key,
        "agents": list(session.game.team),
    }


class AsyncFunction:
    """An async function, in the loop that plays all episodes: it must not block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def place(self) -> AbstractAsyncContextManager[None]:
        """All run at once."""
        return nullcontext()

    async def run(self, task: Task, session: Session) -> object:
        """What it returns."""
        try:
            return await self.function(**call_arguments(self.function, given_to(task, session)))
        except (Exception, SystemExit) as error:  # the user's code: anything may come
            raise EpisodeFailed(f"the program raised {described(error)}", "workflow", traced()) from error

    def close(self) -> None:
        """Nothing is kept."""


class PlainFunction:
    """A function that blocks: many at once in threads of one process beside this one.

    A thread cannot be ended, so a process in which one was given up takes no further episodes, and ends when its others
    have.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: FunctionProcess | None = None

    def place(self) -> AbstractAsyncContextManager[None]:
        """All run at once."""
        return nullcontext()

    async def run(self, task: Task, session: Session) -> object:
        """What it returns."""
        if self._process is None or self._process.spoilt:
            self._process = FunctionProcess(self.name)
        return await self._process.call(given_to(task, session))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.process.end()
            self._process = None


class FunctionProcess:
    """`python -m marft.programs.function_process NAME`, and the calls that are under way in it."""

    def __init__(self, name: str) -> None:
        self.process = ChildProcess("marft.programs.function_process", name)
        self.spoilt = False
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, name="marft-program", daemon=True).start()

    async def call(self, given: Mapping[str, Any]) -> object:
        """The function's value. Who is cancelled leaves a thread behind, and so spoils the process."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._waiting[number] = answer
        try:
            self.process.send(to_frame(json.dumps({"number": number, "given": given}, default=str).encode()))
            found = await answer
        except asyncio.CancelledError:
            self.spoilt = True
            raise
        except (OSError, ValueError) as error:  # the latter: its pipe is closed
            self.spoilt = True
            raise EpisodeFailed("the program's process has ended", "workflow") from error
        finally:
            with self._lock:
                self._waiting.pop(number, None)
            if self.spoilt and not self._waiting:
                self.process.end()
        if "failed" in found:
            raise EpisodeFailed(f"the program raised {found['failed']}", "workflow", found["trace"])
        return found["value"]

    def _listen(self) -> None:
        assert isinstance(self.process.stdout, io.FileIO)
        with io.BufferedReader(self.process.stdout) as pipe:
            for frame in read_frames(pipe):
                answer = json.loads(frame)
                self._settle(answer["number"], answer)
        self.spoilt = True
        with self._lock:
            left = list(self._waiting)
        for number in left:
            self._settle(number, {"failed": "nothing: its process has ended", "trace": ""})

    def _settle(self, number: int, answer: Mapping[str, Any]) -> None:
        with self._lock:
            waiting = self._waiting.get(number)

        def set_result() -> None:
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(set_result)


class Command:
    """A command line, a process for each episode: the task as JSON on its input, the endpoint in its environment."""

    def __init__(self, line: str) -> None:
        self.words = shlex.split(line)
        if not self.words or shutil.which(self.words[0]) is None:
            raise MarftError(f"team.program.cmd: there is no command {(self.words or [''])[0]!r}")
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def place(self) -> AbstractAsyncContextManager[None]:
        """A few processes a core."""
        return self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(4 * (os.cpu_count() or 1)))

    async def run(self, task: Task, session: Session) -> object:
        """The last line that it prints is its answer; a reward it posts."""
        given = given_to(task, session)
        variables = {"OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.api_key}
        process = await asyncio.create_subprocess_exec(
            *self.words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env={**os.environ, **variables}, **own_group(),
        )  # fmt: skip
        reading = asyncio.ensure_future(self._read(process, json.dumps(given["task"], default=str).encode()))
        exited = asyncio.ensure_future(until_exit(process))
        try:
            await asyncio.wait({reading, exited}, return_when=asyncio.FIRST_COMPLETED)
            if not (reading.done() and reading.exception()):  # else it has printed too much
                await exited
        finally:
            await asyncio.to_thread(end_command, process.pid, session.api_key)
            await asyncio.wait({reading, exited})  # whoever held its output open has gone, too
        printed, complained = reading.result()
        if process.returncode != 0:
            last = complained.decode(errors="replace").strip()[-SHOWN_OUTPUT:]
            raise EpisodeFailed(f"the program ended with {process.returncode}: {last!r}", "workflow")
        return last_line(printed)

    async def _read(self, process: asyncio.subprocess.Process, given: bytes) -> tuple[bytes, bytes]:
        """What it prints to its output and its error output, once it has been told `given`."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with suppress(ConnectionError):
            process.stdin.write(given)
            process.stdin.close()
        return await asyncio.gather(read_limited(process.stdout), read_limited(process.stderr))

    def close(self) -> None:
        """Nothing is kept."""


async def until_exit(process: asyncio.subprocess.Process) -> None:
    """Until it has ended; asyncio's own wait goes on while anybody holds its output open."""
    while process.returncode is None:
        await asyncio.sleep(POLL_S)


async def read_limited(pipe: asyncio.StreamReader) -> bytes:
    """All that comes; EpisodeFailed where it is too much."""
    found = bytearray()
    while piece := await pipe.read(1 << 16):
        found += piece
        if len(found) > LARGEST_OUTPUT:
            raise EpisodeFailed(f"the program has printed more than {LARGEST_OUTPUT >> 20} MiB", "workflow")
    return bytes(found)


def last_line(printed: bytes) -> str | None:
    """Of what was printed; None where nothing was."""
    lines = printed.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else None


def end_command(pid: int, key: str) -> None:
    """End a command with all that it started, also what has left its group: whoever has the episode's key is its own."""
    kill_tree(pid)
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if key.encode() in environ.read_bytes():
                kill_tree(int(environ.parent.name))
