"""A plain function that plays episodes, each in a thread: `python -m marft.programs.function_process package.module:function`."""

from __future__ import annotations

import asyncio
import inspect
import json
import queue
import sys
import threading
from contextlib import suppress
from typing import Any

from marft import import_paths
from marft.processes import FrameWriter, adopt_orphans, claim_stdout, read_frames, receive_in_thread
from marft.programs.running import call_arguments
from marft.untrusted_values import described, traced


def main() -> None:
    """Until the parent has gone."""
    answers = FrameWriter(claim_stdout(prints_to=2))
    adopt_orphans()
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    receive_in_thread(read_frames(sys.stdin.buffer), frames.put)
    if "" not in sys.path:  # the user's own programs lie where the command is given
        sys.path.insert(0, "")
    function = import_paths.find(sys.argv[1], "team.program.function")
    loop = asyncio.new_event_loop()

    def start_episodes() -> None:
        while True:
            order = json.loads(frames.get())
            threading.Thread(target=play, args=(function, order, answers, loop), daemon=True).start()

    threading.Thread(target=start_episodes, daemon=True).start()
    while True:
        with suppress(SystemExit):  # of one episode, which reports it; asyncio has it end the loop of all
            loop.run_forever()  # here, since some libraries work in a process's main thread alone


def play(function: Any, order: dict[str, Any], answers: FrameWriter, loop: asyncio.AbstractEventLoop) -> None:
    """One episode; what is to be awaited is awaited on the loop."""
    number = order["number"]
    try:
        value = function(**call_arguments(function, order["given"]))
        if inspect.iscoroutine(value):
            value = asyncio.run_coroutine_threadsafe(value, loop).result()
        answer = json.dumps({"number": number, "value": value})
    except BaseException as error:  # the user's code: anything may come, SystemExit too
        answer = json.dumps({"number": number, "failed": described(error), "trace": traced()})
    answers.write(answer.encode())


if __name__ == "__main__":
    main()
