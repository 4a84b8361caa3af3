"""The process that makes tasks: `python -m marft.envs.reasoning.generator_process`, driven by `tasks.GeneratorClient`.

The first line on stdin is the spec; each other line asks for a task (`{"split", "index", "urgent"}`) and is answered
by a line on stdout. What is urgent goes first. It runs with a fixed hash seed, since the order of a set decides what
some generators make, and apart from the trainer, since others take seconds.
"""

from __future__ import annotations

import json
import os
import queue
import sys
from contextlib import suppress
from itertools import count
from typing import Any

from marft.envs.reasoning.generator import TaskGenerator
from marft.envs.reasoning.spec import TaskSpec
from marft.processes import claim_stdout, receive_in_thread
from marft.types import MarftError

Order = tuple[bool, int, dict[str, Any]]  # not urgent, place in the line, what is asked


def main() -> None:
    """Answers whether the spec can be used, and then makes tasks, urgent ones first."""
    answers = os.fdopen(claim_stdout(), "w", encoding="utf-8")
    orders: queue.PriorityQueue[Order] = queue.PriorityQueue()
    spec = TaskSpec(**json.loads(sys.stdin.readline()))
    places = count()

    def place(order: dict[str, Any]) -> None:
        orders.put((not order["urgent"], next(places), order))

    def reply(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    receive_in_thread(map(json.loads, sys.stdin), place)
    try:
        generator = TaskGenerator(spec)
    except MarftError as error:
        reply({"refused": str(error)})
        return
    reply({"ready": True})
    while True:
        order = orders.get()[2]
        try:
            made = generator.make(order["split"], order["index"])
        except MarftError as error:
            made = {"error": str(error)}
        reply({"split": order["split"], "index": order["index"], **made})


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # whoever asked has gone
        main()
    os._exit(0)  # a thread may be waiting for orders
