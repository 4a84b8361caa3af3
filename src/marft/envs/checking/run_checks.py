"""Examines an environment from outside: a method that never comes back is cut off and reported like any other mistake."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from marft.envs.checking.check_process import NEEDED
from marft.envs.checking.finding import Finding
from marft.processes import ChildProcess

START_S = 60.0  # that our own process may take until its first word, on a busy machine
HASH_SEEDS = ("1", "2")  # of two processes: an order that comes from a set differs between them


class ProcessFailed(Exception):
    """The process gave no sign of life within the deadline, or has died."""


def check_env(name: str, settings: Mapping[str, Any], deadline: float = 10) -> list[Finding]:
    """What each check finds, with `deadline` seconds for every single call of a method."""
    findings: list[Finding] = []
    while True:
        current, doing = NEEDED[0], "the import"
        skip = list(dict.fromkeys(finding.check for finding in findings))
        try:
            for event in process_events(name, settings, HASH_SEEDS[0], deadline, skip=skip):
                current, doing = event.get("check", current), event.get("doing", doing)
                if "finding" in event:
                    findings.append(Finding(**event["finding"]))
            break
        except ProcessFailed as failure:
            findings.append(Finding(check=current, ok=False, text=f"{doing} {failure}"))
            if current in NEEDED:
                break
    if any(finding.check == "same tasks" and finding.ok for finding in findings):
        findings.append(compare_processes(name, settings, deadline))
    return findings


def compare_processes(name: str, settings: Mapping[str, Any], deadline: float) -> Finding:
    """Whether two processes have the same tasks."""
    what, found = "same tasks in another process", []
    for seed in HASH_SEEDS:
        try:
            events = list(process_events(name, settings, seed, deadline, fingerprints=True))
        except ProcessFailed as failure:
            return Finding(check=what, ok=False, text=f"tasks {failure}")
        found += [event["fingerprints"] for event in events if "fingerprints" in event]
    if len(found) == 2 and found[0] == found[1]:
        return Finding(check=what, ok=True, text="so a run can go on elsewhere")
    text = "they differ; the order of a set, hash(), time and random itself are not the same everywhere: use sorted(…) and random.Random(seed)"
    return Finding(check=what, ok=False, text=text)


def process_events(
    name: str, settings: Mapping[str, Any], seed: str, deadline: float, *, skip: Sequence[str] = (),
    fingerprints: bool = False,
) -> Iterator[Mapping[str, Any]]:  # fmt: skip
    """What a process of its own says of the environment; it is gone when this ends."""
    question = {"name": name, "settings": dict(settings), "skip": skip, "fingerprints": fingerprints, "path": sys.path}
    process = ChildProcess("marft.envs.checking.check_process", variables={"PYTHONHASHSEED": seed}, quiet=True)
    try:
        assert process.stdin is not None
        with process.stdin, suppress(BrokenPipeError):
            process.send(json.dumps(question).encode())
        lines, patience = process.lines(), max(deadline, START_S)
        while (line := lines.next(patience)) is not None:
            patience = deadline
            event = json.loads(line)
            if "bug" in event:
                raise RuntimeError(event["bug"])
            if "end" in event:
                return
            yield event
        raise ProcessFailed(f"ended the whole process (exit code {process.wait(deadline)})")
    except TimeoutError:
        raise ProcessFailed(f"took longer than {deadline:g} s; look for a loop or a wait that does not end") from None
    finally:
        process.end()  # and whatever the environment has started
