"""Asynchronous code called from synchronous code, also where an event loop is running already, as in a notebook.

What runs in it is partly the user's: a workflow may block, swallow what ends it, or raise SystemExit in a task of its own.
None of this keeps an interrupt from ending it.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import torch

from marft.types import Stopped
from marft.watchdog import leave_behind, start_watchdog

T = TypeVar("T")
GRACE_S = 3.0  # that cancelled work has to put itself in order
STUBBORN = (
    "interrupted; the workflow, or an environment in this process, would not end, so the process was ended; what was "
    "written is kept"
)


class KeptLoop:
    """A loop that outlives single calls; where a call leaves something behind that does not end, it is replaced."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def rest(self) -> None:
        """After a call."""
        if not end_tasks(self.loop):
            self.close()
            self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        """End all tasks of the loop and close it."""
        shut_down_loop(self.loop)
        self.loop.close()


KEPT: ContextVar[KeptLoop | None] = ContextVar("KEPT", default=None)  # of the run that is under way


@contextmanager
def one_loop() -> Iterator[None]:
    """Within it every `run_async` runs in the same loop, so that what engines keep open (connections, locks) stays
    open. Tasks do not: whatever a call has begun ends with it."""
    if KEPT.get() is not None:
        yield
        return
    kept = KeptLoop()
    token = KEPT.set(kept)
    try:
        yield
    finally:
        KEPT.reset(token)
        run_async(do_nothing(), kept)


async def do_nothing() -> None:
    """Only the loop is to be closed."""


def run_async(work: Coroutine[Any, Any, T], ending: KeptLoop | None = None) -> T:
    """What `work` returns, as from `asyncio.run`.

    The first interrupt cancels `work`. Should it not have ended `GRACE_S` later, or should there be a second, `Stopped` is
    raised wherever it stands; what swallows that as well is ended with the process.

    A running loop (a notebook's, a web server's) cannot wait for synchronous code that waits for it. There `work` gets a
    loop in a thread of its own, and the caller waits. A KeyboardInterrupt meanwhile cancels `work`, is raised once it has
    ended, and a second one is raised at once: as `asyncio.run` does it.

    Within `one_loop` the loop is that one's; `ending` is one that is closed after `work`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with Interrupts() as interrupts:
            return run_loop(work, interrupts, ending)
    return run_in_thread(work, ending)


class Interrupts:
    """Ctrl-C while a loop runs in the main thread; elsewhere no signal comes."""

    def __init__(self) -> None:
        self.requests = 0
        self._cancel: Callable[[], object] = lambda: None
        self._done = threading.Event()
        self._watchdog: threading.Thread | None = None
        self._before: Any = signal.SIG_IGN

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if callable(self._before):  # neither ignored nor left to the system
                signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._done.set()
            if self._watchdog is not None:
                self._watchdog.join()  # it may be about to interrupt us once more
        finally:
            if callable(self._before):
                signal.signal(signal.SIGINT, self._before)

    def cancel(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        """What the first one does."""
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._done.is_set() and self.requests:
            return  # it is being heeded
        if self._before is not signal.default_int_handler:
            try:
                self._before(number, frame)
            except KeyboardInterrupt:
                pass
            else:
                return  # somebody has taken care of it
        self.requests += 1
        if self.requests > 1:
            raise Stopped
        try:
            self._cancel()
        except RuntimeError:  # the loop is closed already, and its caller is about to go on
            raise Stopped from None
        self._watchdog = start_watchdog(self._done, after=GRACE_S, line=STUBBORN, code=1)


def run_loop(work: Coroutine[Any, Any, T], interrupts: Interrupts, ending: KeptLoop | None) -> T:
    """`asyncio.run`, but that nothing of the user's can end it, and nothing of the user's can keep it."""
    kept = ending or KEPT.get()
    if kept is None or kept.loop.is_running():  # a call within a call: a tool or a script that plays with another team
        kept = KeptLoop()
    loop = kept.loop
    try:
        asyncio.set_event_loop(loop)
        task = loop.create_task(work)
        interrupts.cancel(loop, task)
        result = run_until_done(loop, task)
    except asyncio.CancelledError:
        if interrupts.requests:
            raise Stopped from None
        raise
    finally:
        try:
            kept.rest() if kept is KEPT.get() else kept.close()
        finally:
            asyncio.set_event_loop(None)
    if interrupts.requests:  # it was too late to cancel, or was swallowed
        raise Stopped
    return result


def run_until_done(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    """The task's result. A SystemExit or KeyboardInterrupt that another task raises ends that task, and not the loop."""
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, Stopped) or task.done():
                raise


def shut_down_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Ends all that the loop has begun, threads included."""
    end_tasks(loop)
    with suppress(Stopped):  # enough time was given
        run_until_done(loop, loop.create_task(loop.shutdown_asyncgens()))
        run_until_done(loop, loop.create_task(loop.shutdown_default_executor()))


def end_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Cancels what is left; what does not end is left behind, and then this is False."""
    with suppress(Stopped):  # enough time was given
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            run_until_done(loop, loop.create_task(asyncio.wait(left, timeout=GRACE_S)))
    stubborn = asyncio.all_tasks(loop)
    for task in stubborn:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody has to be told
        leave_behind(task)
    return not stubborn


def run_in_thread(work: Coroutine[Any, Any, T], ending: KeptLoop | None) -> T:
    """Run `work` in a thread with a loop of its own, for callers inside a running loop; Ctrl-C cancels it."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
    done: Future[T] = Future()
    interrupted = threading.Event()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        if interrupted.is_set():
            task.cancel()
        return await work

    def body() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # every thread has a current device of its own, the first at its start
            done.set_result(run_loop(main(), Interrupts(), ending))
        except BaseException as error:  # whatever it is, it is raised in the thread that waits
            done.set_exception(error)

    # with the caller's context: a notebook knows by it which cell printed something
    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="marft", daemon=True)
    try:
        thread.start()
        wait_until_done(done)
        return done.result()
    except KeyboardInterrupt:
        interrupted.set()
        if begun.done():
            loop, task = begun.result()
            with suppress(RuntimeError):  # its loop is closed already
                loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        if begun.done() or thread.is_alive():
            wait_until_done(done)


def wait_until_done(done: Future[T]) -> None:
    """In short waits: a signal that comes just before a wait begins does not end it, and its handler runs after it. (A
    `Thread.join` that is interrupted takes the thread for ended.)"""
    while not done.done():
        wait([done], timeout=0.2)
