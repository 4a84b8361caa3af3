"""Asynchronous work from synchronous code: alone, inside a running loop, and interrupted there."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import stubborn
import yaml
from quick import models_in_memory, settings_of

import marft
from marft.rollouts import event_loop
from marft.rollouts.event_loop import run_async
from marft.types import Stopped

SOURCE = Path(marft.__file__).parent
NUMBER = contextvars.ContextVar("NUMBER", default=0)


async def where() -> tuple[str, int]:
    await asyncio.sleep(0)
    return threading.current_thread().name, NUMBER.get()


async def failing() -> None:
    raise KeyError("inside")


async def within(call: Any) -> Any:
    """Calls synchronous code where a loop is running, as a notebook does."""
    return call()


def test_without_a_running_loop_nothing_leaves_the_thread() -> None:
    NUMBER.set(1)
    assert run_async(where()) == (threading.current_thread().name, 1)


def test_a_running_loop_gets_a_thread_with_the_callers_context() -> None:
    NUMBER.set(7)
    assert asyncio.run(within(lambda: run_async(where()))) == ("marft", 7)
    assert "marft" not in [thread.name for thread in threading.enumerate()]


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(KeyError, match="inside"):
        asyncio.run(within(lambda: run_async(failing())))


def test_one_inside_another() -> None:
    async def outer() -> tuple[str, int]:
        return run_async(where())

    assert asyncio.run(within(lambda: run_async(outer())))[0] == "marft"


def interrupt_when(begun: threading.Event) -> None:
    """Ctrl-C, as soon as `begun` is set."""

    def press() -> None:
        if begun.wait(60):  # a test that failed before must not interrupt the next one
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


@pytest.fixture
def default_interrupts() -> Any:
    """As in a notebook: the running loop is not `asyncio.run`'s, which would take the interrupt for itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def in_a_notebooks_loop(call: Any) -> Any:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(within(call))
    finally:
        loop.close()


def test_an_interrupt_cancels_waits_and_is_raised(default_interrupts: None) -> None:
    begun, ended = threading.Event(), []

    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)  # what it has to put in order
            ended.append("cancelled")
            raise

    interrupt_when(begun)
    with pytest.raises(KeyboardInterrupt):
        in_a_notebooks_loop(lambda: run_async(long()))
    assert ended == ["cancelled"]


def test_training_inside_a_running_loop_is_the_same(tmp_path: Path) -> None:
    def train(name: str) -> dict[str, Any]:
        with models_in_memory():
            summary = marft.train(write(tmp_path), run=tmp_path / name)
        return {key: value for key, value in summary.items() if key != "seconds"}

    alone = train("alone")
    assert asyncio.run(within(lambda: train("inside"))) == alone
    adapters = "checkpoints/000004/agents/ann/adapter_model.safetensors"
    assert (tmp_path / "inside" / adapters).read_bytes() == (tmp_path / "alone" / adapters).read_bytes()


def test_an_interrupt_of_training_cancels_its_episodes(tmp_path: Path, default_interrupts: None) -> None:
    begun, ended = threading.Event(), []
    played = itertools.count()

    async def hanging(game: marft.Game) -> None:
        if next(played) < 2:  # the sanity check's
            await game.act("ann", "bob")
            return
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(game.task.id)

    interrupt_when(begun)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), models_in_memory():
        in_a_notebooks_loop(lambda: marft.train(write(tmp_path), workflow=hanging, run=tmp_path / "run"))
    assert len(ended) == 4
    assert time.monotonic() - started < 30
    with models_in_memory():
        marft.train(resume=True, run=tmp_path / "run", workflow=finished_hanging(), train={"iterations": 1})


def finished_hanging() -> Any:
    """Another function of the name that the run knows."""

    async def hanging(game: marft.Game) -> None:
        await game.act("ann", "bob")

    hanging.__qualname__ = "test_an_interrupt_of_training_cancels_its_episodes.<locals>.hanging"
    return hanging


def write(folder: Path) -> Path:
    path = folder / "quick.yaml"
    path.write_text(yaml.safe_dump(settings_of()))
    return path


