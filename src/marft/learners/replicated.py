"""A learner of several processes, each with the whole base or a part of it: this process is rank 0 and holds the adapters
that play.

What is asked of it is asked of every rank. Weights that come from elsewhere (a checkpoint, `init_from`) are sent to the
others before the next batch; what an update makes of them every rank works out alike, and a checksum is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Member, Scores, TrainingBatch
from marft.algorithms.transport import state_to_bytes
from marft.learners.base import NotFinite, State, Update, UpdatePlan
from marft.learners.group import Alone
from marft.learners.local import LearnerSettings, LocalLearner
from marft.learners.peers import START_S, ChildRanks, Peers, RankLauncher
from marft.learners.ranks import (
    LONGEST_JOIN,
    LONGEST_WAIT,
    Ranks,
    ShardedRanks,
    host_store,
    is_loss_of_rank,
    join_ranks,
)
from marft.learners.wire import Order, checksum, score_order, update_order
from marft.models.loading import Loaded
from marft.models.sharding import reload_base
from marft.models.team import TeamModel
from marft.terminal.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The device of each rank, and what the others are: a module to run, which is told `arguments` to build its learner.
    With `load`, which gives a base by its name, each keeps only a part of every layer."""

    devices: Sequence[str]
    module: str
    arguments: Mapping[str, Any]
    threads: int | None = None  # of each; None: they share this machine's
    load: Callable[[str], Loaded] | None = None

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
        self._divided = False  # whether the bases' layers lie in shards

    @property
    def device(self) -> torch.device:
        """Where this rank's gradients lie."""
        return self.bases[0].device

    def start(self) -> None:
        """Start the other ranks and wait until they have loaded their models."""
        if self.peers is not None:
            return
        self.status.begin(f"starting the learner's {self.plan.ranks} ranks")
        self._restore_bases()
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
        size, host, shard = self.plan.ranks, self.launcher.host, self.plan.load is not None
        store, port = host_store(host)
        for number, own in enumerate(peers.hosts):
            found = {"ranks": size, "host": own, "store": (host, port), "shard": shard}
            peers.send(Order(call="join", arguments=found).frames(), number)
        self.group = joined = peers.unless_lost(lambda: join_ranks(store, 0, size, self.device, host, shard=shard))
        self._divided = shard
        joined.divide(self.bases)
        peers.answers(LONGEST_JOIN.total_seconds())
        peers.watch()

    def _restore_bases(self) -> None:
        """Whole again, where other ranks had a part of them and are gone."""
        if self._divided:
            assert self.plan.load is not None
            for team in self.bases:
                reload_base(team, self.plan.load(team.name))
            self._divided = False

    def close(self) -> None:
        """End the other ranks."""
        peers, self.peers = self.peers, None
        group, self.group, self._known = self.group, Alone(), None
        if peers is not None:
            peers.close()
        if isinstance(group, ShardedRanks):
            group.leave()

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
        except BaseException as error:
            reason = peers.reason() if is_loss_of_rank(error) else None  # something that all do together failed
            self.close()
            if reason is not None:
                raise reason from error
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
