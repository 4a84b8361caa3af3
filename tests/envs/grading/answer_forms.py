"""Ways to say a right answer, and ways to say something else that looks like one: messages by kind, each with its gold.

`{n}` is the gold, `{m}` another number; every template is filled with each of a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EGGS = "Janet's ducks lay 16 eggs a day. She sells what is left for $2 each. How much does she make, in dollars?"
TRIP = "A train leaves at noon and goes 60 miles an hour. How many hours does the trip take?"
PLAIN = "How many ways are there?"
NUMBERS = ((4, 3), (18, 23))


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A message of some kind with the gold it is graded against."""

    kind: str
    message: str
    gold: str
    prompt: str = ""


# --- wrong ------------------------------------------------------------------------------------------------------------
WRONG_NUMBERS: dict[str, tuple[str, ...]] = {
    "is not": ("The answer is not {n}.", "It is not {n}.", "So it is not {n}", r"The answer is not $\boxed{{{n}}}$."),
    "isn't": ("The answer isn't {n}.", "The answer isn’t {n}.", "It isn't {n}.", r"It isn't $\boxed{{{n}}}$."),
    "cannot be": ("It can't be {n}.", "It cannot be {n}.", "The answer can not be {n}.", "The total couldn't be {n}."),
    "never": ("The answer is never {n}.", "It is never {n}.", "It will never be {n}."),
    "no longer": ("It is no longer {n}.", "The answer is no longer {n}."),
    "neither": ("It is neither {n} nor {m}.", "The answer is neither {m} nor {n}.", "It is neither {m} nor {n}"),
    "does not equal": ("x does not equal {n}.", "The sum doesn't equal {n}", "The total won't be {n}."),
    "unequal sign": (r"\boxed{{\neq {n}}}", r"\boxed{{x \neq {n}}}", r"\boxed{{\ne {n}}}", r"\boxed{{x \not= {n}}}"),
    "wrong behind": ("{n} is wrong.", "The answer {n} is wrong.", r"\boxed{{{n}}} is wrong.", "The answer is {n}? Wrong."),
    "incorrect behind": ("{n} is incorrect", r"\boxed{{{n}}} is incorrect.", r"$\boxed{{{n}}}$ is not correct."),
    "false behind": ("That the answer is {n} is false.", r"\boxed{{{n}}} is false.", "It is false that the answer is {n}."),
    "not the answer": ("{n} is not the answer.", r"\boxed{{{n}}} is not the answer.", "${n}$ isn't the answer."),
    "not true that": ("It is not true that the answer is {n}.", "It isn't the case that the answer is {n}."),
    "doubt": ("I doubt that the answer is {n}.", "I doubt the answer is {n}", "I don't think the answer is {n}."),
    "nobody": ("Nobody says the answer is {n}", "I can't say the answer is {n}."),
    "if": ("If the answer is {n}, I am surprised", "Suppose the answer is {n}.", "Unless the answer is {n}."),
    "asked back": ("Is the answer {n}? No.", "The answer is {n}? No, it is not.", "Could it be {n}? No."),
    "taken back": ("The answer is {n}. No, wait, it is {m}.", "The answer is {n}. Just kidding.", "Answer: {n}, not really."),
    "anything but": ("It is anything but {n}.", "The answer is anything but {n}", r"It is anything but $\boxed{{{n}}}$."),
    "other than": ("The answer is something other than {n}.", "It is a number other than {n}."),
    "instead of": ("It is something else instead of {n}", "We get {m} rather than {n}", "It is {m} instead of {n}."),
    "ruled out": ("We ruled out {n}.", "{n} is ruled out.", r"\boxed{{{n}}} is ruled out.", "This excludes {n}."),
    "rejected": ("{n} is rejected.", "We reject {n}.", r"\boxed{{{n}}} was rejected.", "{n} has been refuted."),
    "denied in the box": (r"\boxed{{{n}\text{{ wrongly}}}}", r"\boxed{{{n}\text{{ refuted}}}}", r"\boxed{{{n} \text{{ is false}}}}",
                          r"\boxed{{\text{{not }} {n}}}", r"\boxed{{{n} \text{{ rejected}}}}", r"\boxed{{{n} \text{{ denied}}}}"),
    "denied behind a label": ("Answer: {n} wrongly", "Answer: {n} mistakenly", "Answer: {n} falsely", "Answer: {n} disproved",
                              "Answer: not {n}", "#### not {n}", "Answer: {n} incorrectly"),
    "at least": ("It is at least {n}.", "The answer is at least {n}", r"\boxed{{\text{{at least }} {n}}}", "It is at most {n}."),
    "more than": ("It is more than {n}.", "The answer is less than {n}.", "There are fewer than {n}.", "It is over {n}"),
    "inequality": (r"\boxed{{> {n}}}", r"\boxed{{x > {n}}}", r"\boxed{{x \ge {n}}}", "Answer: x < {n}", r"\boxed{{\le {n}}}"),
    "nearly": ("It is nearly {n}.", "The answer is almost {n}", "It is close to {n}.", "It is just short of {n}"),
    "between": ("It lies between {m} and {n}.", "The answer is between {m} and {n}", "between {n} and {m}"),
    "range with a hyphen": ("{m}-{n} apples", "The answer is {m}-{n}.", r"\boxed{{{m}-{n}}}", "So he needs {m}-{n} apples"),
    "range with a dash": ("{m}–{n} apples", "The answer is {m}–{n}", r"\boxed{{{m}–{n}}}", "It takes {m}—{n} days"),
    "range in words": ("{m} to {n} apples", "from {m} to {n}", "The answer is {m} to {n}", "{m} through {n}", r"\boxed{{{m}\text{{ to }}{n}}}"),
    "tilde": ("{m}~{n} apples", r"\boxed{{{m}\sim{n}}}", r"\boxed{{{m} \ldots {n}}}"),
    "or": ("{m} or {n}", "The answer is {m} or {n}.", r"\boxed{{{m}}} or \boxed{{{n}}}", r"\boxed{{{n}}} or {m}", "Answer: {n} or {m}"),
    "or else": ("The answer is {n}. Or maybe {m}.", r"\boxed{{{n}}}, or perhaps {m}.", "Answer: {n} (or {m})", r"\boxed{{{n}}}, alternatively {m}"),
    "list": ("{m}, {n}", "Answer: {m}, {n}", r"\boxed{{{m}, {n}}}", r"\boxed{{\{{{m}, {n}\}}}}", "{m} and {n}"),
    "pair": (r"\boxed{{({m}, {n})}}", r"\boxed{{[{n}, {m}]}}", "Answer: ({m},{n})", r"\boxed{{{m};{n}}}"),
    "tags": ("<answer>{m} or {n}</answer>", "<answer>not {n}</answer>", "<answer>{m}-{n}</answer>", "<answer>{n}</answer> is wrong"),
    "boxes divided": (r"\boxed{{{m}}} / \boxed{{{n}}}", r"$\boxed{{{m}}} \div \boxed{{{n}}}$", r"\boxed{{{m}}}:\boxed{{{n}}}"),
    "boxes added": (r"\boxed{{{m}}} + \boxed{{{n}}}", r"$\boxed{{{m}}}+\boxed{{{n}}}$", r"\boxed{{{m}}} plus \boxed{{{n}}}"),
    "boxes subtracted": (r"\boxed{{{m}}} - \boxed{{{n}}}", r"\boxed{{{m}}}-\boxed{{{n}}}", r"\boxed{{{m}}} minus \boxed{{{n}}}"),
    "boxes multiplied": (r"\boxed{{{m}}} \cdot \boxed{{{n}}}", r"\boxed{{{m}}}\times\boxed{{{n}}}", r"\boxed{{{m}}}*\boxed{{{n}}}"),
    "boxes as a range": (r"\boxed{{{m}}} to \boxed{{{n}}}", r"\boxed{{{m}}}–\boxed{{{n}}}", r"\boxed{{{m}}}\ldots\boxed{{{n}}}"),
    "box in an expression": (r"-\boxed{{{n}}}", r"$x = -\boxed{{{n}}}$", r"$2\cdot\boxed{{{n}}}$", r"$\sqrt{{\boxed{{{n}}}}}$", r"$\boxed{{{n}}}^2$",
                             r"$\boxed{{{n}}}!$", r"$\boxed{{{n}}} + 1$", r"$\boxed{{{n}}}/2$", r"$\frac{{\boxed{{{n}}}}}{{2}}$"),
    "scale behind a box": (r"\boxed{{{n}}} million", r"$\boxed{{{n}}}$ thousand", r"\boxed{{{n}}} dozen", r"\boxed{{{n}}} hundred"),
    "large scale": ("Answer: {n} million", r"\boxed{{{n}\text{{ billion}}}}", "So he has {n} thousand", "The answer is {n} trillion."),
    "Indian scale": ("Answer: {n} lakh", r"\boxed{{{n}\text{{ crore}}}}", "So he has {n} lakh", "The answer is {n} crore rupees."),
    "old scale": ("Answer: {n} gross", r"\boxed{{{n}\text{{ score}}}}", "So he has {n} dozen", r"\boxed{{{n} \text{{ myriad}}}}"),
    "invented scale": ("Answer: {n} gazillion", r"\boxed{{{n}\text{{ zillion}}}}", "It is {n} bajillion", "Answer: {n} googol"),
    "suffix": (r"\boxed{{{n}K}}", r"\boxed{{{n}\text{{M}}}}", "Answer: {n}k", r"\boxed{{{n}\text{{bn}}}}", "Answer: {n}e3"),
    "doubled": ("Answer: {n} doubled", r"\boxed{{{n}\text{{ doubled}}}}", "So it is {n} doubled.", "Answer: {n} tripled", "Answer: twice {n}"),
    "halved": ("Answer: {n} halved", r"\boxed{{{n}\text{{ halved}}}}", "half of {n}", "Answer: half {n}", "Answer: {n} quartered"),
    "squared": ("Answer: {n} squared", r"\boxed{{{n}\text{{ squared}}}}", "So it is {n} cubed", "Answer: {n} factorial", r"\boxed{{{n}!}}"),
    "negated": ("Answer: minus {n}", "Answer: negative {n}", r"\boxed{{-{n}}}", r"\boxed{{\text{{negative }}{n}}}", "It is minus {n}", "Answer: {n} negated"),
    "plus": ("Answer: {n} plus {m}", r"\boxed{{{n}+{m}}}", "It is {m} plus {n}", "{m} + {n}", "Answer: {n} + 1"),
    "times": ("{m} times {n}", r"\boxed{{{m}\cdot{n}}}", "It is {m} x {n}", "{m} * {n}", "Answer: {n} times {m}", r"\boxed{{{m}\times{n}}}"),
    "divided": ("{m} divided by {n}", r"\boxed{{{m}/{n}}}", "{m} out of {n}", "Answer: {m} / {n}", r"\boxed{{\frac{{{m}}}{{{n}}}}}"),
    "powers": (r"\boxed{{{n}^2}}", r"\boxed{{{n}^{{3}}}}", "Answer: {n}^2", r"\boxed{{{n}²}}", "Answer: {n}**2"),
    "fractions of it": (r"\boxed{{{n}\frac12}}", r"\boxed{{{n}\text{{ and a half}}}}", "It is {n} and a half", r"\boxed{{{n}.5}}", "Answer: {n} thirds", "Answer: {n} halves"),
    "digits around": (r"\boxed{{{n}0}}", r"\boxed{{1{n}}}", r"\boxed{{{n}{n}}}", r"\boxed{{0.{n}}}", "Answer: {n}00", r"\boxed{{.{n}}}"),
    "digits apart": (r"\boxed{{{n} {n}}}", r"\boxed{{{n}\ {m}}}", r"\boxed{{{n}\quad{m}}}", r"\boxed{{{n} \mid {m}}}", r"\boxed{{{m}\\{n}}}"),
    "letters beside": (r"\boxed{{{n}x}}", r"\boxed{{{n}y}}", r"\boxed{{x{n}}}", r"\boxed{{{n}i}}", r"\boxed{{{n}\pi}}", r"\boxed{{{n}n}}"),
    "roots": (r"\boxed{{\sqrt{{{n}}}}}", r"\boxed{{\sqrt[3]{{{n}}}}}", "Answer: the square root of {n}", r"\boxed{{√{n}}}", r"\boxed{{{n}\sqrt{{2}}}}"),
    "functions": (r"\boxed{{\log {n}}}", r"\boxed{{\sin {n}}}", r"\boxed{{\ln({n})}}", r"\boxed{{e^{{{n}}}}}", r"\boxed{{\binom{{{n}}}{{2}}}}"),
    "equations": (r"\boxed{{2x = {n}}}", r"\boxed{{x + 1 = {n}}}", r"\boxed{{x^2 = {n}}}", r"\boxed{{{m} = {n}}}", r"\boxed{{x = {m} = {n}}}"),
    "congruence": (r"\boxed{{{n} \pmod 7}}", r"\boxed{{{n} \bmod 3}}", "Answer: {n} mod 3"),
    "bases": (r"\boxed{{{n}_5}}", r"\boxed{{({n})_{{7}}}}", "Answer: {n} base 8"),
    "plus or minus": (r"\boxed{{\pm {n}}}", r"\boxed{{{n} \pm 1}}", "Answer: ±{n}", "Answer: {n} give or take"),
    "and more": ("{n} or more", "Answer: {n} or so", r"\boxed{{{n}+}}", "It is {n} and counting", "Answer: {n} at most", "Answer: {n}-ish"),
    "time of day": ("So it is {n}:30", "Answer: {n}:{m}0", "It happens at 5:{m}{n}"),
    "earlier box": (r"\boxed{{{n}}} was my first guess, but the answer is \boxed{{{m}}}.", r"First $\boxed{{{n}}}$. In the end $\boxed{{{m}}}$"),
    "thought only": ("<think>It is {n}. \\boxed{{{n}}}</think> The answer is {m}.", "<think>Answer: {n}</think>\n{m}"),
    "nothing": ("I do not know.", "{n} apples were in the question, which I cannot answer, sorry", r"\boxed{{}}", "Answer:"),
    "choice": (r"\boxed{{\text{{({n})}} \, {m}}}", "Answer: ({n}) {m}", "Option {n}: {m}"),
    "asked, not said": (r"\boxed{{{n}?}}", "Answer: {n}?", "Is it {n}?"),
    "answer to something else": ("The wrong answer is {n}.", "Twice the answer is {n}.", "Half the answer is {n}", "The square of the answer is {n}.", "Example answer: {n}",
                                 "The negative of the answer is {n}", "The last digit of the answer is {n}", r"A common wrong answer is $\boxed{{{n}}}$."),
    "boxes in a relation": (r"\boxed{{{m}}} = \boxed{{{n}}}", r"\boxed{{{m}}} < \boxed{{{n}}}", r"\boxed{{{m}}}\boxed{{{n}}}", r"\boxed{{{m}}}.\boxed{{{n}}}", r"\boxed{{{m}}} \% \boxed{{{n}}}"),
    "sign before": ("<{n}", ">{n}", "≤{n}", "x ≠ {n}", r"$\neg\boxed{{{n}}}$", r"\text{{not }}\boxed{{{n}}}", "{n}+"),
    "starts with": ("The answer starts with {n}", "It ends in {n}.", "It is different from {n}.", "It differs from {n}"),
    "does not work": (r"\boxed{{{n}}} does not work.", r"\boxed{{{n}}} fails.", "He said {n}, but he lied", r"\boxed{{{n}}}? No!", r"\boxed{{{n}}} (wrong)"),
    "half intervals": (r"\boxed{{({n}, \infty)}}", r"\boxed{{[{n}, {n}]}}", r"\boxed{{(-\infty, {n})}}"),
    "sentence about others": ("It takes {n} minus {m} days", "He has {m} less than {n}", "There are {n} fewer than {m}"),
}  # fmt: skip
DENIALS = (
    "is not", "isn't", "cannot be", "never", "no longer", "neither", "does not equal", "wrong behind", "not the answer",
    "not true that", "doubt", "if", "anything but", "ruled out", "rejected", "denied behind a label", "at least", "more than",
)  # fmt: skip
DENIED = tuple(message for kind in DENIALS for message in WRONG_NUMBERS[kind])
WRONG: dict[str, tuple[tuple[str, ...], ...]] = {
    "coins and other counts": (("4", r"\boxed{4\text{ dimes}}", "How many dollars does he have?"), ("4", r"\boxed{4\text{ fortnights}}", "How many days is that?"),
                               ("4", r"\boxed{4\text{ decades}}", "How many years is that?"), ("4", r"\boxed{4\text{ pairs}}", "How many shoes are there?"), ("18", "Answer: €18", "How many dollars is it?"),
                               ("5", r"\boxed{5\text{ miles}}", "How many kilometers is it?"), ("4", r"\boxed{4\text{ milli}}")),
    "percent for a number": (("0.5", r"\boxed{0.5\%}"), ("0.25", "Answer: 0.25%"), ("18", r"\boxed{18\%}", EGGS), ("4", "Answer: 4 percent", PLAIN),
                             ("18", "So it is 18%", EGGS), (r"\frac{1}{2}", r"\boxed{\frac12\%}"), ("0.5", r"\boxed{0.5\text{ percent}}")),
    "number for a percent": ((r"50\%", r"\boxed{5}"), (r"50\%", r"\boxed{0.05}"), (r"50\%", r"\boxed{50/50}"), (r"12\%", r"\boxed{1.2}")),
    "smaller unit": (("2", r"\boxed{2\text{ minutes}}", TRIP), ("2", "Answer: 2 minutes", TRIP), ("2", "It takes 2 seconds", "How many minutes does it take?"),
                     ("18", "Answer: 18 cents", EGGS), ("18", r"\boxed{18\text{ cents}}", EGGS), ("5", r"\boxed{5\text{ cm}}", "How many meters long is it?"),
                     ("5", r"\boxed{5\text{ g}}", "Find the mass in kilograms."), ("3", r"\boxed{3\text{ inches}}", "How many feet is that?"),
                     ("7", r"\boxed{7\text{ days}}", "How many weeks does it take?"), ("5", "Answer: 5 ml", "Give your answer in liters.")),
    "other unit": ((r"5\text{ hours}", r"\boxed{5\text{ minutes}}"), (r"5\text{ cm}", r"\boxed{5\text{ m}}"), (r"5\text{ cm}", r"\boxed{5\text{ cm}^2}"),
                   (r"\$18", r"\boxed{18\text{ cents}}"), (r"27^\circ", r"\boxed{27\text{ radians}}"), (r"5\text{ kg}", r"\boxed{5\text{ lb}}"),
                   (r"2\text{ km}", r"\boxed{2\text{ miles}}"), (r"60\text{ mph}", r"\boxed{60\text{ km/h}}")),
    "wrongly converted": ((r"2\text{ hours}", r"\boxed{200\text{ minutes}}"), (r"1\text{ m}", r"\boxed{10\text{ cm}}"), (r"\$3", r"\boxed{30\text{ cents}}")),
    "two texts": ((r"\text{Sunday}", r"\boxed{\text{Sunday}\text{Monday}}"), (r"\text{Sunday}", r"\boxed{\text{Sunday} \text{ Monday}}"),
                  (r"\text{even}", r"\boxed{\text{even}\text{odd}}"), (r"\text{Sunday}", r"\boxed{\text{Sunday}, \text{Monday}}"),
                  (r"\text{yes}", r"\boxed{\text{yes}\text{ and no}}"), (r"\text{B}", r"\boxed{\text{B}\text{C}}"), (r"\text{Tom}", r"\boxed{\text{Tom} \cup \text{Ann}}")),
    "words denied": ((r"\text{Sunday}", r"\boxed{\text{not Sunday}}"), (r"\text{Sunday}", "The answer is not Sunday."), (r"\text{even}", r"\boxed{\text{neither even nor odd}}"),
                     (r"\text{yes}", "Answer: not yes"), (r"\text{Sunday}", r"\boxed{\text{Sunday is wrong}}"), (r"\text{prime}", r"\boxed{\text{non-prime}}")),
    "choices": ((r"\text{(B)}", r"\boxed{\text{(C)}}"), (r"\text{(B)}", r"\boxed{A, B}"), (r"\text{(B)}", "The answer is not (B)."), ("B", "Answer: A or B"), ("B", r"\boxed{AB}")),
    "other fraction": ((r"\frac34", r"\boxed{\frac43}"), (r"\frac34", r"\boxed{34}"), (r"\frac34", r"\boxed{0.34}"), (r"\frac13", r"\boxed{0.33}"), (r"\frac13", r"\boxed{0.\overline{4}}"),
                       (r"\frac{1}{3}", r"\boxed{0.3}"), (r"\frac{2}{3}", r"\boxed{0.67}"), (r"\frac34", r"\boxed{3\cdot4}"), (r"\frac34", r"\boxed{3{,}4}")),
    "other sign": (("-5", r"\boxed{5}"), (r"-\frac12", r"\boxed{\frac12}"), ("5", r"\boxed{-5}"), ("-x", r"\boxed{x}"), (r"-\sqrt2", r"\boxed{\sqrt2}")),
    "other interval": (("(1,3)", r"\boxed{[1,3]}"), ("(1,3)", r"\boxed{x>1}"), ("(1,3)", r"\boxed{1 \le x < 3}"), (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \text{ and } x>1}"),
                       (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{-1<x<1}"), (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x>1}"), (r"(-\infty,3)\cup(3,\infty)", r"\boxed{x = 3}"),
                       (r"(-\infty,3)\cup(3,\infty)", r"\boxed{x \neq 4}"), (r"[-2,2]", r"\boxed{|x|<2}"), (r"[-2,2]", r"\boxed{|x| \ge 2}"), ("(1,3)", r"\boxed{\{x \mid x<3\}}")),
    "other matrix": ((r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\boxed{\left(\begin{array}{cc}1&0\\0&2\end{array}\right)}"),
                     (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}1&2\end{pmatrix}}"), (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{array}{c}2\\1\end{array}}")),
    "other base": (("22_6", r"\boxed{22_7}"), ("22_6", r"\boxed{22}"), ("22_6", r"\boxed{(22)_5}"), ("22_6", r"\boxed{14}", "Write it in base 6."), ("22_6", r"\boxed{226}")),
    "other time": ((r"8:34\text{ p.m.}", r"\boxed{8:34\text{ a.m.}}"), (r"8:34\text{ p.m.}", r"\boxed{8:35\text{ pm}}"), (r"8:34\text{ p.m.}", r"\boxed{834}"), (r"9\text{ a.m.}", r"\boxed{9\text{ p.m.}}"),
                   (r"8:34\text{ p.m.}", r"\boxed{8.34}")),
    "other expression": (("x+1", r"\boxed{x-1}"), ("2x", r"\boxed{x^2}"), (r"2\sqrt3", r"\boxed{3\sqrt2}"), (r"\frac{x}{2}", r"\boxed{\frac{2}{x}}"), ("x^2+1", r"\boxed{x^2}"), (r"2\pi", r"\boxed{6.28}")),
    "part of a list": (("1, 2", r"\boxed{1}"), ("1, 2", r"\boxed{1, 2, 3}"), ("(1, 2)", r"\boxed{(2, 1)}"), (r"\{1,2\}", r"\boxed{\{1\}}"), (r"\pm 3", r"\boxed{3}")),
    "the question": ((r"\frac23", r"\boxed{\frac{24}{36}}", r"Simplify $\frac{24}{36}$."), ("8281", r"\boxed{91^2}", "Compute $91^2$."), (r"2\sqrt2", r"\boxed{\sqrt{8}+0}", r"Simplify $\sqrt8$."),
                     ("x^2+3x+2", r"\boxed{(x+2)(x+1)}", "Expand $(x+1)(x+2)$."), ("(x-2)(x+2)", r"\boxed{-(4-x^2)}", "Factor $x^2-4$."), ("0.75", r"\boxed{3/4}", "Write 3/4 as a decimal."),
                     (r"\frac34", r"\boxed{0.75}", "Write 0.75 as a fraction."), ("5", r"\boxed{\frac{10}{2}}", r"Evaluate $\frac{10}{2}$."), ("5x", r"\boxed{3x+2x}", "Simplify $3x+2x$.")),
    "form not reached": ((r"\frac23", r"\boxed{\frac{4}{6}}", "Write 24/36 in lowest terms."), ("1024", r"\boxed{2^{10}}", r"Compute $2^3\cdot2^7$."), (r"2\sqrt3", r"\boxed{\sqrt{12}}", r"Simplify $\sqrt{4}\cdot\sqrt{3}$."),
                         ("(x-2)(x+2)(x^2+4)", r"\boxed{(x^2-4)(x^2+4)}", "Factor $x^4-16$ completely."), ("x^2+3x+2", r"\boxed{x(x+3)+2}", "Expand $(x+1)(x+2)$."),
                         (r"3\frac12", r"\boxed{\frac72}", "Write your answer as a mixed number."), (r"1.5\times10^3", r"\boxed{1500}", "Write 1500 in scientific notation."),
                         ("18", r"\boxed{36/2}", PLAIN), (r"\frac34", r"\boxed{\frac{9}{12}}", "Express your answer as a common fraction."), ("0.75", r"\boxed{\frac34}", "Express your answer as a decimal.")),
}  # fmt: skip

