"""Environments that run in other processes, well or badly. Their file imports nothing heavy: every such process does so."""

from __future__ import annotations

import hashlib
import time

import toys

import marft


class Hosted(toys.Echo):
    light = False

    def observe(self, state: str, agent: str) -> str:
        return f"{agent}, so far: {len(state)}"


class AtHome(Hosted):
    light = True


class Bad(Hosted):
    """Hangs in one step of `one_in`, and raises in another."""

    def __init__(self, one_in: int = 100) -> None:
        super().__init__(size=250)
        self.one_in = one_in

    def transition(self, state: str, turn: marft.Turn) -> str:
        luck = (
            int(hashlib.sha256(f"{state}{turn.text}{turn.completion.logprobs}".encode()).hexdigest(), 16) % self.one_in
        )
        if luck == 0:
            time.sleep(600)
        if luck == 1:
            raise RuntimeError("out of paper")
        return super().transition(state, turn)


class AlwaysLate(Hosted):
    def reward(self, state: str) -> marft.Reward:
        time.sleep(600)
        raise AssertionError("unreachable")


class AlwaysRaises(Hosted):
    def reward(self, state: str) -> marft.Reward:
        raise RuntimeError("out of paper")
