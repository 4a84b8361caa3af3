"""Which of several servers a request goes to: one whose prefix cache knows how the prompt begins, unless it is busy.

Servers are ranked for each beginning by rendezvous hashing (Thaler and Ravishankar, 1998), so that a server that goes
away moves its own beginnings alone, and takes the same ones back when it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

PREFIX = 256  # tokens: past most instructions, so that tasks differ; prompts that part earlier lose no more than these
SLACK, RATIO = 4, 1.25  # a server is busy with more than RATIO times the requests of the least busy one, and SLACK


def prefix_key(adapter: str | None, prompt_ids: Sequence[int]) -> bytes:
    """What requests have in common whose keys and values a server can share: the adapter and the prompt's beginning."""
    return blake2b(repr((adapter, tuple(prompt_ids[:PREFIX]))).encode(), digest_size=16).digest()


def rank_servers(key: bytes, urls: Iterable[str]) -> list[str]:
    """The servers for a beginning, its own first."""
    return sorted(urls, key=lambda url: blake2b(url.encode(), key=key).digest())


def choose_server(key: bytes, under_way: Mapping[str, int]) -> str:
    """The beginning's own server; the least busy one, of equals the one that ranks first, where its own is busy.

    `under_way` has the number of requests by server.
    """
    ranked = rank_servers(key, under_way)
    own, least = ranked[0], min(ranked, key=under_way.__getitem__)
    return least if under_way[own] > RATIO * under_way[least] + SLACK else own
