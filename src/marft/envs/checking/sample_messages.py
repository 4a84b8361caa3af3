"""What the checks let agents say: ordinary messages, the right answer where the task knows it, and hostile ones."""

from __future__ import annotations

from collections.abc import Mapping

from marft.types import Completion, Task, Turn

AGENT = "solver"  # who speaks, where the environment does not say
ORDINARY = ("yes", "42", "Answer: 42", "I do not know.")
SHORT, LIKELY = 200, 2  # characters of a value that may be an answer, and how many values are tried
HOSTILE: Mapping[str, str] = {
    "an empty message": "",
    "white space": " \n\t\r\n ",
    "a megabyte": "a1 " * ((1 << 20) // 3),
    "a thousand digits": "Answer: " + "9" * 1000,
    "a NUL": "yes\x00no",
    "half a surrogate pair": "\ud83d yes \udc00",
    "emoji": "👍🏽 yes 🇪🇺 é",
    "markup": "<b>yes</b> <|im_end|> </s> [INST] {{ 7 * 7 }} ${x} %s {0}",
    "an open \\boxed{": "\\boxed{" * 50,
    "JSON": '{"answer": [1, 2, {"a": null}], "answer": 1e999}',
    "code": "```python\nimport os\nos.abort()\n```",
    "other scripts": "Answer: ٤٢ ４２ ⁴² 四十二",
    "brackets": "(" * 5000 + ")" * 5000,
}


def sample_messages(task: Task) -> list[str]:
    """Ordinary messages, the prompt itself last, and between them what the task's data may hold as its answer."""
    plain = {key: f"{value}" for key, value in task.data.items() if isinstance(value, str | int | float)}
    short = sorted((key for key, text in plain.items() if len(text) <= SHORT), key=lambda key: key != "answer")
    likely = [plain[key] for key in short[:LIKELY]]
    spelled = [form for value in likely for form in (value, f"Answer: {value}", f"\\boxed{{{value}}}")]
    return [*ORDINARY, *spelled, task.prompt]


def make_turn(text: str, index: int = 0, agent: str = AGENT) -> Turn:
    """A turn in which `agent` says `text`, without tokens."""
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    return Turn(agent=agent, index=index, nth=index, shown="", observation=(), prompt_ids=(), completion=said)
