"""Workers: processes here or on a cluster that play, each with a thread here that gives it work, watches it and replaces it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marft.channels import LOOK_S
from marft.config import Config
from marft.distributed.gpus import visible_gpu
from marft.distributed.ledger import Ledger
from marft.distributed.messages import Setup
from marft.distributed.remote_worker import Launcher, RemoteWorker, WorkerFault, WorkerLost
from marft.distributed.worker_process import ProcessLauncher
from marft.engines.base import Adapters
from marft.learners.replicated import ReplicatedLearner
from marft.rollouts.players import Assignment, Key, LocalPlayers, Played, Players
from marft.terminal.status import Status
from marft.training.build import Assembly
from marft.training.packages import package_versions
from marft.types import MarftError, Task

if TYPE_CHECKING:
    from marft.distributed.ray_cluster import RayCluster

DEATHS = 3  # of every worker, with nothing played in between: after them it is no bad luck any more
OWN_DEATHS = 10  # of one worker, which played nothing in between though others did: it is replaced no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An assignment, and what it is played with."""

    assignment: Assignment
    adapters: Adapters
    tasks: Sequence[Task]


class WorkersFailed(MarftError):
    """Nobody can play."""


class WorkerFleet:
    """Players in processes of their own, which start with the first assignment. Whoever dies or hangs is replaced, and what it
    played is played again."""

    def __init__(
        self,
        config: Config,
        adapters: Mapping[str, tuple[int, float]],
        launcher: Launcher,
        status: Status | None = None,
    ) -> None:
        self.config, self.launcher, self.status = config, launcher, status or Status()
        self.threads = threads_of_a_process(config)
        self._setups = [self._setup(adapters, number) for number in range(config.workers)]
        self._changed = threading.Condition()  # guards all below
        self._ledger: Ledger[Work, Played] = Ledger()
        self._awaited: Key | None = None
        self._supervisors: list[threading.Thread] = []
        self._episodes: dict[Key, int] = {}  # of assignments that nobody has taken
        self._published: dict[int, Adapters] = {}  # versions that may enter plays under way
        self._error: BaseException | None = None
        self._closed = False
        self._deaths = 0  # since something was played
        self._own_deaths = [0] * config.workers  # since each played something
        self._incidents: list[str] = []

    @property
    def copies(self) -> bool:
        """Always: their memory is not ours."""
        return True

    def published(self, version: int, adapters: Adapters) -> None:
        """Adapters travel with the assignments that need them, and to those under way where they may enter."""
        if self.config.rollout.swap == "token":
            oldest = version - self.config.train.lag
            with self._changed:
                self._published[version] = adapters
                self._published = {v: kept for v, kept in self._published.items() if v >= oldest}
                self._changed.notify_all()

    def offer(self, assignment: Assignment, adapters: Adapters, tasks: Sequence[Task]) -> None:
        """To the first worker that is free."""
        with self._changed:
            self._ledger.plan(assignment.key, Work(assignment=assignment, adapters=adapters, tasks=tasks))
            self._episodes[assignment.key] = assignment.episodes
            self._changed.notify_all()
            if not self._supervisors:
                self._start()

    def take(self, key: Key) -> Played:
        """Waits in short turns, so that Ctrl-C is heard."""
        episodes = self._episodes.pop(key)
        self.status.expect(episodes)
        with self._changed:
            self._awaited = key
            self._changed.notify_all()
            while (played := self._ledger.take(key)) is None:
                if self._error is not None:
                    raise self._error
                self._changed.wait(LOOK_S)
            self._awaited = None
        self.status.advance(episodes)
        return played

    def incidents(self) -> list[str]:
        """Workers that were lost since it was asked last."""
        with self._changed:
            found, self._incidents = self._incidents, []
        return found

    def forget(self) -> None:
        """Plays in flight end unheard."""
        with self._changed:
            self._ledger.forget()
            self._episodes.clear()
            self._published.clear()

    def close(self) -> None:
        """Ends all workers, whatever they are doing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._supervisors:
            thread.join()

    def _start(self) -> None:
        for number, setup in enumerate(self._setups):
            name = f"worker-{number}"
            self._supervisors.append(
                threading.Thread(target=self._supervise, args=(number, setup), name=name, daemon=True)
            )
            self._supervisors[-1].start()

    def _setup(self, adapters: Mapping[str, tuple[int, float]], number: int) -> Setup:
        config, device = self.config, self.config.device_of(number)
        gpu = None
        if config.engine.name == "vllm" and config.rollout.gpus:  # of several GPUs it takes the first
            gpu, device = visible_gpu(int(device.removeprefix("cuda:"))), "cuda"
        return Setup(
            config=config.model_dump(mode="json"),
            adapters=adapters,
            device=device,
            memory=config.engine.share / config.engines_beside(number),
            gpu=gpu,
            threads=self.threads,
            versions=package_versions(),
        )

    # --- in a supervisor's thread ------------------------------------------------------------------------------------
    def _supervise(self, number: int, setup: Setup) -> None:
        """One worker after the other, until the fleet is closed or cannot go on, or the others go on without."""
        while self._is_running() and self._own_deaths[number] < OWN_DEATHS:
            try:
                worker = self.launcher.launch(number, setup, self._is_running)
                try:
                    self._give_work(number, worker)
                finally:
                    worker.close()
            except WorkerLost as lost:
                self._replace(number, str(lost))
            except WorkerFault as fault:
                self._fail(WorkersFailed(f"worker {number} says: {fault}", fault.trace))
            except BaseException as error:  # it is raised where somebody waits for what was played
                self._fail(error)

    def _give_work(self, number: int, worker: RemoteWorker) -> None:
        worker.wait_until_ready()
        while self._is_running():
            with self._changed:
                if (begun := self._ledger.begin(number, self._awaited, self._is_ready)) is None:
                    self._changed.wait(LOOK_S)
            if begun is None:
                worker.check()
                continue
            key, work = begun
            newer = self._newer if not key.held_out else no_newer
            played = worker.play(work.assignment, work.adapters, work.tasks, newer)
            with self._changed:
                self._ledger.finish(number, key, played)
                self._deaths = self._own_deaths[number] = 0
                self._changed.notify_all()

    def _is_ready(self, work: Work) -> bool:
        """Whether the versions that a log lets enter a play exist: a worker that waited for one could play nothing else."""
        newest = max(self._published, default=0)
        return all(version <= newest for _, version in work.assignment.swaps or ())

    def _newer(self, version: int) -> list[tuple[int, Adapters]]:
        with self._changed:
            return sorted((v, adapters) for v, adapters in self._published.items() if v > version)

    def _replace(self, number: int, why: str) -> None:
        if not self._is_running():
            return
        with self._changed:
            self._ledger.lose(number)
            self._deaths += 1
            self._own_deaths[number] += 1
            remedy = "another one takes its place"
            if self._own_deaths[number] >= OWN_DEATHS:
                remedy = f"it is replaced no more, as {OWN_DEATHS} of them have played nothing"
            self._incidents.append(f"worker {number} {why}; {remedy}")
            self._changed.notify_all()
        if self._deaths >= DEATHS * self.config.workers or min(self._own_deaths) >= OWN_DEATHS:
            self._fail(WorkersFailed(f"{self._deaths} workers were lost and nothing was played: the last {why}"))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _is_running(self) -> bool:
        return not self._closed and self._error is None


def no_newer(version: int) -> list[tuple[int, Adapters]]:
    """An evaluation is of one version."""
    return []


@contextmanager
def open_players(config: Config, parts: Assembly) -> Iterator[Players]:
    """Those whom the config asks for; on a cluster the learner's other ranks have their places beside them."""
    with ExitStack() as stack:
        launcher: Launcher = ProcessLauncher(config.rollout.patience)
        if config.cluster.address is not None:
            launcher = cluster = open_cluster(config, parts)
            stack.callback(cluster.close)
            if isinstance(parts.learner, ReplicatedLearner):
                parts.learner.launcher = cluster
                stack.callback(parts.learner.close)
        if not config.workers:
            yield LocalPlayers(config, parts.runner, parts)
            return
        yield stack.enter_context(closing(WorkerFleet(config, parts.adapter_sizes, launcher, parts.runner.status)))


def open_cluster(config: Config, parts: Assembly) -> RayCluster:
    """With a place for everybody; whoever opens it closes it."""
    from marft.distributed.ray_cluster import RayCluster  # Ray is loaded by those who need it

    learner = parts.learner
    ranks = {"rank_threads": learner.threads} if isinstance(learner, ReplicatedLearner) else {}
    cluster = RayCluster(config, parts.device, threads_of_a_process(config), **ranks)
    parts.runner.status.begin("looking for a place on the cluster")
    cluster.open()
    return cluster


def threads_of_a_process(config: Config) -> int | None:
    """What each of the learner and its workers computes with on a CPU; None: what torch takes, which OMP_NUM_THREADS may say."""
    if config.rollout.threads is not None:
        return config.rollout.threads
    if not config.workers or "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, (os.cpu_count() or 1) // (config.workers + 1))
