"""Environments in worker processes: answers come back, hangs are cut, crashes are faults, and nothing is left behind.

Everything holds for workers that are forked and for those that are programs of their own, as on macOS and Windows.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hosted
import pytest

from marft import processes as processes_of_ours
from marft.envs.hosting import InProcess, Pool, open_env
from marft.envs.hosting.messages import PickledObject
from marft.envs.hosting.workers import ForkServer, Spawner
from marft.game.lockstep import Lockstep
from marft.game.validation import EnvironmentFault
from marft.processes import read_frames, to_frame
from marft.types import Completion, MarftError, Reward, Task, Turn

TASK = Task(id="t", prompt="?")
Open = Callable[..., Pool]


def turn(text: str) -> Turn:
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    return Turn(agent="a", index=0, nth=0, shown="", observation=(), prompt_ids=(), completion=said)


def unpickled(given: Any) -> Any:
    """As a worker would find it: states come to this process pickled."""
    return pickle.loads(pickle.dumps(given))


@pytest.fixture(params=["forked", "spawned"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How workers come to be."""
    monkeypatch.setattr("marft.envs.hosting.pool.forks_safely", lambda: request.param == "forked")
    return str(request.param)


@pytest.fixture
def opened(way: str) -> Iterator[Open]:
    pools: list[Pool] = []

    def make(*, deadline: float = 10.0, workers: int = 2) -> Pool:
        pool = open_env(
            "hosted:Obeys", {"size": 3}, deadline=deadline, workers=workers, lockstep=Lockstep()
        )  # fmt: skip
        assert isinstance(pool, Pool)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


def processes(*, of: int) -> list[int]:
    """Whoever has `of` among its ancestors, by its process id."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if after[0] != "Z":
            parents[int(stat.parent.name)] = int(after[1])
    found = [of]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def workers(pool: Pool) -> list[int]:
    """The processes that answer, by their process ids."""
    if isinstance(pool._workers, ForkServer):
        return processes(of=pool._workers.process.pid)
    assert isinstance(pool._workers, Spawner)
    return [worker.process.pid for worker in pool._workers.workers if alive(worker.process.pid)]


def gone(pids: list[int]) -> bool:
    """Whether they are, after a moment if need be."""
    for _ in range(200):
        left = [pid for pid in pids if alive(pid)]
        if not left:
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_episode_is_the_same_as_in_this_process(opened: Open) -> None:
    async def story(host: Any) -> list[Any]:
        state = await host.ask("reset", TASK)
        first = await host.ask("transition", state, turn("one"))
        return [
            state, first, await host.ask("transition", first, turn("two")), await host.ask("observe", first, "a"),
            await host.ask("reward", first, last=True), await host.ask("answer", " x "),
            await host.ask("whose_turn", first),
        ]  # fmt: skip

    found = unpickled(asyncio.run(story(opened())))
    assert found == asyncio.run(story(InProcess(hosted.Obeys(size=3))))
    assert found == [(), ("one",), ("one", "two"), "a sees 1", Reward(team=1.0, correct=True), "x", None]


@pytest.mark.parametrize("lacking", ["nothing", "fork", "send_fds", "macOS"])
def test_a_system_that_does_not_fork_safely_gets_plain_processes(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match lacking:
        case "fork":
            monkeypatch.delattr(os, "fork")
        case "send_fds":
            monkeypatch.delattr(socket, "send_fds")
        case "macOS":
            monkeypatch.setattr(sys, "platform", "darwin")
    with open_env("hosted:Obeys", {}, deadline=20, workers=2, lockstep=Lockstep()) as pool:
        assert isinstance(pool, Pool)
        assert isinstance(pool._workers, ForkServer if lacking == "nothing" else Spawner)
        assert unpickled(asyncio.run(pool.ask("transition", (), turn("fine")))) == ("fine",)


def test_tasks_are_read_once_and_here(opened: Open) -> None:
    pool = opened()
    assert [task.id for task in pool.tasks("train")] == ["train/0", "train/1", "train/2"]
    assert pool.tasks("train") is pool.tasks("train")


def test_workers_outlive_an_event_loop_and_are_used_again(opened: Open) -> None:
    pool = opened(workers=1)
    for _ in range(3):
        assert unpickled(asyncio.run(pool.ask("reset", TASK))) == ()
    assert len(workers(pool)) == 1


@pytest.mark.parametrize("mischief", ["sleep", "spin", "swallow", "spawn", "secede"])
def test_what_hangs_is_cut_at_its_deadline_with_all_that_it_started(mark: bytes, opened: Open, mischief: str) -> None:
    pool = opened(deadline=0.5)
    started = processes(of=os.getpid())
    with pytest.raises(EnvironmentFault) as caught:
        asyncio.run(pool.ask("transition", (), turn(mischief)))
    assert (caught.value.kind, caught.value.line) == ("late", "took more than 0.5 s (env.deadline)")
    assert gone([pid for pid in processes(of=1) if mark in command(pid)])
    assert unpickled(asyncio.run(pool.ask("transition", (), turn("fine")))) == ("fine",)
    assert len(processes(of=os.getpid())) <= len(started) + 1


# the beginning of a script that is killed later
OPENS_A_POOL = (
    f"import asyncio, sys\nsys.path.insert(0, {str(Path(hosted.__file__).parent)!r})\n"
    "import hosted\nfrom marft.envs.hosting import open_env\nfrom marft.game.lockstep import Lockstep\n"
    "from test_pool import turn\n"
    "pool = open_env('hosted:Obeys', {}, deadline=600, workers=1, lockstep=Lockstep())\n"
)


def test_what_has_left_its_session_does_not_outlive_the_pool(mark: bytes, opened: Open) -> None:
    pool = opened(workers=1)
    asyncio.run(pool.ask("transition", (), turn("haunt")))
    left = left_behind(mark)
    pool.close()
    assert gone(left)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What the processes that an environment starts have in their arguments."""
    mark = f"left-behind-{uuid.uuid4()}"
    monkeypatch.setenv("LEFT_BEHIND", mark)
    return mark.encode()


