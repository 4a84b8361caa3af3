"""The tasks of a split as a sequence, made by a process of their own, ahead of time where the trainer says what is next."""

from __future__ import annotations

import json
import weakref
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from marft.envs.base import GeneratedTasks, Split
from marft.envs.reasoning.spec import TaskSpec
from marft.processes import ChildProcess, LineReader
from marft.types import MarftError, Task

PATIENCE = 300.0  # seconds without a word before the process counts as hung; a draw has its own, shorter limit
KEPT = 1024  # tasks that are ready at once; the oldest go first
AHEAD = 256  # tasks asked for ahead of time at once

Key = tuple[Split, int]


class GeneratorClient:
    """Asks a process of its own for tasks. A copy (pickled, in a worker) starts another when it needs one."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self._process: ChildProcess | None = None
        self._ready: OrderedDict[Key, dict[str, Any]] = OrderedDict()
        self._ahead: set[Key] = set()
        self._answers: LineReader | None = None

    def __reduce__(self) -> tuple[type[GeneratorClient], tuple[TaskSpec]]:
        return GeneratorClient, (self.spec,)

    def start(self) -> None:
        """Starts the process, where there is none, and waits until it has accepted the spec."""
        if self._process is not None and self._process.poll() is None:
            return
        self._ahead.clear()
        # the order of a set decides what some generators make
        self._process = ChildProcess(
            "marft.envs.reasoning.generator_process", variables={"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
        )
        self._answers = self._process.lines()
        weakref.finalize(self, self._process.end)
        self._tell(json.dumps(asdict(self.spec)))
        refused = self._wait("reasoning tasks").get("refused")
        if refused is not None:
            self._process.end()
            raise MarftError(refused)

    def task(self, split: Split, index: int) -> Task:
        """The task, from what is ready or as soon as it is made."""
        key = (split, index)
        if key not in self._ready:
            self.start()
            if key not in self._ahead:
                self._tell(json.dumps({"split": split, "index": index, "urgent": True}))
            while key not in self._ready:
                self._store(self._wait(f"{split} task {index} of {', '.join(self.spec.tasks)}"))
        made = self._ready[key]
        if "error" in made:
            raise MarftError(f"env: {made['error']}")
        return read_task(made)

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:
        """Has these made while the caller does something else."""
        self.start()
        while (made := self._hear("a task made ahead of time", 0.0)) is not None:
            self._store(made)
        for index in indices:
            key = (split, index)
            if key not in self._ready and key not in self._ahead and len(self._ahead) < AHEAD:
                self._ahead.add(key)
                self._tell(json.dumps({"split": split, "index": index, "urgent": False}))

    def _store(self, made: dict[str, Any]) -> None:
        key = (made.pop("split"), made.pop("index"))
        self._ahead.discard(key)
        self._ready[key] = made
        while len(self._ready) > KEPT:
            self._ready.popitem(last=False)

    def _tell(self, line: str) -> None:
        assert self._process is not None
        try:
            self._process.send(line.encode() + b"\n")
        except BrokenPipeError:
            raise MarftError("env: the process that makes reasoning tasks has died; start again") from None

    def _wait(self, what: str) -> dict[str, Any]:
        """The next answer; a process that gives none is stopped."""
        answer = self._hear(what, PATIENCE)
        if answer is None:
            assert self._process is not None
            self._process.end()
            raise MarftError(
                f"env: {what}: the process that makes it has said nothing for {PATIENCE:.0f} s; choose easier settings"
            )
        return answer

    def _hear(self, what: str, seconds: float) -> dict[str, Any] | None:
        """The next answer, if one comes in time."""
        assert self._process is not None
        assert self._answers is not None
        try:
            line = self._answers.next(seconds)
        except TimeoutError:
            return None
        if line is None:
            self._process.end()
            raise MarftError(f"env: {what}: the process that makes it has died; choose easier settings")
        answer: dict[str, Any] = json.loads(line)
        return answer


def read_task(made: Mapping[str, Any]) -> Task:
    """The task that `TaskGenerator.make` has put down."""
    data = {"task": made["task"], "answer": made["answer"], "entry": b64decode(made["entry"])}
    return Task(id=made["id"], prompt=made["prompt"], data=data)


class ReasoningTasks(GeneratedTasks):
    """Tasks of one split, made on demand from their index."""

    def __init__(self, split: Split, size: int, client: GeneratorClient) -> None:
        self.split: Split = split
        self.size = size
        self.client = client

    def __len__(self) -> int:
        return self.size

    def make(self, index: int) -> Task:
        """Waits for the process that makes it."""
        return self.client.task(self.split, index)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Has these tasks made in the background; they are the same as without."""
        self.client.prefetch(self.split, indices)
