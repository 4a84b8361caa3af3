"""What an agent sees: its own prompt, the task, what the environment shows, and the messages D lets through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marft.types import Message, Task, Turn


def observe(*, prompt: str, task: Task, shown: str, turns: Iterable[Turn]) -> tuple[Message, ...]:
    """Agent i_k's view: `turns` are the earlier turns m with D(i_m, i_k) = 1, in order of play."""
    return (Message(role="system", content=prompt), Message(role="user", content=transcript(task, shown, turns)))


def central_state(*, task: Task, shown: str, turns: Sequence[Turn], next_agent: str) -> tuple[Message, ...]:
    """s_k, what a shared critic sees: the task, ALL earlier turns whatever D hid, and whose turn it is."""
    prompt = f"Judge how likely the team is to succeed. Next: {next_agent}."
    return (Message(role="system", content=prompt), Message(role="user", content=transcript(task, shown, turns)))


def transcript(task: Task, shown: str, turns: Iterable[Turn]) -> str:
    parts = [task.prompt, *([shown] if shown else []), *(f"{turn.agent}: {turn.text}" for turn in turns)]
    return "\n\n".join(parts)
