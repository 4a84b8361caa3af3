"""The process in which an environment is examined. What it finds goes out as lines of JSON, what it is doing as well.

Run as `python -m marft.envs.checking.check_process`; the question comes by standard input, the lines go to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from marft.envs.checking import message_checks, reward_checks, state_checks, task_checks
from marft.envs.checking.checked_env import SPLITS, CheckedEnv, check_methods, find_class
from marft.envs.checking.finding import Finding, Violation
from marft.processes import adopt_orphans, claim_stdout

Send = Callable[[Mapping[str, Any]], None]
Check = Callable[[CheckedEnv], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "tasks": task_checks.check_tasks,
    "splits": task_checks.check_splits,
    "hidden answers": task_checks.check_hidden_answers,
    "same tasks": task_checks.check_same_tasks,
    "gold": task_checks.check_gold,
    "reset": state_checks.check_reset,
    "transition": state_checks.check_transition,
    "forks": state_checks.check_forks,
    "reward": reward_checks.check_reward,
    "turn rewards": reward_checks.check_turn_rewards,
    "instances": state_checks.check_instances,
    "saved": state_checks.check_pickling,
    "observe": message_checks.check_observe,
    "whose turn": message_checks.check_whose_turn,
    "answer": message_checks.check_answer,
    "hostile messages": message_checks.check_hostile_messages,
    "speed": message_checks.check_speed,
}
NEEDED = ("class", "methods", "constructor", "tasks")  # where one of these fails, the others have nothing to look at


def main() -> None:
    """Answers the one question on standard input with events, and ends without waiting for the user's threads."""
    adopt_orphans()
    question = json.load(sys.stdin)
    sys.path[:] = question["path"]
    with os.fdopen(claim_stdout(), "w", encoding="utf-8") as pipe:

        def send(event: Mapping[str, Any]) -> None:
            print(json.dumps(event), file=pipe, flush=True)

        try:
            if question["fingerprints"]:
                checked = CheckedEnv(question["name"], question["settings"], lambda what: send({"doing": what}))
                send({"fingerprints": {split: task_checks.task_fingerprints(checked, split) for split in SPLITS}})
            else:
                run_all_checks(question["name"], question["settings"], question["skip"], send)
        except Exception:  # ours: whoever asked raises it
            send({"bug": traceback.format_exc()})
        send({"end": True})
    os._exit(0)  # the user's threads and exit handlers are not waited for


def run_all_checks(name: str, settings: Mapping[str, Any], skip: list[str], send: Send) -> None:
    """All checks but those to `skip`, in order."""

    def found(finding: Finding) -> None:
        if finding.check not in skip:
            send({"finding": asdict(finding)})

    check = NEEDED[0]
    try:
        send({"check": check, "doing": "the import"})
        kind = find_class(name)
        found(Finding(check=check, ok=True, text=f"{kind.__module__}:{kind.__qualname__}"))
        check = NEEDED[1]
        check_methods(kind)
        found(Finding(check=check, ok=True, text="all are there and can be called"))
        check = NEEDED[2]
        send({"check": check, "doing": "the constructor"})
        checked = CheckedEnv(name, settings, lambda what: send({"doing": what}))
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items()) or "no settings"
        found(Finding(check=check, ok=True, text=f"built with {given}"))
    except Violation as breach:
        found(Finding(check=check, ok=False, text=str(breach)))
        return
    for check, look in CHECKS.items():
        if check in skip:
            continue
        send({"check": check})
        try:
            for finding in look(checked):
                found(finding)
        except Violation as breach:
            found(Finding(check=check, ok=False, text=str(breach)))
            if check in NEEDED:
                return


if __name__ == "__main__":
    main()
