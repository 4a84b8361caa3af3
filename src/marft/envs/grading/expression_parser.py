"""The tree of a formula as it stands: no value is worked out here, and nothing but structure is read."""

from __future__ import annotations

import re
from functools import lru_cache

from marft.envs.grading.latex_normalization import SET_CLOSE, SET_OPEN, TEXT_CLOSE, TEXT_OPEN

Tree = str | tuple["Tree", ...]  # a number or a name, or an operation and what it is done to

MAX_TOKENS = 400
MAX_DEPTH = 40
TOKEN = re.compile(
    rf"(?s)\\begin\{{(\w+)\}}.*?\\end\{{\1\}}|{TEXT_OPEN}[^{TEXT_CLOSE}]*{TEXT_CLOSE}|\\[A-Za-z]+|\d+(?:\.\d+)?|\.\d+"
    r"|<=|>=|[A-Za-z]'*|\S",
)
RELATIONS = {"=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", r"\ne": "!=", r"\equiv": "=="}
TIMES, DIVIDED = (r"\cdot", "·"), ("/", ":")
CLOSES = {"(": ")", "[": "]", "{": "}", SET_OPEN: SET_CLOSE}
FUNCTIONS = {rf"\{name}" for name in ("arcsin", "arccos", "arctan", "log", "ln", "exp", "lg", "det", "gcd", "deg")}
FUNCTIONS |= {rf"\{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc")}


class NotAnExpression(Exception):
    """No formula that this grammar knows."""


class ExpressionParser:
    """Recursive descent over tokens: lists, relations, sums, products, powers."""

    def __init__(self, text: str) -> None:
        self.tokens = [found[0] for found in TOKEN.finditer(text)][: MAX_TOKENS + 1]
        if len(self.tokens) > MAX_TOKENS:
            raise NotAnExpression
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next
        if not token:
            raise NotAnExpression
        self.at += 1
        return token

    def whole(self) -> Tree:
        tree = self.listing("")
        if self.next:
            raise NotAnExpression
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
            raise NotAnExpression
        tree = self.operand()
        self.depth -= 1
        return tree

    def operand(self) -> Tree:
        token = self.take()
        if token in CLOSES:
            inside = self.listing(CLOSES[token])
            closing = self.take()
            if closing not in (")", "]", "}", SET_CLOSE):
                raise NotAnExpression
            plain = token + closing in ("()", "[]", "{}")
            is_list = isinstance(inside, tuple) and inside[0] == ","
            return inside if token == "{" else ("()", inside) if plain and not is_list else (token + closing, inside)
        if token == "|":
            inside = self.listing("|")
            if self.take() != "|":
                raise NotAnExpression
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
            raise NotAnExpression
        return normalized_token(token)

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
            raise NotAnExpression
        inner: Tree = ("*", *arguments) if len(arguments) > 1 else arguments[0]
        return ("call", name, *extra, inner)


def normalized_token(token: str) -> Tree:
    if not re.fullmatch(r"\d+(?:\.\d+)?|\.\d+", token):
        return re.sub(r"\s+", "", token)
    whole, _, decimals = token.partition(".")
    decimals = decimals.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{decimals}" if decimals else "")


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Tree | None:
    """The tree of a cleaned formula as it stands, None for what is none."""
    try:
        return ExpressionParser(text).whole()
    except (NotAnExpression, RecursionError):
        return None