def left_behind(mark: bytes) -> list[int]:
    """The process that an environment has left behind, once there is one."""
    for _ in range(500):
        if found := [pid for pid in processes(of=1) if mark in command(pid)]:
            return found
        time.sleep(0.02)
    raise AssertionError("there is none")


@pytest.mark.parametrize("lacking", ["", "import socket\ndel socket.send_fds"], ids=["forked", "spawned"])
@pytest.mark.parametrize("mischief", ["secede", "haunt"])
def test_what_has_left_its_session_does_not_outlive_a_parent_that_is_killed(
    mark: bytes, tmp_path: Path, lacking: str, mischief: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"{lacking}\n")
    script = tmp_path / "parent.py"
    script.write_text(
        f"{OPENS_A_POOL}"
        f"state = asyncio.run(pool.ask('transition', (), turn({mischief!r})))\n"
        "asyncio.run(pool.ask('transition', state, turn('spin')))\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": path}) as parent:
        try:
            left = left_behind(mark)
        finally:
            parent.kill()
    assert gone(left)


def test_a_fork_server_does_not_outlive_a_parent_that_is_killed_while_it_builds(mark: bytes, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(hosted.__file__).parent)!r})\n"
        "from marft.envs.hosting import open_env\nfrom marft.game.lockstep import Lockstep\n"
        "open_env('hosted:BuildsForEver', {'parent': os.getpid()}, deadline=9, workers=1, lockstep=Lockstep())\n"
    )
    with subprocess.Popen([sys.executable, script]) as parent:
        try:
            left = left_behind(mark)
            ours = processes(of=parent.pid)
        finally:
            parent.kill()
    assert gone([*left, *ours])


