"""People see what agents read: the tools they were told of, their calls and the answers."""

from __future__ import annotations

from marft.commands.play import Replay, describe_replay
from marft.types import ChatOptions, Completion, Episode, FunctionCall, Message, Reward, Task, Turn

TOOL = '{"type": "function", "function": {"name": "add"}}'
CALL = FunctionCall(id="call00000", name="add", arguments='{"a": 1, "b": "é"}')
ASKED = (Message(role="user", content="1 + 2?"),)


def turn(agent: str, text: str, *observation: Message, **more: object) -> Turn:
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    given = {"index": 0, "nth": 0, "shown": "", "prompt_ids": (), **more}
    return Turn(agent=agent, observation=observation, completion=said, **given)  # type: ignore[arg-type]


def shown(*turns: Turn, prompts: bool) -> str:
    episode = Episode(task=Task(id="t", prompt="1 + 2?"), sample=0, turns=turns, reward=Reward(team=1.0))
    return "\n".join(describe_replay(Replay(episode=episode, gold=None), prompts=prompts))


def test_calls_and_answers_are_told_apart_from_messages() -> None:
    talk = (turn("ann", "<tool_call>…", to="ann"), turn("add", "3", to="ann", step="none"), turn("ann", "3"))
    lines = [line for line in shown(*talk, prompts=False).splitlines() if line.endswith(":")]
    assert lines == ["ann calls a tool:", "add answers:", "ann:"]


def test_prompts_show_tools_calls_and_messages_that_go_on() -> None:
    said = Message(role="assistant", content="", calls=(CALL,))
    answer = Message(role="tool", content="3", answers="call00000")
    begun = Message(role="assistant", content="1+2=3", open=True)
    text = shown(turn("ann", "3", *ASKED, said, answer, begun, chat=ChatOptions(tools=(TOOL,))), prompts=True)
    assert f"[ann saw, tools]\n  {TOOL}" in text
    assert '[ann saw, assistant]\n  calls add {"a": 1, "b": "é"}' in text
    assert "[ann saw, tool]\n  3" in text
    assert "[ann saw, assistant, to go on from]\n  1+2=3" in text
