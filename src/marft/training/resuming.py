"""Going back to a checkpoint: after an interruption, by the user's wish, or after a collapse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from marft.engines.base import Adapters
from marft.files import Damaged
from marft.learners.base import RankLost
from marft.runs.checkpoints import NewestCheckpoint
from marft.runs.file_schemas import When
from marft.training.beside import begin_missing
from marft.training.checkpoint import STATE, Position, read_checkpoint, read_versions
from marft.training.guard import Collapsed
from marft.types import Collapse, MarftError

if TYPE_CHECKING:
    from marft.training.trainer import Trainer

RETURNS = 3  # to a checkpoint from before a collapse, at most
SLOWER = 0.3  # each time


def resume(trainer: Trainer, warn: Callable[[str], None], at: int | None) -> bool:
    """Go back to the newest checkpoint that is whole (or to `at`), and forget what came after it; False: there has
    never been one. Nothing is changed on the disk before all of it has been read."""
    found = trainer.checkpoints.newest_valid(at)
    if found is None and trainer.run.last_iteration():
        raise MarftError(f"{trainer.run.path} has lost its checkpoints; {trainer.checkpoints.remedy()}")
    if found is not None:
        trainer.position, behind = read_position(trainer, found)
        trainer.source.load_state_dict({"tasks_drawn": trainer.position.tasks_drawn}, behind)
        trainer.publish()
    if found is not None:
        kept = ", ".join(trainer.checkpoints.put_aside(iteration) for iteration in found.damaged)
        if found.damaged:
            warn(
                f"{found.passed_over()}; going on from iteration {found.iteration}, and keeping what is damaged as {kept}"
            )
        trainer.checkpoints.put_in_place(found)
    trainer.checkpoints.recover()
    trainer.checkpoints.drop_after(trainer.position.iteration)
    summary = trainer.run.summary() or {}
    if summary.get("iterations", 0) > trainer.position.iteration:  # of the part that is forgotten
        summary = {when: row for when, row in summary.items() if when == "before"}
        trainer.run.write_summary(summary)
    # An evaluation that the summary does not hold is done again, and is then written down again.
    begun = trainer.position.iteration > 0
    valid: dict[When, bool] = {
        "before": begun or trainer.is_evaluated("before", summary),
        "during": True,
        "after": trainer.finished and trainer.is_evaluated("after", summary),
    }
    trainer.run.truncate(trainer.position.iteration, [when for when, is_valid in valid.items() if is_valid])
    trainer.guard.begin()
    begin_missing(trainer)
    return found is not None


def read_position(trainer: Trainer, found: NewestCheckpoint) -> tuple[Position, Mapping[int, Adapters]]:
    """Where a checkpoint stands, and the earlier versions that plays to come need. What was written into one that is whole
    may still be nothing that this team can go on with."""
    try:
        position = read_checkpoint(found.folder, trainer.parts.teams, trainer.learner)
        if position.iteration != found.iteration:
            raise Damaged(found.folder / STATE, f"is that of iteration {position.iteration}")
        needed = range(max(0, position.version - trainer.config.train.lag), position.version)
        return position, read_versions(found.folder, trainer.parts.teams, needed)
    except MarftError as error:
        others = [iteration for iteration in trainer.checkpoints.list() if iteration != found.iteration]
        back = f"; or go back with --at {max(others)}" if others else ""
        raise MarftError(f"{error}{back}") from error


def recover_from(trainer: Trainer, found: Collapsed) -> None:
    """Go back to the last checkpoint from before the collapse, at a lower rate; or end the run."""
    kept = trainer.checkpoints.list()
    good = [iteration for iteration in kept if iteration <= found.sign.good]
    at, back = max(good, default=min(kept, default=0)), trainer.config.train.on_collapse == "back"
    if not back or trainer.position.returns == RETURNS:
        tried = f" after going back {RETURNS} times" if back else ""
        older = "" if good else ", the oldest there is,"
        remedy = "a lower optimizer.lr" if back else "a lower optimizer.lr, or train.on_collapse=back"
        raise Collapse(
            f"the run has collapsed and stops{tried}: {found.sign.line} (since iteration {found.sign.since}). Nothing "
            f"already written is lost; go back with marft train --resume --run {quote(str(trainer.run.path))} --at {at}{older} "
            f"and {remedy}"
        )
    returns = trainer.position.returns + 1
    trainer.interruption.hold()  # weights, Adam and position change one after the other
    resume(trainer, trainer.watcher.warned, at)
    trainer.position = replace(trainer.position, returns=returns)
    trainer.save()  # so that a run which is killed now comes back to this
    for tracker in trainer.trackers:
        tracker.rewind(at)
    trainer.run.append_event("back", at, returns=returns, sign=found.sign.name, agent=found.sign.agent)
    trainer.watcher.warned(f"gone back to iteration {at}, at {SLOWER**returns:.2g} of the learning rates")


def restart_ranks(trainer: Trainer, lost: RankLost) -> None:
    """Go back to the newest checkpoint, from where new ranks of the learner go on; a rank that is lost again before the
    next checkpoint ends the run."""
    trainer.interruption.hold()  # weights, Adam and position change one after the other
    newest = max(trainer.checkpoints.list())
    if trainer.restarted_at == newest:
        raise RankLost(f"{lost}, again; give it more memory, or lower learner.ranks")
    trainer.restarted_at = newest
    resume(trainer, trainer.watcher.warned, None)
    for tracker in trainer.trackers:
        tracker.rewind(trainer.position.iteration)
    trainer.run.append_event("restarted", trainer.position.iteration, reason=str(lost))
    trainer.watcher.warned(f"{lost}; going on from iteration {trainer.position.iteration} with new ranks")


def leave(trainer: Trainer) -> str:
    """After an interruption: keeps the position, if the weights are its own, and says where the run stands.

    Where an update has begun and was not finished, what came after the last checkpoint is lost.
    """
    if (
        trainer.begun
        and not trainer.interruption.put_off
        and trainer.position.iteration not in trainer.checkpoints.list()
    ):
        with suppress(KeyboardInterrupt):
            trainer.save()
    kept = trainer.checkpoints.list()
    if not kept:
        return f"interrupted before the first checkpoint of {trainer.run.path}"
    return f"interrupted; {trainer.run.path} is kept as it was after iteration {kept[-1]}"
