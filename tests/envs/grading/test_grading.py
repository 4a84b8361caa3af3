"""Grading: which answer a message commits to, what counts as equal, and what hostile text can do to it: nothing."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hostile_messages import HOSTILE, Problem, mutated
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.envs.grading import extract_answer, final_answer, grade
from marft.envs.grading.answer_structure import parse_structure
from marft.envs.grading.boxed_answers import boxed_answers
from marft.envs.grading.comparison import canonical_text
from marft.envs.grading.latex_normalization import normalize_latex

HERE = Path(__file__).parent
DATA = HERE.parents[3] / "shared" / "data"
PROMPT = "Tom has 12 apples and buys 5 more. How many apples does Tom have if he had 17 before he gave 3 away?"
needs_data = pytest.mark.skipif(
    not (DATA / "math_test.jsonl").is_file(), reason="no GSM8K and MATH beside the repository"
)


def pairs(name: str) -> list[tuple[str, str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [(gold, answer) for gold, _, answer in (line.partition(" ||| ") for line in lines if line[0] != "#")]


def problems(stem: str) -> list[Problem]:
    rows = [json.loads(line) for line in (DATA / f"{stem}.jsonl").read_text(encoding="utf-8").splitlines()]
    if stem.startswith("gsm8k"):
        return [Problem(prompt=r["question"], solution=r["answer"], gold=r["answer"].split("####")[1]) for r in rows]
    found = [(row, list(boxed_answers(row["solution"]))) for row in rows]
    return [Problem(prompt=r["problem"], solution=r["solution"], gold=own[-1].text) for r, own in found if own]


# --- equality ---------------------------------------------------------------------------------------------------------
def test_the_tables_are_as_long_as_promised() -> None:
    assert len(pairs("equal.txt")) >= 130
    assert len(pairs("different.txt")) >= 300


@pytest.mark.parametrize(("gold", "answer"), pairs("equal.txt"))
def test_equal_answers_match(gold: str, answer: str) -> None:
    assert grade(rf"Therefore $\boxed{{{answer}}}$.", gold)


@pytest.mark.parametrize(("gold", "answer"), pairs("different.txt"))
def test_different_answers_do_not_match(gold: str, answer: str) -> None:
    assert not grade(rf"Therefore $\boxed{{{answer}}}$.", gold)


@given(st.fractions(max_denominator=10**6))
def test_a_fraction_equals_itself_in_every_form_and_no_neighbour(value: object) -> None:
    top, bottom = value.numerator, value.denominator  # type: ignore[attr-defined]
    gold = rf"\frac{{{top}}}{{{bottom}}}"
    forms = [gold, f"{top}/{bottom}", rf"\dfrac{{{2 * top}}}{{{2 * bottom}}}"]
    assert all(grade(rf"\boxed{{{form}}}", gold) for form in forms)
    assert len({final_answer(rf"\boxed{{{form}}}") for form in forms}) == 1
    assert not grade(rf"\boxed{{{top + bottom}/{bottom}}}", gold)
    assert not grade(rf"\boxed{{{-top}/{bottom}}}", gold) or top == 0


# --- which answer -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{3}, so in the end \boxed{4}", "4"),
        (r"\boxed{1}, \boxed{2}", "1, 2"),
        (r"$\boxed{1}$ or $\boxed{2}$", "1, 2"),
        (r"$\boxed{\frac12}$ or $\boxed{0.5}$", "0.5"),
        (r"\boxed{5} or 7", None),
        (r"$\boxed 5$.", "5"),
        (r"\boxed 5 \frac & 7", None),
        (r"\fbox{5}", "5"),
        (r"\boxed{\boxed{5}}", "{5}"),
        (r"\boxed{\frac{1}{2}} then \boxed{", r"\frac{1}{2}"),
        (r"Answer: 7, but \boxed{5}", "5"),
        ("Answer: 7", "7"),
        ("**Answer:** 7", "7"),
        ("The answer is 7.", "7"),
        ("The final answer is $x+1$, as we wished.", "x+1"),
        ("the answer is 7 because 3 + 4 = 7", "7"),
        ("Answer: 7\n\nNo wait.\nAnswer: 8", "8"),
        ("Answer: 7\nAnswer: 8", "7, 8"),
        ("Answer: 1, 2, 3", "1, 2, 3"),
        ("Answer:\n7", "7"),
        ("He pays 3 a day.\n#### 21", "21"),
        ("The answer is 8.\n#### 9", "9"),
        ("So Tom has 17 apples", "17"),
        ("one of 1, 2 and 3", "1, 2, 3"),
        (r"It is $\frac{1}{2} + 17$, I think, or so it seems", None),
        ("", None),
        ("no idea", None),
        (r"\boxed{}", None),
    ],
)
def test_one_answer_is_read(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "five"),
    [
        ("The answer is 5!", True),  # in prose the mark at the end is an exclamation
        ("The answer is 5! Great.", True),
        ("Answer: **5!**", True),
        ("So it is 5!", True),
        ("The answer is 5! ways.", False),
        ("There are 5! ways", False),
        ("Answer: $5!$", False),
        ("The answer is 5 apples left.", True),
        ("The answer is 5 less than six", False),
        ("The answer is 5 million.", False),
        ("The answer is $5$ million.", False),
        ("The answer is $5$ squared.", False),
        ("So Tom has 5 million apples", False),
        ("So Tom has 5 more apples", True),
    ],
)
def test_what_follows_a_number_in_prose_may_change_it(text: str, five: bool) -> None:
    assert grade(text, "5") is five


def test_a_bare_number_counts_for_numbers_only() -> None:
    assert grade("So Tom has 17 apples", "17")
    assert not grade("So Tom has x apples", "x")
    assert not grade("So there are 2 of them, 17", "(2, 17)")


@pytest.mark.parametrize("text", [PROMPT, PROMPT * 2, PROMPT.upper(), PROMPT[:40], PROMPT[20:], f"Q: {PROMPT}\nHm."])
def test_an_echo_of_the_prompt_commits_to_nothing(text: str) -> None:
    assert extract_answer(text, PROMPT) is None
    assert not any(grade(text, gold, PROMPT) for gold in ("12", "5", "17", "3"))


def test_an_answer_behind_an_echo_counts() -> None:
    assert grade(f"{PROMPT}\n14", "14", PROMPT)
    assert grade(f"{PROMPT}\nAnswer: 12", "12", PROMPT)
    assert grade("12", "12", PROMPT)


def test_the_questions_own_expression_is_no_answer() -> None:
    assert grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")
    assert not grade(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", r"Simplify $\sqrt8$.")
    assert grade(r"\boxed{2\sqrt{2}}", r"2\sqrt{2}", r"Simplify $\sqrt8$ to $2\sqrt2$.")


@pytest.mark.parametrize(
    "same",
    [
        (r"\boxed{0.5}", r"\boxed{\frac12}", "Answer: 1/2"),
        (r"\boxed{1,000}", "1000", r"\boxed{\$1000.00}"),
        (r"\boxed{3, -1}", r"\boxed{\{-1, 3\}}", "Answer: -1 and 3"),
        (r"\boxed{\text{(B)}}", r"\boxed{B}", "Answer: (B)"),
        (r"\boxed{x = 4}", r"\boxed{4 \text{ cm}}", "#### 4"),
    ],
)
def test_equal_answers_are_equal_votes(same: tuple[str, ...]) -> None:
    votes = [final_answer(text) for text in same]
    assert votes[0] is not None
    assert all(first == second for first, second in pairwise(votes))
    assert final_answer(r"\boxed{(1,2)}") != final_answer(r"\boxed{(2,1)}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"2\cdot3", "23"),
        (r"2\cdot\frac13", r"2\frac13"),
        ("1 2", "12"),
        ("5!", "5"),
        ("5 million", "5"),
        ("2x = 5", "5"),
        (r"\text{not} = 5", "5"),
        (r"5 \pmod 7", r"5 \pm od7"),
    ],
)
def test_different_answers_are_different_votes(one: str, other: str) -> None:
    votes = {final_answer(rf"\boxed{{{answer}}}") for answer in (one, other)}
    assert len(votes) == 2
    assert None not in votes


# --- gold solutions ---------------------------------------------------------------------------------------------------
@needs_data
@pytest.mark.parametrize("stem", ["gsm8k_train", "gsm8k_test", "math_train", "math_test"])
def test_gold_solutions_are_right(stem: str) -> None:
    sample = random.Random(stem).sample(problems(stem), 300)
    wrong = [p.gold for p in sample if not grade(p.solution, p.gold, p.prompt)]
    assert len(wrong) <= 1, wrong


@needs_data
def test_other_golds_are_wrong() -> None:
    rng = random.Random(0)
    golds = sorted({p.gold for p in problems("math_test")})
    for _ in range(300):
        one, other = rng.sample(golds, 2)
        if grade(rf"\boxed{{{other}}}", one):
            assert canonical_text(parse_structure(normalize_latex(one))) == canonical_text(
                parse_structure(normalize_latex(other))
            )


# --- hostile text -----------------------------------------------------------------------------------------------------
@needs_data
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_messages_earn_nothing(kind: str) -> None:
    own = problems("gsm8k_test")[:300] + problems("math_test")[:300]
    for seed in range(20 if kind in ("huge", "towers", "nested") else 250):
        rng = random.Random(f"{kind}/{seed}")
        problem = rng.choice(own)
        message = HOSTILE[kind](rng, problem)
        assert not grade(message, problem.gold, problem.prompt), (message, problem.gold)
        final_answer(message)


@needs_data
def test_mutated_solutions_are_read() -> None:
    own = problems("gsm8k_test")[:300]
    verdicts = [grade(mutated(random.Random(i), own[i]), own[i].gold, own[i].prompt) for i in range(300)]
    assert True in verdicts
    assert False in verdicts


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec=None)), st.sampled_from(["5", r"\frac{1}{2}", "(1,2)", "B", "", "x"]), st.text())
def test_any_text_is_read(text: str, gold: str, prompt: str) -> None:
    wrapped = rf"\boxed{{{text}}}"
    assert grade(text, gold, prompt) in (True, False)
    assert grade(text, text, prompt) in (True, False)
    assert final_answer(wrapped) is None or isinstance(final_answer(wrapped), str)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="\\{}()[]^_$,.=<>+-0123456789 x\x00\ud800boxedfractext", max_size=60))
def test_any_formula_is_read(text: str) -> None:
    parse_structure(normalize_latex(text))
    assert final_answer(rf"\boxed{{{text}}}") is None or extract_answer(rf"\boxed{{{text}}}") is not None


@pytest.mark.parametrize(
    "unit", ["answer is ", "Answer: 5\n", r"\boxed{", r"\boxed{1} ", "1, ", "{", "$", "#", "\\", "7", "777,", " and "]
)
def test_a_megabyte_of_anything_commits_to_nothing(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    assert not grade(text, "3", "how many apples? " * 1000)
    assert not grade(text, r"\sqrt{3}")


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, marft.envs.grading; print(*{'sympy', 'math_verify', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
