"""What an agent sees: its own prompt, the task, what the environment shows, and the messages D lets through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marft.types import Message, Task, Turn


def observe(*, prompt: str | None, task: Task, shown: str, turns: Iterable[Turn]) -> tuple[Message, ...]:
    """Agent i_k's view: `turns` are the earlier turns m with D(i_m, i_k) = 1, in order of play.

    Without a prompt the view is anonymous: no system message, and nobody's name before what was said.
    """
    user = Message(role="user", content=transcript_text(task, shown, turns, named=prompt is not None))
    return (user,) if prompt is None else (Message(role="system", content=prompt), user)


def is_visible(turn: Turn, agent: str, sees: Sequence[str] | None) -> bool:
    """D(i_m, i_k): whether `agent` sees `turn`. Talk with a tool is seen by the one who has it, whatever `sees` says."""
    return turn.to == agent if turn.to is not None else sees is None or turn.agent in sees


def central_state(*, task: Task, shown: str, turns: Sequence[Turn], next_agent: str) -> tuple[Message, ...]:
    """s_k, what a shared critic sees: the task, ALL earlier turns whatever D hid, and whose turn it is."""
    prompt = f"Judge how likely the team is to succeed. Next: {next_agent}."
    user = transcript_text(task, shown, turns, named=True)
    return (Message(role="system", content=prompt), Message(role="user", content=user))


def transcript_text(task: Task, shown: str, turns: Iterable[Turn], *, named: bool) -> str:
    """The task, what is shown, and the turns; `named`: each with its agent's name before it."""
    said = (f"{turn.agent}: {turn.text}" if named else turn.text for turn in turns)
    return "\n\n".join([task.prompt, *([shown] if shown else []), *said])
