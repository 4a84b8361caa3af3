"""A rank of the learner beside the trainer's: `python -m marft.training.rank_process`, driven by `ReplicatedLearner`.

Orders come by standard input; what came of each, and every second a sign of life, goes to standard output. It ends with
the trainer.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.envs.processes import FrameWriter, claim_stdout, read_frames, receive_in_thread
from marft.openmp import limit_spinning
from marft.types import MarftError

if TYPE_CHECKING:
    from marft.learners.local import LocalLearner
    from marft.learners.wire import Order


class Answers:
    """What rank 0 is told, from two threads."""

    def __init__(self, descriptor: int) -> None:
        self._frames = FrameWriter(descriptor)

    def put(self, answer: Mapping[str, Any] | None) -> None:
        """An answer; None is a sign of life."""
        self._frames.write(b"" if answer is None else json.dumps(answer).encode())

    def beat(self, seconds: float) -> None:
        """A sign of life every so many seconds, for ever."""
        while True:
            time.sleep(seconds)
            self.put(None)


def main() -> None:
    """Does what it is told; the first failure is told rank 0, and is the end."""
    answers = Answers(claim_stdout())
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    receive_in_thread(read_frames(sys.stdin.buffer), frames.put)
    limit_spinning()
    try:
        from marft.learners.peers import BEAT_S

        threading.Thread(target=answers.beat, args=(BEAT_S,), daemon=True).start()
        serve(frames, answers)
    except BaseException as error:
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        known = isinstance(error, MarftError | MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
        answers.put({"failed": line, "trace": "" if known else traceback.format_exc()})
        threading.Event().wait()  # until rank 0 has read it and ends us


def serve(frames: queue.SimpleQueue[bytes], answers: Answers) -> None:
    """One order after the other."""
    from marft.learners.base import NotFinite
    from marft.learners.ranks import is_loss_of_rank
    from marft.learners.wire import Order, checksum

    first = Order.read(frames.get)
    learner, rank = build_learner(first.arguments), first.arguments["rank"]
    answers.put({"rank": rank})
    while True:
        order = Order.read(frames.get)
        try:
            carry_out(learner, rank, order)
        except NotFinite:
            pass  # rank 0 finds it too
        except Exception as error:
            if not is_loss_of_rank(error):
                raise
            threading.Event().wait()  # rank 0 hears of the one that has gone, and ends us
        answers.put({"rank": rank, "checksum": checksum(learner.adapters())})


def build_learner(arguments: Mapping[str, Any]) -> LocalLearner:
    """The learner of the trainer's config on this rank's device, without engines and environment."""
    import torch

    from marft.config import merge_settings, parse
    from marft.training.build import load_base, make_learner, make_team, model_of

    torch.set_num_threads(arguments["threads"])
    config = parse(arguments["config"])
    alone = parse(merge_settings(arguments["config"], {"learner": {"ranks": 1, "shard": False}}))
    sizes, rank = arguments["adapters"], arguments["rank"]
    models = dict.fromkeys(model_of(config, name) for name in config.team.trained)
    teams = {
        model: make_team(config, model, load_base(config, model, rank), specs=sizes, rank=rank) for model in models
    }
    return make_learner(alone, teams)


def carry_out(learner: LocalLearner, rank: int, order: Order) -> None:
    """Call what the order names."""
    from marft.algorithms.batch import Batch
    from marft.algorithms.transport import from_bytes, state_from_bytes
    from marft.learners.ranks import join_ranks
    from marft.learners.wire import read_update

    match order.call:
        case "join":
            device, given = learner.bases[0].device, order.arguments
            learner.group = joined = join_ranks(Path(given["path"]), rank, given["ranks"], device, shard=given["shard"])
            joined.divide(learner.bases)
        case "load":
            weights, moments = map(state_from_bytes, order.blocks)
            for name, own in weights.items():
                learner.teams[name].load_adapters({name: own})
            learner.load_state_dict({name: moments.get(name, {}) for name in learner.optimizers})  # none before a step
        case "score":
            learner.score(from_bytes(Batch, order.blocks[0]), **order.arguments)
        case "update":
            learner.update(*read_update(order))


if __name__ == "__main__":
    main()
