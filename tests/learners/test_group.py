"""How the samples of a minibatch are dealt out to ranks, and that sums over ranks are the same bits everywhere."""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marft.learners.base import RankLost
from marft.learners.group import Alone
from marft.learners.ranks import Ranks, deal_tasks, dist, host_store, interface_of

Result = TypeVar("Result")
SAMPLES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 1000)), min_size=1, max_size=60)


def on_ranks(size: int, work: Callable[[Ranks], Result]) -> list[Result]:
    """What each of some ranks, threads here, makes of the same work."""
    store = dist.HashStore()
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(lambda r: work(Ranks(store, r, size, torch.device("cpu"))), r) for r in range(size)]
        return [future.result(timeout=60) for future in futures]


@given(samples=SAMPLES, ranks=st.integers(1, 5))
def test_tasks_are_dealt_out_whole_and_evenly(samples: list[tuple[int, int]], ranks: int) -> None:
    tasks, sizes = [task for task, _ in samples], [size for _, size in samples]
    owner = deal_tasks(tasks, sizes, ranks)
    assert owner.keys() == set(tasks)
    assert set(owner.values()) <= set(range(ranks))
    load = [sum(size for task, size in samples if owner[task] == rank) for rank in range(ranks)]
    largest = max(sum(size for other, size in samples if other == task) for task in set(tasks))
    assert max(load) <= sum(sizes) / ranks + largest  # what a list schedule promises
    shuffled = deal_tasks(tasks[::-1], sizes[::-1], ranks)
    assert shuffled == owner


def test_three_tasks_for_two_ranks_worked_out_by_hand() -> None:
    assert deal_tasks([0, 1, 1, 2], [5, 2, 2, 6], 2) == {2: 0, 0: 1, 1: 1}


def test_whoever_is_alone_has_everything() -> None:
    assert list(Alone().share([3, 1, 3], [9, 9, 9])) == [0, 1, 2]


def test_every_sample_is_computed_by_one_rank() -> None:
    tasks, sizes = [0, 1, 0, 2, 2], [3, 4, 5, 1, 1]
    shares = on_ranks(3, lambda ranks: list(ranks.share(tasks, sizes)))
    assert sorted(i for share in shares for i in share) == [0, 1, 2, 3, 4]


def test_sums_are_the_same_bits_on_all_ranks() -> None:
    def add(ranks: Ranks) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(ranks.rank)
        tensors = [torch.randn(shape, generator=g) for shape in ((1000, 7), (3,), (0, 4))]
        ranks.add(tensors)
        return tensors

    first, second, third = on_ranks(3, add)
    parts = [torch.randn((1000, 7), generator=torch.Generator().manual_seed(r)) for r in range(3)]
    torch.testing.assert_close(first[0], sum(parts[1:], parts[0]))
    for other in (second, third):
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_who_is_known_to_be_lost_is_not_waited_for() -> None:
    def add(ranks: Ranks) -> str:
        if ranks.rank == 1:
            return ""
        ranks.abandon()
        with pytest.raises(RankLost) as found:
            ranks.add([torch.ones(2)])
        return str(found.value)

    assert on_ranks(2, add) == ["rank 0 has lost another", ""]


def test_a_machine_that_goes_without_a_word_is_not_waited_for() -> None:
    """Its connections stay open, so that gloo knows nothing."""
    left = threading.Event()

    def add(ranks: Ranks) -> float:
        if ranks.rank == 1:
            assert left.wait(60)
            return 0.0
        threading.Timer(0.5, ranks.abandon).start()
        began = time.monotonic()
        with pytest.raises(RankLost, match="rank 0 has lost another"):
            ranks.add([torch.ones(2)])
        gloo = weakref.ref(ranks.gloo)
        del ranks
        left.set()
        assert gloo() is not None  # its destructor would have waited
        return time.monotonic() - began

    assert on_ranks(2, add)[0] < 10


def test_a_store_listens_at_its_address_alone() -> None:
    _, port = host_store("127.0.0.1")
    socket.create_connection(("127.0.0.1", port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None  # nobody has it
