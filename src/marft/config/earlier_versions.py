"""Configs that runs of earlier versions have written, in today's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_present_keys(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same settings under the keys that they have now: `engine.correction` became `algorithm.correction`."""
    match data:
        case {"engine": {"correction": limit, **engine}, "algorithm": {"name": _} as algorithm}:
            return {**data, "engine": engine, "algorithm": {"correction": limit, **algorithm}}
    return data
