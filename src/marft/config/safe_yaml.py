"""YAML that nobody vouches for: read within limits, or refused in one line that quotes nothing which may be a secret.

A few lines of aliases can stand for billions of values, which are counted before any is made.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from marft.types import MarftError

MOST = 20_000  # values of a config, with every alias spelled out
LONG = 100  # characters of a text that count as one value
# the latter are what PyYAML's constructors say of dates, numbers and tags that are none, and of endless nesting
UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)


class OnceLoader(yaml.SafeLoader):
    """A key that comes twice is a mistake: of two agents with one name PyYAML would silently drop the first.

    It also stops where there is more than any config has: PyYAML takes seconds for every 50,000 values.
    """

    composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As in PyYAML; too many values are an error."""
        self.composed += 1
        if self.composed > MOST and parent is not None:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST:,} values", problem_mark=parent.start_mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """As in PyYAML; a key that comes twice is an error."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} comes twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node

    def get_single_node(self) -> yaml.Node | None:
        """As in PyYAML; aliases that would grow too large are an error."""
        node: yaml.Node | None = super().get_single_node()
        check_aliases(node)
        return node


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping in a text, empty where there is none; raises a MarftError that names `where`."""
    try:
        data = yaml.load(text, OnceLoader)  # a SafeLoader
    except UNREADABLE as error:
        raise MarftError(f"{where} is not valid YAML: {why_unreadable(error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise MarftError(f"{where} must hold 'key: value' lines, not a {type(data).__name__}")
    return data


def check_aliases(root: yaml.Node | None) -> None:
    """A MarkedYAMLError where the values that `root` stands for are too many, or without end."""
    sizes: dict[int, int | None] = {}  # of nodes; None: it is being counted, and so holds itself

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            if (known := sizes[id(node)]) is None:
                raise yaml.MarkedYAMLError(
                    problem="an alias stands for what it stands in", problem_mark=node.start_mark
                )
            return known
        sizes[id(node)] = None
        match node:
            case yaml.MappingNode():
                total = sum(size(key) + size(value) for key, value in node.value)
            case yaml.SequenceNode():
                total = sum(map(size, node.value))
            case _:
                total = len(node.value) // LONG
        sizes[id(node)] = total + 1
        return total + 1

    if root is not None and size(root) > MOST:
        raise yaml.MarkedYAMLError(
            problem=f"its aliases stand for more than {MOST:,} values", problem_mark=root.start_mark
        )


def why_unreadable(error: Exception) -> str:
    """Where and why, without the lines and names that PyYAML quotes: one of them may hold a secret."""
    match error:
        case yaml.MarkedYAMLError(problem_mark=mark, problem=str(problem)) if mark is not None:
            nameless = re.sub(r"\b(alias|anchor|tag|handle) (['\"]).*\2", r"\1", problem)
            return f"{nameless} in line {mark.line + 1}, column {mark.column + 1}"
        case yaml.reader.ReaderError(character=int() as code):
            return f"it holds the character U+{code:04X}"
        case RecursionError():
            return "it is nested too deeply"
    return "a value looks like a date, a number or a tag and is none; put it in quotes"
