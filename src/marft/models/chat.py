"""Chats as a model reads them: messages by its own template, as token ids that go on from what it has itself drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from marft.types import PLAIN_CHAT, ChatOptions, ChatRefused, Message, Turn

MARKERS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))  # of thoughts
TOOLS_PROMPT = (
    "You may call functions. Each is described by a line of JSON:\n{}\n"
    'To call one, write <tool_call>{{"name": …, "arguments": {{…}}}}</tool_call>; its answer is then shown to you.'
)


class ChatFormat:
    """One model's way of writing chats down."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: frozenset[int]) -> None:
        self.tokenizer, self.end_ids = tokenizer, end_ids
        self.template = str(tokenizer.chat_template)
        self.knows_tools = "tools" in self.template
        self._special = frozenset(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self._rendered = lru_cache(maxsize=4096)(self._render)

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """The prompt that asks for the next turn. Where it begins as an `earlier` turn and its prompt do, it has their very
        tokens, however the tokenizer would spell that text."""
        asked = tuple(messages)
        known = [turn for turn in earlier if turn.chat == options and is_continued(turn, asked)]
        for turn in sorted(known, key=lambda turn: (-len(turn.observation), -len(turn.prompt_ids))):
            if (ids := self._continued(asked, options, turn)) is not None:
                return ids
        return self._rendered(asked, options)

    def thought_markers(self, options: ChatOptions) -> tuple[str, str, bool]:
        """What opens a thought, what closes it, and whether prompts end inside one."""
        opening, closing = next((pair for pair in MARKERS if pair[1] in self.template), MARKERS[0])
        prompt = self._text([Message(role="user", content="")], options)
        return opening, closing, prompt.rstrip().endswith(opening)

    def _render(self, messages: tuple[Message, ...], options: ChatOptions) -> tuple[int, ...]:
        return self._tokens(self._text(messages, options))

    def _continued(self, messages: tuple[Message, ...], options: ChatOptions, turn: Turn) -> tuple[int, ...] | None:
        """The prompt as the tokens of `turn` and what follows them; None where the template writes the turn otherwise."""
        drawn = turn.completion.token_ids
        ended = drawn[-1] in self.end_ids
        said = drawn[: len(drawn) - ended]
        if not self._special.isdisjoint(said):  # which a text must not spell
            return None
        before = self._text(turn.observation, options) + decode_texts(self.tokenizer, [said])[0]
        whole = self._text(messages, options)
        if not whole.startswith(before):
            return None
        rest = self._tokens(whole[len(before) :])
        if ended:
            if rest[:1] != drawn[-1:]:  # the template ends turns with another token than the model did
                return None
            rest = rest[1:]
        return (*turn.prompt_ids, *drawn, *rest)

    def _text(self, messages: Sequence[Message], options: ChatOptions) -> str:
        if messages and messages[-1].open:
            return self._text(messages[:-1], options) + break_special_tokens(self.tokenizer, messages[-1].content)
        if not self.knows_tools:
            messages, options = spell_out_tools(messages, options), replace(options, tools=())
        try:
            return fill_template(self.tokenizer, messages, options)
        except (TemplateError, TypeError):  # some templates refuse a system role
            try:
                return fill_template(self.tokenizer, merge_system_message(messages), options)
            except (TemplateError, TypeError) as error:
                roles = ", ".join(message.role for message in messages)
                raise ChatRefused(
                    f"the model's chat template refuses messages of the roles {roles}: {error}"
                ) from error

    def _tokens(self, text: str) -> tuple[int, ...]:
        """The template writes the special tokens itself, so encoding adds none."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def is_continued(turn: Turn, messages: Sequence[Message]) -> bool:
    """Whether messages begin with what a turn saw, and go on with an assistant's message, which may be that turn."""
    before = turn.observation[:-1] if turn.observation and turn.observation[-1].open else turn.observation
    seen = len(before)
    return (
        bool(turn.prompt_ids and turn.completion.token_ids)
        and len(messages) > seen
        and messages[seen].role == "assistant"
        and tuple(messages[:seen]) == before
    )


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
) -> tuple[int, ...]:
    """The prompt that asks for the next turn, as the tokenizer spells it."""
    return ChatFormat(tokenizer, frozenset()).encode(messages, options)


def decode_texts(tokenizer: PreTrainedTokenizerBase, sequences: Sequence[Sequence[int]]) -> list[str]:
    """What each sequence of tokens says, special tokens left out. The Rust library decodes all of them at once, where
    transformers would go through them token by token."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return list(tokenizer.batch_decode([list(ids) for ids in sequences], skip_special_tokens=True))
    return list(backend.decode_batch([list(ids) for ids in sequences], skip_special_tokens=True))


def fill_template(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT
) -> str:
    """The text that the model's chat template makes of messages and tools."""

    chat = [plain_message(tokenizer, message) for message in messages]
    tools = [break_inside(tokenizer, json.loads(tool)) for tool in options.tools] or None
    arguments = dict(options.arguments)
    return str(
        tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True, **arguments)
    )


def plain_message(tokenizer: PreTrainedTokenizerBase, message: Message) -> dict[str, Any]:
    """A message as templates read it."""
    plain: dict[str, Any] = {"role": message.role, "content": break_special_tokens(tokenizer, message.content)}
    if message.answers is not None:
        plain["tool_call_id"] = break_special_tokens(tokenizer, message.answers)
    if message.calls:
        plain["tool_calls"] = [
            {
                "type": "function",
                "id": break_special_tokens(tokenizer, call.id),
                "function": break_inside(tokenizer, {"name": call.name, "arguments": json.loads(call.arguments)}),
            }
            for call in message.calls
        ]
    return plain


def break_inside(tokenizer: PreTrainedTokenizerBase, value: Any) -> Any:
    """`break_special_tokens` of all texts inside a value of JSON, keys among them."""
    match value:
        case str():
            return break_special_tokens(tokenizer, value)
        case list():
            return [break_inside(tokenizer, each) for each in value]
        case dict():
            return {break_special_tokens(tokenizer, key): break_inside(tokenizer, each) for key, each in value.items()}
    return value


def spell_out_tools(messages: Sequence[Message], options: ChatOptions) -> list[Message]:
    """For a template that knows no tools: they are told in the system message, calls and answers are plain text."""
    found: list[Message] = []
    for message in messages:
        calls = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in message.calls]
        said = [message.content, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
        if message.role == "tool":
            found.append(Message(role="user", content=f"<tool_response>\n{message.content}\n</tool_response>"))
        else:
            found.append(Message(role=message.role, content="\n".join(filter(None, said))))
    if options.tools:
        told = TOOLS_PROMPT.format("\n".join(options.tools))
        system = found.pop(0).content if found and found[0].role == "system" else ""
        found.insert(0, Message(role="system", content="\n\n".join(filter(None, [system, told]))))
    return found


def break_special_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Text of tasks and agents may spell a special token, and so end its own turn: a space breaks the spelling."""
    for token in tokenizer.added_tokens_decoder.values():
        if token.special and token.content in text:
            text = text.replace(token.content, f"{token.content[0]} {token.content[1:]}")
    return text


def merge_system_message(messages: Sequence[Message]) -> list[Message]:
    """The system text in front of the first user message, or as one where no user has spoken."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    first = next((i for i, message in enumerate(rest) if message.role == "user"), None)
    if not system:
        return rest
    if first is None:
        return [Message(role="user", content="\n\n".join(system)), *rest]
    rest[first] = Message(role="user", content="\n\n".join([*system, rest[first].content]))
    return rest
