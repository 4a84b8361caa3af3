"""Grades cases with whichever marft can be imported, through `grade` and `final_answer` alone: earlier revisions have them.

    python benchmarks/grading/verdicts.py CASES VERDICTS

CASES is a JSON object of sections, each a list of [message, gold, prompt]; VERDICTS gets their figures and verdicts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.progress import Progress

from marft.envs.grading import final_answer, grade

Case = tuple[str, str, str]  # message, gold, prompt
CHUNK = 50  # cases a worker is given at once


def graded(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Runs in a worker: the verdict of each case and its seconds; nothing may raise, its vote included."""
    found = []
    for message, gold, prompt in cases:
        started = time.perf_counter()
        verdict = grade(message, gold, prompt)
        seconds = time.perf_counter() - started
        final_answer(message, prompt)
        found.append({"right": verdict, "seconds": seconds})
    return found


def warm_up() -> None:
    """The algebra worker's start is no part of a case."""
    grade(r"\boxed{k+k}", "2k")


def chunks(items: Sequence[Any], size: int = CHUNK) -> Iterator[Sequence[Any]]:
    """The items, so many at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


def section(
    pool: ProcessPoolExecutor,
    progress: Progress,
    name: str,
    work: Callable[[Any], list[dict[str, Any]]],
    parts: list[Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A section's figures, and the row of each of its cases."""
    started = time.perf_counter()
    rows = [row for part in progress.track(pool.map(work, parts), total=len(parts), description=name) for row in part]
    seconds = sorted(row["seconds"] for row in rows)
    figures = {
        "cases": len(rows),
        "right": sum(row["right"] for row in rows),
        "seconds": round(time.perf_counter() - started, 1),
        "median_ms": round(1e3 * seconds[len(seconds) // 2], 2),
        "longest_s": round(seconds[-1], 2),
    }
    return figures, rows


def main() -> None:
    """Grades every section of a file of cases."""
    cases, verdicts = map(Path, sys.argv[1:])
    found: dict[str, Any] = {"figures": {}, "rows": {}}
    with ProcessPoolExecutor(2, initializer=warm_up) as pool, Progress() as progress:
        for name, own in json.loads(cases.read_text(encoding="utf-8")).items():
            found["figures"][name], found["rows"][name] = section(pool, progress, name, graded, list(chunks(own)))
    verdicts.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
