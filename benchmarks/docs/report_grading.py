"""Tables of grading.json: an earlier grader beside this one, by section and by kind of message."""

from __future__ import annotations

from typing import Any


def comparison(results: dict[str, Any]) -> str:
    """Both directions on whole data sets and lists of forms, before and now."""
    before = results["before"]
    lines = [
        f"| cases | right before ({before['revision'][:7]}) | right now | should be |",
        "|---|---|---|---|",
    ]
    for name, own in before["sections"].items():
        now = results["sections"][name]
        shares = [f"{row['right']:,} of {row['cases']:,} ({row['right'] / row['cases']:.2%})" for row in (own, now)]
        lines.append(f"| {name} | {' | '.join(shares)} | {now['expected']} |")
    return "\n".join(lines)


def kinds(results: dict[str, Any]) -> str:
    """How many forms of each kind earn a reward, before and now."""
    lines = ["| kind of message | forms | right before | right now | should be |", "|---|---|---|---|---|"]
    for name, own in results["kinds"].items():
        expected = results["sections"][name]["expected"]
        for kind, row in own.items():
            before = results["before"]["kinds"][name][kind]["right"]
            lines.append(f"| {kind} | {row['cases']} | {before} | {row['right']} | {expected} |")
    return "\n".join(lines)