# --- fair -------------------------------------------------------------------------------------------------------------
FAIR_NUMBERS: dict[str, tuple[str, ...]] = {
    "boxed": (r"\boxed{{{n}}}", r"$\boxed{{{n}}}$", r"So \[\boxed{{{n}}}\]", r"\(\boxed{{{n}}}\)", r"\fbox{{{n}}}", r"$\boxed {{ {n} }}$.", r"\boxed{{{n}.}}"),
    "boxed sentence": (r"Therefore, the answer is $\boxed{{{n}}}$.", r"**Final Answer:** $\boxed{{{n}}}$", r"Thus $x = \boxed{{{n}}}$.", r"Hence, \boxed{{{n}}} ways."),
    "boxed with its name": (r"\boxed{{x = {n}}}", r"\boxed{{n={n}}}", r"\boxed{{f(2) = {n}}}", r"\boxed{{AB = {n}}}", r"\boxed{{x_1 = {n}}}", r"\boxed{{\theta={n}}}"),
    "boxed in text": (r"\boxed{{\text{{{n}}}}}", r"\boxed{{\textbf{{{n}}}}}", r"\boxed{{\mathbf{{{n}}}}}", r"\boxed{{\mathrm{{{n}}}}}", r"\boxed{{\textit{{{n}}}}}", r"\boxed{{\bf {n}}}"),
    "sizes and spaces": (r"\boxed{{\,{n}\,}}", r"\boxed{{\displaystyle {n}}}", r"\boxed{{\left({n}\right)}}", r"\boxed{{\;{n}}}", r"\boxed{{~{n}~}}", r"\boxed{{{{{n}}}}}", r"\boxed{{\quad {n}}}", r"\boxed{{\large {n}}}"),
    "colours": (r"\boxed{{\color{{red}}{n}}}", r"\boxed{{\textcolor{{blue}}{{{n}}}}}", r"\boxed{{\underline{{{n}}}}}"),
    "dollars in a box": (r"\boxed{{\${n}}}", r"\boxed{{$ {n} $}}", r"\boxed{{\$ {n}.00}}", r"\boxed{{{n}\text{{ dollars}}}}", r"\boxed{{USD {n}}}"),
    "the answer is": ("The answer is {n}.", "The answer is {n}", "the answer is: {n}", "The final answer is {n}.", "So the answer is {n}!", "The correct answer is {n}.", "The answer to the problem is {n}."),
    "answer label": ("Answer: {n}", "ANSWER: {n}", "answer = {n}", "Final Answer: {n}", "Ans: {n}", "Answer:{n}", "Answer: {n}.", "Answer → {n}", "Answer => {n}"),
    "markdown label": ("**Answer:** {n}", "**Answer**: {n}", "**Answer: {n}**", "*Answer:* {n}", "### Answer: {n}", "__Answer:__ {n}", "Answer: **{n}**", "Answer: `{n}`", "> Answer: {n}"),
    "heading": ("## Final Answer\n{n}", "**Final Answer**\n\n{n}", "### Answer\n\n${n}$", "Final Answer\n{n}", "**Answer**\n{n}"),
    "hashes": ("#### {n}", "So it is {n}\n#### {n}", "####{n}", "#### {n}.", "#### ${n}$", "#### {n} apples"),
    "label in a label": ("Final Answer: The final answer is {n}.", "Final Answer: The final answer is ${n}$. I hope it is correct.", "Answer: The answer is {n}", "Answer: the correct answer is ${n}$.",
                         "Final answer: Answer: {n}", "**Final Answer**: The answer is {n}."),
    "Minerva": ("Final Answer:\nThe final answer is ${n}$. I hope it is correct.", "Final Answer: The final answer is ${n}$. I hope it is correct.\n", r"Final Answer: The final answer is $\boxed{{{n}}}$. I hope it is correct."),
    "dollars in dollars": (r"The answer is $\${n}$.", r"Final Answer: $\${n}$", r"Answer: \${n}", r"The answer is \(\${n}\)", "Answer: ${n}", r"So she makes $\${n}$."),
    "tags": ("<answer>{n}</answer>", "<think>hm</think><answer>{n}</answer>", "<answer> ${n}$ </answer>", r"<answer>\boxed{{{n}}}</answer>", "<answer>The answer is {n}.</answer>", "<answer>\n{n}\n</answer>", "<ANSWER>{n}</ANSWER>", "<answer>x = {n}</answer>"),
    "after thinking": ("<think>maybe 99?</think>\nThe answer is {n}.", r"<think>\boxed{{99}}</think> $\boxed{{{n}}}$", "<think>99</think>\n{n}"),
    "JSON": ('{{"answer": {n}}}', '{{"answer": "{n}"}}', "'answer': {n}"),
    "alone": ("{n}", "${n}$", "**{n}**", r"\({n}\)", r"\[{n}\]", "`{n}`", "{n}.", " {n}\n", "$${n}$$"),
    "equals": ("= {n}", "x = {n}", "$x = {n}$", "Therefore, x equals {n}.", "Thus x = {n}.", r"So \(x = {n}\).", r"\[x = {n}\]", "x is equal to {n}"),
    "is the answer": ("{n} is the answer.", "So {n} is the answer", "${n}$ is the answer.", "{n} is our final answer.", "Hence {n} is the correct answer.", "**{n}** is the answer."),
    "last number": ("So Tom has {n} apples", "She makes ${n} a day.", "In total there are {n}.", "That leaves {n} eggs.", "It takes {n} days in all.", "So the total is {n}!", "Total: {n}", "He needs {n} more."),
    "last number after steps": ("3 + 5 = 8\nSo there are {n} ways.", "First 2, then 7.\nTherefore there are {n} of them.", "2 * 9 = 99\nIn the end: {n}"),
    "dressed last number": ("So Tom has **{n}** apples.", "So Tom has ${n}$ apples.", r"So Tom has \({n}\) apples.", "So Tom has `{n}` apples.", "So Tom has *{n}* apples.", r"That makes \${n}."),
    "counted words": (r"\boxed{{{n}\text{{ apples}}}}", r"\boxed{{{n} apples}}", "Answer: {n} apples", r"\boxed{{{n}\text{{ ways}}}}", "The answer is {n} students.", r"\boxed{{{n}\text{{ different outfits}}}}", "Answer: {n} red balls"),
    "units": (r"\boxed{{{n}\text{{ cm}}}}", r"\boxed{{{n}\,\mathrm{{cm}}}}", r"\boxed{{{n}\ \text{{cm}}^2}}", r"\boxed{{{n} \text{{ square units}}}}", r"\boxed{{{n}\text{{ units}}}}", r"\boxed{{{n}\text{{ miles per hour}}}}", "Answer: {n} km/h"),
    "degrees": (r"\boxed{{{n}^\circ}}", r"\boxed{{{n}^{{\circ}}}}", r"\boxed{{{n}°}}", r"\boxed{{{n}\text{{ degrees}}}}", r"\boxed{{{n}\degree}}"),
    "decimals": (r"\boxed{{{n}.0}}", r"\boxed{{{n}.00}}", "Answer: {n}.0", r"\boxed{{{n}.}}", r"\boxed{{+{n}}}"),
    "leading zeros": (r"\boxed{{0{n}}}", r"\boxed{{00{n}}}", "Answer: 0{n}", "The answer is 0{n}."),
    "comment behind": ("Answer: {n} (since we count both)", "Answer: {n}, which is even", "The answer is {n} because it must be.", "The answer is {n}, as required.", "Answer: {n} — done", "Answer: {n}; hope this helps", "The answer is {n}. I hope it is right.", "Answer: {n}, not 99"),
    "boxed, comment behind": (r"\boxed{{{n}}}, not 99", r"$\boxed{{{n}}}$, which is not prime.", r"$\boxed{{{n}}}$. This is the answer.", r"\boxed{{{n}}} ✓", r"$\boxed{{{n}}}$ \blacksquare", r"\boxed{{{n}}} is the answer.", r"\boxed{{{n}}}. Not too hard!"),
    "marks": ("Answer: {n} ✓", "Answer: {n} ✅", r"\boxed{{{n}}} 🎉", "✅ {n}", "{n} ✔"),
    "filler": ("The answer is therefore {n}.", "The answer is simply {n}.", "The answer is exactly {n}.", "The answer is thus {n}.", "The answer is equal to {n}.", "The answer is found to be {n}.", "The answer should be {n}.", "The answer must be {n}.", "The answer, therefore, is {n}.", "The answer would be {n}."),
    "harmless not": ("It is not hard to see that the answer is {n}.", "There is no doubt that the answer is {n}.", "It can't be 99, so the answer is {n}.", "It is not 99 but {n}.", r"x is not negative, so $x = \boxed{{{n}}}$."),
    "not behind": ("So {n} students do not play.", r"Hence $\boxed{{{n}}}$ students do not play either sport.", "There are {n} that do not fit."),
    "trivial equation": (r"\boxed{{{n} = {n}}}", r"\boxed{{x = 2\cdot {n} - {n} = {n}}}", r"\boxed{{{n}+0={n}}}", r"\boxed{{1\cdot {n} = {n}}}", "Answer: {n} + 1 - 1 = {n}"),
    "two languages of one": (r"\boxed{{{n}}}, \boxed{{{n}}}", r"Answer: {n}" + "\n" + r"\boxed{{{n}}}", "The answer is {n}.\n#### {n}", r"\boxed{{{n}}} and again \boxed{{{n}}}"),
    "brackets": ("The answer is ({n}).", "Answer: [{n}]", r"\boxed{{({n})}}", r"\boxed{{[{n}]}}", "The answer is {{{n}}}."),
    "code": ("```\n{n}\n```", "Answer:\n```\n{n}\n```", "The answer is `{n}`.", "print({n})\nAnswer: {n}"),
    "therefore": ("∴ x = {n}", "⇒ {n}", r"$\therefore x = {n}$", r"$\Rightarrow \boxed{{{n}}}$", "→ {n}", "So, {n}!"),
    "over one": ("Answer: {n}/1", r"\boxed{{\frac{{{n}}}{{1}}}}", "Answer: {n}^1"),
    "label in the box": (r"\boxed{{\text{{Answer: }}{n}}}", r"\boxed{{\text{{The answer is }} {n}}}", r"\boxed{{n = {n} \text{{ ways}}}}"),
    "calculation": (r"\boxed{{{n}\cdot 1 = {n}}}", "{n} * 1 = {n}", "{n} - 1 + 1 = {n}", r"\[ {n} \times 1 = {n} \]"),
    "name in its own formula": ("Answer: $N$ = {n}", "The value of $x$ is {n}.", "Hence the number of ways is {n}.", "The smallest such integer is {n}."),
    "corrected": (r"\boxed{{99}} is wrong. It is \boxed{{{n}}}.", "Answer: 99\n\nWait, no.\n\nAnswer: {n}", r"It is not \boxed{{99}}. It is \boxed{{{n}}}."),
    "unicode": ("\\boxed{{{n}\u2009}}", "Answer:\u00a0{n}", "The answer is “{n}”.", "Answer: {n}\u200b"),
    "scientific": (r"\boxed{{{n} \times 10^0}}", r"\boxed{{{n}\cdot10^{{0}}}}", "Answer: {n}e0"),
    "option": ("The correct option is {n}.", "The correct choice is {n}.", "The best option is {n}."),
    "ordinal": (r"\boxed{{{n}\text{{th}}}}", r"\boxed{{{n}^{{\text{{th}}}}}}", "Answer: the number {n}", r"\boxed{{{n}th}}"),
    "display": ("The answer is\n$${n}$$", "The answer is\n\\[{n}\\]", "The answer is \\[\n{n}\n\\]", "Answer:\n\n{n}", "The answer is:\n\n**{n}**"),
    "aligned": (r"\begin{{align*}} x &= 1 + {n} - 1 \\ &= \boxed{{{n}}} \end{{align*}}", r"\boxed{{\begin{{aligned}} {n} \end{{aligned}}}}"),
}  # fmt: skip
FAIR: dict[str, tuple[tuple[str, ...], ...]] = {
    "number words": (("18", "Answer: eighteen"), ("18", r"\boxed{\text{eighteen}}"), ("21", "The answer is twenty-one."), ("105", "Answer: one hundred and five"), ("7", r"\boxed{\text{seven}}"), ("-2", "Answer: negative two"), (r"\frac23", "Answer: two thirds")),
    "thousands": (("1000", r"\boxed{1,000}"), ("1000", r"\boxed{1{,}000}"), ("1000", r"\boxed{1\,000}"), ("1234567", "Answer: 1,234,567"), ("1000", r"\boxed{1,\!000}"), ("12345", r"\boxed{12\ 345}"), ("1000", r"\boxed{1000.00}"), ("70000", "So he earns $70,000")),
    "scales": (("2500000", r"\boxed{2.5\text{ million}}"), ("2500000", "Answer: 2.5 million"), ("500000", "Answer: 5 lakh"), ("60", r"\boxed{5\text{ dozen}}"), ("3000", "Answer: 3 thousand"), (r"2.5\text{ million}", r"\boxed{2500000}"), ("5", "Answer: 5 dozen", "How many dozen eggs?"), ("3", r"\boxed{3\text{ million}}", "How many million people live there?")),
    "fractions": ((r"\frac34", r"\boxed{\tfrac34}"), (r"\frac34", r"\boxed{\dfrac{3}{4}}"), (r"\frac34", r"\boxed{\cfrac{3}{4}}"), (r"\frac34", r"\boxed{3/4}"), (r"\frac34", r"\boxed{{3\over4}}"), (r"\frac34", r"\boxed{3 \over 4}"), (r"\frac34", r"\boxed{3\div4}"),
                  (r"\frac34", r"\boxed{¾}"), (r"\frac34", r"\boxed{0.75}"), (r"\frac34", r"\boxed{.75}"), (r"\frac34", "Answer: 3/4"), (r"\frac34", r"The answer is $\frac{3}{4}$."), (r"\frac34", r"\boxed{\frac{3}{4}}"), (r"\frac34", "3/4"), (r"\frac34", r"\boxed{3÷4}"), (r"\frac34", r"\boxed{\nicefrac{3}{4}}")),
    "negative fractions": ((r"-\frac34", r"\boxed{\frac{-3}{4}}"), (r"-\frac34", r"\boxed{\frac{3}{-4}}"), (r"-\frac34", r"\boxed{-3/4}"), (r"-\frac34", r"\boxed{−\frac34}"), (r"-\frac34", "Answer: -0.75"), (r"-\frac34", r"\boxed{-\left(\frac34\right)}")),
    "mixed numbers": ((r"3\frac12", r"\boxed{\frac72}"), (r"3\frac12", r"\boxed{3.5}"), (r"3\frac12", r"\boxed{3 1/2}"), (r"\frac72", r"\boxed{3½}"), (r"3\frac12", "Answer: 3 1/2"), (r"3\frac12", "Answer: three and a half")),
    "repeating decimals": ((r"\frac13", r"\boxed{0.\overline{3}}"), (r"\frac16", r"\boxed{0.1\overline{6}}"), (r"0.\overline{3}", r"\boxed{\frac13}"), (r"\frac13", r"\boxed{0.\bar{3}}"), (r"\frac{4}{11}", r"\boxed{.\overline{36}}"), (r"\frac13", r"\boxed{0.333\ldots}"), (r"-\frac13", r"\boxed{-0.\overline{3}}")),
    "percent": ((r"50\%", r"\boxed{50}"), (r"50\%", r"\boxed{50\text{ percent}}"), (r"50\%", r"\boxed{0.5}"), ("25", r"\boxed{25\%}", "What percent is it?"), ("25", "Answer: 25%", "What percentage of them is red?"), ("0.5", r"\boxed{50\%}"), (r"50\%", "The answer is 50%."), (r"50\%", r"\boxed{\frac12}")),
    "asked unit": (("2", r"\boxed{2\text{ hours}}", TRIP), ("2", "Answer: 2 hrs", TRIP), ("18", r"\boxed{\$18}", EGGS), ("18", "Answer: 18 dollars", EGGS), ("18", "She makes $18 a day.", EGGS), ("5", r"\boxed{5\text{ m}}", "How many meters long is it?"), ("60", "Answer: 60 mph", "How fast is it, in miles per hour?"), ("18", r"\boxed{18\text{ eggs}}", EGGS)),
    "converted": ((r"2\text{ hours}", r"\boxed{120\text{ minutes}}"), (r"1\text{ m}", r"\boxed{100\text{ cm}}"), (r"\$3", r"\boxed{3\text{ dollars}}"), (r"2\text{ feet}", r"\boxed{24\text{ inches}}"), (r"3\text{ kg}", r"\boxed{3000\text{ g}}")),
    "unit spelling": ((r"5\text{ cm}", r"\boxed{5\text{ centimeters}}"), (r"5\text{ cm}", r"\boxed{5 cm}"), (r"5\text{ cm}^2", r"\boxed{5\text{ square centimeters}}"), (r"5\text{ feet}", r"\boxed{5\text{ ft}}"), (r"5\text{ hours}", r"\boxed{5\text{ h}}"), (r"5\text{ cm}", r"\boxed{5}"), (r"12\text{ ft}^3", r"\boxed{12\text{ cubic feet}}"), (r"5\text{ lbs}", "Answer: 5 pounds")),
    "money": (("18.5", r"\boxed{\$18.50}"), ("18", r"\boxed{18\$}"), ("18", "Answer: $18.00"), ("18", "Answer: €18"), ("18", r"\boxed{£18}"), ("1500", r"\boxed{\$1,500}"), (r"\$18", "Answer: 18"), ("18", "Answer: 18 USD")),
    "radicals": ((r"2\sqrt3", r"\boxed{2\sqrt{3}}"), (r"2\sqrt3", r"\boxed{2√3}"), (r"2\sqrt3", r"\boxed{\sqrt{12}}"), (r"2\sqrt3", r"\boxed{2\cdot\sqrt3}"), (r"2\sqrt3", r"\boxed{2 \sqrt 3}"), (r"2\sqrt3", r"\boxed{\sqrt{3}\cdot 2}"), (r"2\sqrt3", r"\boxed{2\cdot3^{1/2}}"), (r"2\sqrt3", "Answer: 2*sqrt(3)"), (r"\frac{\sqrt2}{2}", r"\boxed{\frac{1}{\sqrt2}}")),
    "formula in a sentence": ((r"2\sqrt3", r"The answer is $2\sqrt{3}$."), (r"2\sqrt3", r"So the length is $2\sqrt3$."), (r"2\sqrt3", r"Therefore, \(x = 2\sqrt3\)."), (r"2\sqrt3", r"$2\sqrt3$"), (r"2\sqrt3", r"\[2\sqrt3\]"), (r"2\sqrt3", r"Hence $AB = 2\sqrt3$"), (r"2\sqrt3", r"2\sqrt{3}"), (r"x^2+1", "Answer: x^2 + 1"), (r"x^2+1", "The answer is $1+x^2$.")),
    "pi and e": ((r"2\pi", r"\boxed{2π}"), (r"2\pi", r"\boxed{2\cdot\pi}"), (r"2\pi", "Answer: 2pi"), (r"\frac{\pi}{2}", r"\boxed{\pi/2}"), (r"\frac{\pi}{2}", r"\boxed{\frac12\pi}"), (r"e^2", r"\boxed{e^{2}}"), (r"18\pi", r"\boxed{18\pi\text{ cm}^2}")),
    "powers": (("x^{10}", r"\boxed{x^{10}}"), ("x^2", r"\boxed{x²}"), ("x^{10}", r"\boxed{x¹⁰}"), ("x^2y", r"\boxed{yx^2}"), ("x^2", r"\boxed{x\cdot x}"), ("x^{-1}", r"\boxed{\frac1x}"), ("2^{10}", r"\boxed{1024}"), ("1024", r"\boxed{2^{10}}")),
    "polynomials": (("x^2+2x+1", r"\boxed{(x+1)^2}"), ("x^2+2x+1", r"\boxed{1+2x+x^2}"), ("x^2+2x+1", r"\boxed{x^2 + 2 x + 1}"), ("x^2+2x+1", r"\boxed{x^2+2\cdot x+1}"), ("(x-1)(x+2)", r"\boxed{(x+2)(x-1)}"), ("x^2-1", r"\boxed{-1+x^2}"), ("x^2+2x+1", r"\boxed{p(x) = x^2+2x+1}"), ("x^2+2x+1", "Answer: x^2+2x+1")),
    "complex numbers": (("3+4i", r"\boxed{4i+3}"), ("3+4i", r"\boxed{3 + 4 i}"), ("-i", r"\boxed{-1\cdot i}"), ("3+4i", r"\boxed{3+4\mathrm{i}}"), ("3+4i", r"\boxed{z = 3+4i}")),
    "equations": (("y=2x+3", r"\boxed{y = 3+2x}"), ("y=2x+3", r"\boxed{2x+3=y}"), ("y=2x+3", r"\boxed{2x - y + 3 = 0}"), ("x^2+y^2=4", r"\boxed{y^2+x^2=4}"), ("x=5", r"\boxed{5}"), ("x=5", r"\boxed{x=5}")),
    "unions from or": ((r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \text{ or } x>1}"), (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x > 1 \text{ or } x < -1}"), (r"(-\infty,-1)\cup(1,\infty)", "Answer: x < -1 or x > 1"), (r"(-\infty,-1]\cup[1,\infty)", r"\boxed{x \le -1 \text{ or } x \ge 1}"),
                       (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{|x|>1}"), (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x<-1 \lor x>1}"), (r"(-\infty,-1)\cup(1,\infty)", r"\boxed{x \in (-\infty,-1)\cup(1,\infty)}"), (r"(1,2)\cup(3,4)", r"\boxed{1<x<2 \text{ or } 3<x<4}")),
    "intersections from and": (("(1,3)", r"\boxed{x>1 \text{ and } x<3}"), ("(1,3)", r"\boxed{1<x<3}"), ("(1,3)", r"\boxed{x<3 \text{ and } x>1}"), ("[1,3)", r"\boxed{x \ge 1 \text{ and } x < 3}"), ("(1,3)", r"\boxed{3 > x > 1}"), ("(1,3)", r"\boxed{x>1 \land x<3}")),
    "set builder": ((r"(1,3)", r"\boxed{\{x \mid 1<x<3\}}"), (r"(1,3)", r"\boxed{\{x : 1<x<3\}}"), (r"(-\infty,3)\cup(3,\infty)", r"\boxed{\{x \mid x \neq 3\}}"), (r"[2,\infty)", r"\boxed{\{x \in \mathbb{R} : x \ge 2\}}"), (r"[2,\infty)", r"\boxed{\{x | x \geq 2\}}"), (r"(1,3)", r"\boxed{\left\{x \mid 1 < x < 3\right\}}")),
    "unequal": ((r"(-\infty,3)\cup(3,\infty)", r"\boxed{x \neq 3}"), (r"(-\infty,3)\cup(3,\infty)", r"\boxed{x \ne 3}"), (r"(-\infty,3)\cup(3,\infty)", r"\boxed{\mathbb{R}\setminus\{3\}}"), (r"(-\infty,3)\cup(3,\infty)", r"\boxed{x ≠ 3}"), (r"(-\infty,1)\cup(1,3)\cup(3,\infty)", r"\boxed{x \neq 1, 3}"), (r"(-\infty,3)\cup(3,\infty)", r"\boxed{\text{all real numbers except } 3}")),
    "intervals": (("[2,5)", r"\boxed{2 \le x < 5}"), ("[2,5)", r"\boxed{\left[2,5\right)}"), ("[2,5)", r"\boxed{x \in [2,5)}"), (r"(-\infty,0]", r"\boxed{x \leq 0}"), (r"(-\infty,\infty)", r"\boxed{\mathbb{R}}"), (r"(-\infty,\infty)", r"\boxed{\text{all real numbers}}"), (r"[-2,2]", r"\boxed{|x| \le 2}"), ("[2,5)", "Answer: [2, 5)"), (r"[0,\infty)", r"\boxed{[0,+\infty)}"), (r"(2,\infty)", r"\boxed{2 < x}")),
    "matrices": ((r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\boxed{\left(\begin{array}{cc}1&0\\0&1\end{array}\right)}"), (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\boxed{\begin{bmatrix}1&0\\0&1\end{bmatrix}}"), (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\boxed{\left[\begin{array}{cc}1 & 0 \\ 0 & 1\end{array}\right]}"),
                 (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\left(\begin{array}{c}1\\2\end{array}\right)}"), (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{pmatrix} 1 \\ 2 \\ \end{pmatrix}}"), (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{smallmatrix}1\\2\end{smallmatrix}}"), (r"\begin{pmatrix}\frac12\\2\end{pmatrix}", r"\boxed{\begin{pmatrix}0.5\\2\end{pmatrix}}")),
    "bases": (("22_6", r"\boxed{(22)_6}"), ("22_6", r"\boxed{22_{6}}"), ("22_6", r"\boxed{22_{\text{six}}}"), ("22_6", r"\boxed{22_{6}}"), ("22_6", r"\boxed{22\text{ (base 6)}}"), ("22_6", "Answer: 22 base 6"), ("22_6", r"\boxed{22}", "Express your answer in base 6."), ("22_6", r"\boxed{(22)_{6}}"), ("14", r"\boxed{14_{10}}")),
    "times of day": ((r"8\!:\!34 \text{ p.m.}", r"\boxed{8:34\text{ pm}}"), (r"8\!:\!34 \text{ p.m.}", r"\boxed{8:34 PM}"), (r"8\!:\!34 \text{ p.m.}", "Answer: 8:34 p.m."), (r"8\!:\!34 \text{ p.m.}", r"\boxed{20:34}"), (r"8\!:\!34 \text{ p.m.}", "The answer is 8:34 pm."), (r"9\text{ a.m.}", r"\boxed{9:00\text{ AM}}"), (r"8\!:\!34 \text{ p.m.}", r"\boxed{8:34}"), (r"\text{noon}", r"\boxed{12:00\text{ p.m.}}")),
    "ratios": (("1:2", r"\boxed{1 : 2}"), ("1:2", r"\boxed{1\colon 2}"), ("1:2", "Answer: 1:2"), ("3:4", r"\boxed{3:4}")),
    "points": (("(3,4)", r"\boxed{\left(3,4\right)}"), ("(3,4)", r"\boxed{(3, 4)}"), ("(3,4)", r"\boxed{(x,y)=(3,4)}"), ("(3,4)", "Answer: (3, 4)"), ("(3,4)", r"The answer is $(3,4)$."), ("(3,4)", r"\boxed{(3,\ 4)}"), (r"\left(\frac12, 2\right)", r"\boxed{(0.5, 2)}"), ("(3,4)", r"\boxed{P = (3,4)}"), ("(3,4)", r"\boxed{\langle 3,4\rangle}")),
    "lists": (("1, 2", r"\boxed{2, 1}"), ("1, 2", r"\boxed{1 \text{ and } 2}"), ("1, 2", r"\boxed{\{1,2\}}"), ("1, 2", r"\boxed{x=1, x=2}"), ("1, 2", r"\boxed{1} and \boxed{2}"), ("1, 2", "Answer: 1 and 2"), ("1, 2", r"\boxed{x = 1 \text{ or } x = 2}"), (r"\pm 3", r"\boxed{-3, 3}"), (r"\pm 3", r"\boxed{x = \pm 3}"), ("1, 2", "<answer>1, 2</answer>")),
    "words": ((r"\text{Sunday}", "Answer: Sunday"), (r"\text{Sunday}", r"\boxed{Sunday}"), (r"\text{Sunday}", r"\boxed{\text{sunday}}"), (r"\text{Sunday}", "The answer is Sunday."), (r"\text{Sunday}", r"\boxed{\mathrm{Sunday}}"), (r"\text{Sunday}", "<answer>Sunday</answer>"), (r"\text{Sunday}", "**Answer:** Sunday"), (r"\text{even}", r"\boxed{\text{Even}}"), (r"\text{Sunday}", "Sunday")),
    "choices": ((r"\text{(B)}", r"\boxed{B}"), (r"\text{(B)}", "Answer: B"), (r"\text{(B)}", "The answer is (B)."), ("B", r"\boxed{\text{(B)}}"), (r"\text{(B)}", r"\boxed{\textbf{(B)}}"), (r"\text{B}", "The correct option is (B)."), (r"\text{B}", "The correct choice is B."), ("B", "Answer: (B)"), ("B", "**B**"), ("B", "B."), ("B", "<answer>B</answer>"), ("B", "(B) is the answer.")),
    "evaluated forms": ((r"\frac23", r"\boxed{2/3}", r"Simplify $\frac{24}{36}$."), ("8281", r"\boxed{8,281}", "Compute $91^2$."), (r"2\sqrt2", r"\boxed{\sqrt2\cdot2}", r"Simplify $\sqrt8$."), ("x^2+3x+2", r"\boxed{2+3x+x^2}", "Expand $(x+1)(x+2)$."), ("(x-2)(x+2)", r"\boxed{(x+2)(x-2)}", "Factor $x^2-4$."),
                        ("0.75", r"\boxed{.75}", "Write 3/4 as a decimal."), (r"\frac34", r"\boxed{3/4}", "Write 0.75 as a fraction."), (r"3\frac12", r"\boxed{3 1/2}", "Write 7/2 as a mixed number."), ("5x", r"\boxed{5\cdot x}", "Simplify $3x+2x$."), ("(x-2)^2", r"\boxed{(x-2)(x-2)}", "Factor $x^2-4x+4$."), (r"\frac{\sqrt3}{3}", r"\boxed{\frac13\sqrt3}", r"Rationalize the denominator of $\frac{1}{\sqrt3}$."), (r"\frac34", r"\boxed{0.75}", "What is the probability? Express your answer as a common fraction.")),
    "AIME": (("073", r"\boxed{73}"), ("73", r"\boxed{073}"), ("073", "Answer: 73"), ("7", r"\boxed{007}"), ("73", "The answer is 073."), ("000", r"\boxed{0}"), ("25", r"Thus $m+n = \boxed{025}$.")),
    "the gold of the prompt": (("x^2+1", r"\boxed{x^2+1}", "Which is prime: $x^2+1$ or $x^2-1$?"), (r"\frac12", r"\boxed{\frac12}", r"Which is larger, $\frac12$ or $\frac13$?"), ("12", "12", "Which is larger, 12 or 5?"), ("x^2+1", r"\boxed{1+x^2}", "Which is prime: $x^2+1$ or $x^2-1$?")),
}  # fmt: skip


