"""The question as its own answer: every formula of a prompt, copied and rewritten in ways that take no work."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$((?:\\.|[^$\\])+)\$|\\\[(.+?)\\\]", re.S)
EQUALS = re.compile(r"(?<![<>!\\])=")
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
SLASH = re.compile(r"(\w+)/(\w+)")

REWRITES: dict[str, Callable[[str], str]] = {
    "copy": lambda q: q,
    "one times": lambda q: rf"1\cdot({q})",
    "times one": lambda q: rf"({q})\times 1",
    "one beside": lambda q: f"1({q})",
    "star one": lambda q: f"({q})*1",
    "plus zero": lambda q: f"{q}+0",
    "zero plus": lambda q: f"0+{q}",
    "minus zero": lambda q: f"({q})-0",
    "round brackets": lambda q: f"({q})",
    "square brackets": lambda q: f"[{q}]",
    "braces": lambda q: f"{{{{{q}}}}}",
    "sized brackets": lambda q: rf"\left({q}\right)",
    "big brackets": lambda q: rf"\Big({q}\Big)",
    "twice in brackets": lambda q: rf"\left(({q})\right)",
    "over one": lambda q: rf"\frac{{{q}}}{{1}}",
    "slash one": lambda q: f"({q})/1",
    "divided by one": lambda q: rf"({q})\div 1",
    "to the first": lambda q: f"({q})^1",
    "to the first, braced": lambda q: rf"\left({q}\right)^{{1}}",
    "twice negated": lambda q: f"-(-({q}))",
    "minus one twice": lambda q: rf"(-1)\cdot(-1)\cdot({q})",
    "two over two": lambda q: rf"\frac{{2({q})}}{{2}}",
    "two halves": lambda q: rf"\frac{{2}}{{2}}\cdot({q})",
    "plus one minus one": lambda q: f"({q})+1-1",
    "one minus one plus": lambda q: f"1-1+({q})",
    "root of the square": lambda q: rf"\sqrt{{({q})^2}}",
    "square of the root": lambda q: rf"(\sqrt{{{q}}})^2",
    "twice inverted": lambda q: rf"\frac{{1}}{{\frac{{1}}{{{q}}}}}",
    "half and half": lambda q: rf"\frac{{{q}}}{{2}}+\frac{{{q}}}{{2}}",
    "display style": lambda q: rf"\displaystyle {q}",
    "spaces": lambda q: q.replace("+", r"\, + \,").replace("-", " - ").replace("(", "( "),
    "large fractions": lambda q: q.replace(r"\frac", r"\dfrac"),
    "slashes": lambda q: FRACTION.sub(r"(\1)/(\2)", q),
    "fractions": lambda q: SLASH.sub(r"\\frac{\1}{\2}", q),
    "dots": lambda q: q.replace(r"\times", r"\cdot").replace("*", r"\cdot "),
    "named": lambda q: f"x = {q}",
    "function": lambda q: f"f(x) = {q}",
    "left side": lambda q: EQUALS.split(q)[0],
    "right side": lambda q: EQUALS.split(q)[-1],
    "sides swapped": lambda q: "=".join(reversed(EQUALS.split(q))),
    "all on one side": lambda q: "-(".join(EQUALS.split(q)) + ")=0" if len(EQUALS.findall(q)) == 1 else q,
    "sides doubled": lambda q: "=".join(f"2({side})" for side in EQUALS.split(q)) if EQUALS.search(q) else q,
    "commuted": lambda q: "+".join(reversed(terms(q))),
    "commuted factors": lambda q: re.sub(r"(\([^()]*\))(\([^()]*\))", r"\2\1", q),
    "in words": lambda q: rf"\text{{the value of }} {q}",
    "itself": lambda q: f"{q} = {q}",
    "dressed as text": lambda q: rf"\text{{{q}}}",
    "boxed again": lambda q: rf"\boxed{{{q}}}",
    "one times the side": lambda q: rf"1\cdot({EQUALS.split(q)[-1]})",
}


def terms(formula: str) -> list[str]:
    """The terms of a sum, where no plus stands in a bracket."""
    depth, start, found = 0, 0, []
    for at, letter in enumerate(formula):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "+" and depth == 0:
            found.append(formula[start:at])
            start = at + 1
    return [*found, formula[start:]]


def formulas(prompt: str) -> list[str]:
    """Every formula of a prompt that says more than a number or a name."""
    prompt = re.sub(r"\[asy\].*?\[/asy\]", "", prompt, flags=re.S)
    found = [next(filter(None, match.groups())).strip(" .,\n") for match in FORMULA.finditer(prompt)]
    return [f for f in dict.fromkeys(found) if re.search(r"[-+*/^=]|\\[a-z]+|\w\(", f) and len(f) > 2]


def attacks(prompt: str, gold: str, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """The copy and `count` other rewrites of every formula but the gold itself, as (kind, message)."""
    for formula in formulas(prompt):
        if squeezed(gold) == squeezed(formula):
            continue
        for kind in ("copy", *rng.sample(list(REWRITES)[1:], min(count, len(REWRITES) - 1))):
            text = REWRITES[kind](formula)
            if squeezed(text) != squeezed(gold):
                yield kind, rf"\boxed{{{text}}}"


def squeezed(text: str) -> str:
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"[\s{}]|\\left|\\right|\\[,;!]", "", text).strip(".")
