"""Turns longer than the base model can read."""

from __future__ import annotations

from marft.config import Config


def describe_limits(config: Config, model: str, longest: int) -> str | None:
    """One line where agents may say more than their model reads, prompt and all; they would be cut off earlier."""
    over = {
        name: agent.max_tokens
        for name, agent in config.team.agents.items()
        if agent.kind in ("trained", "frozen")
        and (agent.model or config.model) == model
        and agent.max_tokens >= longest
    }
    if not over:
        return None
    given = ", ".join(f"team.agents.{name}.max_tokens={most}" for name, most in over.items())
    return (
        f"model {model} reads at most {longest} tokens, prompt and answer together, and {given} asks for more: "
        f"turns end when they are full; give less than {longest}"
    )
