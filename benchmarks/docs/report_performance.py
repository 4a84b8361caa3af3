"""Writes the tables of docs/performance.md, and what fell short, from what the benchmarks left in docs/results.

python benchmarks/docs/report_performance.py [--results docs/results] [--page docs/performance.md]
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from benchmarks.docs.shortfalls import Result, shortfalls
from benchmarks.docs.wrapping import wrapped

NOTHING = "No run has been recorded yet."
PATH = re.compile(r"(?<![\w.~/])(?:~|\.{1,2})?/(?:[^/\s]+/)*([^/\s]+)")  # of a machine; its last part is enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    options = parser.parse_args()
    options.page.write_text(fill(options.page.read_text(), options.results))


def fill(page: str, results: Path) -> str:
    """The page with everything between marks made anew."""
    paths = {name: sorted(results.glob(f"{name}*.json")) for name in TABLES}
    found = {name: [json.loads(path.read_text()) for path in each] for name, each in paths.items()}
    parts = {name: make(found[name]) if found[name] else NOTHING for name, make in TABLES.items()}
    for name, each in paths.items():
        told = [command(result, path.name) for path, result in zip(each, found[name], strict=True)]
        parts[name] += f"\n\n```sh\n{chr(10).join(told)}\n```" if told else ""
    parts["shortfalls"] = shortfalls(found)
    for name, part in parts.items():
        shown = wrapped(PATH.sub(r"\1", part))
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m, s=shown: f"{m[1]}{s}\n{m[2]}", page, flags=re.S
        )
    return page


def command(result: Result, file: str) -> str:
    """What made a result: every setting that it names, whatever the defaults are now."""
    words = ["python", f"benchmarks/speed/{result['benchmark']}.py"]
    given = dict(result["settings"])
    words += [word for key in ("recipe", "overrides") for word in as_words(given.pop(key, None))]
    if result["benchmark"] == "episodes":
        words += ["--peers", "peers/bin/python"]
    for key, value in given.items():
        if value is not None:
            words += [f"--{key.replace('_', '-')}", *as_words(value)]
    return shlex.join([*words, "--out", f"docs/results/{file}"])


def as_words(value: Any) -> list[str]:
    if value is None:
        return []
    each = value if isinstance(value, list) else [value]
    return [f"{one:g}" if isinstance(one, float) else str(one) for one in each]


def counted(runs: Mapping[str, Sequence[Any]]) -> str:
    """Of how many runs each figure is the median."""
    return ", ".join(
        f"{name}: {f'median of {len(seen)} runs' if len(seen) > 1 else 'one run'}" for name, seen in runs.items()
    )


def rows(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    shown = [["–" if cell is None else str(cell) for cell in line] for line in lines]
    assert all(len(line) == len(head) for line in shown)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *shown])


def thousands(number: float | None) -> str | None:
    return None if number is None else f"{number:,.0f}"


def where(result: Result) -> str:
    machine = result["machine"]
    threads = "" if "CPU" not in machine["device"] else f", threads: {machine['threads']}"
    return f"{machine['device']}{threads}, torch {machine['packages']['torch']}"


def generation(results: Sequence[Result]) -> str:
    head = ("model", "prompts × tokens, slots", "adapters", "marft tokens/s", "`generate`", "vLLM", "start-up s", "first round s", "new weights ms", "peak GiB")  # fmt: skip
    lines = []
    for result in results:
        given = result["settings"]
        shape = f"{given['prompts']:,} × {given['max_tokens']}, {given['slots']:,}"
        for adapters, row in sorted(result["adapters"].items(), key=lambda item: int(item[0])):
            ours = row["marft"]
            others = [against(row, name) for name in ("generate", "vllm")]
            refresh = ours["refresh"] and ours["refresh"]["milliseconds"]
            refresh = "noise" if refresh is not None and refresh <= 0 else refresh
            rate = f"**{thousands(ours['tokens_per_second'])}**"
            start = (
                ours["start_up_seconds"] if int(adapters) == given["adapters"][0] else None
            )  # later ones find kernels
            first = ours["first_round_seconds"]
            lines.append([given["model"], shape, adapters, rate, *others, start, first, refresh, ours["peak_gib"]])
    notes = [
        f"{model_of(result)}: {where(result)}; {counted(runs_of(result))}"
        + (f"; four adapters over none: {result['four_over_none']}" if result["four_over_none"] else "")
        + vllm_of(result)
        for result in results
    ]
    return "\n\n".join([rows(head, lines), *notes])


def model_of(result: Result) -> str:
    others = [name for name in runs_of(result) if name != "marft"]
    return f"`{result['settings']['model']}`" + (f" against {' and '.join(others)}" if others else "")


def vllm_of(result: Result) -> str:
    seconds = result["vllm_start_up_seconds"]
    return "" if seconds is None else f"; vLLM {result['machine']['packages']['vllm']}, up in {seconds} s"


def runs_of(result: Result) -> dict[str, Sequence[Any]]:
    row = next(iter(result["adapters"].values()))
    return {name: row[name]["runs"] for name in ("marft", "generate", "vllm") if name in row}


def against(row: Result, name: str) -> str | None:
    return f"{thousands(row[name]['tokens_per_second'])} ({row['ratio'][name]}×)" if name in row else None


def training(results: Sequence[Result]) -> str:
    head = ("model", "who", "tokens/s", "seconds an update", "peak GiB", "utilisation")
    lines = []
    for result in results:
        for who, row in result["figures"].items():
            used = None if row["utilisation"] is None else f"{100 * row['utilisation']:.1f} %"
            rate = thousands(row["tokens_per_second"])
            lines.append([result["settings"]["model"], who, rate, row["seconds"], row["peak_gib"], used])
    notes = []
    for result in results:
        samples, mismatch = result["samples"], result["mismatch"]
        ratios = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result["ratios"].items())
        notes.append(
            f"`{result['settings']['model']}`: {where(result)}; medians of {result['settings']['repeats']} updates; "
            f"{samples['sequences']} sequences of {samples['shortest']} to {samples['longest']} tokens, {thousands(samples['tokens'])} together; {ratios}; sampled against recomputed "
            f"log-probs: mean k3 KL {mismatch['mean_k3']:.2g} over {thousands(mismatch['tokens'])} tokens"
        )
    return "\n\n".join([rows(head, lines), *notes])


def iteration(results: Sequence[Result]) -> str:
    names = list(results[0]["phases"])
    lines = [
        [
            " ".join([f"`{result['settings']['recipe']}`", *result["settings"]["overrides"]]),
            where(result),
            result["episodes"],
            result["seconds"],
            *(result["phases"].get(name) for name in names),
        ]
        for result in results
    ]
    return rows(["recipe", "machine", "episodes", "seconds", *names], lines)


def episodes(results: Sequence[Result]) -> str:
    head = (
        "model size", "a step's prompts × group", "tokens of prompt + completion", "against", "agents", "marft episodes/s",
        "theirs", "ratio", "ratio of processor time", "rounds",
    )  # fmt: skip
    lines = []
    for result in results:
        given = result["settings"]
        shape = f"{given['prompts']} × {given['group']}"
        for peer, pair in result["against"].items():
            sizes = f"{pair['prompt_tokens']:.0f} + {given['tokens']}"
            name = f"{peer} {pair[peer]['packages'][peer]}"
            rates = [pair[who]["episodes_per_second"] for who in ("marft", peer)]
            ratios = f"**{pair['ratio']}×**", f"{pair['cpu_ratio']}×"
            lines.append([given["size"], shape, sizes, name, pair["agents"], *rates, *ratios, given["rounds"]])
    return rows(head, lines)


TABLES: Mapping[str, Callable[[Sequence[Result]], str]] = {
    "generation": generation,
    "training": training,
    "iteration": iteration,
    "episodes": episodes,
}

if __name__ == "__main__":
    main()
