"""A process that says again what it hears; it ends with the code it is told, and falls silent where it is told to."""

from __future__ import annotations

import os
import queue
import time

from marft.channels import Heartbeat, Say, serve_parent


def work(say: Say, inbox: queue.SimpleQueue[bytes]) -> None:
    """Until it hears the word."""
    beating = Heartbeat(say)
    while (message := inbox.get()) != b"return":
        match message:
            case b"exit":
                os._exit(3)
            case b"hang":
                beating.busy = True
                time.sleep(600)
            case _:
                say(message)


if __name__ == "__main__":
    serve_parent(work)
