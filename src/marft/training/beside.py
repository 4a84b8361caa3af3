"""Evaluations in the course of training that workers play while it goes on.

That of iteration j is begun when j ends, with the adapters of that moment, and its figures are waited for at the end of
iteration j + 1 + lag, or of the last one: so no figure, and no order of what is written, depends on who is fast. After
iteration c those of c − lag … c may be under way, and their versions are just those that a checkpoint of c holds: what is
lost with a process is played again. The figures stand in the row of j, as if j had waited for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marft.training.tracking import flatten

if TYPE_CHECKING:
    from marft.training.trainer import Trainer


def evaluate_beside(trainer: Trainer, row: dict[str, Any]) -> None:
    """At the end of an iteration, whose row is not written yet: begin its evaluation, and wait for those that are due."""
    present = trainer.position.iteration
    if trainer.is_evaluation_due(present):
        begin_evaluation(trainer, present)
    due = present if trainer.finished else present - 1 - trainer.config.train.lag
    for iteration in [iteration for iteration in trainer.beside if iteration <= due]:
        figures = trainer.evaluator.take(iteration, trainer.keep_transcripts("during", iteration))
        trainer.beside.remove(iteration)
        if iteration == present:
            row["eval"] = figures
        else:
            record_evaluation(trainer, iteration, figures)
    trainer.note_incidents(trainer.players.incidents(), present)


def begin_evaluation(trainer: Trainer, iteration: int) -> None:
    """Of the present iteration, or of one up to the lag before it."""
    position = trainer.position
    version = position.version - (position.iteration - iteration)
    trainer.evaluator.offer(iteration, version, trainer.source.adapters(version))
    trainer.beside.append(iteration)


def begin_missing(trainer: Trainer) -> None:
    """After a return to a checkpoint: the evaluations that were under way, and have left no figures."""
    trainer.beside.clear()
    if not trainer.evaluator.is_beside or trainer.finished:
        return
    last, evaluated = trainer.position.iteration, {row["iteration"] for row in trainer.run.metrics() if "eval" in row}
    for iteration in range(max(1, last - trainer.config.train.lag), last + 1):
        if trainer.is_evaluation_due(iteration) and iteration not in evaluated:
            begin_evaluation(trainer, iteration)


def record_evaluation(trainer: Trainer, iteration: int, figures: dict[str, Any]) -> None:
    """Under the iteration that it belongs to, in the run's metrics, at the trackers and on the terminal."""
    trainer.run.add_evaluation(iteration, figures)
    for tracker in trainer.trackers:
        tracker.log(iteration, flatten({"eval": figures}))
    trainer.watcher.evaluated("during", {"iteration": iteration, **figures})
