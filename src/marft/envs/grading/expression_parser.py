"""The tree of a formula as it stands: no value is worked out here, and nothing but structure is read."""

from __future__ import annotations

import re
from collections.abc import Callable
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
TIMES, DIVIDED, POSTFIX = (r"\cdot", "·"), ("/", ":"), ("!", "%", "°")
CLOSES = {"(": ")", "[": "]", "{": "}", SET_OPEN: SET_CLOSE}
ENDS_PRODUCT = {*"+-,;", r"\pm", *CLOSES.values(), *RELATIONS}
FUNCTIONS = {rf"\{name}" for name in ("arcsin", "arccos", "arctan", "log", "ln", "exp", "lg", "det", "gcd", "deg")}
FUNCTIONS |= {rf"\{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc")}
NUMBER = re.compile(r"(\d*)(?:\.(\d+))?")
ATOM = re.compile(r"\\\w+|[\d.]+|[A-Za-z]'*|⟪.*⟫|\\begin.*|∞|\d", re.S)
UNBRACKETED = re.compile(r"[\d.]+|[A-Za-z]'*|\\(?:frac|sqrt|pi|theta|alpha|beta)")  # arguments, as in \sin 2x


class NotAnExpression(Exception):
    """No formula that this grammar knows."""


class ExpressionParser:
    """Recursive descent over tokens: lists, relations, sums, products, powers. `end` is the token that ends a part."""

    def __init__(self, text: str) -> None:
        self.tokens = [found[0] for found in TOKEN.finditer(text)][: MAX_TOKENS + 1]
        if len(self.tokens) > MAX_TOKENS:
            raise NotAnExpression
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> str:
        """The token that comes next, empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        """The next token, which must be there."""
        if not (token := self.next):
            raise NotAnExpression
        self.at += 1
        return token

    def accept(self, *wanted: str) -> str:
        """The next token if it is one of those that are wanted, else nothing."""
        return self.take() if self.next in wanted else ""

    def list_until(self, end: str) -> Tree:
        """Parts between commas, or the only one."""
        items = [self.relation(end)]
        while self.next != end and self.accept(",", ";"):
            items.append(self.relation(end))
        return items[0] if len(items) == 1 else (",", *items)

    def relation(self, end: str) -> Tree:
        """Sums with `=`, `<` and the like between them."""
        tree = self.sum(end)
        while sign := self.accept(*RELATIONS):
            tree = (RELATIONS[sign], tree, self.sum(end))
        return tree

    def sum(self, end: str) -> Tree:
        """Terms with their signs."""
        terms: list[Tree] = []
        while True:
            negative = False
            while sign := self.accept("+", "-"):
                negative ^= sign == "-"
            term = self.product(end)
            terms.append(("-", term) if negative else term)
            if self.accept(r"\pm"):
                terms.append(r"\pm")
            elif self.next not in ("+", "-"):
                return terms[0] if len(terms) == 1 else ("+", *terms)

    def product(self, end: str) -> Tree:
        """Factors with or without a sign between them; a divisor is `("/", factor)`."""
        factors = [self.power(end)]
        while self.next and self.next != end and self.next not in ENDS_PRODUCT:
            if self.accept(*TIMES):
                factors.append(self.signed(lambda: self.power(end)))
            elif self.accept(*DIVIDED):
                factors.append(("/", self.signed(lambda: self.power(end))))
            else:
                factors.append(self.power(end))
        return factors[0] if len(factors) == 1 else ("*", *factors)

    def signed(self, part: Callable[[], Tree]) -> Tree:
        """A part that may have a minus before it."""
        return ("-", part()) if self.accept("-") else part()

    def power(self, end: str) -> Tree:
        """An operand with its exponents, indices and signs behind it."""
        tree = self.operand()
        while (token := self.next) != end:
            if self.accept("^", "_"):
                tree = (token, tree, self.signed(self.operand))
            elif self.accept(*POSTFIX):
                tree = (token, tree)
            else:
                break
        return tree

    def operand(self) -> Tree:
        """A number, a name, a bracket, or a command with its arguments."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotAnExpression
        tree = self.operand_of(self.take())
        self.depth -= 1
        return tree

    def operand_of(self, token: str) -> Tree:
        """The operand that begins with `token`."""
        if token in CLOSES:
            inside, closing = self.list_until(CLOSES[token]), self.take()
            if closing not in CLOSES.values():
                raise NotAnExpression
            if token == "{":
                return inside
            return ("()" if inside[0] != "," and token + closing in ("()", "[]") else token + closing, inside)
        if token == "|":
            inside = self.list_until("|")
            if not self.accept("|"):
                raise NotAnExpression
            return ("abs", inside)
        if token == r"\frac":
            return ("*", self.operand(), ("/", self.operand()))
        if token in (r"\binom", r"\choose"):
            return (token, self.operand(), self.operand())
        if token == r"\sqrt":
            index = self.operand() if self.next == "[" else "2"
            return ("root", self.operand(), index)
        if token in FUNCTIONS:
            return self.call(token)
        if not ATOM.fullmatch(token):
            raise NotAnExpression
        if number := NUMBER.fullmatch(token):
            decimals = (number[2] or "").rstrip("0")
            return (number[1].lstrip("0") or "0") + (f".{decimals}" if decimals else "")
        return re.sub(r"\s+", "", token)

    def call(self, name: str) -> Tree:
        """A function with its exponent or index, and its argument."""
        extra: list[Tree] = []
        while sign := self.accept("^", "_"):
            extra += [sign, self.signed(self.operand)]
        arguments: list[Tree] = []
        if self.next in ("(", "{", "["):
            arguments = [self.operand()]
        else:
            while UNBRACKETED.fullmatch(self.next):
                arguments.append(self.power(""))
        if not arguments:
            raise NotAnExpression
        inner: Tree = ("*", *arguments) if len(arguments) > 1 else arguments[0]
        return ("call", name, *extra, inner)


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Tree | None:
    """The tree of a cleaned formula as it stands, None for what is none."""
    try:
        parser = ExpressionParser(text)
        tree = parser.list_until("")
    except (NotAnExpression, RecursionError):
        return None
    return None if parser.next else tree
