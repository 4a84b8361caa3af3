from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from marft.models.layout import AdapterTokens, Layout, sharing_order

FEW = st.lists(  # few different tokens, so that much is in common
    st.tuples(st.sampled_from([None, 0, 1]), st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple)),
    min_size=1, max_size=9,
)  # fmt: skip


def one_by_one(sequences: list[AdapterTokens], worth: float = 0.0) -> tuple[list[int], list[int], list[int], list[int]]:
    """The row, its positions, each sequence's new tokens and all origins, token by token."""
    row: list[int] = []
    positions: list[int] = []
    sizes: list[int] = []
    origins: list[list[int]] = []
    for j, (adapter, ids) in enumerate(sequences):
        old = 0
        if j and sequences[j - 1][0] == adapter:
            pairs = zip(ids, sequences[j - 1][1], strict=False)
            old = next(
                (i for i, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(sequences[j - 1][1]))
            )
        if old < worth * len(ids):
            old = 0
        origins.append([*(origins[-1][:old] if old else []), *range(len(row), len(row) + len(ids) - old)])
        row += ids[old:]
        positions += range(old, len(ids))
        sizes.append(len(ids) - old)
    return row, positions, sizes, [place for origin in origins for place in origin]


@given(sequences=FEW, sort=st.booleans(), worth=st.sampled_from([0.0, 0.25, 0.5]))
def test_a_layout_is_that_of_one_by_one(sequences: list[AdapterTokens], sort: bool, worth: float) -> None:
    if sort:
        sequences = [sequences[i] for i in sharing_order(sequences)]
    layout = Layout.of(sequences, worth=worth)
    row, positions, sizes, origin = one_by_one(sequences, worth)
    assert layout.ids.tolist() == row
    assert layout.positions.tolist() == positions
    assert layout.sizes.tolist() == sizes
    assert layout.origin.tolist() == origin
    assert layout.lengths.tolist() == [len(ids) for _, ids in sequences]
    ends = layout.lengths.cumsum(0).tolist()
    assert layout.last.tolist() == [origin[end - 1] for end in ends]
    assert layout.shares == (len(row) < len(origin))


@given(sequences=FEW)
def test_in_order_every_distinct_beginning_stands_in_the_row_once(sequences: list[AdapterTokens]) -> None:
    order = sharing_order(sequences)
    assert sorted(order) == list(range(len(sequences)))
    layout = Layout.of([sequences[i] for i in order])
    beginnings = {(adapter, ids[: n + 1]) for adapter, ids in sequences for n in range(len(ids))}
    assert len(layout.ids) == len(beginnings)


@given(sequences=FEW)
def test_the_origin_spells_every_sequence(sequences: list[AdapterTokens]) -> None:
    layout = Layout.of(sequences)
    parts = layout.origin.split(layout.lengths.tolist())
    for (_, ids), part in zip(sequences, parts, strict=True):
        assert layout.ids[part].tolist() == list(ids)
        assert layout.positions[part].tolist() == list(range(len(ids)))


@given(sequences=FEW, sort=st.booleans(), data=st.data())
def test_what_is_known_need_not_stand_in_the_row(
    sequences: list[AdapterTokens], sort: bool, data: st.DataObject
) -> None:
    if sort:
        sequences = [sequences[i] for i in sharing_order(sequences)]
    known = [data.draw(st.integers(0, len(ids) - 1)) for _, ids in sequences]
    layout = Layout.of(sequences, known=known)
    parts = layout.origin.split((layout.lengths - layout.known).tolist())
    for (_, ids), part, skipped in zip(sequences, parts, known, strict=True):
        assert layout.ids[part].tolist() == list(ids[skipped:])
        assert layout.positions[part].tolist() == list(range(skipped, len(ids)))
    assert layout.last.tolist() == [int(part[-1]) for part in parts]
    assert int(layout.sizes.sum()) == len(layout.ids) <= sum(len(part) for part in parts)


def test_what_is_known_and_shared() -> None:
    """The second knows less than the first, and shares nothing; the third, more than the second."""
    layout = Layout.of([(0, (1, 2, 3, 4)), (0, (1, 2, 3, 5, 6)), (0, (1, 2, 3, 5, 9))], known=[2, 1, 2])
    assert layout.ids.tolist() == [3, 4, 2, 3, 5, 6, 9]
    assert layout.sizes.tolist() == [2, 4, 1]
    assert layout.origin.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 6]


def test_the_example_of_the_module() -> None:
    layout = Layout.of([(0, (1, 2, 3, 4)), (0, (1, 2, 3, 5, 6)), (0, (1, 2, 9))])
    assert layout.ids.tolist() == [1, 2, 3, 4, 5, 6, 9]
    assert layout.sizes.tolist() == [4, 2, 1]
    assert layout.origin.tolist() == [0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 6]
    assert layout.last.tolist() == [3, 5, 6]


def test_tokens_are_ordered_as_numbers_and_the_base_comes_last() -> None:
    sequences: list[AdapterTokens] = [(None, (1,)), (1, (300, 1)), (1, (5,)), (1, (300,)), (0, (70000, 2)), (0, (256,))]
    assert sharing_order(sequences) == [5, 4, 2, 3, 1, 0]
