"""Which server a request goes to: by how its prompt begins, and by who is busy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.engines.vllm.routing import PREFIX, RATIO, SLACK, choose_server, prefix_key, rank_servers

URLS = [f"http://127.0.0.1:{8000 + i}" for i in range(5)]
keys = st.builds(prefix_key, st.none() | st.sampled_from(["solver", "critic"]), st.lists(st.integers(0, 9), max_size=5))
urls = st.lists(st.sampled_from(URLS), min_size=2, unique=True)
loads = st.dictionaries(st.sampled_from(URLS), st.integers(0, 40), min_size=1)


@given(keys=st.lists(keys, max_size=20), urls=urls, data=st.data())
def test_a_server_that_goes_moves_its_own_keys_alone(keys: list[bytes], urls: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(urls))
    left = [url for url in urls if url != gone]
    for key in keys:
        before, after = rank_servers(key, urls), rank_servers(key, left)
        assert after == [url for url in before if url != gone]  # who was next takes over; nobody else's moves
        if before[0] != gone:
            assert choose_server(key, dict.fromkeys(left, 0)) == choose_server(key, dict.fromkeys(urls, 0))


@given(key=keys, under_way=loads, data=st.data())
def test_who_is_chosen_depends_on_no_order(key: bytes, under_way: dict[str, int], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(under_way.items()))))
    assert choose_server(key, shuffled) == choose_server(key, under_way)


@given(key=keys, under_way=loads)
def test_the_own_server_unless_it_is_busy_then_the_least_busy(key: bytes, under_way: dict[str, int]) -> None:
    own, least = rank_servers(key, under_way)[0], min(under_way.values())
    chosen = choose_server(key, under_way)
    if under_way[own] <= RATIO * least + SLACK:
        assert chosen == own
    else:
        assert under_way[chosen] == least


@pytest.mark.parametrize(
    ("own", "other", "moves"), [(4, 0, False), (5, 0, True), (9, 4, False), (10, 4, True), (129, 100, False), (130, 100, True)]
)  # fmt: skip
def test_the_rule_in_numbers(own: int, other: int, moves: bool) -> None:
    first, second = rank_servers(key := prefix_key("solver", (1, 2)), URLS[:2])
    assert choose_server(key, {first: own, second: other}) == (second if moves else first)


def test_a_key_is_the_adapter_and_how_the_prompt_begins() -> None:
    prompt = tuple(range(PREFIX))
    key = prefix_key("solver", prompt)
    assert prefix_key("solver", (*prompt, 7)) == key
    assert prefix_key("solver", [*prompt]) == key
    others = [prefix_key("critic", prompt), prefix_key(None, prompt), prefix_key("solver", (*prompt[:-1], 0))]
    assert len({key, *others}) == 4


def test_keys_are_spread_evenly_and_the_same_in_every_process() -> None:
    owners = [rank_servers(prefix_key("solver", (i,)), URLS[:2])[0] for i in range(400)]
    assert min(Counter(owners).values()) > 150
    assert "".join(owner[-1] for owner in owners[:16]) == "0011101110101110"
