"""Tools with the chat template and the tokenizer of a real Qwen2.5: calls in its words, answers as it reads them.

MARFT_QWEN names a folder with its tokenizer, or with a `model.gguf` that holds one; no weights are read.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import toys
from quick import config_of
from transformers import AutoTokenizer
from voices import Voice, in_turn

from marft.envs.hosting import InProcess
from marft.game.lockstep import Lockstep
from marft.game.play import play
from marft.game.workflows.built_in import sequential
from marft.models.chat import ChatFormat
from marft.training.agents import OpenTools, make_agent
from marft.types import Completion, Episode, Request, Task

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>'
SLOPPY = '<tool_call>{"name":"calculator","arguments":{"expression":"6*7"}}</tool_call>'
ANSWER = "<tool_response>\n42\n</tool_response>"


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    folder = os.environ.get("MARFT_QWEN")
    if not folder:
        pytest.skip("MARFT_QWEN names no folder with the tokenizer of a Qwen2.5 model")
    gguf = {"gguf_file": "model.gguf"} if (Path(folder) / "model.gguf").is_file() else {}
    if gguf:
        pytest.importorskip("gguf", reason="a tokenizer in a GGUF file needs gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder, **gguf)
    return ChatFormat(tokenizer, frozenset({tokenizer.convert_tokens_to_ids("<|im_end|>")}))


class Drawn(Voice):
    """Draws texts letter by letter, as no tokenizer would spell them, but for the tokens of calls, and ends its turns."""

    def __init__(self, chat: ChatFormat, *texts: str) -> None:
        super().__init__(in_turn(*texts))
        self.chat = chat

    def encode(self, messages: Any, *others: Any) -> tuple[int, ...]:
        return self.chat.encode(messages, *others)

    async def generate(self, request: Request) -> Completion:
        said, spell = await super().generate(request), self.chat.tokenizer.encode
        rest, ids = said.text, list[int]()
        while rest:
            piece = next((mark for mark in ("<tool_call>", "</tool_call>") if rest.startswith(mark)), rest[0])
            ids += spell(piece, add_special_tokens=False)
            rest = rest[len(piece) :]
        ids += self.chat.end_ids
        return Completion(text=said.text, token_ids=tuple(ids), logprobs=(0.0,) * len(ids), finish="stop", version=0)


def played(voice: Drawn) -> Episode:
    config = config_of(team={"agents": {"ann": {"prompt": "Solve it.", "tools": ["calculator"]}}})
    tools = OpenTools(config.team.agents, Lockstep()).by_agent["ann"]
    agent = make_agent(config, "ann", "ann", voice, tools, voice.chat)
    task = Task(id="t", prompt="6 * 7?")
    host = InProcess(toys.Echo())
    return asyncio.run(play(task=task, sample=0, team={"ann": agent}, host=host, workflow=sequential, seed="0"))


@pytest.mark.parametrize("said", [CALL, SLOPPY, f"Let me see.\n{CALL}", f"{CALL}\n{CALL}"])
def test_a_call_is_read_and_its_answer_is_a_tool_message(chat: ChatFormat, said: str) -> None:
    voice = Drawn(chat, said, "It is 42.")
    episode = played(voice)
    count = said.count("<tool_call>")
    assert [(turn.agent, turn.text) for turn in episode.turns] == [
        ("ann", said),
        *[("calculator", "42")] * count,
        ("ann", "It is 42."),
    ]
    assert episode.calls == {"ann": {"calls": count}}
    first, second = (request.prompt_ids for request in voice.requests)
    assert '"name": "calculator"' in chat.tokenizer.decode(list(first))
    start = (*first, *episode.turns[0].completion.token_ids)
    assert second[: len(start)] == start  # the very tokens that were drawn
    answers = "\n".join([ANSWER] * count)
    told = f"\n<|im_start|>user\n{answers}<|im_end|>\n<|im_start|>assistant\n"
    assert chat.tokenizer.decode(list(second[len(start) :])) == told


def test_a_call_as_the_model_spells_it_is_what_the_template_would_write(chat: ChatFormat) -> None:
    voice = Drawn(chat, CALL, "It is 42.")
    episode = played(voice)
    function = {"name": "calculator", "arguments": {"expression": "6*7"}}
    template = chat.tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Solve it."},
            {"role": "user", "content": "6 * 7?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": "42"},
        ],
        tools=[json.loads(tool) for tool in episode.turns[0].chat.tools],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert chat.tokenizer.decode(list(voice.requests[1].prompt_ids)) == template


def test_a_broken_call_is_told_and_counted(chat: ChatFormat) -> None:
    episode = played(Drawn(chat, CALL.replace("}}", "}"), "Sorry."))
    assert episode.counts == {"malformed_calls": 1}
    assert episode.turns[1].text.startswith("error: the call is not JSON")
