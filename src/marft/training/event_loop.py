"""Asynchronous code called from synchronous code, also where an event loop is running already, as in a notebook."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Without a running event loop this is `asyncio.run`.

    A running loop (a notebook's, a web server's) cannot wait for synchronous code that waits for it. There `work` gets a
    loop in a thread of its own, and the caller waits. A KeyboardInterrupt meanwhile cancels `work`, is raised once it has
    ended, and a second one is raised at once: as `asyncio.run` does it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return run_in_thread(work)


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
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
            done.set_result(asyncio.run(main()))
        except BaseException as error:  # whatever it is, it is raised in the thread that waits
            done.set_exception(error)

    # with the caller's context: a notebook knows by it which cell printed something
    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="marft", daemon=True)
    try:
        thread.start()
        wait_for(done)
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
            wait_for(done)


def wait_for(done: Future[T]) -> None:
    """In short waits: a signal that comes just before a wait begins does not end it, and its handler runs after it. (A
    `Thread.join` that is interrupted takes the thread for ended.)"""
    while not done.done():
        wait([done], timeout=0.2)
