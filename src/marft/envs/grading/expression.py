r"""The tree of a formula as it is written: no value is worked out here, and nothing but structure is read.

Two trees of one formula: `written` tells spelling apart from rewriting (`\frac{x}{2}`, `x/2`, `\frac12x` are one tree,
`2+x` and `x+2` too), `bare` also takes away what changes nothing (times one, plus zero, brackets, doubled signs, sides
swapped).
"""

from __future__ import annotations

import re
from functools import lru_cache

from marft.envs.grading.latex import SET_CLOSE, SET_OPEN, TEXT_CLOSE, TEXT_OPEN

Tree = str | tuple["Tree", ...]  # a number or a name, or an operation and what it is done to

MAX_TOKENS = 400
MAX_DEPTH = 40
TOKEN = re.compile(
    rf"\\begin\{{(\w+)\}}.*?\\end\{{\1\}}|{TEXT_OPEN}[^{TEXT_CLOSE}]*{TEXT_CLOSE}|\\[A-Za-z]+|\d+(?:\.\d+)?|\.\d+"
    r"|<=|>=|[A-Za-z]'*|\S",
    re.S,
)
RELATIONS = {"=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", r"\ne": "!=", r"\equiv": "=="}
TIMES, DIVIDED = (r"\cdot", "·"), ("/", ":")
CLOSES = {"(": ")", "[": "]", "{": "}", SET_OPEN: SET_CLOSE}
FUNCTIONS = r"\sin \cos \tan \cot \sec \csc \arcsin \arccos \arctan \log \ln \exp \lg \det \gcd \deg".split()
MINUS_ONE, ONE, ZERO = "-1", "1", "0"
MIRRORED = {">": "<", ">=": "<="}


class Unreadable(Exception):
    """No formula that this grammar knows."""