def test_nobody_else_runs_a_loop() -> None:
    """A loop anywhere else would fail in a notebook; that of MCP servers runs in a thread of its own, those of programs and of
    reward functions in processes of their own."""
    calls = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("asyncio.run", "asyncio.Runner", "asyncio.new_event_loop")
    ]
    threads = {"engines/vllm/discovery.py", "envs/tools/mcp_server.py"}
    processes = {"programs/function_process.py", "envs/reward_functions.py"}
    allowed = {"rollouts/event_loop.py", *threads, *processes}
    assert {call.split(":")[0] for call in calls} <= allowed


# --- those who do not want to end ----------------------------------------------------------------------------------------
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a script
import marft.rollouts.event_loop as event_loop
import stubborn
event_loop.GRACE_S = 0.3
import marft.watchdog
marft.watchdog.PRESS_S, marft.watchdog.PRESSES = 0.1, 5
try:
    event_loop.run_async(getattr(stubborn, sys.argv[1])(None))
except KeyboardInterrupt as error:
    print(type(error).__name__)
    sys.exit(1)
"""


@pytest.mark.parametrize("name", ["spins", "sleeps", "swallows", "waits", "ticks"])
def test_one_interrupt_ends_whatever_runs(name: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)]),
             "STUBBORN_BEGUN": str(begun)},
    ) as process:  # fmt: skip
        try:
            while not begun.exists() and process.poll() is None:
                time.sleep(0.05)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
    if name == "swallows":
        assert "would not end, so the process was ended" in err
    else:
        assert (out, err) == ("Stopped\n", "")


def test_a_system_exit_in_a_task_of_the_users_does_not_end_the_loop() -> None:
    async def story() -> list[str]:
        async def patient() -> str:
            await asyncio.sleep(0.2)
            return "played"

        found = await asyncio.gather(patient(), stubborn.exits_elsewhere(None), return_exceptions=True)  # type: ignore[arg-type]
        return [str(each) for each in found]

    assert run_async(story()) == ["played", "4"]
    assert asyncio.run(within(lambda: run_async(story()))) == ["played", "4"]


def test_an_interrupt_that_was_heeded_leaves_no_other_behind(default_interrupts: None) -> None:
    async def long() -> None:
        begun.set()
        await asyncio.sleep(60)

    for _ in range(5):
        begun = threading.Event()
        interrupt_when(begun)
        with pytest.raises(Stopped):
            run_async(long())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    time.sleep(0.1)
    assert "marft-watchdog" not in [thread.name for thread in threading.enumerate()]


def test_an_interrupt_that_the_work_swallows_is_raised_all_the_same(default_interrupts: None) -> None:
    begun = threading.Event()

    async def deaf() -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "done"

    interrupt_when(begun)
    with pytest.raises(Stopped):
        run_async(deaf())


async def loop_here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_one_loop_for_many_calls() -> None:
    """Also where a loop is running already: there it moves from thread to thread. Apart from that, each call has its own."""
    for outside in (lambda call: call(), lambda call: asyncio.run(within(call))):

        def calls() -> list[asyncio.AbstractEventLoop]:
            with event_loop.one_loop():
                found = [run_async(loop_here()) for _ in range(3)]
                with event_loop.one_loop():
                    found.append(run_async(loop_here()))
            return found

        first, *others = outside(calls)
        assert all(each is first for each in others)
        assert first.is_closed()
    assert run_async(loop_here()) is not run_async(loop_here())


def test_a_loop_in_which_something_does_not_end_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "GRACE_S", 0.1)
    heard: list[int] = []

    async def never_ends() -> None:
        while True:
            try:
                await asyncio.sleep(0.01)
                heard.append(1)
            except asyncio.CancelledError:
                pass

    async def leaves_it() -> asyncio.AbstractEventLoop:
        asyncio.get_running_loop().create_task(never_ends())
        return asyncio.get_running_loop()

    with event_loop.one_loop():
        first = run_async(leaves_it())
        ticks = len(heard)
        assert run_async(loop_here()) is not first
        assert len(heard) == ticks
    assert first.is_closed()


def test_a_call_within_a_call_has_a_loop_of_its_own() -> None:
    """A tool or a script that plays with another team: neither ends the other's tasks."""

    async def outer() -> tuple[bool, str]:
        begun = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(asyncio.sleep(0.05, "slept"))
        inner = await asyncio.to_thread(lambda: run_async(loop_here()))
        return inner is begun, await waiting

    with event_loop.one_loop():
        assert run_async(outer()) == (False, "slept")
        assert run_async(outer()) == (False, "slept")
