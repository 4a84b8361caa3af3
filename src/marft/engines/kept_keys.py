"""Keys and values of turns that are over, for prompts that go on from them.

An agent's next prompt mostly begins as its last one did, and in a conversation with all that it said then. What a turn
leaves belongs to its episode, its adapter and the weights that computed it, and no other prompt ever meets it: keys
depend on all three, and a play must not depend on what this process has played before. It goes when the episode ends.

Turns that were used least lately go first. Those of earlier plays go before all others, and so change nothing either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from torch import Tensor

from marft.models.layout import AdapterTokens, common_prefix_length, sort_key

Sides = tuple[Tensor, Tensor]  # keys and values of one sequence, as its cache lays them out
Owner = tuple[Hashable, int | None]  # an episode, and the adapter that spoke


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first `length` tokens of what a turn left."""

    length: int
    sides: Sides


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a pass reads: tokens with their adapter, of which a prefix may be known already."""

    tokens: AdapterTokens
    prefix: Prefix | None = None

    @property
    def known(self) -> int:
        """First tokens whose keys need not be computed."""
        return 0 if self.prefix is None else self.prefix.length

    @property
    def rest(self) -> int:
        """Tokens that must be."""
        return len(self.tokens[1]) - self.known


class KeptKeys:
    """What at most so many turns left, by owner and tokens, computed by one `policy` alone."""

    def __init__(self, most: int) -> None:
        self.most, self.nbytes = most, 0
        self.policy: Hashable = None
        self._sides: dict[tuple[Owner, bytes], Sides] = {}  # used last comes last
        self._tokens: dict[Owner, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._sides)

    def change_policy(self, policy: Hashable) -> None:
        """Nothing that another policy computed is kept."""
        if policy != self.policy:
            self.policy = policy
            self.shrink(0)

    def forget(self, episode: Hashable) -> None:
        """Nothing of this episode is kept."""
        for owner in [owner for owner in self._tokens if owner[0] == episode]:
            for tokens in tuple(self._tokens[owner]):
                self._drop(owner, tokens)

    def find(self, owner: Owner, ids: tuple[int, ...]) -> Prefix | None:
        """The longest prefix of a prompt that is known; its last token never is, since what follows it is asked for."""
        if owner not in self._tokens:
            return None
        key = sort_key(ids)
        length, tokens = max((common_prefix_length(key, each), each) for each in self._tokens[owner])
        if not (length := min(length, len(ids) - 1)):
            return None
        return Prefix(length=length, sides=self._use(owner, tokens))

    def keep(self, owner: Owner, ids: tuple[int, ...], save: Callable[[], Sides], nbytes: int, room: int) -> None:
        """What `save` gives, of so many bytes, in the place of what these tokens begin with; all within `room` bytes."""
        key, known = sort_key(ids), tuple(self._tokens.get(owner, ()))
        if longer := [old for old in known if old.startswith(key)]:
            self._use(owner, max(longer))
            return
        if nbytes > room:
            return
        for old in known:
            if key.startswith(old):
                self._drop(owner, old)
        self.shrink(room - nbytes, self.most - 1)
        sides = save()
        self._sides[owner, key] = sides
        self._tokens.setdefault(owner, []).append(key)
        self.nbytes += sum(side.nbytes for side in sides)

    def shrink(self, room: int, most: int | None = None) -> None:
        """Down to so many bytes and turns."""
        most = self.most if most is None else most
        while self._sides and (self.nbytes > room or len(self) > most):
            self._drop(*next(iter(self._sides)))

    def _use(self, owner: Owner, tokens: bytes) -> Sides:
        sides = self._sides[owner, tokens] = self._sides.pop((owner, tokens))
        return sides

    def _drop(self, owner: Owner, tokens: bytes) -> None:
        self.nbytes -= sum(side.nbytes for side in self._sides.pop((owner, tokens)))
        self._tokens[owner].remove(tokens)
        if not self._tokens[owner]:
            del self._tokens[owner]
