"""Whether two values are the same, whatever they are made of: most states have no `==` of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

PLAIN = (type(None), bool, int, float, complex)
NAMED = (type, FunctionType, BuiltinFunctionType)


def fingerprint(value: object, above: tuple[int, ...] = ()) -> str:
    """Equal for equal values, in every process; the order of a set or of a dict's keys does not count.

    `above` are the values this one lies in: one that holds itself would be written for ever.
    """
    kind = type(value)
    if isinstance(value, bytes) and kind is bytes:
        return f"bytes {hash_bytes(value)}"
    if isinstance(value, str) and kind is str:
        return f"str {hash_bytes(value.encode(errors='surrogatepass'))}"
    if kind in PLAIN:
        return f"{kind.__name__} {value!r}"
    if isinstance(value, NAMED):
        return f"{value.__module__}.{value.__qualname__}"
    if id(value) in above:
        return f"above {len(above) - above.index(id(value))}"
    inner = partial(fingerprint, above=(*above, id(value)))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in (list, tuple):
        return hash_parts(name, [inner(each) for each in value])  # type: ignore[attr-defined]
    if isinstance(value, Mapping) and not hasattr(value, "__dict__"):
        return hash_parts("mapping", sorted(inner(key) + inner(each) for key, each in value.items()))
    if isinstance(value, Set) and not hasattr(value, "__dict__"):
        return hash_parts("set", sorted(map(inner, value)))
    return hash_parts(name, [inner(part) for part in pickle_parts(value)])


def pickle_parts(value: object) -> list[Any]:
    """What pickle would save of an object. Raises TypeError for what cannot be saved, such as an open file."""
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):  # the name of something global
        return [reduced]
    made_by, arguments, *rest = reduced
    state, items, pairs = (*rest, None, None, None)[:3]
    return [made_by, arguments, state, None if items is None else list(items), None if pairs is None else dict(pairs)]


def hash_parts(name: str, inner: list[str]) -> str:
    """One hash of a class's name and the fingerprints of what it holds."""
    return hash_bytes("\x00".join([name, *inner]).encode(errors="surrogatepass"))


def hash_bytes(data: bytes) -> str:
    """BLAKE2b, 16 bytes, as hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
