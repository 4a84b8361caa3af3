"""How often agents called their tools, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from marft.types import Episode


def call_figures(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """By agent that called: its calls, by kind those without a result, and the share of episodes in which it called."""
    totals: dict[str, Counter[str]] = {}
    callers: Counter[str] = Counter()
    for episode in episodes:
        for agent, counts in episode.calls.items():
            totals.setdefault(agent, Counter()).update(counts)
            callers[agent] += 1
    return {agent: {**dict(sorted(totals[agent].items())), "share": callers[agent] / len(episodes)} for agent in totals}
