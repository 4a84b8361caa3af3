r"""Two normal forms of a formula's tree, in neither of which a value is worked out.

`written` tells spelling from rewriting: `\frac{x}{2}`, `x/2`, `\frac12x` are one tree, `2+x` and `x+2` too. `bare` also takes
away what changes nothing: times one, plus zero, brackets, doubled signs, sides swapped.
"""

from __future__ import annotations

from collections import Counter

from marft.envs.grading.expression_parser import Tree

MINUS_ONE, ONE, ZERO = "-1", "1", "0"
MIRRORED = {">": "<", ">=": "<="}


def spelling_tree(tree: Tree) -> Tree:
    """Order, spacing, redundant brackets and the spelling of fractions taken away; nothing else."""
    if isinstance(tree, str):
        return tree
    head = tree[0]
    if head == "()":
        return spelling_tree(tree[1])
    parts = [spelling_tree(part) for part in tree[1:]]
    if head == "*":
        factors: list[Tree] = []
        for part, raw in zip(parts, tree[1:], strict=True):
            factors += part[1:] if is_quotient(raw) and part[0] == "*" else [part]
        over = [factor for factor in factors if factor[0] == "/"]
        factors = [factor for factor in factors if not (over and factor == ONE)]
        return ("*", *sorted_trees(factors)) if len(factors) > 1 else factors[0] if factors else ONE
    if head == "+":
        return ("+", *sorted_trees(parts))
    return (head, *parts)


def is_quotient(tree: Tree) -> bool:
    return tree[0] == "*" and any(part[0] == "/" for part in tree[1:])


def sorted_trees(trees: list[Tree]) -> list[Tree]:
    return sorted(trees, key=repr)


def reduced_tree(tree: Tree) -> Tree:
    """Also without ones, zeros, brackets, doubled signs, and with the sides of an equation in one order."""
    if isinstance(tree, str):
        return tree
    head = tree[0]
    if head in ("()", "[]", "{}"):
        return reduced_tree(tree[1])
    if head == "-":
        return negated_tree(reduced_tree(tree[1]))
    parts = [reduced_tree(part) for part in tree[1:]]
    match head:
        case "+":
            return reduced_sum(parts)
        case "*":
            return reduced_product(parts)
        case "/":
            return inverted_tree(parts[0])
        case "^":
            return parts[0] if parts[1] == ONE else inverted_tree(parts[0]) if parts[1] == MINUS_ONE else ("^", *parts)
        case "root":
            return ("^", parts[0], inverted_tree(parts[1]))
        case "=" if all(side[0] != "=" for side in parts):
            difference = reduced_sum([parts[0], negated_tree(parts[1])])
            return ("=", min(difference, negated_tree(difference), key=repr))
        case ">" | ">=":
            return (MIRRORED[head], parts[1], parts[0])
    return (head, *parts)


def reduced_sum(parts: list[Tree]) -> Tree:
    terms = [term for part in parts for term in (part[1:] if part[0] == "+" else (part,)) if term != ZERO]
    return ("+", *sorted_trees(terms)) if len(terms) > 1 else terms[0] if terms else ZERO


def reduced_product(parts: list[Tree]) -> Tree:
    factors: list[Tree] = []
    negative = False
    for part in parts:
        for factor in part[1:] if part[0] == "*" else (part,):
            if factor == MINUS_ONE:
                negative = not negative
            elif factor != ONE:
                factors.append(factor)
    product: Tree = ("*", *sorted_trees(factors)) if len(factors) > 1 else factors[0] if factors else ONE
    return negated_tree(product) if negative else product


def negated_tree(tree: Tree) -> Tree:
    if tree == ZERO:
        return tree
    if tree[0] == "+":
        return reduced_sum([negated_tree(term) for term in tree[1:]])
    if tree == ONE:
        return MINUS_ONE
    if tree == MINUS_ONE:
        return ONE
    if tree[0] == "*":
        factors = list(tree[1:])
        if MINUS_ONE in factors:
            factors.remove(MINUS_ONE)
            return ("*", *factors) if len(factors) > 1 else factors[0]
        return ("*", *sorted_trees([MINUS_ONE, *factors]))
    return ("*", *sorted_trees([MINUS_ONE, tree]))


def inverted_tree(tree: Tree) -> Tree:
    if tree in (ONE, MINUS_ONE):
        return tree
    if tree[0] == "*":
        return reduced_product([inverted_tree(factor) for factor in tree[1:]])
    if tree[0] == "^" and tree[2] == MINUS_ONE:
        return tree[1]
    return ("^", tree, MINUS_ONE)


def subtrees(tree: Tree) -> list[Tree]:
    """The tree and everything in it, largest first."""
    found = [tree]
    for part in tree[1:] if isinstance(tree, tuple) else ():
        found += subtrees(part)
    return found


def contains_tree(tree: Tree, other: Tree) -> bool:
    """Whether `other` stands in `tree`, as a part or as some of the terms or factors of a sum or product."""
    if tree == other:
        return True
    if isinstance(tree, str):
        return False
    if isinstance(other, tuple) and tree[0] == other[0] and tree[0] in ("+", "*"):
        own, wanted = Counter(map(repr, tree[1:])), Counter(map(repr, other[1:]))
        if wanted <= own:
            return True
    return any(contains_tree(part, other) for part in tree[1:])


def leaf_count(tree: Tree) -> int:
    """How many numbers and names a tree holds."""
    return 1 if isinstance(tree, str) else sum(leaf_count(part) for part in tree[1:])
