"""The algebra worker: limits that hold, forks that end, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marft.envs.grading import algebra_client, algebra_worker, grade
from marft.envs.grading.algebra_client import AlgebraClient

SLOW = r"(x+1)^{7993}\cdot(x-1)^{2981}"  # parses at once, simplifies for minutes


@pytest.fixture(scope="module")
def client() -> Iterator[AlgebraClient]:
    own = AlgebraClient()
    yield own
    own.stop()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_algebra_decides(client: AlgebraClient) -> None:
    assert client.equal(r"2\sqrt{2}", r"\sqrt{8}")
    assert not client.equal(r"2\sqrt{2}", r"\sqrt{9}")


def test_past_the_limit_the_fork_is_killed_and_the_worker_stays(client: AlgebraClient) -> None:
    assert client.equal("2k", "k+k")
    assert client.worker is not None
    before = client.worker.process.pid
    assert client.worker.ask("2k", SLOW) == "t"
    assert children(before) == []
    assert client.equal("2k", "k+k")
    assert client.worker.process.pid == before


def test_a_worker_that_was_killed_is_replaced(client: AlgebraClient) -> None:
    assert client.equal("2k", "k+k")
    assert client.worker is not None
    before = client.worker.process.pid
    os.kill(before, signal.SIGKILL)
    assert client.equal("2k", "k+k")
    assert client.worker.process.pid != before


def test_a_worker_that_hangs_is_replaced(client: AlgebraClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.equal("2k", "k+k")
    assert client.worker is not None
    before = client.worker.process
    before.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(algebra_client, "GRACE_S", 0.2)
    assert not client.equal("2k", "k+k")
    assert before.returncode == -signal.SIGKILL
    monkeypatch.undo()
    assert client.equal("2k", "k+k")


def test_hostile_calls_leave_no_process(client: AlgebraClient) -> None:
    assert client.equal("2k", "k+k")
    assert client.worker is not None
    pid = client.worker.process.pid
    hostile = [
        "9" * 250,
        r"\frac{" * 40,
        "^" * 200,
        "x!" * 100,
        r"\sin" * 60,
        "\x00",
        "\ud800",
        "a\nb",
        '"',
        r"\int_0^1 x",
    ]
    for number in range(200):
        assert not client.equal("2k+1", hostile[number % len(hostile)])
    assert client.worker.process.pid == pid
    assert children(pid) == []
    client.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert client.worker is None


def test_threads_take_turns(client: AlgebraClient) -> None:
    verdicts: dict[int, bool] = {}

    def ask(number: int) -> None:
        verdicts[number] = client.equal(f"{number}k", f"k+{number - 1}k")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == dict.fromkeys(range(3, 11), True)


def test_a_forked_process_has_its_own_worker() -> None:
    assert grade(r"\boxed{k+k}", "2k")
    assert algebra_client.CLIENT.worker is not None
    before = algebra_client.CLIENT.worker.process.pid
    child = os.fork()
    if child == 0:
        fresh = algebra_client.CLIENT.worker is None
        right = grade(r"\boxed{k+k}", "2k")
        algebra_client.CLIENT.stop()
        os._exit(0 if fresh and right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert grade(r"\boxed{k+k+k}", "3k")
    assert algebra_client.CLIENT.worker.process.pid == before


@pytest.mark.parametrize("ending", ["pass", "import os; os._exit(1)", "import os; os.kill(os.getpid(), 9)"])
def test_the_worker_ends_with_its_program(ending: str) -> None:
    code = rf"""
from marft.envs.grading import algebra_client, grade
assert grade(r"\boxed{{k+k}}", "2k")
print(algebra_client.CLIENT.worker.process.pid, flush=True)
{ending}
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    worker = Path(f"/proc/{int(done.stdout)}")
    for _ in range(600):
        if not worker.exists() or "\nState:\tZ" in (worker / "status").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the worker outlived its program by half a minute")


def test_text_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = AlgebraClient()  # started here, where it could do harm
    for text in (
        "__import__('os').mkdir('owned')",
        r"\text{os.mkdir('owned')}",
        "x.__class__",
        r"x_{__import__('os')}",
    ):
        assert not own.equal("2k", text)
    own.stop()
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra_worker, "equal_answers", lambda gold, answer: bool(bytearray(3 << 30)))
    assert algebra_worker.decide_in_fork("1", "1") == "0"
    monkeypatch.setattr(algebra_worker, "equal_answers", lambda gold, answer: bool(bytearray(1 << 20)))
    assert algebra_worker.decide_in_fork("1", "1") == "1"


def test_a_crash_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra_worker, "equal_answers", lambda gold, answer: os.kill(os.getpid(), signal.SIGKILL))
    assert algebra_worker.decide_in_fork("1", "1") == "t"
