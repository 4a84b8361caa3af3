"""Sequences laid end to end in one row in which the first tokens that neighbours have in common stand only once.

Read with the same adapter, equal first tokens have equal hidden states, keys and values, so whatever works token by
token needs each of them once. Only attention looks at whole sequences: `origin` says where in the row they stand.

    sequences      a b c d   a b c e f   a b x        lengths 4 5 3, common 0 3 2
    the row        a b c d         e f       x        sizes   4 2 1
    origin         0 1 2 3   0 1 2 4 5   0 1 6

First tokens whose keys and values are `known` from elsewhere need not stand in the row at all.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from marft.models.attention import ragged

WIDTH = array("I").itemsize
AdapterTokens = tuple[int | None, tuple[int, ...]]  # an adapter (None: the base alone), and tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """S sequences as a row of T distinct tokens; all on the host. Sequences in `sharing_order` order share the most."""

    ids: Tensor  # [T]
    positions: Tensor  # [T]
    lengths: Tensor  # [S]
    common: Tensor  # [S] first tokens that need not be added: those shared with the sequence before, or known
    known: Tensor  # [S] first tokens that are known; less than the length
    origin: Tensor  # [Σ lengths − known] the row's token at each place of each sequence that is not known

    @classmethod
    def of(cls, sequences: Sequence[AdapterTokens], *, worth: float = 0.0, known: Sequence[int] = ()) -> Layout:
        """A sequence shares nothing with the one before where that would spare less than `worth` of its tokens."""
        lengths = torch.tensor([len(ids) for _, ids in sequences])
        given = torch.tensor(known) if known else torch.zeros_like(lengths)
        shared = shared_prefix_lengths(sequences)
        common = spared_lengths(torch.where(shared < worth * lengths, 0, shared), given)
        new = [ids[old:] for (_, ids), old in zip(sequences, common.tolist(), strict=True)]
        sequence, place = ragged(lengths - common)
        return cls(
            ids=concatenate(new),
            positions=place + common[sequence],
            lengths=lengths,
            common=common,
            known=given,
            origin=row_indices(lengths, common, given),
        )

    @property
    def sizes(self) -> Tensor:
        """[S] tokens that each sequence adds to the row."""
        return self.lengths - self.common

    @property
    def last(self) -> Tensor:
        """[S] where each sequence's last token stands in the row."""
        return self.origin[(self.lengths - self.known).cumsum(0) - 1]

    @property
    def shares(self) -> bool:
        """Whether any token of the row stands in more than one sequence."""
        return len(self.ids) < len(self.origin)


def sharing_order(sequences: Sequence[AdapterTokens]) -> list[int]:
    """Sequences by adapter (the base alone last) and then by tokens: neighbours have as much in common as any two do."""
    keys = [(adapter is None, adapter or 0, sort_key(ids)) for adapter, ids in sequences]
    return sorted(range(len(keys)), key=keys.__getitem__)


def sort_key(ids: tuple[int, ...]) -> bytes:
    """WIDTH bytes a token, in the same order as the tokens: comparing them costs much less than comparing tuples."""
    numbers = array("I", ids)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def shared_prefix_lengths(sequences: Sequence[AdapterTokens]) -> Tensor:
    """[S] how many first tokens each sequence shares with the one before, if that one has the same adapter."""
    packed = [(adapter, sort_key(ids)) for adapter, ids in sequences]
    found = [common_prefix_length(one, other) if a == b else 0 for (a, one), (b, other) in pairwise(packed)]
    return torch.tensor([0, *found])


def spared_lengths(shared: Tensor, known: Tensor) -> Tensor:
    """[S] first tokens of each sequence that need not be added to the row. What it shares with the one before stands there
    only as far as the other one's was not known; where some of that is missing, it shares nothing."""
    before = torch.cat([known[:1], known[:-1]])
    return torch.maximum(torch.where(torch.minimum(shared, before) > known, 0, shared), known)


def common_prefix_length(one: bytes, other: bytes) -> int:
    """How many first tokens are the same, by bisection: comparing bytes is far quicker than a loop over tokens."""
    low, high = 0, min(len(one), len(other)) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * WIDTH : middle * WIDTH] == other[low * WIDTH : middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def row_indices(lengths: Tensor, common: Tensor, known: Tensor) -> Tensor:
    """[Σ lengths − known] where in the row each place of each sequence stands: what is common, where it stood before."""
    found = np.empty(int((lengths - known).sum()), dtype=np.int64)
    before = here = row = 0  # the first two: where place 0 of the last sequence, and of this one, would be
    for length, old, skipped in zip(lengths.tolist(), common.tolist(), known.tolist(), strict=True):
        here -= skipped
        found[here + skipped : here + old] = found[before + skipped : before + old]
        found[here + old : here + length] = np.arange(row, row + length - old)
        before, here, row = here, here + length, row + length - old
    return torch.from_numpy(found)


def concatenate(sequences: Sequence[tuple[int, ...]]) -> Tensor:
    """All tokens end to end."""
    joined = bytearray(b"".join(array("q", ids).tobytes() for ids in sequences))
    return torch.frombuffer(joined, dtype=torch.int64)
