"""Which tests a program passes. Verdicts are never the program's own word.

stdin/stdout tests: one run per case; what it printed is compared out here. Function tests: the program answers in one
sandbox and the tests ask from another, which holds no code of the program; see `wire` for what may pass between them.
"""

from __future__ import annotations

import json
import math
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from marft.envs.code.remote_tests import is_close
from marft.envs.sandbox import Limits, SandboxBroken, launch, run
from marft.envs.sandbox.limits import MIB

WIRE, PROGRAM_SERVER, REMOTE_TESTS = (
    files("marft.envs.code").joinpath(name).read_text(encoding="utf-8")
    for name in ("wire.py", "program_server.py", "remote_tests.py")
)
WIRE_AT = "marft/envs/code/wire.py"  # where the other two look for it
FRACTION = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d{1,3})?", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
LONGEST_NUMBER = 400
SLACK = 2.0  # wall time over computing time: a busy machine fails no program
TESTS_MEMORY = 512 * MIB  # the least that the tests themselves have
LEAST = 0.5  # seconds that a run must have, to come up and do something


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a program may use."""

    seconds: float  # of computing, for one test
    together: float  # by the clock, for all tests
    memory: int  # bytes


def passed_tests(program: str, tests: Mapping[str, Any], allowance: Allowance, *, stop: bool) -> tuple[bool, ...]:
    """Whether the program passes each test, in order; with `stop`, all after the first failure count as failed."""
    total = len(tests["outputs"] if tests["kind"] == "stdio" else tests["tests"])
    verdicts = (
        output_verdicts(program, tests, allowance)
        if tests["kind"] == "stdio"
        else call_verdicts(program, tests, allowance, stop)
    )
    passed: list[bool] = []
    for verdict in verdicts:
        passed.append(verdict)
        if stop and not verdict:
            break
    return (*passed, *[False] * (total - len(passed)))


def output_verdicts(program: str, tests: Mapping[str, Any], allowance: Allowance) -> Iterator[bool]:
    """What is not yielded in time has failed."""
    deadline = time.monotonic() + allowance.together
    for given, expected in zip(tests["inputs"], tests["outputs"], strict=True):
        left = deadline - time.monotonic()
        if left < LEAST:
            return
        limits = limits_for(allowance, 1, min(left, allowance.seconds * SLACK))
        limits = replace(limits, output_bytes=max(limits.output_bytes, 2 * len(expected.encode(errors="replace"))))
        outcome = run(program, stdin=given, limits=limits)
        yield outcome.ended == "ok" and same_output(outcome.stdout, expected)


def call_verdicts(program: str, tests: Mapping[str, Any], allowance: Allowance, stop: bool) -> Iterator[bool]:
    """A program that hung or died is started anew for the tests that are left."""
    deadline = time.monotonic() + allowance.together
    waiting = list(tests["tests"])
    while waiting and (left := deadline - time.monotonic()) >= LEAST:
        verdicts = run_tests(program, {**tests, "tests": waiting, "stop": stop}, allowance, left)
        yield from verdicts
        waiting = waiting[len(verdicts) :]


def limits_for(allowance: Allowance, tests: int, wall: float) -> Limits:
    """The sandbox's limits for a run of `tests` tests within `wall` seconds."""
    return Limits(seconds=wall, cpu_seconds=math.ceil(allowance.seconds * tests), memory=allowance.memory)


def run_tests(program: str, tests: Mapping[str, Any], allowance: Allowance, left: float) -> list[bool]:
    """The verdicts of one run, at least one, up to where the program hung."""
    each = allowance.seconds * SLACK
    limits = limits_for(allowance, len(tests["tests"]), left)
    tests_limits = replace(limits, memory=max(limits.memory, TESTS_MEMORY))
    tests_json = json.dumps(
        {key: tests[key] for key in ("given", "setup", "asked", "tests", "stop")} | {"seconds": each}
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program_files = {WIRE_AT: WIRE, "given.py": tests["given"], "program.py": program}
        with (
            launch(
                PROGRAM_SERVER, limits=limits, files=program_files,
                arguments=[str(theirs.fileno())], channel=theirs.fileno(), quiet=True,
            ) as served,
            launch(
                REMOTE_TESTS, limits=tests_limits, files={WIRE_AT: WIRE, "tests.json": tests_json},
                arguments=[str(ours.fileno())], channel=ours.fileno(),
            ) as examined,
        ):  # fmt: skip
            ours.close()
            theirs.close()  # so that each side sees when the other one is gone
            outcome = examined.finish()
            if not served.came_up(wait=left):  # tests may end without having asked for anything
                raise SandboxBroken("the sandbox of the program did not come up")
    return [letter == "1" for letter in outcome.stdout[: len(tests["tests"])]] or [False]


def same_output(found: str, expected: str) -> bool:
    """Line by line and word by word; spaces between words and empty lines at the end do not matter."""
    rows = [[line.split() for line in text.rstrip().split("\n")] for text in (found, expected)]
    return all(
        a is not None and b is not None and len(a) == len(b) and all(map(same_word, a, b))
        for a, b in zip_longest(*rows)
    )


def same_word(found: str, expected: str) -> bool:
    """Equal texts; where a decimal fraction is expected, also a number close to it."""
    if found == expected:
        return True
    if max(len(found), len(expected)) > LONGEST_NUMBER or not (
        FRACTION.fullmatch(expected) and NUMBER.fullmatch(found)
    ):
        return False
    return is_close(float(found), float(expected))