@pytest.mark.parametrize("state", ["SleepsInAPickle", "RaisesInAPickle"])
def test_this_process_unpickles_nothing_of_an_environments(opened: Open, state: str) -> None:
    """The state comes pickled at once, and goes back to a worker, which has a deadline."""
    pool = opened(deadline=1.0, workers=1)
    pickled = asyncio.run(pool.ask("transition", (), turn(state)))
    assert isinstance(pickled, PickledObject)
    with pytest.raises(EnvironmentFault) as caught:
        asyncio.run(pool.ask("reward", pickled))
    assert caught.value.line == (
        "took more than 1 s (env.deadline)" if state == "SleepsInAPickle" else "raised SystemExit: not me"
    )
    assert unpickled(asyncio.run(pool.ask("reset", TASK))) == ()


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("HangsInPickling", "took more than 1 s (env.deadline)"),
        ("NotPickling", "returned NotPickling, which cannot be pickled: SystemExit: not me"),
    ],
)
def test_a_state_that_does_not_pickle_is_a_fault(opened: Open, state: str, line: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        asyncio.run(opened(deadline=1.0).ask("transition", (), turn(state)))
    assert caught.value.line == line


def test_a_text_of_a_class_of_its_own_comes_as_a_plain_one(opened: Open) -> None:
    shown = asyncio.run(opened().ask("observe", ("words",), "a"))
    assert (shown, type(shown)) == ("a", str)


def test_answers_of_a_class_of_their_own_can_be_counted(opened: Open) -> None:
    pool = opened(workers=2)
    one, two, same = (asyncio.run(pool.ask("answer", text)) for text in ("1/1", "1/2", "1/1"))
    assert len({one, two, same}) == 2
    assert repr(one) == "Place(row='1', column='1')"


def test_a_task_that_cannot_be_pickled_is_a_fault(opened: Open) -> None:
    for data in ({"x": hosted.NotPickling()}, {"x": lambda: None}):
        with pytest.raises(EnvironmentFault, match="was given what cannot be pickled"):
            asyncio.run(opened().ask("reset", Task(id="t", prompt="?", data=data)))


def test_a_task_that_never_ends_pickling_is_late_and_holds_nobody_up(opened: Open) -> None:
    pool = opened(deadline=1.0, workers=2)

    async def story() -> tuple[Any, Any]:
        endless = Task(id="t", prompt="?", data={"x": hosted.HangsInPickling()})
        return await asyncio.gather(pool.ask("reset", endless), pool.ask("reset", TASK), return_exceptions=True)

    fault, fine = asyncio.run(story())
    assert (fault.kind, fault.line) == ("late", "took more than 1 s (env.deadline)")
    assert unpickled(fine) == ()
    assert unpickled(asyncio.run(pool.ask("reset", TASK))) == ()


def test_killing_a_worker_does_not_hold_up_the_event_loop(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that starts processes faster than they are ended takes seconds to kill."""
    pool, kill = opened(deadline=0.3), processes_of_ours.kill_descendants

    def kill_slowly(pid: int) -> None:
        time.sleep(2.0)
        kill(pid)

    monkeypatch.setattr(processes_of_ours, "kill_descendants", kill_slowly)

    async def longest_pause() -> float:
        question = asyncio.create_task(pool.ask("transition", (), turn("sleep")))
        longest, last = 0.0, time.monotonic()
        while not question.done():
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert isinstance(question.exception(), EnvironmentFault)
        return longest

    assert asyncio.run(longest_pause()) < 1.0


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("mischief", "line"),
    [
        ("fail", "raised RuntimeError: out of paper"),
        ("leave", "raised SystemExit: 3"),
        ("vanish", "ended its process"),
        ("crash", "ended its process"),
        ("unpicklable", "returned Unpicklable, which cannot be pickled"),
    ],
)
def test_what_goes_wrong_is_a_fault_and_the_next_question_is_answered(opened: Open, mischief: str, line: str) -> None:
    pool = opened(workers=1)
    with pytest.raises(EnvironmentFault) as caught:
        asyncio.run(pool.ask("transition", (), turn(mischief)))
    assert caught.value.kind == "raised"
    assert caught.value.line.startswith(line)
    assert ("hosted.py" in caught.value.trace) == (mischief in ("fail", "leave"))
    assert unpickled(asyncio.run(pool.ask("transition", (), turn("fine")))) == ("fine",)


def test_questions_run_at_once_but_no_more_than_there_are_workers(opened: Open) -> None:
    pool = opened(workers=3, deadline=20)

    async def many() -> list[tuple[str, ...]]:
        return await asyncio.gather(*(pool.ask("transition", (), turn(str(i))) for i in range(40)))

    assert unpickled(asyncio.run(many())) == [(str(i),) for i in range(40)]
    assert 1 <= len(workers(pool)) <= 3


def test_closing_ends_every_process(opened: Open) -> None:
    pool = opened()
    asyncio.run(pool.ask("reset", TASK))
    ours = [pid for pid in processes(of=os.getpid()) if b"marft.envs.hosting" in command(pid)]
    assert set(workers(pool)) <= set(ours)
    pool.close()
    assert gone(ours)
    pool.close()  # once more is no harm


def test_an_interrupted_play_leaves_no_worker_behind(opened: Open) -> None:
    pool = opened(deadline=60)

    async def hasty() -> None:
        await asyncio.wait_for(pool.ask("transition", (), turn("sleep")), 0.5)

    with pytest.raises(TimeoutError):
        asyncio.run(hasty())
    assert gone(workers(pool))
    assert unpickled(asyncio.run(pool.ask("reset", TASK))) == ()


@pytest.mark.parametrize(
    ("missing", "count"),
    [("", 2), ("ctypes.CDLL = lambda name: object()", 2), ("del socket.send_fds", 1), ("del os.fork", 1)],
    ids=["nothing", "prctl", "send_fds", "fork"],
)
def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path, missing: str, count: int) -> None:
    """Also where the kernel does not see to it: a `sitecustomize` takes away from all processes what a system lacks."""
    (tmp_path / "sitecustomize.py").write_text(f"import ctypes, os, socket\n{missing}\n")
    script = tmp_path / "parent.py"
    script.write_text(
        f"{OPENS_A_POOL}print('ready', flush=True)\nasyncio.run(pool.ask('transition', (), turn('spin')))\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        for _ in range(200):
            if len(ours := processes(of=parent.pid)) == count:  # the worker, and what it was forked from
                break
            time.sleep(0.02)
        parent.kill()
    assert len(ours) == count
    assert gone(ours)


def test_a_worker_whose_asker_has_gone_ends_in_silence() -> None:
    """A parent that is killed leaves answers unread, and its socket is reset."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "marft.envs.hosting.fork_server", str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process, ours:
        theirs.close()
        ours.sendall(to_frame(pickle.dumps(("hosted:Obeys", {}, sys.path))))
        with ours.makefile("rb") as control:
            assert next(read_frames(control)) == b""
        here, there = socket.socketpair()
        with there:
            socket.send_fds(ours, [b"x"], [there.fileno()])
        with here, here.makefile("rb") as stream:
            answers = read_frames(stream)
            here.sendall(to_frame(b"who are you?"))
            worker = int.from_bytes(next(answers), "big")
            here.sendall(to_frame(pickle.dumps(("reset", (TASK,)))))
            assert select.select([here], [], [], 20)[0]
        assert gone([worker])
        ours.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_what_cannot_be_built_there_is_one_line(way: str) -> None:
    with pytest.raises(MarftError, match="no licence for a second one"):
        open_env("hosted:SlowToBuild", {"parent": os.getpid()}, deadline=1, workers=1, lockstep=Lockstep())


def test_what_cannot_travel_is_a_fault(opened: Open) -> None:
    pool = opened(workers=1)
    for state in (lambda: None, hosted.Twice("a", "b")):  # neither comes out of a pickle as it went in
        with pytest.raises(EnvironmentFault, match="raised") as caught:
            asyncio.run(pool.ask("reward", state))
        assert caught.value.kind == "raised"
        assert unpickled(asyncio.run(pool.ask("reset", TASK))) == ()


def test_one_who_gives_up_when_its_turn_has_come_passes_the_place_on(opened: Open) -> None:
    pool = opened(workers=1)

    async def story() -> object:
        first, second, third = (asyncio.create_task(pool._ask("reset", (TASK,))) for _ in range(3))
        await asyncio.sleep(0)
        place = pool._queue[0]
        place.add_done_callback(lambda _: second.cancel())
        await first
        return await asyncio.wait_for(third, 10)

    assert unpickled(asyncio.run(story())) == ()


def test_an_answer_that_came_while_this_process_was_busy_is_not_late(opened: Open) -> None:
    pool = opened(workers=1, deadline=0.5)
    asyncio.run(pool.ask("reset", TASK))

    async def story() -> object:
        question = asyncio.create_task(pool.ask("reset", TASK, last=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(1.0)  # a long step of the engine
        return await question

    assert unpickled(asyncio.run(story())) == ()


@pytest.mark.parametrize("way", ["forked"], indirect=True)
def test_a_fork_server_that_was_killed_is_one_line(opened: Open) -> None:
    pool = opened(workers=1)
    assert isinstance(pool._workers, ForkServer)
    pool._workers.process.kill()
    pool._workers.process.wait()
    with pytest.raises(MarftError, match="has ended, perhaps for want of memory"):
        asyncio.run(pool.ask("reset", TASK))


def test_a_file_in_the_working_directory_shadows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Open
) -> None:
    (tmp_path / "socket.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert unpickled(asyncio.run(opened().ask("reset", TASK))) == ()


def test_a_deadline_that_would_cut_what_is_right_is_refused() -> None:
    settings = {"data": "mbpp", "seconds_in_all": 90.0}
    with pytest.raises(MarftError, match="code may rightly take 90 s for a call"):
        open_env("code", settings, deadline=60, workers=1, lockstep=Lockstep())
