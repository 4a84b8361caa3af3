"""What workers and the trainer send each other. The trainer never unpickles a user's object: it would run the user's code,
without a deadline, in the one process that must not hang.

States and other objects of the user's classes come as a PickledObject, the bytes they pickle to, and travel back to a worker as
they came; everything else is of plain types.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from marft.game.validation import EnvironmentFault
from marft.types import Reward, Stopped
from marft.untrusted_values import described, exact, kind_of, quoted

STATES = ("reset", "transition")  # what they give, nobody but the environment reads
PLAIN = (type(None), bool, int, float, complex, str, bytes, Fraction, Decimal)


@dataclass(frozen=True, slots=True)
class PickledObject:
    """A user's object, pickled. Two are equal if their pickles are. Whoever unpickles it has the object."""

    data: bytes
    shown: str = field(default="", compare=False)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self.data,)

    def __repr__(self) -> str:
        return self.shown


def pack_answer(method: str, given: Any) -> bytes:
    """An answer, ready to be sent to the trainer."""
    if method in STATES or not is_plain(given):
        data = pickle_object(given, canonical=method not in STATES)
        return pickle.dumps(("pickled", data, "" if method in STATES else quoted(given)))
    return pickle.dumps(("plain", given))


def pack_fault(fault: EnvironmentFault) -> bytes:
    """A fault, ready to be sent to the trainer."""
    return pickle.dumps(("fault", fault.kind, fault.line, fault.trace))


def is_plain(value: Any) -> bool:
    """Whether the trainer may unpickle it: nothing but built-in values, fractions, decimals and rewards."""
    if type(value) in (tuple, frozenset):
        return all(is_plain(part) for part in value)
    return type(value) in PLAIN or type(value) is Reward  # whose values are validate_output


def pickle_object(given: Any, *, canonical: bool = False) -> bytes:
    """Its pickle; `canonical`: equal objects have equal ones, whether their parts are shared or not."""
    target = io.BytesIO()
    pickler = pickle.Pickler(target)
    pickler.fast = canonical
    try:
        pickler.dump(given)
    except Stopped:
        raise
    except BaseException as error:  # the user's code, or a class that pickle does not find
        raise EnvironmentFault(f"returned {kind_of(given)}, which cannot be pickled: {described(error)}") from error
    return target.getvalue()


def plain_fraction(numerator: int, denominator: int) -> Fraction:
    """Of two whole numbers, as they were sent; a text such as 1e9999999 would be worked out here."""
    if type(numerator) is not int or type(denominator) is not int:
        raise pickle.UnpicklingError("a fraction is made of two whole numbers")
    return Fraction(numerator, denominator)


class PlainUnpickler(pickle.Unpickler):
    """Builds nothing of a user's."""

    def find_class(self, module: str, name: str) -> Any:
        """Only the plain classes; UnpicklingError for any other."""
        if (Fraction.__module__, Fraction.__qualname__) == (module, name):
            return plain_fraction
        for kind in (Decimal, complex, Reward):
            if (kind.__module__, kind.__qualname__) == (module, name):
                return kind
        raise pickle.UnpicklingError(f"{module}.{name} is not of a plain type")


def unpack_answer(data: bytes) -> Any:
    """The answer that a worker sent, its objects pickled; raises the EnvironmentFault, where it is one."""
    match PlainUnpickler(io.BytesIO(data)).load():
        case ("plain", given):
            return given
        case ("pickled", bytes(given), str(shown)):
            return PickledObject(given, shown)
        case ("fault", "raised" | "late" as kind, str(line), str(trace)):
            raise EnvironmentFault(exact(line), exact(trace), kind)
    raise pickle.UnpicklingError("it is no answer")
