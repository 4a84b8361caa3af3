"""Whatever workers do, every assignment is taken exactly once, and the earliest is played first."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from marft.distributed.ledger import Ledger
from marft.rollouts.players import Key

WORKERS = st.integers(0, 2)


class Accounting(RuleBasedStateMachine):
    """A trainer that plans and takes in order, and workers that begin, finish, die, and speak when they should be dead."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger[int, Key] = Ledger()
        self.planned = 0
        self.taken: list[Key] = []
        self.heard: list[tuple[int, Key]] = []  # what workers once had in flight

    @rule()
    def plan(self) -> None:
        self.ledger.plan(Key(False, self.planned // 2, 0, self.planned % 2), self.planned)
        self.planned += 1

    @rule(worker=WORKERS)
    def begin(self, worker: int) -> None:
        if worker in self.ledger.flying:
            return
        waiting = sorted(self.ledger.planned)
        begun = self.ledger.begin(worker)
        assert (begun[0] if begun else None) == (waiting[0] if waiting else None)
        if begun:
            self.heard.append((worker, begun[0]))

    @precondition(lambda self: self.heard)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Any worker says that it has played anything it ever had: only what it has now counts."""
        worker, key = data.draw(st.sampled_from(self.heard))
        its = self.ledger.flying.get(worker, (None,))[0] == key
        assert self.ledger.finish(worker, key, key) == its

    @rule(worker=WORKERS)
    def lose(self, worker: int) -> None:
        self.ledger.lose(worker)
        assert worker not in self.ledger.flying

    @rule()
    def take(self) -> None:
        """In order, as the source does."""
        key = Key(False, len(self.taken) // 2, 0, len(self.taken) % 2)
        if (result := self.ledger.take(key)) is not None:
            assert result == key
            assert self.ledger.take(key) is None
            self.taken.append(key)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        flying = [key for key, _ in self.ledger.flying.values()]
        known = [*self.ledger.planned, *flying, *self.ledger.done, *self.taken]
        assert sorted(known) == [Key(False, i // 2, 0, i % 2) for i in range(self.planned)]


Accounting.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_accounting = Accounting.TestCase


FIRST = Key(False, 0, 0, 0)


def test_what_was_forgotten_is_no_result() -> None:
    ledger: Ledger[str, str] = Ledger()
    ledger.plan(FIRST, "old")
    ledger.begin(1)
    ledger.forget()
    ledger.plan(FIRST, "new")
    assert not ledger.finish(1, FIRST, "old")
    assert ledger.take(FIRST) is None
    assert ledger.begin(1) == (FIRST, "new")


def test_evaluation_waits_for_training_unless_it_is_awaited() -> None:
    training = [Key(False, 5, 0, 0), Key(False, 6, 0, 0)]
    held_out = [Key(True, 2, 0, 0), Key(True, 2, 1, 0), Key(True, 4, 0, 0)]

    def order(awaited: Key | None) -> list[Key]:
        ledger: Ledger[None, None] = Ledger()
        for key in (*held_out, *training):
            ledger.plan(key, None)
        begun = [ledger.begin(worker, awaited) for worker in range(5)]
        return [key for key, _ in filter(None, begun)]

    assert order(None) == order(training[0]) == [*training, *held_out]
    assert order(held_out[1]) == [*held_out[:2], *training, held_out[2]]


def test_what_is_not_ready_waits_and_holds_nobody_up() -> None:
    """A play that needs what does not exist yet is left to later, and the next one is played meanwhile."""
    ledger: Ledger[str, str] = Ledger()
    ledger.plan(Key(False, 0, 0, 0), "early")
    ledger.plan(Key(True, 0, 0, 0), "evaluation")
    assert ledger.begin(1, None, lambda item: item != "early") == (Key(True, 0, 0, 0), "evaluation")
    assert ledger.begin(2, None, lambda item: item != "early") is None
    assert ledger.begin(2) == (Key(False, 0, 0, 0), "early")
