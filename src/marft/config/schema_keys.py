"""Where in the schema a key stands, and what kinds of value it takes there: read from the types of the fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from marft.config.choices import CHOICES, classes
from marft.config.schema import Config

NAME = "NAME"  # stands for a name of the user's: of an agent, of a benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaKey:
    """One key of the schema: its path, whether it has a value of its own when nobody gives one, and of which
    algorithm or credit it is."""

    path: tuple[str, ...]
    valued: bool
    of: str | None = None

    def __str__(self) -> str:
        return ".".join(self.path)


def union_members(kind: Any) -> Iterator[Any]:
    """The types of a union, bare: `Annotated[str, …] | None` → str, NoneType; of a section that a name chooses, all classes
    of its table."""
    match get_origin(kind):
        case origin if origin is Annotated:
            yield from union_members(get_args(kind)[0])
        case origin if origin in (Union, UnionType):
            for each in get_args(kind):
                yield from union_members(each)
        case _:
            chosen = [key for key, (_, base) in CHOICES.items() if kind is base]
            yield from classes(chosen[0]).values() if chosen else (kind,)


def is_section(kind: Any) -> bool:
    """Whether a type has keys of its own."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def kinds_at(path: Sequence[str], below: Any = Config) -> list[Any]:
    """The types of value that a key takes, from the section `below` on; none where the schema does not know it, as with
    settings of environments."""
    kinds: list[Any] = [below]
    for name in path:
        kinds = [found for kind in kinds for found in kinds_below(kind, name)]
    return kinds


def kinds_below(kind: Any, name: str) -> Iterator[Any]:
    """The kinds of value that the key `name` may have in a section or mapping; none where it is unknown."""
    if is_section(kind) and name == "name" and any(issubclass(kind, base) for _, base in CHOICES.values()):
        yield Literal  # it chooses: what is written there is read as YAML, and not taken as it is
    elif is_section(kind) and name in kind.model_fields:
        yield from union_members(kind.model_fields[name].annotation)
    elif get_origin(kind) is dict:  # agents and benchmarks, by names of the user's
        yield from union_members(get_args(kind)[1])


def is_text(kinds: Iterable[Any]) -> bool:
    """Whether every value is a text (or none)."""
    found = set(kinds)
    return str in found and found <= {str, NoneType}


def schema_keys(kind: Any = Config, above: tuple[str, ...] = (), of: str | None = None) -> Iterator[SchemaKey]:
    """Every key of the schema, sections included, in its order; those of several algorithms come several times."""
    for name, field in kind.model_fields.items():
        path = (*above, name)
        yield SchemaKey(path=path, valued=field.default is not None, of=of)
        kinds = list(union_members(field.annotation))
        choice = sum(map(is_section, kinds)) > 1  # of algorithms, of credits
        for each in kinds:
            if is_section(each):
                yield from schema_keys(each, path, each.model_fields["name"].default if choice else of)
            elif get_origin(each) is dict:
                for own in filter(is_section, union_members(get_args(each)[1])):
                    yield from schema_keys(own, (*path, NAME), of)
