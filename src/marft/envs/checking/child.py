"""The process in which an environment is examined. What it finds goes out as lines of JSON, what it is doing as well.

Run as `python -m marft.envs.checking.child`; the question comes by standard input, the lines go to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from marft.envs.checking import about_messages, about_rewards, about_states, about_tasks
from marft.envs.checking.finding import Breach, Finding
from marft.envs.checking.subject import SPLITS, Subject, check_methods, find_class
from marft.envs.processes import adopt_orphans

Send = Callable[[Mapping[str, Any]], None]
Check = Callable[[Subject], Iterator[Finding]]

CHECKS: Mapping[str, Check] = {
    "tasks": about_tasks.tasks,
    "splits": about_tasks.splits,
    "hidden answers": about_tasks.hidden_answers,
    "same tasks": about_tasks.same_tasks,
    "gold": about_tasks.gold,
    "reset": about_states.reset,
    "transition": about_states.transition,
    "forks": about_states.forks,
    "reward": about_rewards.reward,
    "turn rewards": about_rewards.turn_rewards,
    "instances": about_states.instances,
    "saved": about_states.saved,
    "observe": about_messages.observe,
    "whose turn": about_messages.whose_turn,
    "answer": about_messages.answer,
    "hostile messages": about_messages.hostile,
    "speed": about_messages.speed,
}
NEEDED = ("class", "methods", "constructor", "tasks")  # where one of these fails, the others have nothing to look at


def main() -> None:
    adopt_orphans()
    question = json.load(sys.stdin)
    sys.path[:] = question["path"]
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as pipe:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the environment prints must not come between the lines

        def send(event: Mapping[str, Any]) -> None:
            print(json.dumps(event), file=pipe, flush=True)

        try:
            if question["marks"]:
                subject = Subject(question["name"], question["settings"], lambda what: send({"doing": what}))
                send({"marks": {split: about_tasks.marks(subject, split) for split in SPLITS}})
            else:
                examine(question["name"], question["settings"], question["skip"], send)
        except Exception:  # ours: whoever asked raises it
            send({"bug": traceback.format_exc()})
        send({"end": True})
    os._exit(0)  # the user's threads and exit handlers are not waited for


def examine(name: str, settings: Mapping[str, Any], skip: list[str], send: Send) -> None:
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
        subject = Subject(name, settings, lambda what: send({"doing": what}))
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items()) or "no settings"
        found(Finding(check=check, ok=True, text=f"built with {given}"))
    except Breach as breach:
        found(Finding(check=check, ok=False, text=str(breach)))
        return
    for check, look in CHECKS.items():
        if check in skip:
            continue
        send({"check": check})
        try:
            for finding in look(subject):
                found(finding)
        except Breach as breach:
            found(Finding(check=check, ok=False, text=str(breach)))
            if check in NEEDED:
                return


if __name__ == "__main__":
    main()