class Reader:
    """Recursive descent over tokens: lists, relations, sums, products, powers."""

    def __init__(self, text: str) -> None:
        self.tokens = [found[0] for found in TOKEN.finditer(text)][: MAX_TOKENS + 1]
        if len(self.tokens) > MAX_TOKENS:
            raise Unreadable
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next
        if not token:
            raise Unreadable
        self.at += 1
        return token

    def whole(self) -> Tree:
        tree = self.listing("")
        if self.next:
            raise Unreadable
        return tree

    def listing(self, end: str) -> Tree:
        items = [self.relation(end)]
        while self.next in (",", ";") and self.next != end:
            self.take()
            items.append(self.relation(end))
        return items[0] if len(items) == 1 else (",", *items)

    def relation(self, end: str) -> Tree:
        tree = self.sum(end)
        while self.next in RELATIONS:
            sign = RELATIONS[self.take()]
            tree = (sign, tree, self.sum(end))
        return tree

    def sum(self, end: str) -> Tree:
        terms: list[Tree] = []
        sign = ""
        while True:
            while self.next in ("+", "-"):
                sign = "-" if (self.take() == "-") != (sign == "-") else "+"
            term = self.product(end)
            terms.append(("-", term) if sign == "-" else term)
            if self.next not in ("+", "-", r"\pm"):
                return terms[0] if len(terms) == 1 else ("+", *terms)
            if self.next == r"\pm":
                self.take()
                terms.append(r"\pm")
            sign = ""

    def product(self, end: str) -> Tree:
        tree = self.power(end)
        factors = [tree]
        while (token := self.next) and token != end:
            if token in TIMES:
                self.take()
                factors.append(self.signed_power(end))
            elif token in DIVIDED:
                self.take()
                factors.append(("/", self.signed_power(end)))
            elif token in "+-,;)]}" + SET_CLOSE or token in RELATIONS or token == r"\pm":
                break
            else:
                factors.append(self.power(end))
        return factors[0] if len(factors) == 1 else ("*", *factors)

    def signed_power(self, end: str) -> Tree:
        if self.next == "-":
            self.take()
            return ("-", self.power(end))
        return self.power(end)

    def power(self, end: str) -> Tree:
        base = self.base()
        while (token := self.next) and token != end:
            if token == "^":
                self.take()
                base = ("^", base, self.argument())
            elif token == "_":
                self.take()
                base = ("_", base, self.argument())
            elif token in "!%°":
                base = (self.take(), base)
            else:
                break
        return base

    def argument(self) -> Tree:
        if self.next == "-":
            self.take()
            return ("-", self.base())
        return self.base()

    def base(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable
        tree = self.operand()
        self.depth -= 1
        return tree

    def operand(self) -> Tree:
        token = self.take()
        if token in CLOSES:
            inside = self.listing(CLOSES[token])
            closing = self.take()
            if closing not in (")", "]", "}", SET_CLOSE):
                raise Unreadable
            plain = token + closing in ("()", "[]", "{}")
            is_list = isinstance(inside, tuple) and inside[0] == ","
            return inside if token == "{" else ("()", inside) if plain and not is_list else (token + closing, inside)
        if token == "|":
            inside = self.listing("|")
            if self.take() != "|":
                raise Unreadable
            return ("abs", inside)
        if token == r"\frac":
            top = self.base()
            return ("*", top, ("/", self.base()))
        if token in (r"\binom", r"\choose"):
            return (token, self.base(), self.base())
        if token == r"\sqrt":
            if self.next == "[":
                index = self.base()
                return ("root", self.base(), index)
            return ("root", self.base(), "2")
        if token in FUNCTIONS:
            return self.call(token)
        if not re.fullmatch(r"\\\w+|[\d.]+|[A-Za-z]'*|⟪.*⟫|\\begin.*|∞|\d", token, re.S):
            raise Unreadable
        return spelled_number(token)

    def call(self, name: str) -> Tree:
        extra: list[Tree] = []
        while self.next in ("^", "_"):
            extra += [self.take(), self.argument()]
        arguments: list[Tree] = []
        if self.next in ("(", "{", "["):
            arguments = [self.base()]
        else:
            while self.next and re.fullmatch(r"[\d.]+|[A-Za-z]'*|\\(?:frac|sqrt|pi|theta|alpha|beta)", self.next):
                arguments.append(self.power(""))
        if not arguments:
            raise Unreadable
        inner: Tree = ("*", *arguments) if len(arguments) > 1 else arguments[0]
        return ("call", name, *extra, inner)


def spelled_number(token: str) -> Tree:
    if not re.fullmatch(r"\d+(?:\.\d+)?|\.\d+", token):
        return re.sub(r"\s+", "", token)
    whole, _, decimals = token.partition(".")
    decimals = decimals.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{decimals}" if decimals else "")


@lru_cache(maxsize=4096)
def parsed(text: str) -> Tree | None:
    """The tree of a cleaned formula as it stands, None for what is none."""
    try:
        return Reader(text).whole()
    except (Unreadable, RecursionError):
        return None


def written(tree: Tree) -> Tree:
    """Order, spacing, redundant brackets and the spelling of fractions taken away; nothing else."""
    if isinstance(tree, str):
        return tree
    head = tree[0]
    if head == "()":
        return written(tree[1])
    parts = [written(part) for part in tree[1:]]
    if head == "*":
        factors: list[Tree] = []
        for part, raw in zip(parts, tree[1:], strict=True):
            factors += part[1:] if is_quotient(raw) and part[0] == "*" else [part]
        over = [factor for factor in factors if factor[0] == "/"]
        factors = [factor for factor in factors if not (over and factor == ONE)]
        return ("*", *ordered(factors)) if len(factors) > 1 else factors[0] if factors else ONE
    if head == "+":
        return ("+", *ordered(parts))
    return (head, *parts)


def is_quotient(tree: Tree) -> bool:
    return tree[0] == "*" and any(part[0] == "/" for part in tree[1:])


def ordered(trees: list[Tree]) -> list[Tree]:
    return sorted(trees, key=repr)


def bare(tree: Tree) -> Tree:
    """Also without ones, zeros, brackets, doubled signs, and with the sides of an equation in one order."""
    if isinstance(tree, str):
        return tree
    head = tree[0]
    if head in ("()", "[]", "{}"):
        return bare(tree[1])
    if head == "-":
        return negated(bare(tree[1]))
    parts = [bare(part) for part in tree[1:]]
    match head:
        case "+":
            return bare_sum(parts)
        case "*":
            return bare_product(parts)
        case "/":
            return inverted(parts[0])
        case "^":
            return parts[0] if parts[1] == ONE else inverted(parts[0]) if parts[1] == MINUS_ONE else ("^", *parts)
        case "root":
            return ("^", parts[0], inverted(parts[1]))
        case "=" if all(side[0] != "=" for side in parts):
            difference = bare_sum([parts[0], negated(parts[1])])
            return ("=", min(difference, negated(difference), key=repr))
        case ">" | ">=":
            return (MIRRORED[head], parts[1], parts[0])
    return (head, *parts)


def bare_sum(parts: list[Tree]) -> Tree:
    terms = [term for part in parts for term in (part[1:] if part[0] == "+" else (part,)) if term != ZERO]
    return ("+", *ordered(terms)) if len(terms) > 1 else terms[0] if terms else ZERO


def bare_product(parts: list[Tree]) -> Tree:
    factors: list[Tree] = []
    negative = False
    for part in parts:
        for factor in part[1:] if part[0] == "*" else (part,):
            if factor == MINUS_ONE:
                negative = not negative
            elif factor != ONE:
                factors.append(factor)
    product: Tree = ("*", *ordered(factors)) if len(factors) > 1 else factors[0] if factors else ONE
    return negated(product) if negative else product


def negated(tree: Tree) -> Tree:
    if tree == ZERO:
        return tree
    if tree[0] == "+":
        return bare_sum([negated(term) for term in tree[1:]])
    if tree == ONE:
        return MINUS_ONE
    if tree == MINUS_ONE:
        return ONE
    if tree[0] == "*":
        factors = list(tree[1:])
        if MINUS_ONE in factors:
            factors.remove(MINUS_ONE)
            return ("*", *factors) if len(factors) > 1 else factors[0]
        return ("*", *ordered([MINUS_ONE, *factors]))
    return ("*", *ordered([MINUS_ONE, tree]))


def inverted(tree: Tree) -> Tree:
    if tree in (ONE, MINUS_ONE):
        return tree
    if tree[0] == "*":
        return bare_product([inverted(factor) for factor in tree[1:]])
    if tree[0] == "^" and tree[2] == MINUS_ONE:
        return tree[1]
    return ("^", tree, MINUS_ONE)


def subtrees(tree: Tree) -> list[Tree]:
    """The tree and everything in it, largest first."""
    found = [tree]
    for part in tree[1:] if isinstance(tree, tuple) else ():
        found += subtrees(part)
    return found


def contains(tree: Tree, other: Tree) -> bool:
    """Whether `other` stands in `tree`, as a part or as some of the terms or factors of a sum or product."""
    if tree == other:
        return True
    if isinstance(tree, str):
        return False
    if isinstance(other, tuple) and tree[0] == other[0] and tree[0] in ("+", "*"):
        left = list(tree[1:])
        if all(part in left and (left.remove(part) or True) for part in other[1:]):
            return True
    return any(contains(part, other) for part in tree[1:])


def size(tree: Tree) -> int:
    """How many numbers and names a tree holds."""
    return 1 if isinstance(tree, str) else sum(size(part) for part in tree[1:])
