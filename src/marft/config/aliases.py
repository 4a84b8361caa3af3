"""YAML's aliases: a few lines can stand for billions of values, which are counted before any is made."""

from __future__ import annotations

import yaml

MOST = 20_000  # values of a config, with every alias spelled out
LONG = 100  # characters of a text that count as one value


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
