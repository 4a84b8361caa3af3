"""New versions enter a play before a step: as they come, or before the very steps that a log names."""

from __future__ import annotations

import queue

import torch
from hypothesis import given
from hypothesis import strategies as st

from marft.distributed import messages
from marft.distributed.swapping import Swapping
from marft.rollouts.players import Swaps


class Worker:
    """A play of ten steps, to which a version comes before some of them; says with which each is taken."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.version = 0
        self.to_come: list[int] = []
        self.swapping = Swapping(self.inbox.get_nowait, self.wait, lambda version, _: setattr(self, "version", version))

    def come(self, version: int) -> None:
        self.inbox.put(messages.pack_adapters(version, {"ann": {"w": torch.zeros(1)}}))

    def wait(self) -> bytes:
        """Where nothing is here yet, the next one comes while we wait."""
        if self.inbox.empty():
            self.come(self.to_come.pop(0))
        return self.inbox.get()

    def play(self, arrivals: list[list[int]], log: Swaps | None) -> tuple[list[int], Swaps]:
        self.version = 0
        self.swapping.begin(log)
        spoken = []
        for come in arrivals:
            for version in come:
                self.come(version)
            self.swapping.before_step()
            spoken.append(self.version)
        return spoken, tuple(self.swapping.done)


@st.composite
def arrivals(draw: st.DrawFn) -> list[list[int]]:
    counts = draw(st.lists(st.integers(0, 2), min_size=10, max_size=10))
    return [[1 + sum(counts[:i]) + n for n in range(count)] for i, count in enumerate(counts)]


@given(arrivals())
def test_the_newest_that_has_come_enters_at_the_next_step(come: list[list[int]]) -> None:
    spoken, log = Worker().play(come, None)
    assert spoken == [max([v for one in come[: i + 1] for v in one], default=0) for i in range(10)]
    assert log == tuple((i + 1, one[-1]) for i, one in enumerate(come) if one)


@given(come=arrivals(), early=st.integers(0, 10))
def test_with_its_log_a_play_is_repeated_whenever_versions_come(come: list[list[int]], early: int) -> None:
    spoken, log = Worker().play(come, None)
    again, versions = Worker(), [v for one in come for v in one]
    again.to_come = versions[early:]  # these only when somebody waits for them
    assert again.play([versions[:early], *([[]] * 9)], log) == (spoken, log)


def test_a_log_without_swaps_lets_nothing_in() -> None:
    assert Worker().play([[1], [2], []], ()) == ([0, 0, 0], ())


def test_every_play_counts_its_own_steps() -> None:
    worker = Worker()
    assert worker.play([[], [1]], None)[1] == ((2, 1),)
    assert worker.play([[], [2]], None)[1] == ((2, 2),)