def filled(templates: dict[str, tuple[str, ...]]) -> Iterator[Form]:
    for kind, messages in templates.items():
        for message in dict.fromkeys(messages):
            for n, m in NUMBERS:
                yield Form(kind=kind, message=message.format(n=n, m=m), gold=str(n))


def listed(table: dict[str, tuple[tuple[str, ...], ...]]) -> Iterator[Form]:
    for kind, rows in table.items():
        for gold, message, *prompt in dict.fromkeys(rows):
            yield Form(kind=kind, message=message, gold=gold, prompt=prompt[0] if prompt else "")


def written(name: str) -> Iterator[Form]:
    """The forms of a file: `gold ||| message ||| prompt`, under the headings of their kinds."""
    kind = ""
    for line in (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("## "):
            kind = line[3:]
            continue
        gold, message, *prompt = line.split(" ||| ")
        yield Form(kind=kind, message=message.replace("⏎", "\n"), gold=gold, prompt=prompt[0] if prompt else "")


def wrong_forms() -> list[Form]:
    return [*filled(WRONG_NUMBERS), *listed(WRONG), *written("wrong_forms.txt")]


def fair_forms() -> list[Form]:
    return [*filled(FAIR_NUMBERS), *listed(FAIR), *written("fair_forms.txt")]
