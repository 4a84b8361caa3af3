"""A message without its markup: what is struck out is gone, tags and cells of a table are the words in them."""

from __future__ import annotations

import re

STRUCK = re.compile(r"~~[^~\n]{1,200}~~|<(del|s|strike)>.{1,200}?</\1>", re.I)
TAG = re.compile(r"(?i)</?(?:[biup]|strong|em|div|span|center|code|pre|mark|font|h[1-6]|li|ul|br)(?:\s[^<>]{0,80})?/?>")
CELL = re.compile(r"^\|[ *]+([^|\n]{1,200}?)[ *]+\|[ \t]*$", re.M)
ANSWER_ROW = re.compile(r"^\|[ *]*((?:final )?answer)[ *:]*\|[ \t]*([^|\n]{1,200}?)[ \t]*\|[ \t]*$", re.I | re.M)
RULE = re.compile(r"^\|(?:[ \t]*:?-{3,}:?[ \t]*\|)+[ \t]*$\n?", re.M)
PICTURE = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u2712\u2719-\u2746\u2750-\u27bf\u2b00-\u2bff\ufe0f«»]"
)  # all but crosses
ARROW = re.compile(r"(?<![<=-])[-=]{1,4}>")
CALCULATOR = re.compile(r"<<[^<>\n]{1,100}>>")
LABELS = re.compile(r"(?:答案|答)\s*(?:是|为)?\s*[:：]?|(?<![A-Za-z])(?:réponse|respuesta|antwort|ответ)\s*[:：]", re.I)


def strip_markup(text: str) -> str:
    """A message in plain words."""
    text = STRUCK.sub(" ", text)
    text = TAG.sub("", text).replace("&nbsp;", " ").replace("：", ":")
    text = ARROW.sub("→", text)
    text = PICTURE.sub(" ", CALCULATOR.sub("", text))
    if "|" in text:
        text = CELL.sub(r"\1", RULE.sub("", ANSWER_ROW.sub(r"\1: \2", text)))
    return LABELS.sub("Answer: ", text)
