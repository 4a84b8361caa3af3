"""A learner of several processes, each with the whole base: this process is rank 0 and holds the adapters that play.

What is asked of it is asked of every rank. Weights that come from elsewhere (a checkpoint, `init_from`) are sent to the
others before the next batch; what an update makes of them every rank works out alike, and a checksum is compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Member, Scores, TrainingBatch
from marft.algorithms.transport import state_to_bytes
from marft.learners.base import NotFinite, RankLost, State, Update, UpdatePlan
from marft.learners.group import Alone
from marft.learners.local import LearnerSettings, LocalLearner
from marft.learners.peers import START_S, ChildRanks, Peers, RankLauncher
from marft.learners.ranks import LONGEST_JOIN, LONGEST_WAIT, Ranks, host_store, join_ranks
from marft.learners.wire import Order, checksum, score_order, update_order
from marft.models.team import TeamModel
from marft.terminal.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The device of each rank, and what the others are: a module to run, which is told `arguments` to build its learner."""

    devices: Sequence[str]
    module: str
    arguments: Mapping[str, Any]
    threads: int | None = None  # of each; None: they share this machine's

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.devices)


class ReplicatedLearner(LocalLearner):
    """Rank 0 of several. The others are started before the first batch, and end with this one."""

    def __init__(
        self,
        members: Sequence[Member],
        teams: Mapping[str, TeamModel],
        algorithm: Algorithm,
        settings: LearnerSettings,
        plan: RankPlan,
        status: Status | None = None,
    ) -> None:
        super().__init__(members, teams, algorithm, settings, status)
        self.plan, self.threads = plan, plan.threads or threads_of_a_rank(plan.ranks)
        self.launcher: RankLauncher = ChildRanks(plan.module)
        self.peers: Peers | None = None
        self._known: list[int] | None = None  # the versions of all weights, as the others have them too

    @property
    def device(self) -> torch.device:
        """Where this rank's gradients lie."""
        return next(iter(self.teams.values())).device

    def start(self) -> None:
        """Start the other ranks and wait until they have loaded their models."""
        if self.peers is not None:
            return
        self.status.begin(f"starting the learner's {self.plan.ranks} ranks")
        others = range(1, self.plan.ranks)
        self.peers = Peers(self.launcher, others, self._abandon)
        try:
            for number, rank in enumerate(others):
                given = {"rank": rank, "device": self.plan.devices[rank], "threads": self.threads}
                own = {**self.plan.arguments, **given}
                self.peers.send(Order(call="build", arguments=own).frames(), number)
            self.peers.answers(START_S)
            self._join(self.peers)
        except BaseException:
            self.close()
            raise

    def _join(self, peers: Peers) -> None:
        """The ranks find one another by a store of this process."""
        size, host = self.plan.ranks, self.launcher.host
        store, port = host_store(host)
        for number, own in enumerate(peers.hosts):
            found = {"ranks": size, "host": own, "store": (host, port)}
            peers.send(Order(call="join", arguments=found).frames(), number)
        self.group = peers.unless_lost(lambda: join_ranks(store, 0, size, self.device, host))
        peers.answers(LONGEST_JOIN.total_seconds())
        peers.watch()

    def close(self) -> None:
        """End the other ranks."""
        peers, self.peers = self.peers, None
        self.group, self._known = Alone(), None
        if peers is not None:
            peers.close()

    def load_state_dict(self, state: State) -> None:
        """Adam's state as it was, here; the other ranks get it with the weights."""
        super().load_state_dict(state)
        self._known = None

    def score(self, batch: Batch, *, reference: bool = False, proximal: bool = False) -> Scores:
        """As `LocalLearner` does it, each rank for its own tasks."""
        with self._mirrored(score_order(batch, reference=reference, proximal=proximal)):
            return super().score(batch, reference=reference, proximal=proximal)

    def update(self, data: TrainingBatch, plan: UpdatePlan) -> Update:
        """As `LocalLearner` does it, each rank for its own tasks."""
        with self._mirrored(update_order(data, plan)):
            return super().update(data, plan)

    @contextmanager
    def _mirrored(self, order: Order) -> Iterator[None]:
        """All ranks do inside what the order says. Whatever interrupts it ends them, but for numbers that are not finite:
        those all ranks find alike."""
        self.start()
        peers = self.peers
        assert peers is not None
        try:
            self._send_weights(peers)
            peers.send(order.frames())
            with limited_threads(self.threads):
                try:
                    yield
                except NotFinite:
                    self._compare(peers)
                    raise
                self._compare(peers)
        except NotFinite:
            raise
        except RankLost as error:  # a sum with the others failed
            reason = peers.reason()
            self.close()
            raise reason from error
        except BaseException:
            self.close()
            raise

    def _send_weights(self, peers: Peers) -> None:
        if self._known != self._versions():
            blocks = state_to_bytes(self.adapters()), state_to_bytes(self.state_dict())
            peers.send(Order(call="load", arguments={}, blocks=blocks).frames())
            self._compare(peers)

    def _compare(self, peers: Peers) -> None:
        """Wait until all have done what they were told; their weights must be ours, bit by bit."""
        own = checksum(self.adapters())
        for answer in peers.answers(LONGEST_WAIT.total_seconds()):
            if answer["checksum"] != own:
                raise RuntimeError(f"rank {answer['rank']} of the learner has other weights than rank 0")
        self._known = self._versions()

    def _versions(self) -> list[int]:
        """Torch counts the changes of every tensor: whoever loads other weights is noticed."""
        return [tensor._version for own in self.adapters().values() for tensor in own.values()]

    def _abandon(self) -> None:
        if isinstance(self.group, Ranks):
            self.group.abandon()


def threads_of_a_rank(ranks: int) -> int:
    """Its share of those that torch would use here, unless the user has said how many."""
    own = torch.get_num_threads()
    return own if "OMP_NUM_THREADS" in os.environ else max(1, own // ranks)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """As many threads as the other ranks have: sums over long tensors depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
