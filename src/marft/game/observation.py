"""What an agent sees: its own prompt, the task, what the environment shows, and the messages D lets through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marft.types import Message, Task, Turn

# What an agent's earlier turns are to it: its side of a conversation, lines of a transcript like others' turns, or part of
# one conversation in which every agent's turn is an assistant's
History = Literal["conversation", "flat", "shared"]
NOTHING_NEW = "Continue."  # to an agent that acts again where nobody else has


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One agent's view of a game at one moment; `turns` are all earlier ones, in order of play.

    `prompts` are what all agents are told. An agent without a prompt is anonymous: it has no system message, and reads
    nobody's name before what was said.
    """

    agent: str
    prompts: Mapping[str, str | None]
    task: Task
    shown: str
    turns: Sequence[Turn]
    sees: Sequence[str] | None

    @property
    def visible(self) -> list[Turn]:
        """The turns m with D(i_m, i_k) = 1."""
        return [turn for turn in self.turns if is_visible(turn, self.agent, self.sees)]

    def observe(self, history: History) -> tuple[Message, ...]:
        """The messages that ask for the agent's next turn."""
        match history:
            case "flat":
                return self._transcript(self.visible)
            case "conversation":
                return self._conversation()
            case "shared":
                return self._shared_conversation()

    def unsaid(self) -> tuple[Message, ...]:
        """The view but for what agents and their tools have said, be it in their turns or repeated by the environment or the
        workflow."""
        talk = [turn for turn in self.turns if turn.step != "none" or turn.to is not None]
        said = sorted((turn.text for turn in talk), key=len, reverse=True)
        others = [
            replace(turn, completion=replace(turn.completion, text=without_repeated(turn.text, said)))
            for turn in self.visible
            if turn not in talk
        ]
        return replace(self, shown=without_repeated(self.shown, said))._transcript(others)

    def _transcript(self, turns: Iterable[Turn]) -> tuple[Message, ...]:
        """One user message."""
        prompt = self.prompts[self.agent]
        user = Message(role="user", content=transcript_text(self.task, self.shown, turns, named=prompt is not None))
        return (user,) if prompt is None else (Message(role="system", content=prompt), user)

    def _conversation(self) -> tuple[Message, ...]:
        """What the agent saw and said when it last spoke, and what has come since: what was read stays read. An agent that
        does not see its own turns begins anew each time."""
        own = [turn for turn in self.visible if turn.agent == self.agent and turn.step != "none"]
        if not own:
            return self._transcript(self.visible)
        last, named = own[-1], self.prompts[self.agent] is not None
        known = {last.index} | {m for turn in own for m in visible_indices(turn, self.turns)}
        fresh = [turn for turn in self.visible if turn.index not in known]
        answers = [turn for turn in fresh if turn.step == "none" and turn.to is not None]
        shown = self.shown if self.shown != last.shown else ""
        said = (described(turn, named=named) for turn in fresh if turn not in answers)
        text = "\n\n".join([*([shown] if shown else []), *said])
        return (
            *(message for message in last.observation if not message.open),
            Message(role="assistant", content=begun_text(last.observation) + last.completion.text),
            *(Message(role="tool", content=turn.text) for turn in answers),
            *([Message(role="user", content=text or NOTHING_NEW)] if text or not answers else []),
        )

    def _shared_conversation(self) -> tuple[Message, ...]:
        """Every visible turn is an assistant's; the user's message before it says what was new, and the agent's prompt."""
        messages: list[Message] = []
        parts, shown_last = [self.task.prompt], ""

        def ask(agent: str, shown: str) -> None:
            prompt = self.prompts.get(agent)
            new = [shown] if shown and shown != shown_last else []
            text = "\n\n".join([*parts, *new, *([prompt] if prompt else [])])
            messages.append(Message(role="user", content=text or NOTHING_NEW))

        for turn in self.visible:
            if turn.step == "none":
                parts.append(described(turn, named=self.prompts[self.agent] is not None))
                continue
            ask(turn.agent, turn.shown)
            messages.append(Message(role="assistant", content=turn.text))
            parts, shown_last = [], turn.shown or shown_last
        ask(self.agent, self.shown)
        return tuple(messages)


def begun_text(observation: Sequence[Message]) -> str:
    """The message that an agent goes on with, as far as it stands."""
    return observation[-1].content if observation and observation[-1].open else ""


def is_visible(turn: Turn, agent: str, sees: Sequence[str] | None) -> bool:
    """D(i_m, i_k): whether `agent` sees `turn`. Talk with a tool is seen by the one who has it, whatever `sees` says."""
    return turn.to == agent if turn.to is not None else sees is None or turn.agent in sees


def visible_indices(observer: Turn, turns: Sequence[Turn]) -> Iterable[int]:
    """The turns that the agent of `observer` saw when it spoke: none of those said at once with it."""
    before = observer.index
    while turns[before].step == "same":
        before -= 1
    return (turn.index for turn in turns[:before] if is_visible(turn, observer.agent, observer.sees))


def central_state(*, task: Task, shown: str, turns: Sequence[Turn], next_agent: str) -> tuple[Message, ...]:
    """s_k, what a shared critic sees: the task, ALL earlier turns whatever D hid, and whose turn it is."""
    prompt = f"Judge how likely the team is to succeed. Next: {next_agent}."
    user = transcript_text(task, shown, turns, named=True)
    return (Message(role="system", content=prompt), Message(role="user", content=user))


def transcript_text(task: Task, shown: str, turns: Iterable[Turn], *, named: bool) -> str:
    """The task, what is shown, and the turns; `named`: each with its agent's name before it."""
    said = (described(turn, named=named) for turn in turns)
    return "\n\n".join([task.prompt, *([shown] if shown else []), *said])


def without_repeated(text: str, said: Iterable[str]) -> str:
    """A text less what it repeats, each saying once."""
    for each in said:
        text = text.replace(each, "", 1) if each else text
    return text


def described(turn: Turn, *, named: bool) -> str:
    """What was said, after the name of who said it."""
    return f"{turn.agent}: {turn.text}" if named else turn.text
