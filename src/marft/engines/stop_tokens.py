"""Which tokens may complete a stop string, as a table on the device: the replies of all other rows need no reading."""

from __future__ import annotations

from functools import cached_property

import torch

from marft.models.team import TeamModel

PARTIAL = "\ufffd"  # what a piece of a character decodes to


class StopTokens:
    """`table[i, token]`: could the token be the last of a stop string? Row 0 is for those who have none.

    A stop string is complete when its last character is, so rows of the table stand for sets of last characters. A
    token with a piece of a character is always suspect: the pieces before it may make it a whole one.
    """

    def __init__(self, team: TeamModel) -> None:
        self.tokenizer, self.size = team.tokenizer, int(team.config.vocab_size)
        self.table = torch.zeros(1, self.size, dtype=torch.bool, device=team.device)
        self.rows = {frozenset[str](): 0}

    def row(self, stop: tuple[str, ...]) -> int:
        """The table's row for these stop strings, made when first asked for."""
        ends = frozenset(each[-1] for each in stop)
        if ends not in self.rows:
            suspect = [PARTIAL in text or not ends.isdisjoint(text) for text in self.texts]
            self.table = torch.cat([self.table, torch.tensor([suspect], device=self.table.device)])
            self.rows[ends] = len(self.rows)
        return self.rows[ends]

    @cached_property
    def texts(self) -> list[str]:
        """What each token adds to a text, asked behind another token: some decoders strip the space of a first one."""
        first = self.tokenizer.encode("a", add_special_tokens=False)
        start = len(self.tokenizer.decode(first, skip_special_tokens=True))
        both = self.tokenizer.batch_decode([[*first, token] for token in range(self.size)], skip_special_tokens=True)
        return [text[start:] for text in both]
