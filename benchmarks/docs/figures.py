"""One source for every figure: writes README, docs and the first lines of recipes anew from docs/results/*.json.

    python benchmarks/docs/figures.py [--check]      --check writes nothing and ends with 1 where something would change

Tables stand between <!-- NAME --> and <!-- /NAME -->; figures in prose are those of sentences.py. A test runs --check.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from benchmarks.docs import report_cluster, report_grading, report_performance
from benchmarks.docs.report_real import make_page
from benchmarks.docs.sentences import SENTENCES, put, read
from benchmarks.docs.wrapping import wrapped
from benchmarks.learning import studies, tictactoe, tool_use
from benchmarks.memory.what_fits import fits_table
from benchmarks.robustness import rates
from marft.config import load_config, recipes
from marft.evaluation.comparison.folder import Cell, Question
from marft.evaluation.comparison.report import make_report, report_markdown
from marft.files import validate_shape

ROOT = Path(__file__).parents[2]
RECIPES = "src/marft/recipes"
HARDWARE = {  # by the recipe's model
    "nano": "CPU",
    "Qwen/Qwen2.5-1.5B-Instruct": "one GPU, 80 GB ([16 GB with `train.recompute=true`](docs/memory.md))",
    "Qwen/Qwen2.5-3B-Instruct": "one GPU, 80 GB",
}
ORDER = (
    "gsm8k",
    "math",
    "deepscaler",
    "deepcoder",
    "single",
    "duo",
    "trio",
    "quartet",
    "token",
    "action",
    "anonymous",
    "published",
)
SCORE = re.compile(r": \d\.\d+ → \d\.\d+ held out in \d+ min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a recipe was measured to reach: means over seeds."""

    before: float
    after: float
    seconds: float
    note: str = ""

    def __str__(self) -> str:
        return f"{self.before:.3f} → {self.after:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    changed = changes(ROOT)
    for path, text in changed.items():
        print(f"{path.relative_to(ROOT)}: {'differs' if options.check else 'written'}")
        if not options.check:
            path.write_text(text, encoding="utf-8")
    sys.exit(1 if options.check and changed else 0)


def changes(root: Path) -> dict[Path, str]:
    """Every file whose figures are not those of the results, as it should be."""
    results = root / "docs" / "results"
    made = {root / name: text for name, text in (written(root, results) | first_lines(root, results)).items()}
    return {path: text for path, text in made.items() if path.read_text(encoding="utf-8") != text}


def written(root: Path, results: Path) -> dict[str, str]:
    """Pages and tables, by path."""
    found = {f"docs/results/{name}.md": f"{study_table(results, name)}\n" for name in studies.STUDIES}
    found |= {"docs/results/compare.md": f"{compared(results)}\n", "docs/results.md": make_page(results)}
    pages = dict.fromkeys([*(page for page, _ in PARTS), *(sentence.page for sentence in SENTENCES)])
    texts = {page: (root / page).read_text(encoding="utf-8") for page in pages}
    for (page, name), make in PARTS.items():
        texts[page] = between_marks(texts[page], name, make(results))
    for sentence in SENTENCES:
        texts[sentence.page] = put(texts[sentence.page], sentence, results)
    performance = (root / "docs/performance.md").read_text(encoding="utf-8")
    return {**found, **texts, "docs/performance.md": report_performance.fill(performance, results)}


