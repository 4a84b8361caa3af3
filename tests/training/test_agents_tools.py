"""An agent is told of its tools as its base model knows them: by the chat template, or in its prompt."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import toys
from quick import config_of
from voices import Voice, in_turn

from marft.envs.hosting import InProcess
from marft.game.agent import Agent
from marft.game.lockstep import Lockstep
from marft.game.play import play
from marft.game.tools import InlineCall
from marft.game.workflows.built_in import sequential
from marft.models.chat import ChatFormat
from marft.models.loading import read_tokenizer
from marft.models.registry import NANO
from marft.training.agents import OpenTools, make_agent
from marft.types import Completion, MarftError, Message, Request, Task

HERMES = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{% if m.role == 'tool' %}user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response>{% else %}{{ m.role }}\n{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


class Spoken(Voice):
    """Says fixed texts to prompts of a real template, and draws the tokens that spell them."""

    def __init__(self, chat: ChatFormat, *texts: str) -> None:
        super().__init__(in_turn(*texts))
        self.chat = chat

    def encode(self, messages: Any, *others: Any) -> tuple[int, ...]:
        return self.chat.encode(messages, *others)

    async def generate(self, request: Request) -> Completion:
        said = await super().generate(request)
        ids = tuple(self.chat.tokenizer.encode(said.text, add_special_tokens=False))
        return Completion(text=said.text, token_ids=ids, logprobs=(0.0,) * len(ids), finish="stop", version=0)


@pytest.fixture
def chat() -> ChatFormat:
    return read_tokenizer(str(NANO)).chat


def agent_of(chat: ChatFormat, voice: Voice) -> Agent:
    config = config_of(
        team={"agents": {"ann": {"prompt": "Solve it.", "tools": [f"{__name__}:multiply", "calculator"]}}}
    )
    tools = OpenTools({"ann": config.team.agents["ann"]}, Lockstep())
    return make_agent(config, "ann", "ann", voice, tools.by_agent["ann"], chat)


def test_a_template_that_knows_no_tools_leaves_it_to_the_prompt(chat: ChatFormat) -> None:
    agent = agent_of(chat, Voice())
    assert (agent.tools.written, agent.chat.tools) == (None, ())
    assert agent.sampling.stop == ("</multiply>", "</calculator>")
    assert agent.tools.help.startswith('multiply: write <multiply>{"a": …, "b": …}</multiply> and its result')


def test_a_template_that_knows_tools_is_told_and_a_call_goes_on_from_what_was_drawn(chat: ChatFormat) -> None:
    chat.tokenizer.chat_template = HERMES
    chat = ChatFormat(chat.tokenizer, frozenset())
    said = '<tool_call>\n{"name":"multiply","arguments":{"a":12,"b":12}}\n</tool_call>'
    voice = Spoken(chat, said, "144")
    agent = agent_of(chat, voice)
    assert (agent.tools.written, agent.call_format, agent.sampling.stop) == ("hermes", "hermes", ())
    functions = [json.loads(tool)["function"] for tool in agent.chat.tools]
    assert [each["name"] for each in functions] == ["multiply", "calculator"]
    assert functions[1]["parameters"]["required"] == ["expression"]
    assert "<calculator>" not in functions[1]["description"]
    task = Task(id="t", prompt="12 * 12?")
    playing = play(task=task, sample=0, team={"ann": agent}, host=InProcess(toys.Echo()), workflow=sequential, seed="0")
    episode = asyncio.run(playing)
    assert [turn.text for turn in episode.turns] == [said, "144", "144"]
    first, second = voice.requests
    assert second.messages[-1] == Message(role="tool", content="144", answers="call00000")
    told = chat.tokenizer.decode(list(second.prompt_ids))
    assert '"name": "multiply"' in told
    assert "<tool_response>\n144\n</tool_response>" in told
    drawn = (*first.prompt_ids, *episode.turns[0].completion.token_ids)
    assert second.prompt_ids[: len(drawn)] == drawn


def test_inline_calls_need_a_tool_of_one_text() -> None:
    agent = {"prompt": "Solve it.", "inline_call": "<<{text}="}

    def opened(tool: str) -> OpenTools:
        return OpenTools(config_of(team={"agents": {"ann": {**agent, "tools": [tool]}}}).team.agents, Lockstep())

    assert opened("calculator").by_agent["ann"].inline == InlineCall(opening="<<", closing="=")
    with pytest.raises(
        MarftError, match="inline_call: it asks one tool that takes one text, and the tools are multiply"
    ):
        opened(f"{__name__}:multiply")


def test_inline_calls_go_before_the_format_of_the_template(chat: ChatFormat) -> None:
    chat.tokenizer.chat_template = HERMES
    agents = {"ann": {"prompt": "Solve it.", "tools": ["calculator"], "inline_call": "{text}="}}
    config = config_of(team={"agents": agents})
    tools = OpenTools(config.team.agents, Lockstep()).by_agent["ann"]
    agent = make_agent(config, "ann", "ann", Voice(), tools, ChatFormat(chat.tokenizer, frozenset()))
    assert (agent.tools.written, agent.chat.tools, agent.sampling.stop) == (None, (), ("=",))
