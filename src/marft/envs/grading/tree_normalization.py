r"""Two normal forms of a formula's tree, in neither of which a value is worked out.

`written` tells spelling from rewriting: `\frac{x}{2}`, `x/2`, `\frac12x` are one tree, `2+x` and `x+2` too. `bare` also takes
away what changes nothing: times one, plus zero, brackets, doubled signs, sides swapped.
"""

from __future__ import annotations

from collections import Counter

from marft.envs.grading.expression_parser import RELATIONS, Tree

MINUS_ONE, ONE, ZERO = "-1", "1", "0"


def spelling_tree(tree: Tree) -> Tree:
    """Order, spacing, redundant brackets and the spelling of fractions taken away; nothing else."""
    if isinstance(tree, str):
        return tree
    head = tree[0]
    if head == "()":
        return spelling_tree(tree[1])
    parts = [spelling_tree(part) for part in tree[1:]]
    if head == "+":
        return ("+", *sorted_trees(parts))
    if head != "*":
        return (head, *parts)
    factors: list[Tree] = []
    for part, raw in zip(parts, tree[1:], strict=True):
        is_quotient = raw[0] == "*" and any(factor[0] == "/" for factor in raw[1:])
        factors += part[1:] if is_quotient and part[0] == "*" else [part]
    if any(factor[0] == "/" for factor in factors):
        factors = [factor for factor in factors if factor != ONE]
    return ("*", *sorted_trees(factors)) if len(factors) > 1 else factors[0] if factors else ONE


def sorted_trees(trees: list[Tree]) -> list[Tree]:
    """Terms or factors in one order."""
    return sorted(trees, key=repr)


def reduced_tree(tree: Tree) -> Tree:
    """Also without ones, zeros, brackets, doubled signs, and with the sides of an equation in one order."""
    if isinstance(tree, str):
        return tree
    head, parts = tree[0], [reduced_tree(part) for part in tree[1:]]
    match head:
        case "()" | "[]" | "{}":
            return parts[0]
        case "-":
            return negated_tree(parts[0])
        case "+":
            return reduced_sum(parts)
        case "*":
            return reduced_product(parts)
        case "/":
            return inverted_tree(parts[0])
        case "^" if parts[1] in (ONE, MINUS_ONE):
            return parts[0] if parts[1] == ONE else inverted_tree(parts[0])
        case "root":
            return ("^", parts[0], inverted_tree(parts[1]))
        case "=" if all(side[0] != "=" for side in parts):
            difference = reduced_sum([parts[0], negated_tree(parts[1])])
            return ("=", min(difference, negated_tree(difference), key=repr))
        case ">" | ">=":
            return (head.replace(">", "<"), parts[1], parts[0])
    return (head, *parts)


def reduced_sum(parts: list[Tree]) -> Tree:
    """A sum of reduced terms, in one order and without zeros."""
    terms = [term for part in parts for term in (part[1:] if part[0] == "+" else (part,)) if term != ZERO]
    return ("+", *sorted_trees(terms)) if len(terms) > 1 else terms[0] if terms else ZERO


def reduced_product(parts: list[Tree]) -> Tree:
    """A product of reduced factors, in one order, without ones and with at most one sign; a sum takes the sign itself."""
    factors = [factor for part in parts for factor in (part[1:] if part[0] == "*" else (part,)) if factor != ONE]
    signs = factors.count(MINUS_ONE)
    factors = [factor for factor in factors if factor != MINUS_ONE]
    if signs % 2 and factors == [ZERO]:
        return ZERO
    if signs % 2 and len(factors) == 1 and factors[0][0] == "+":
        return reduced_sum([negated_tree(term) for term in factors[0][1:]])
    factors = sorted_trees([MINUS_ONE, *factors] if signs % 2 else factors)
    return ("*", *factors) if len(factors) > 1 else factors[0] if factors else ONE


def negated_tree(tree: Tree) -> Tree:
    """A reduced tree with the other sign."""
    return reduced_product([MINUS_ONE, tree])


def inverted_tree(tree: Tree) -> Tree:
    """One over a reduced tree."""
    if tree in (ONE, MINUS_ONE):
        return tree
    if tree[0] == "*":
        return reduced_product([inverted_tree(factor) for factor in tree[1:]])
    if tree[0] == "^" and tree[2] == MINUS_ONE:
        return tree[1]
    return ("^", tree, MINUS_ONE)


def subtrees(tree: Tree) -> list[Tree]:
    """The tree and everything in it, largest first."""
    parts = tree[1:] if isinstance(tree, tuple) else ()
    return [tree, *(inner for part in parts for inner in subtrees(part))]


def contains_tree(tree: Tree, other: Tree) -> bool:
    """Whether `other` stands in `tree`, as a part or as some of the terms or factors of a sum or product."""
    if tree == other:
        return True
    if isinstance(tree, str):
        return False
    both = isinstance(other, tuple) and tree[0] == other[0] and tree[0] in ("+", "*")
    if both and Counter(map(repr, other[1:])) <= Counter(map(repr, tree[1:])):
        return True
    return any(contains_tree(part, other) for part in tree[1:])


def is_composed(tree: Tree) -> bool:
    """Whether something is left to do: more than a number, a name, or one of them with its sign."""
    leaves = [part for part in subtrees(tree) if isinstance(part, str)]
    if isinstance(tree, str) or (len(leaves) < 2 and tree[0] not in ("call", "!", *RELATIONS)):
        return False
    return not (tree[0] == "*" and len(leaves) == len(tree) - 1 == 2 and MINUS_ONE in leaves)
