"""How well does math grading grade? Gold solutions and answers, wrong and fair forms, the question as its own answer,
tables of pairs, other problems' golds, and hostile messages.

    python benchmarks/grading/accuracy.py --data DIR [--fuzz 100000] [--before REVISION] [--out docs/results]

DIR holds gsm8k_{train,test}.jsonl, math_{train,test}.jsonl and deepscaler_train_aime.json in the publishers' formats. Two
processes; writes grading.json and grading.md, and prints the table. --before counts the same cases with the grader of an
earlier revision.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from rich.progress import Progress

from benchmarks.docs import report_grading
from benchmarks.grading.verdicts import Case, chunks, graded, section, warm_up
from marft.envs.grading import extract_answer
from marft.envs.grading.algebra_worker import WALL_S
from marft.envs.grading.answer_structure import Leaf, parse_structure
from marft.envs.grading.boxed_answers import boxed_answers
from marft.envs.grading.comparison import canonical_text, is_number, is_word
from marft.envs.grading.latex_normalization import normalize_latex

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "tests" / "envs" / "grading"
sys.path.insert(0, str(TABLES))
from answer_forms import Form, fair_forms, wrong_forms  # noqa: E402
from hostile_messages import HOSTILE, Problem, mutated  # noqa: E402
from rewrites import attacks  # noqa: E402

FILES = ("gsm8k_train", "gsm8k_test", "math_train", "math_test")
SHARES = {"huge": 0.01, "nested": 0.02, "towers": 0.02, "mutated": 0.15}  # the rest is split evenly
OTHER_GOLDS, REWRITTEN = 2_000, 150
REWRITES = 1  # of every formula, beside its copy
BEFORE_EVERY = 5  # so many of the attack's cases are left to one that an earlier grader is counted with
MANY = 10_000  # cases of a section that are too many for that
FORMS: dict[str, Callable[[], list[Form]]] = {"fair forms": fair_forms, "wrong forms": wrong_forms}
WRONG = ("formulas copied", "formulas rewritten", "wrong forms")  # sections of which nothing may be right


def load(folder: Path, stem: str) -> list[Problem]:
    rows = [json.loads(line) for line in (folder / f"{stem}.jsonl").read_text(encoding="utf-8").splitlines()]
    if stem.startswith("gsm8k"):
        return [Problem(prompt=r["question"], solution=r["answer"], gold=r["answer"].split("####")[1]) for r in rows]
    golds = [[box.text for box in boxed_answers(row["solution"])] for row in rows]
    return [
        Problem(prompt=row["problem"], solution=row["solution"], gold=own[-1] if own else "")
        for row, own in zip(rows, golds, strict=True)
    ]


def hostile(task: tuple[str, int, int, Sequence[Problem]]) -> list[dict[str, Any]]:
    """Runs in a worker: messages of one kind and a range of seeds."""
    kind, first, last, problems = task
    found = []
    for seed in range(first, last):
        rng = random.Random(f"{kind}/{seed}")
        problem = rng.choice(problems)
        message = (HOSTILE | {"mutated": mutated})[kind](rng, problem)
        row = graded([(message, problem.gold, problem.prompt)])[0]
        if row["right"] and kind != "mutated":
            row |= {"kind": kind, "seed": seed, "gold": problem.gold, "said": extract_answer(message, problem.prompt)}
        found.append(row)
    return found


def table_of(name: str) -> list[Case]:
    lines = (TABLES / name).read_text(encoding="utf-8").splitlines()
    halves = [line.partition(" ||| ") for line in lines if not line.startswith("#")]
    return [(rf"\boxed{{{answer}}}", gold, "") for gold, _, answer in halves]


def other_golds(golds: Sequence[str]) -> list[Case]:
    """Pairs of golds with different canonical text; half of them among those that are no numbers."""
    rng = random.Random(0)
    forms = {canonical_text(parse_structure(normalize_latex(gold))): gold for gold in golds if gold}
    hard = sorted(gold for form, gold in forms.items() if not is_number(form))
    pools = [sorted(forms.values()), hard]
    drawn = [rng.sample(pools[n % 2], 2) for n in range(OTHER_GOLDS)]
    return [(rf"\boxed{{{other}}}", gold, "") for gold, other in drawn]


def rewritten(golds: Iterable[str]) -> tuple[list[Case], list[Case]]:
    """Expressions of MATH as 2·(gold)/2, which are right, and as gold + 1, which are wrong: algebra decides both."""
    leaves = {gold: parse_structure(normalize_latex(gold)) for gold in sorted(set(golds)) if gold}
    plain = [
        (gold, leaf.text)
        for gold, leaf in leaves.items()
        if isinstance(leaf, Leaf) and leaf.text.isascii() and not (leaf.words or leaf.name or is_word(leaf))
        if not is_number(leaf.text) and not any(sign in leaf.text for sign in "_:<>=") and len(leaf.text) > 1
    ]
    drawn = random.Random(0).sample(plain, min(REWRITTEN, len(plain)))
    same = [(rf"\boxed{{\frac{{2\left({text}\right)}}{{2}}}}", gold, "") for gold, text in drawn]
    return same, [(rf"\boxed{{{text}+1}}", gold, "") for gold, text in drawn]


def compared(folder: Path, problems: dict[str, list[Problem]]) -> dict[str, list[Case]]:
    """What is counted with an earlier grader as well: both directions on whole sets, and the lists of forms."""
    cases: dict[str, list[Case]] = {
        f"{stem}, answers": [(rf"\boxed{{{p.gold.strip()}}}", p.gold, p.prompt) for p in own]
        for stem, own in problems.items()
    }
    aime = json.loads((folder / "deepscaler_train_aime.json").read_text(encoding="utf-8"))
    whole = [(int(row["answer"]), row["problem"]) for row in aime if row["answer"].strip().isdigit()]
    cases["AIME, three digits"] = [(rf"\boxed{{{answer:03}}}", str(answer), prompt) for answer, prompt in whole]
    cases |= {name: as_cases(forms()) for name, forms in FORMS.items()}
    for name in WRONG[:2]:
        cases[name] = []
    for stem in FILES[2:]:
        for n, p in enumerate(problems[stem]):
            for kind, message in attacks(p.prompt, p.gold, random.Random(f"{stem}/{n}"), REWRITES) if p.gold else ():
                cases["formulas copied" if kind == "copy" else "formulas rewritten"].append((message, p.gold, p.prompt))
    return cases


def as_cases(forms: Iterable[Form]) -> list[Case]:
    return [(form.message, form.gold, form.prompt) for form in forms]


def counted_before(revision: str, folder: Path) -> dict[str, Any]:
    """The compared sections' counts with the grader of a revision."""
    cases = compared(folder, {stem: load(folder, stem) for stem in FILES})
    fewer = {name: own[:: BEFORE_EVERY if len(own) > MANY else 1] for name, own in cases.items()}
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", scratch], input=archive.stdout, check=True)
        given, verdicts = Path(scratch) / "cases.json", Path(scratch) / "verdicts.json"
        given.write_text(json.dumps(fewer), encoding="utf-8")
        command = [sys.executable, str(Path(__file__).with_name("verdicts.py")), str(given), str(verdicts)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": f"{scratch}/src"}, check=True)
        found = json.loads(verdicts.read_text(encoding="utf-8"))
    kinds = {name: by_kind(name, found["rows"][name]) for name in FORMS}
    return {"revision": revision, "sections": found["figures"], "kinds": kinds}


def by_kind(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for form, row in zip(FORMS[name](), rows, strict=True):
        own = found.setdefault(form.kind, {"cases": 0, "right": 0})
        own["cases"] += 1
        own["right"] += row["right"]
    return found


def measure(folder: Path, fuzz: int) -> dict[str, Any]:
    problems = {stem: load(folder, stem) for stem in FILES}
    math = [p.gold for stem in FILES[2:] for p in problems[stem]]
    doubled, shifted = rewritten(math)
    cases: dict[str, list[Case]] = {
        stem: [(p.solution, p.gold, p.prompt) for p in own] for stem, own in problems.items()
    }
    cases |= compared(folder, problems)
    cases |= {"equal pairs": table_of("equal.txt"), "different pairs": table_of("different.txt")}
    cases |= {"other golds": other_golds(math), "gold, doubled and halved": doubled, "gold + 1": shifted}
    expected = dict.fromkeys((*WRONG, "different pairs", "other golds", "gold + 1"), False)
    results: dict[str, Any] = {"sections": {}, "kinds": {}, "unexpected": {}, "hostile": {}, "hostile_right": []}
    with ProcessPoolExecutor(2, initializer=warm_up) as pool, Progress() as progress:
        for name, own in cases.items():
            figures, rows = section(pool, progress, name, graded, list(chunks(own)))
            wanted = expected.get(name, True)
            if name in FORMS:
                results["kinds"][name] = by_kind(name, rows)
            odd = [c for c, row in zip(own, rows, strict=True) if row["right"] != wanted]
            results["sections"][name] = figures | {"expected": "right" if wanted else "wrong"}
            results["unexpected"][name] = [{"gold": c[1], "said": extract_answer(c[0], c[2])} for c in odd]
        sample = [p for stem in FILES for p in random.Random(stem).sample(problems[stem], 500) if p.gold]
        even = (1 - sum(SHARES.values())) / (len(HOSTILE) + 1 - len(SHARES))
        for kind in (*HOSTILE, "mutated"):
            count = round(fuzz * SHARES.get(kind, even))
            parts = [(kind, at, min(at + 100, count), sample) for at in range(0, count, 100)]
            results["hostile"][kind], rows = section(pool, progress, kind, hostile, parts)
            results["hostile_right"] += [row for row in rows if row["right"] and kind != "mutated"]
    results["limit_s"] = WALL_S
    return results


def markdown(results: dict[str, Any]) -> str:
    lines = ["| cases | count | graded right | expected | median | longest |", "|---|---|---|---|---|---|"]
    rows = {**results["sections"]}
    rows |= {f"hostile: {kind}": own | {"expected": "wrong"} for kind, own in results["hostile"].items()}
    rows["hostile: mutated"]["expected"] = "either"
    for name, own in rows.items():
        share = f"{own['right']:,} ({own['right'] / own['cases']:.2%})"
        times = f"{own['median_ms']} ms | {own['longest_s']} s"
        lines.append(f"| {name} | {own['cases']:,} | {share} | {own['expected']} | {times} |")
    if "before" in results:
        lines += ["", report_grading.comparison(results), "", report_grading.kinds(results)]
    lines += ["", "Graded against expectation:", ""]
    for name, odd in results["unexpected"].items():
        lines += [f"- {name}: gold `{row['gold'].strip()}`, read `{row['said']}`" for row in odd]
    lines += [
        f"- {row['kind']} {row['seed']}: gold `{row['gold']}`, read `{row['said']}`" for row in results["hostile_right"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fuzz", type=int, default=100_000)
    parser.add_argument("--before", help="revision of an earlier grader to count the same cases with")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    args = parser.parse_args()
    started = time.perf_counter()
    results = measure(args.data, args.fuzz)
    if args.before:
        results["before"] = counted_before(args.before, args.data)
    results["seconds"] = round(time.perf_counter() - started, 1)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "grading.json").write_text(json.dumps(results, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    table = markdown(results)
    (args.out / "grading.md").write_text(table, encoding="utf-8", errors="backslashreplace")
    print(table)


if __name__ == "__main__":
    main()
