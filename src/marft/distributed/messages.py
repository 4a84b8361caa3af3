"""What a trainer and its workers say to one another, as bytes and without pickle.

Every message begins with a letter. To a worker: its setup, adapters, an assignment. From a worker: that it is ready, that it
lives, what it played, or why it cannot go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from marft.algorithms.transport import state_from_bytes, state_to_bytes
from marft.engines.base import Adapters
from marft.rollouts.players import Assignment, Played
from marft.types import Episode, Task

SETUP, ADAPTERS, ASSIGNMENT = b"S", b"A", b"P"
READY, PLAYED, FAILED = b"R", b"D", b"F"  # beside channels.ALIVE

EPISODES: TypeAdapter[list[Episode]] = TypeAdapter(list[Episode], config=ConfigDict(ser_json_inf_nan="constants"))
ASSIGNMENTS = TypeAdapter(Assignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that a worker is made from."""

    config: Mapping[str, Any]
    adapters: Mapping[str, tuple[int, float]]  # rank and alpha
    device: str
    memory: float  # `engine.memory` of this worker
    gpu: str | None  # the only one that it sees; None: all
    threads: int | None
    versions: Mapping[str, str]  # of the trainer's packages


SETUPS = TypeAdapter(Setup)


def pack_setup(setup: Setup) -> bytes:
    """For a new worker."""
    return SETUP + SETUPS.dump_json(setup)


def pack_adapters(version: int, adapters: Adapters) -> bytes:
    """The agents' adapters of a version."""
    return ADAPTERS + version.to_bytes(8, "big") + state_to_bytes(adapters)


def unpack_adapters(body: bytes) -> tuple[int, Adapters]:
    """Version and adapters again."""
    return int.from_bytes(body[:8], "big"), state_from_bytes(body[8:])


def pack_assignment(assignment: Assignment) -> bytes:
    """What to play."""
    return ASSIGNMENT + ASSIGNMENTS.dump_json(assignment)


def pack_played(played: Played) -> bytes:
    """Episodes, without what only grading needs of their tasks: the trainer knows the tasks."""
    bare = [replace(episode, task=Task(id=episode.task.id, prompt="")) for episode in played.episodes]
    head = json.dumps({"tokens": played.tokens, "swaps": played.swaps})
    return PLAYED + head.encode() + b"\n" + EPISODES.dump_json(bare)


def unpack_played(body: bytes, tasks: Sequence[Task]) -> Played:
    """Episodes of these tasks again."""
    by_id, (head, _, bare) = {task.id: task for task in tasks}, body.partition(b"\n")
    episodes = [replace(episode, task=by_id[episode.task.id]) for episode in EPISODES.validate_json(bare)]
    numbers = json.loads(head)
    swaps = tuple((step, version) for step, version in numbers["swaps"])
    return Played(episodes=episodes, tokens=numbers["tokens"], swaps=swaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a worker cannot go on: one line for a user's mistake, else where our own code broke."""

    line: str
    trace: str
    ours: bool


def pack_failure(failure: Failure) -> bytes:
    """A worker's last message."""
    return FAILED + json.dumps(asdict(failure)).encode()


def unpack_failure(body: bytes) -> Failure:
    """The failure again."""
    return Failure(**json.loads(body))
