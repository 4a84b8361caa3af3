"""A rank of the learner beside the trainer's: `python -m marft.training.rank_process`, or an actor of a cluster; driven by
`ReplicatedLearner`."""

from __future__ import annotations

import json
import queue
import threading
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marft.channels import Heartbeat, Say, serve_parent
from marft.types import MarftError

if TYPE_CHECKING:
    from marft.learners.local import LocalLearner
    from marft.learners.wire import Order


def work(say: Say, inbox: queue.SimpleQueue[bytes]) -> None:
    """Does what it is told, and says in JSON what came of each order; returns after the first failure, of which it tells."""
    Heartbeat(say)
    try:
        serve(say, inbox)
    except BaseException as error:
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        known = isinstance(error, MarftError | MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
        failed = {"failed": line, "trace": "" if known else traceback.format_exc()}
        say(json.dumps(failed).encode())


def serve(say: Say, inbox: queue.SimpleQueue[bytes]) -> None:
    """One order after the other."""
    from marft.learners.base import NotFinite
    from marft.learners.ranks import is_loss_of_rank
    from marft.learners.wire import Order, checksum

    first = Order.read(inbox.get)
    learner, rank = build_learner(first.arguments), first.arguments["rank"]
    say(json.dumps({"rank": rank}).encode())
    while True:
        order = Order.read(inbox.get)
        try:
            carry_out(learner, rank, order)
        except NotFinite:
            pass  # rank 0 finds it too
        except Exception as error:
            if not is_loss_of_rank(error):
                raise
            threading.Event().wait()  # rank 0 hears of the one that has gone, and ends us
        say(json.dumps({"rank": rank, "checksum": checksum(learner.adapters())}).encode())


def build_learner(arguments: Mapping[str, Any]) -> LocalLearner:
    """The learner of the trainer's config on this rank's device, without engines and environment."""
    import torch

    from marft.config import merge_settings, parse
    from marft.training.build import load_base, make_learner, make_team, model_of
    from marft.training.packages import package_versions, require_same_packages

    require_same_packages(arguments["versions"], package_versions(), "a rank of its learner")
    torch.set_num_threads(arguments["threads"])
    config = parse(arguments["config"])
    alone = parse(
        merge_settings(arguments["config"], {"learner": {"ranks": 1, "shard": False}, "cluster": {"address": None}})
    )
    sizes, device = arguments["adapters"], arguments["device"]
    models = dict.fromkeys(model_of(config, name) for name in config.team.trained)
    teams = {
        model: make_team(config, model, load_base(config, model, device), specs=sizes, device=device)
        for model in models
    }
    return make_learner(alone, teams)


def carry_out(learner: LocalLearner, rank: int, order: Order) -> None:
    """Call what the order names."""
    from marft.algorithms.batch import Batch
    from marft.algorithms.transport import from_bytes, state_from_bytes
    from marft.learners.ranks import join_ranks, reach_store
    from marft.learners.wire import read_update

    match order.call:
        case "join":
            device, found = learner.bases[0].device, order.arguments
            store = reach_store(*found["store"])
            learner.group = joined = join_ranks(
                store, rank, found["ranks"], device, found["host"], shard=found["shard"]
            )
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
    serve_parent(work)