def between_marks(page: str, name: str, part: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise SystemExit(f"a page needs <!-- {name} --> and <!-- /{name} --> once")
    return pattern.sub(lambda marks: f"{marks[1]}{wrapped(part)}\n{marks[2]}", page)


# --- tables -----------------------------------------------------------------------------------------------------------
def study_table(results: Path, name: str) -> str:
    return studies.table(studies.STUDIES[name], read(results, name))


def compared(results: Path) -> str:
    """The table and the verdict of `marft compare`, as it writes them."""
    data = read(results, "compare")
    asked = data["question"]
    question = Question(
        config=load_config("duo"), seeds=asked["seeds"], single=asked["single"], frozen=tuple(asked["frozen"])
    )
    whole = report_markdown(make_report(question, [validate_shape(row, Cell) for row in data["cells"]]), "comparison")
    return "\n\n".join(whole.strip().split("\n\n")[1:-1])  # without title and picture


def recipe_table(results: Path) -> str:
    measured = scores(results)
    others = sorted(set(recipes()) - set(measured), key=family)
    lines = ["| command | hardware | held-out score |", "|---|---|---|"]
    for name in [*measured, *others]:
        score = f"{measured[name]}{measured[name].note}" if name in measured else "not yet run"
        command = "marft train" if name == "duo" else f"marft train {name}"
        lines.append(f"| `{command}` | {HARDWARE[load_config(name).model]} | {score} |")
    return "\n".join(lines)


def family(name: str) -> list[int]:
    return [ORDER.index(word) for word in name.split("-")]


PARTS: Mapping[tuple[str, str], Callable[[Path], str]] = {
    ("README.md", "algorithms"): lambda results: study_table(results, "algorithms"),
    ("README.md", "teams"): lambda results: study_table(results, "teams"),
    ("README.md", "recipes"): recipe_table,
    ("docs/reasoning.md", "reasoning"): lambda results: study_table(results, "reasoning"),
    ("docs/tools.md", "tool-use"): lambda results: tool_use.table(read(results, "tool-use")),
    ("docs/comparing.md", "compare"): compared,
    ("docs/games.md", "tictactoe"): lambda results: tictactoe.table(read(results, "tictactoe")),
    ("docs/grading.md", "grading"): lambda results: report_grading.comparison(read(results, "grading")),
    ("docs/scaling.md", "cluster"): lambda results: report_cluster.scaling_table(read(results, "cluster")),
    ("docs/scaling.md", "cluster-limits"): lambda results: report_cluster.limits_table(read(results, "cluster")),
    ("docs/scaling.md", "cluster-queues"): lambda results: report_cluster.queue_table(read(results, "cluster")),
    ("docs/scaling.md", "cluster-error"): lambda results: report_cluster.error_table(read(results, "cluster-error")),
    ("docs/memory.md", "fits"): lambda results: fits_table(read(results, "memory")),
    ("docs/collapse.md", "rates-nano"): lambda results: rates.nano_table(read(results, "rates-nano")),
    ("docs/collapse.md", "rates-real"): lambda results: rates.real_table(read(results, "rates-real")),
}


# --- recipes ----------------------------------------------------------------------------------------------------------
def scores(results: Path) -> dict[str, Score]:
    """Every recipe that has been measured. `duo` as it comes is one of the algorithms."""
    runs = {name: read(results, name) for name in studies.STUDIES}
    found = {"duo": score_of(runs["algorithms"], load_config("duo").algorithm.name)}
    found |= {name: score_of(runs["teams"], name) for name in studies.TEAMS}
    return found | {"reasoning": score_of(runs["reasoning"], "gcd", " (gcd of two numbers up to 20)")}


def score_of(runs: Sequence[Mapping[str, Any]], entry: str, note: str = "") -> Score:
    own = [run for run in runs if run["entry"] == entry]
    before, after, seconds = (statistics.mean(run[key] for run in own) for key in ("before", "after", "seconds"))
    return Score(before=before, after=after, seconds=seconds, note=note)


def first_lines(root: Path, results: Path) -> dict[str, str]:
    """The recipes whose first line says what they reach."""
    found = {}
    for name, score in scores(results).items():
        path = f"{RECIPES}/{name}.yaml"
        first, rest = (root / path).read_text(encoding="utf-8").split("\n", 1)
        if not SCORE.search(first):
            raise SystemExit(f"{path}: its first line says no score, as in: 0.325 → 0.953 held out in 2 min")
        said = f": {score} held out in {math.ceil(score.seconds / 60)} min"
        found[path] = f"{SCORE.sub(said, first)}\n{rest}"
    return found


if __name__ == "__main__":
    main()
