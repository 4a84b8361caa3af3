"""Prompts that go on from what was drawn, and how a model's template marks thoughts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from marft.models.chat import ChatFormat, render
from marft.models.loading import load
from marft.models.registry import NANO
from marft.types import ChatOptions, Completion, FunctionCall, Message, Turn

TOOL = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}'
ASKED = (Message(role="system", content="Be brief."), Message(role="user", content="2 + 2?"))


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load(str(NANO), "cpu", "float32")


@pytest.fixture
def chats(loaded: Any) -> ChatFormat:
    return ChatFormat(loaded.tokenizer, loaded.end_ids)


def turn(chats: ChatFormat, text: str, *, end: bool, ids: tuple[int, ...] | None = None) -> Turn:
    """A turn that spells its text letter by letter, as no tokenizer would."""
    letters = [chats.tokenizer.encode(letter, add_special_tokens=False) for letter in text]
    drawn = ids or tuple(i for each in letters for i in each)
    drawn = (*drawn, *((next(iter(chats.end_ids)),) if end else ()))
    said = Completion(
        text=text, token_ids=drawn, logprobs=(0.0,) * len(drawn), finish="stop" if end else "length", version=0
    )
    return Turn(agent="a", index=0, nth=0, shown="", observation=ASKED, prompt_ids=chats.encode(ASKED), completion=said)


def following(text: str) -> tuple[Message, ...]:
    return (*ASKED, Message(role="assistant", content=text), Message(role="user", content="3 + 4?"))


@pytest.mark.parametrize("end", [True, False])
def test_a_prompt_begins_with_the_very_tokens_that_were_drawn(chats: ChatFormat, end: bool) -> None:
    own = turn(chats, "the answer", end=end)
    ids = chats.encode(following("the answer"), earlier=[own])
    start = (*own.prompt_ids, *own.completion.token_ids)
    assert ids[: len(start)] == start
    spelled = chats.tokenizer.decode(list(ids))
    assert spelled == chats.tokenizer.decode(
        list(chats.encode(following("the answer")))
    )  # the same text, end marker and all


def test_the_longest_that_fits_is_continued(chats: ChatFormat) -> None:
    first = turn(chats, "answer", end=True)
    asked = following("answer")
    prompt = chats.encode(asked, earlier=[first])
    said = Completion(text="7", token_ids=first.completion.token_ids[:1], logprobs=(0.0,), finish="length", version=0)
    said = Completion(
        text=chats.tokenizer.decode(list(said.token_ids)),
        token_ids=said.token_ids,
        logprobs=(0.0,),
        finish="length",
        version=0,
    )
    second = Turn(agent="a", index=1, nth=1, shown="", observation=asked, prompt_ids=prompt, completion=said)
    whole = (*asked, Message(role="assistant", content=said.text), Message(role="user", content="and?"))
    ids = chats.encode(whole, earlier=[second, first])
    assert ids[: len(prompt) + 1] == (*prompt, *said.token_ids)


def test_of_several_answers_the_one_that_is_repeated_is_continued(chats: ChatFormat) -> None:
    other, own = turn(chats, "another", end=True), turn(chats, "answer", end=True)
    ids = chats.encode(following("answer"), earlier=[other, own])
    assert ids[: len(own.prompt_ids) + 2] == (*own.prompt_ids, *own.completion.token_ids[:2])
    assert ids != chats.encode(following("answer"))


def test_a_turn_whose_template_was_told_otherwise_is_not_continued(chats: ChatFormat) -> None:
    own = turn(chats, "answer", end=True)
    options = ChatOptions(tools=(TOOL,))
    assert chats.encode(following("answer"), options, [own]) == chats.encode(following("answer"), options)
    assert chats.encode(following("answer"), earlier=[own]) != chats.encode(following("answer"))


def test_names_and_escapes_spell_no_special_token(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    special = next(token.content for token in loaded.tokenizer.added_tokens_decoder.values() if token.special)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in special)
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.tool_calls | string }}{{ m.tool_call_id }}{% endfor %}"
    monkeypatch.setattr(loaded.tokenizer, "chat_template", template)
    chats = ChatFormat(loaded.tokenizer, loaded.end_ids)
    call = FunctionCall(id=special, name=special, arguments=f'{{"{escaped}": "{escaped}"}}')
    messages = [Message(role="assistant", content="", calls=(call,)), Message(role="tool", content="", answers=special)]
    tool = f'{{"function": {{"name": "{escaped}"}}}}'
    ids = chats.encode(messages, ChatOptions(tools=(tool,)))
    assert not set(ids) & {i for i, token in loaded.tokenizer.added_tokens_decoder.items() if token.special}


@pytest.mark.parametrize("case", ["another text", "another view", "a special token", "no tokens", "not an assistant"])
def test_where_a_turn_is_not_repeated_the_tokenizer_spells(chats: ChatFormat, case: str) -> None:
    own, asked = turn(chats, "answer", end=True), following("answer")
    match case:
        case "another text":
            asked = following("answers")
        case "another view":
            asked = (Message(role="system", content="Be long."), *asked[1:])
        case "a special token":
            own = turn(chats, "answer", end=True, ids=(*own.completion.token_ids, next(iter(chats.end_ids))))
        case "no tokens":
            silent = Completion(text="answer", token_ids=(), logprobs=(), finish="stop", version=0)
            own = Turn(agent="a", index=0, nth=0, shown="", observation=ASKED, prompt_ids=(), completion=silent)
        case "not an assistant":
            asked = (*ASKED, Message(role="user", content="answer"))
    assert chats.encode(asked, earlier=[own]) == render(chats.tokenizer, asked)


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and enable_thinking %}<think>\n"
    "{% elif enable_thinking is defined %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@pytest.mark.parametrize(
    ("arguments", "begun"), [((), False), ((("enable_thinking", True),), True), ((("enable_thinking", False),), False)]
)
def test_the_templates_own_arguments_and_markers(
    loaded: Any, arguments: Any, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded.tokenizer, "chat_template", TEMPLATE)
    chats = ChatFormat(loaded.tokenizer, loaded.end_ids)
    options = ChatOptions(arguments=arguments)
    assert chats.thought_markers(options) == ("<think>", "</think>", begun)
    plain, told = chats.encode(ASKED), chats.encode(ASKED, options)
    assert (plain == told) == (not arguments)


def test_markers_of_another_template(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loaded.tokenizer, "chat_template", TEMPLATE.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")
    )
    chats = ChatFormat(loaded.tokenizer, loaded.end_ids)
    assert chats.thought_markers(ChatOptions())[:2] == ("[THINK]", "[/THINK]")


CALLED = Message(
    role="assistant", content="So:", calls=(FunctionCall(id="call00000", name="add", arguments='{"a": 1}'),)
)
TOOLED = (*ASKED, CALLED, Message(role="tool", content="2", answers="call00000"))


def test_a_template_without_tools_is_told_of_them_in_words(chats: ChatFormat) -> None:
    text = chats.tokenizer.decode(list(chats.encode(TOOLED, ChatOptions(tools=(TOOL,)))))
    assert not chats.knows_tools
    assert text.index("Be brief.") < text.index(TOOL) < text.index("2 + 2?")
    assert 'So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<tool_response>\n2\n</tool_response>" in text


def test_a_template_with_tools_writes_them_its_own_way(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    template = (
        "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %};{% endfor %}"
    )
    monkeypatch.setattr(loaded.tokenizer, "chat_template", template)
    chats = ChatFormat(loaded.tokenizer, loaded.end_ids)
    text = chats.tokenizer.decode(list(chats.encode(TOOLED, ChatOptions(tools=(TOOL,)))))
    assert text.replace(" ", "") == '[add]system:Bebrief.;user:2+2?;assistant:So:(add{"a":1});tool:2;'


def test_an_open_message_goes_on_from_every_token_that_was_drawn(chats: ChatFormat) -> None:
    first = turn(chats, "12=", end=False)
    begun = (*ASKED, Message(role="assistant", content="12=24, ", open=True))
    prompt = chats.encode(begun, earlier=[first])
    start = (*first.prompt_ids, *first.completion.token_ids)
    assert prompt[: len(start)] == start
    assert chats.tokenizer.decode(list(prompt)).endswith("<|im_start|>assistant\n12=24, ")  # not closed
    second = replace(turn(chats, "the answer=", end=False), index=1, observation=begun, prompt_ids=prompt)
    later = (*ASKED, Message(role="assistant", content="12=24, the answer=5", open=True))
    ids = chats.encode(later, earlier=[first, second])
    start = (*second.prompt_ids, *second.completion.token_ids)
    assert ids[: len(start)] == start
    third = replace(turn(chats, ", the answer=", end=False), index=2, observation=later, prompt_ids=ids)
    last = (*ASKED, Message(role="assistant", content="12=24, the answer=5, the answer=6", open=True))
    drawn = (*ids, *third.completion.token_ids)
    assert chats.encode(last, earlier=[first, second, third])[: len(drawn)] == drawn
    closed = (*ASKED, Message(role="assistant", content="12=24, the answer="), Message(role="user", content="Go on."))
    assert chats.encode(closed, earlier=[first, second])[: len(start)] == start
