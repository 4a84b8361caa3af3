"""Who is updated, and when: an iteration is some plays, and after each play some steps, each of which trains some adapters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from marft.learners.base import Steps

Mode = Literal["joint", "alternate", "sequential", "resample"]


def schedule_plays(
    mode: Mode, adapters: Sequence[str], *, iteration: int, interval: int, seed: int
) -> tuple[Steps, ...]:
    """The plays of one iteration and the steps after each.

    joint       a team of a, b:  play → {a, b}
    alternate                    play → {a}   for `interval` iterations, then play → {b}, and so on
    sequential                   play → {a} → {b}          in random order, on the same episodes
    resample                     play → {a}, play → {b}    in random order, each on episodes of its own
    """
    match mode:
        case "joint":
            return ((frozenset(adapters),),)
        case "alternate":
            return ((frozenset({adapters[iteration // interval % len(adapters)]}),),)
        case "sequential":
            return (tuple(frozenset({name}) for name in shuffle_adapters(adapters, seed)),)
        case "resample":
            return tuple((frozenset({name}),) for name in shuffle_adapters(adapters, seed))


def shuffle_adapters(adapters: Sequence[str], seed: int) -> list[str]:
    """The adapters in a random order that depends on the seed alone."""
    return random.Random(seed).sample(list(adapters), len(adapters))
