"""The algebra worker, a process of its own: reads pairs of answers, decides each in a fork under hard limits.

Run as `python -m marft.envs.grading.algebra_worker`. It ends when its input does or its parent is gone. A comparison that takes
too long, too much memory or crashes costs its fork and nothing else; the next fork is as warm as the last.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import select
import signal
import sys

from marft.envs.grading.algebra import equal_by_algebra, load_math_verify
from marft.envs.grading.answer_structure import parse_structure
from marft.envs.grading.comparison import structures_equal
from marft.envs.grading.latex_normalization import normalize_latex
from marft.processes import claim_stdout

WALL_S = 2.0
CPU_S = 3
MEMORY = 2 << 30  # bytes a comparison may take on top of what the worker holds
STACK_DEPTH = 5_000
PARENT_CHECK_S = 5.0


def equal_answers(gold: str, answer: str) -> bool:
    """Whether two answers are equal, by algebra where nothing else decides."""
    wanted, said = (parse_structure(normalize_latex(text)) for text in (gold, answer))
    return structures_equal(wanted, said, equal_by_algebra) is True


def decide_here(gold: str, answer: str) -> str:
    """`1` equal, `0` not. Without a fork, whoever asks replaces this process when it is late."""
    try:
        return "1" if equal_answers(gold, answer) else "0"
    except Exception:  # whatever algebra does on hostile input, it is no match
        return "0"


def decide_in_fork(gold: str, answer: str) -> str:
    """`1` equal, `0` not, `t` not decided within the limits."""
    if not hasattr(os, "fork"):
        return decide_here(gold, answer)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            limit_resources()
            os.write(writing, decide_here(gold, answer).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], WALL_S)
        verdict = os.read(reading, 1) if ready else b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
    return verdict.decode() or "t"


def limit_resources() -> None:
    """The kernel ends this process by itself should the worker be gone before."""
    import resource  # not on Windows

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, WALL_S + 1)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if (held := held_address_space()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY,) * 2)
    sys.setrecursionlimit(STACK_DEPTH)


def held_address_space() -> int | None:
    """Bytes that are held already. Where that is unknown memory is not limited: a limit below it would fail everything."""
    import resource

    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def serve_requests(replies: int) -> None:
    """Answers each line of input, until it ends or the parent is gone."""
    parent = os.getppid()
    waiting = b""
    while True:
        ready = sys.platform == "win32" or bool(select.select([0], [], [], PARENT_CHECK_S)[0])  # no pipes there
        if os.getppid() != parent:
            return
        if not ready:
            continue
        piece = os.read(0, 1 << 16)
        if not piece:
            return
        waiting += piece
        while b"\n" in waiting:
            line, _, waiting = waiting.partition(b"\n")
            request = json.loads(line)
            os.write(replies, f"{decide_in_fork(request['gold'], request['answer'])}\n".encode())


def main() -> None:
    """Loads math-verify, says so, and serves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the program that grades
    replies = claim_stdout()
    logging.disable(logging.CRITICAL)
    try:
        load_math_verify()
    except ImportError as error:
        os.write(replies, f"cannot load math-verify: {re.sub(chr(10), ' ', str(error))}\n".encode())
        return
    gc.freeze()  # forks share memory for as long as nobody touches it
    os.write(replies, b"ready\n")
    serve_requests(replies)


if __name__ == "__main__":
    main()
