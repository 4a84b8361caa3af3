"""Prompts that occur twice: inside a split, or in train and test, word for word or nearly so."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

from marft.types import Task

# words and numbers, and the signs without which 3 + 5 and 3 - 5 were the same
TOKEN = re.compile(r"[^\W_]+|[-+*/=<>^]")
SHINGLE = 13  # words, as is customary for finding leaked test data
NEARLY = 0.8  # of a test prompt's shingles in one train prompt
COMMON = 32  # a shingle in more train prompts than this is a phrase of the set, not of a problem


def prompt_tokens(prompt: str) -> list[str]:
    """Case-folded words, numbers and operators."""
    return TOKEN.findall(unicodedata.normalize("NFKC", prompt).casefold())


def normalise_prompt(prompt: str) -> str:
    """A prompt without what does not tell two problems apart: case, spacing, punctuation, LaTeX's braces and dollars."""
    return " ".join(prompt_tokens(prompt)) or prompt.strip()


def repeated_tasks(tasks: Sequence[Task]) -> list[tuple[str, str]]:
    """Pairs of ids, first and later, of tasks whose normalised prompts are equal."""
    first: dict[str, str] = {}
    pairs = []
    for task in tasks:
        earlier = first.setdefault(normalise_prompt(task.prompt), task.id)
        if earlier is not task.id:
            pairs.append((earlier, task.id))
    return pairs


def overlapping_tasks(train: Sequence[Task], test: Sequence[Task]) -> list[tuple[str, str]]:
    """Pairs of ids, train and test, at most one for each test task: equal once normalised, or nearly the same.

    Nearly: of the test prompt's runs of 13 words, leaving out those that more than 32 train prompts share, at least 80 %
    occur in one train prompt. The work grows with the length of the prompts, not with their product.
    """
    same: dict[str, str] = {}
    holders: dict[int, list[int]] = defaultdict(list)
    for index, task in enumerate(train):
        same.setdefault(normalise_prompt(task.prompt), task.id)
        for shingle in shingles(task.prompt):
            if len(holders[shingle]) <= COMMON:
                holders[shingle].append(index)
    pairs = []
    for task in test:
        found = same.get(normalise_prompt(task.prompt))
        if found is None and (near := nearest_train_prompt(task.prompt, holders)) is not None:
            found = train[near].id
        if found is not None:
            pairs.append((found, task.id))
    return pairs


def shingles(prompt: str) -> set[int]:
    """Hashes of all runs of SHINGLE words."""
    words = prompt_tokens(prompt)
    return {hash(tuple(words[at : at + SHINGLE])) for at in range(len(words) - SHINGLE + 1)}


def nearest_train_prompt(prompt: str, holders: dict[int, list[int]]) -> int | None:
    """The train prompt that shares most of this one's own shingles, if that is nearly all of them."""
    own = [shingle for shingle in shingles(prompt) if len(holders.get(shingle, ())) <= COMMON]
    shared = Counter(index for shingle in own for index in holders.get(shingle, ()))
    best = min(shared, key=lambda index: (-shared[index], index), default=None)
    return best if best is not None and shared[best] >= NEARLY * len(own) else None
