"""Figures that stand in prose: sentences of README and docs, and where each of their numbers comes from.

A sentence is given as it stands on its page, whatever its line breaks, with a {name} for each figure. `figures.py` puts the
values there; a page that does not have the sentence is a mistake. Whoever measures something new adds a function.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.config import load_config

NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?"
Values = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A piece of a page with figures in it."""

    page: str
    text: str
    values: Callable[[Path], Values]


def put(page: str, sentence: Sentence, results: Path) -> str:
    """The page with the sentence's figures as the results have them."""
    values = sentence.values(results)
    pieces = re.split(r"\{(\w+)\}", sentence.text)
    pattern = "".join(
        f"(?P<{piece}>{NUMBER})" if i % 2 else r"\s+".join(map(re.escape, re.split(r"\s+", piece)))
        for i, piece in enumerate(pieces)
    )
    found = list(re.finditer(pattern, page))
    if len(found) != 1:
        raise SystemExit(f"{sentence.page} has {len(found)} times, not once: {sentence.text}")
    [match] = found
    for name in sorted(values, key=match.start, reverse=True):
        page = page[: match.start(name)] + values[name] + page[match.end(name) :]
    return page


def read(results: Path, name: str) -> Any:
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


# --- real models ------------------------------------------------------------------------------------------------------
def real(results: Path, name: str) -> Values:
    entries = read(results, f"real-{name}")["entries"]
    share = {key: f"{100 * row['measured']['sampled']['accuracy']:.1f}" for key, row in entries.items()}
    seconds = entries["duo-token"]["seconds"]
    return {
        "minutes": f"{sum(seconds.values()) / 60:.0f}",
        "duo": share["untuned-duo"],
        "duo_long": share["untuned-duo-long"],
        "duo_after": share["duo-token"],
        "single": share["untuned-single"],
        "single_after": share["single-token"],
    }


def gsm8k(results: Path) -> Values:
    return real(results, "gsm8k-qwen2.5-coder-0.5b-instruct")


def gsm8k_longer(results: Path) -> Values:
    entries = read(results, "real-gsm8k-qwen2.5-coder-0.5b-instruct-alone")["entries"]
    trained, untuned = entries["duo-token"], entries["untuned-duo-long"]
    return {
        "minutes": f"{sum(trained['seconds'].values()) / 60:.0f}",
        "duo": f"{100 * untuned['measured']['sampled']['accuracy']:.1f}",
        "duo_after": f"{100 * trained['measured']['sampled']['accuracy']:.1f}",
        "greedy": f"{100 * trained['measured']['greedy']['accuracy']:.1f}",
    }


def math_500(results: Path) -> Values:
    name = "math-qwen2.5-coder-1.5b-instruct"
    tasks = read(results, f"real-{name}")["entries"]["duo-token"]["measured"]["sampled"]["tasks"]
    return {**real(results, name), "tasks": str(tasks)}


def unlearnt(results: Path) -> Values:
    """A run at a rate that was too high, and the rate that was not."""
    study = read(results, "real-gsm8k-qwen2.5-coder-0.5b-instruct")
    [row] = study["unmeasured"].values()
    lost = next(i for i, accuracy in enumerate(row["curve"], start=1) if accuracy < 0.01)
    return {
        "high": rate(row["lr"]),
        "iterations": str(lost),
        "clipped": str(math.ceil(100 * max(row["clipped"][:10]))),
        "low": rate(study["entries"]["duo-action"]["lr"]),
    }


def rate(number: float) -> str:
    mantissa, exponent = f"{number:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


# --- speed ------------------------------------------------------------------------------------------------------------
def speed(results: Path) -> Values:
    small, large = (read(results, f"generation-{size}")["adapters"] for size in ("135m", "1.5b"))
    ours = [row["marft"] for adapters in (small, large) for row in adapters.values()]
    new_weights = max(row["refresh"]["milliseconds"] for row in ours if row["refresh"])
    return {
        "small": thousands(small["2"]["marft"]["tokens_per_second"]),
        "large": thousands(large["4"]["marft"]["tokens_per_second"]),
        "refresh": str(math.ceil(new_weights)),
        "start": str(math.ceil(max(row["start_up_seconds"] for row in ours))),
    }


def thousands(number: float) -> str:
    return f"{1000 * round(number / 1000):,}"


