"""A worker that is a program of its own: `python -m marft.envs.hosting.standalone`, driven by `spawned.SpawnedWorker`.

The environment's name and settings come by standard input, then questions; answers go to standard output. It ends when
its input does, also in the middle of a question: that is how it ends with the process that asks.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from contextlib import suppress
from typing import IO

from marft.envs.hosting.frames import read_frame, write_frame
from marft.envs.hosting.serving import answer_question, build_env
from marft.envs.processes import adopt_orphans, end_group


def main() -> None:
    adopt_orphans()
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an environment reads and prints what it likes, but not our messages
    os.dup2(2, 1)
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(asked, questions), daemon=True).start()
    env = build_env(*pickle.loads(questions.get()))
    with suppress(OSError):  # whoever asked has gone
        write_frame(answers, pickle.dumps(env if isinstance(env, str) else None))
        while not isinstance(env, str):
            write_frame(answers, answer_question(env, questions.get()))


def listen(asked: IO[bytes], questions: queue.SimpleQueue[bytes]) -> None:
    """Beside the main thread, which belongs to the environment."""
    while (question := read_frame(asked)) is not None:
        questions.put(question)
    end_group()


if __name__ == "__main__":
    main()
