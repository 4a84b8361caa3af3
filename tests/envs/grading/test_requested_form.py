"""The question as its own answer, and answers short of the form that is asked for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rewrites import REWRITES, attacks

from marft.envs.grading import grade
from marft.envs.grading.boxed_answers import boxed_answers
from marft.envs.grading.expression_parser import parse_expression
from marft.envs.grading.latex_normalization import normalize_latex
from marft.envs.grading.tree_normalization import reduced_tree, spelling_tree

DATA = Path(__file__).parents[4] / "shared" / "data"
QUESTIONS = [
    (r"Simplify $\frac{24}{36}$.", r"\frac{24}{36}", r"\frac{2}{3}"),
    ("Compute $91^2$.", "91^2", "8281"),
    (r"Simplify $\sqrt{8}$.", r"\sqrt{8}", r"2\sqrt{2}"),
    ("Expand $(x+1)(x+2)$.", "(x+1)(x+2)", "x^2+3x+2"),
    ("Factor $x^2-4$.", "x^2-4", "(x-2)(x+2)"),
    (r"Simplify $\frac{x^2-1}{x-1}$.", r"\frac{x^2-1}{x-1}", "x+1"),
    (r"Rationalize the denominator of $\frac{1}{\sqrt{3}}$.", r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    ("What is the circle $x^2+y^2-4x=0$ in standard form?", "x^2+y^2-4x=0", "(x-2)^2+y^2=4"),
    (r"Evaluate $\sin 60^\circ$.", r"\sin 60^\circ", r"\frac{\sqrt{3}}{2}"),
    (r"Compute $\binom{5}{2}$.", r"\binom{5}{2}", "10"),
    (r"Find the sum $2x + 3x + 1$.", "2x + 3x + 1", "5x+1"),
    ("Simplify 24/36.", "24/36", r"\frac{2}{3}"),
]
TRIVIAL = [
    kind for kind in REWRITES if kind not in ("in words", "dressed as text", "boxed again", "itself", "left side")
][:22]


@pytest.mark.parametrize(("prompt", "formula", "gold"), QUESTIONS)
def test_a_formula_of_the_prompt_is_no_answer_however_it_is_rewritten(prompt: str, formula: str, gold: str) -> None:
    messages = {kind: rf"\boxed{{{rewrite(formula)}}}" for kind, rewrite in REWRITES.items()}
    assert [kind for kind, message in messages.items() if grade(message, gold, prompt)] == []
    assert grade(rf"\boxed{{{gold}}}", gold, prompt)


def test_a_formula_of_the_prompt_is_right_where_it_is_the_gold() -> None:
    prompt = "Which of $x^2+1$ and $x^2-1$ has no real root?"
    assert grade(r"\boxed{x^2+1}", "x^2+1", prompt)
    assert grade(r"\boxed{1+x^2}", "x^2+1", prompt)
    assert not grade(r"\boxed{x^2-1}", "x^2+1", prompt)


def test_other_work_on_the_prompt_is_an_answer() -> None:
    assert grade(r"\boxed{(x^2+1)^2+1}", "x^4+2x^2+2", "Let $f(x)=x^2+1$. Find $f(f(x))$.")
    assert grade(r"\boxed{\sqrt{12}}", r"2\sqrt{3}", "How long is the side?")


@pytest.mark.parametrize(
    ("prompt", "gold", "short", "done"),
    [
        ("Write it in lowest terms.", r"\frac{2}{3}", r"\frac{4}{6}", "2/3"),
        ("Express your answer as a common fraction.", r"\frac{3}{4}", r"\frac{75}{100}", "0.75"),
        ("Compute it.", "1024", "2^{10}", "1,024"),
        ("Evaluate it.", "5", "10/2", "5.0"),
        ("Write 3/5 as a decimal.", "0.6", r"\frac{3}{5}", ".6"),
        ("Write 50% as a decimal.", "0.5", r"50\%", "0.50"),
        ("Write 0.6 as a fraction.", r"\frac{3}{5}", "0.6", "3/5"),
        ("Write it as a mixed number.", r"3\frac{1}{2}", r"\frac{7}{2}", "3 1/2"),
        ("Write it as an improper fraction.", r"\frac{7}{2}", r"3\frac{1}{2}", "7/2"),
        ("Write it in scientific notation.", r"1.5\times10^3", "1500", r"1.5\cdot10^{3}"),
        ("Expand the product.", "x^2+3x+2", "x(x+3)+2", "2+3x+x^2"),
        ("Expand the square.", "x^2+2x+1", "(x+1)^2", "1+2x+x^2"),
        ("Factor completely.", "(x-2)(x+2)(x^2+4)", "(x^2-4)(x^2+4)", "(x^2+4)(x+2)(x-2)"),
        ("Factor completely.", "2(x-2)(x+2)", "(2x-4)(x+2)", "2(x+2)(x-2)"),
        ("Simplify.", "5x", "3x+2x", r"5\cdot x"),
        ("Simplify.", "x^3", r"x\cdot x^2", "{x}^{3}"),
        ("Simplify.", r"2\sqrt{3}", r"\sqrt{12}", r"\sqrt{3}\cdot2"),
        ("Simplify.", r"\sqrt{6}", r"\sqrt{2}\cdot\sqrt{3}", r"\sqrt6"),
        ("Simplify.", r"\frac{x}{2}", r"\frac{2x}{4}", "x/2"),
        ("Rationalize the denominator.", r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt2}", r"\frac12\sqrt2"),
        ("Compute the sine.", r"\frac{\sqrt3}{2}", r"\cos 30^\circ", r"\frac12\sqrt{3}"),
    ],
)
def test_the_form_that_is_asked_for(prompt: str, gold: str, short: str, done: str) -> None:
    assert not grade(rf"\boxed{{{short}}}", gold, prompt)
    assert grade(rf"\boxed{{{done}}}", gold, prompt)


def test_a_function_with_an_exponent_below_is_read() -> None:
    assert grade(r"\boxed{\frac{1}{\sin^2 x}}", r"1+\cot^2 x", "Simplify it.")


@pytest.mark.skipif(not (DATA / "math_test.jsonl").is_file(), reason="no MATH beside the repository")
def test_rewritten_formulas_of_math_earn_nothing() -> None:
    rows = [json.loads(line) for line in (DATA / "math_test.jsonl").read_text(encoding="utf-8").splitlines()[::20]]
    cases = won = 0
    for n, row in enumerate(rows):
        gold = list(boxed_answers(row["solution"]))[-1].text
        for _, message in attacks(row["problem"], gold, random.Random(n), 3):
            cases += 1
            won += grade(message, gold, row["problem"])
    assert cases > 1_000
    assert won <= 0.001 * cases


# --- trees ------------------------------------------------------------------------------------------------------------
ATOMS = st.sampled_from(["x", "y", "2", "13", "0.5", r"\pi", r"\sqrt{2}", r"\frac{1}{3}", "x^2"])
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: st.builds(
        lambda one, sign, other: f"({one}){sign}({other})", inner, st.sampled_from(["+", "-", r"\cdot ", "/"]), inner
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(FORMULAS, st.sampled_from(TRIVIAL[:21]))
def test_trivial_rewrites_have_one_bare_tree(formula: str, kind: str) -> None:
    one, other = (
        parse_expression(normalize_latex(formula)),
        parse_expression(normalize_latex(REWRITES[kind](f"({formula})"))),
    )
    assert one is not None
    assert other is not None
    assert reduced_tree(one) == reduced_tree(other)


@settings(max_examples=150, deadline=None)
@given(FORMULAS, FORMULAS)
def test_order_is_spelling_and_a_term_more_is_not(one: str, other: str) -> None:
    trees = [
        parse_expression(normalize_latex(text))
        for text in (f"({one})+({other})", f"({other})+({one})", f"({one})+({other})+1")
    ]
    first, second, third = (spelling_tree(tree) for tree in trees if tree is not None)
    assert first == second
    assert first != third


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="\\{}()[]|^_+-*/=<>,0123456789 xfracsqt'!%", max_size=80))
def test_any_text_has_a_tree_or_none(text: str) -> None:
    tree = parse_expression(normalize_latex(text))
    if tree is not None:
        assert reduced_tree(tree)
        assert spelling_tree(tree)