def packed(results: Path) -> Values:
    ratios = read(results, "training-1.5b")["ratios"]
    return {
        "faster": f"{ratios['speed_over_peft']:.1f}",
        "memory": f"{100 * ratios['memory_over_peft']:.0f}",
        "four": f"{1 / ratios['four_agents_over_one']:.2f}",
    }


# --- grading ----------------------------------------------------------------------------------------------------------
def grading(results: Path) -> Values:
    data = read(results, "grading")
    own, hostile = data["sections"], data["hostile"]
    golds = [own[f"{name}_{split}"] for name in ("gsm8k", "math") for split in ("train", "test")]
    gsm8k_right, math_right = (sum(row["right"] for row in rows) for rows in (golds[:2], golds[2:]))
    gsm8k_all, math_all = (sum(row["cases"] for row in rows) for rows in (golds[:2], golds[2:]))
    equal, different, others = (own[name] for name in ("equal pairs", "different pairs", "other golds"))
    doubled, plus_one = own["gold, doubled and halved"], own["gold + 1"]
    changed = hostile["mutated"]
    attacks = [row for name, row in hostile.items() if name != "mutated"]
    assert not any(row["right"] for row in [*attacks, different, others, plus_one])
    return {
        "seconds": f"{data['seconds']:.0f}",
        "golds": f"{gsm8k_all + math_all:,}",
        "by_hand": f"{equal['cases'] + different['cases']:,}",
        "from_math": f"{sum(row['cases'] for row in (others, doubled, plus_one)):,}",
        "messages": f"{sum(row['cases'] for row in [*attacks, changed]):,}",
        "gsm8k_right": f"{gsm8k_right:,}",
        "gsm8k_all": f"{gsm8k_all:,}",
        "math_right": f"{math_right:,}",
        "math_all": f"{math_all:,}",
        "share": f"{100 * math_right / math_all:.2f}",
        "equal_right": str(equal["right"]),
        "equal": str(equal["cases"]),
        "different": str(different["cases"]),
        "others": f"{others['cases']:,}",
        "doubled_right": str(doubled["right"]),
        "doubled": str(doubled["cases"]),
        "slow": f"{doubled['median_ms']:.0f}",
        "slow_wrong": f"{plus_one['median_ms']:.0f}",
        "attacks": f"{sum(row['cases'] for row in attacks):,}",
        "longest": f"{max(row['longest_s'] for row in attacks):g}",
        "changed": f"{changed['cases']:,}",
        "still": f"{100 * changed['right'] / changed['cases']:.0f}",
        "wrong": str(own["wrong forms"]["cases"]),
        "wrong_kinds": str(len(data["kinds"]["wrong forms"])),
        "rewarded": str(own["wrong forms"]["right"]),
        "fair": str(own["fair forms"]["cases"]),
        "fair_kinds": str(len(data["kinds"]["fair forms"])),
        "refused": str(own["fair forms"]["cases"] - own["fair forms"]["right"]),
    }


def only(values: Callable[[Path], Values], names: Sequence[str]) -> Callable[[Path], Values]:
    return lambda results: {name: values(results)[name] for name in names}


# --- comparison -------------------------------------------------------------------------------------------------------
def comparison(results: Path) -> Values:
    cells = read(results, "compare")["cells"]
    trained = [cell for cell in cells if cell["name"] not in ("untuned", "vote")]
    return {"runs": str(len(trained)), "minutes": f"{sum(cell['seconds'] for cell in trained) / 60:.0f}"}


def frozen_gap(results: Path) -> Values:
    cells = read(results, "compare")["cells"]
    by_name = {
        name: {cell["seed"]: cell["accuracy"] for cell in cells if cell["name"] == name}
        for name in ("team", "frozen planner")
    }
    gaps = [accuracy - by_name["frozen planner"][seed] for seed, accuracy in by_name["team"].items()]
    tokens = {
        name: statistics.mean(c["tokens_per_task"] for c in cells if c["name"] == name) for name in ("team", "vote")
    }
    return {
        "times": f"{tokens['vote'] / tokens['team']:.1f}",
        "least": f"{min(gaps):.2f}",
        "most": f"{max(gaps):.2f}",
    }


