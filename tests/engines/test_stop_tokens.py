"""A token that is not suspect must not complete a stop string, whatever the tokenizer does to spaces and bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asking import TOKENIZER
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from marft.engines.stop_tokens import StopTokens


def stop_tokens(tokenizer: Any, size: int) -> StopTokens:
    team: Any = SimpleNamespace(
        tokenizer=tokenizer, config=SimpleNamespace(vocab_size=size), device=torch.device("cpu")
    )
    return StopTokens(team)


def metaspace() -> PreTrainedTokenizerFast:
    """As Llama 2's: ▁ for a space, the first of a text dropped, bytes for what the vocabulary lacks."""
    pieces = ["<unk>", "▁a", "▁the", "end", "▁", "<0x0A>", "<0xE2>", "<0x86>", "<0x92>", "x▁"]
    model = models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def found(table: StopTokens, *stop: str) -> set[int]:
    row = table.row(stop)  # first: the table grows
    return set(table.table[row].nonzero()[:, 0].tolist())


def test_tokens_that_may_complete_a_stop() -> None:
    table = stop_tokens(metaspace(), 12)  # two more than the tokenizer knows, as padded heads have
    partial = {6, 7, 8}
    assert found(table) == set()
    assert found(table, "the") == {2, 3} | partial
    assert found(table, "b ") == {1, 2, 4, 9} | partial
    assert found(table, "\n") == {5} | partial
    assert found(table, "→") == partial
    assert found(table, "→", "bend") == {3} | partial
    assert table.row(("and",)) == table.row(("bend", "d"))  # the same last characters
    assert len(table.table) == len(table.rows) == 7


@pytest.mark.parametrize("stop", ["\n\n", "1", "</answer>", " ", "n"])
def test_no_token_of_nano_completes_a_stop_unsuspected(stop: str) -> None:
    table = stop_tokens(TOKENIZER, len(TOKENIZER))
    suspect = found(table, stop)
    start = TOKENIZER.encode(f"Work{stop[:-1]}", add_special_tokens=False)
    completes = {
        token
        for token in range(len(TOKENIZER))
        if stop in TOKENIZER.decode([*start, token], skip_special_tokens=True) and stop not in TOKENIZER.decode(start)
    }
    assert completes
    assert completes <= suspect
    assert len(suspect) < len(TOKENIZER) * 0.6