# --- settings ---------------------------------------------------------------------------------------------------------
def duo(results: Path) -> Values:
    """Of the recipe itself: what it sets is no result, but stands in prose as well."""
    config = load_config("duo")
    return {
        "lr": rate(config.optimizer.lr),
        "iterations": str(config.train.iterations),
        "minibatches": str(config.train.minibatches),
    }


README, GRADING = "README.md", "docs/grading.md"
REAL = "from {duo} % to {duo_after} % of GSM8K's test set (from {duo_long} %, where the untuned duo may speak longer) and a single agent from {single} % to {single_after} %"
SENTENCES = (
    Sentence(page=README, text=f"{{minutes}} minutes of training took a 0.5B duo {REAL}", values=gsm8k),
    Sentence(
        page=README,
        text="alone on the GPU, {minutes} minutes took the duo from {duo} % to {duo_after} % ({greedy} % greedily)",
        values=gsm8k_longer,
    ),
    Sentence(
        page=README,
        text="{minutes} minutes took a 1.5B duo from {duo} % ({duo_long} %) to {duo_after} % of {tasks} tasks of MATH's, "
        "and a single agent from {single} % to {single_after} %",
        values=math_500,
    ),
    Sentence(
        page=README,
        text="[{share} % of MATH's and all of GSM8K's own solutions grade as right, 0 of {attacks} hostile messages do]",
        values=only(grading, ["share", "attacks"]),
    ),
    Sentence(
        page=README,
        text="{small} tokens/s with two adapters on a model of SmolLM2-135M's size, {large} with four on one of 1.5B, new "
        "weights in {refresh} ms, up in {start} seconds",
        values=speed,
    ),
    Sentence(
        page=README,
        text="{faster}× the tokens/s of plain PEFT at {memory} % of its memory (1.5B, one H200), a four-agent step {four} "
        "times as long as a one-agent step",
        values=packed,
    ),
    Sentence(
        page=GRADING,
        text="in {seconds} s, messages of {golds} gold solutions, {by_hand} pairs by hand, {from_math} pairs from MATH and "
        "{messages} hostile messages",
        values=only(grading, ["seconds", "golds", "by_hand", "from_math", "messages"]),
    ),
    Sentence(
        page=GRADING,
        text="GSM8K {gsm8k_right} of {gsm8k_all}; MATH {math_right} of {math_all} ({share} %)",
        values=only(grading, ["gsm8k_right", "gsm8k_all", "math_right", "math_all", "share"]),
    ),
    Sentence(
        page=GRADING,
        text="{equal_right} of {equal} rewritten answers match, none of {different} different ones does. Of {others} pairs "
        "of different golds of MATH none matches. {doubled_right} of {doubled} expressions of MATH match themselves "
        "doubled and halved, none matches itself plus one: algebra decides those, at a median of {slow} and "
        "{slow_wrong} ms",
        values=only(
            grading, ["equal_right", "equal", "different", "others", "doubled_right", "doubled", "slow", "slow_wrong"]
        ),
    ),
    Sentence(
        page=GRADING,
        text="none of {attacks} is graded right, none raises, the longest takes {longest} s. Of {changed} right solutions "
        "with letters changed, {still} % stay right",
        values=only(grading, ["attacks", "longest", "changed", "still"]),
    ),
    Sentence(
        page=GRADING,
        text="{wrong} wrong messages of {wrong_kinds} kinds, of which {rewarded} are rewarded, and {fair} fair ones of "
        "{fair_kinds} kinds, of which {refused} are refused",
        values=only(grading, ["wrong", "wrong_kinds", "rewarded", "fair", "fair_kinds", "refused"]),
    ),
    Sentence(page="docs/comparing.md", text="Its {runs} runs took {minutes} minutes", values=comparison),
    Sentence(
        page="docs/comparing.md",
        text="its majority of three does better with {times} times the tokens a task. With an untrained planner every seed "
        "ends lower than the team, but by {least} to {most}",
        values=frozen_gap,
    ),
    Sentence(
        page="docs/configuration.md",
        text="The recipe `duo` sets `optimizer.lr` {lr} with linear decay, {iterations} iterations, {minibatches} minibatches",
        values=duo,
    ),
    Sentence(
        page="docs/algorithms.md",
        text="`marft-action` at a learning rate of {high}, which token-level ratios stood well, unlearnt everything within "
        "{iterations} iterations, with fewer than {clipped} % of its tokens clipped in the first ten, and learnt at {low}",
        values=unlearnt,
    ),
)
