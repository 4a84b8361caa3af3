"""Ctrl-C, SIGTERM and SIGHUP: what is dropped, what is finished, what is kept, and that going on from there changes nothing."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from quick import plays_of, resume, start, trainer_of
from toys import ECHO, files, rows

from marft.cli import main
from marft.runs.directory import RunDirectory
from marft.training.interruption import Interruption
from marft.types import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Trap = Callable[..., None]
SETTINGS: dict[str, Any] = {"eval": {"tasks": 2, "every": 2}, "checkpoint": {"every": 3, "keep": 9}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("whole") / "run", **SETTINGS)


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Trap:
    """Before the `nth` call of `module:name` or `module:Class.name`, do something."""

    def prepare(where: str, nth: int, action: Callable[[], None]) -> None:
        module, _, path = where.partition(":")
        owner: Any = import_module(module)
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        real, calls = getattr(owner, name), 0

        def trapped(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                action()
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, trapped)

    return prepare


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def ending(run: Path) -> dict[str, Any]:
    """All that a run has become, times left out; which checkpoints are kept beside the last depends on where it was
    stopped."""
    newest = max(RunDirectory.open(run).path.joinpath("checkpoints").iterdir())
    summary = json.loads((run / "summary.json").read_text())
    del summary["seconds"]
    return {
        "checkpoint": (newest.name, files(newest)),
        "metrics": rows(run / "metrics.jsonl"),
        "episodes": rows(run / "episodes.jsonl"),
        "config": (run / "config.yaml").read_bytes(),
        "files": sorted(p.name for p in run.iterdir()),
        "summary": summary,
    }


def newest(run: Path) -> int:
    return max(int(p.name) for p in (run / "checkpoints").iterdir())


POINTS = {  # where the signal comes, and after how many iterations the run is kept
    "in the evaluation before": ("marft.evaluation.held_out:evaluate_held_out", 1, 0),
    "among the episodes of that evaluation": ("marft.rollouts.runner:play", 2 + 2, 0),  # after the sanity check's
    "in the first save": ("marft.training.checkpoint:save_adapter", 2, 0),
    "before a rollout": ("marft.rollouts.source:OrderedSource.next_batch", 2, 1),
    "in the middle of a rollout": ("marft.game.play:Game.act", 4 + 4 + 8 + 3, 1),
    "in the scoring": ("marft.training.trainer:Trainer.estimate", 3, 2),
    "in an update": ("marft.learners.local:LocalLearner._clip", 3, 2),
    "before the rows are written": ("marft.runs.directory:RunDirectory.append_metrics", 3, 3),
    "in an evaluation on the way": ("marft.evaluation.held_out:evaluate_held_out", 2, 2),
    "in a save on the way": ("marft.training.checkpoint:save_adapter", 3, 3),
    "in the evaluation after": ("marft.evaluation.held_out:evaluate_held_out", 4, 4),
    "before the last word": ("marft.training.trainer:Trainer.summarise", 1, 4),
}


@pytest.mark.parametrize(
    ("point", "number"),
    [
        *((point, signal.SIGINT) for point in POINTS),
        *((point, signal.SIGTERM) for point in ("in the middle of a rollout", "in an update")),
        *((point, signal.SIGHUP) for point in ("in the middle of a rollout", "in an update")),
    ],
)
def test_a_run_that_is_stopped_keeps_its_place_and_goes_on_to_the_same_end(
    point: str, number: int, whole: Path, tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, (where, nth, kept) = tmp_path / "my run", POINTS[point]
    before = [signal.getsignal(each) for each in SIGNALS]
    trap(where, nth, lambda: send(number))
    with pytest.raises(Interrupted) as stopped:
        start(run, **SETTINGS)
    assert str(stopped.value) == (
        f"interrupted; {run} is kept as it was after iteration {kept}; go on with: marft train --resume --run '{run}'"
    )
    assert newest(run) == kept
    assert len(rows(run / "metrics.jsonl") if kept else []) == kept
    assert [signal.getsignal(each) for each in SIGNALS] == before
    monkeypatch.undo()
    assert ending(resume(run)) == ending(whole)


def test_an_iteration_of_several_plays_is_finished_once_somebody_has_learnt(
    tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "schedule": "resample"}
    expected = ending(start(tmp_path / "whole", **settings))
    for nth, kept in ((3, 1), (4, 2)):  # the first and the second rollout of the second iteration
        run = tmp_path / f"run-{nth}"
        trap("marft.rollouts.source:OrderedSource.next_batch", nth, send)
        with pytest.raises(Interrupted):
            start(run, **settings)
        assert newest(run) == kept
        monkeypatch.undo()
        assert ending(resume(run)) == expected


def test_the_first_says_that_it_waits_and_the_second_stops_at_once(
    whole: Path, tmp_path: Path, trap: Trap, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    trap("marft.learners.local:LocalLearner.minibatches", 2, send)
    trap("marft.learners.local:LocalLearner._clip", 4, send)
    with pytest.raises(Interrupted, match=f"{run} is kept as it was after iteration 0; go on with"):
        start(run, **SETTINGS)
    assert "stopping at the end of this iteration; once more stops at once" in capfd.readouterr().err
    monkeypatch.undo()
    assert ending(resume(run)) == ending(whole)


def test_the_second_stops_the_save_that_the_first_asked_for(
    whole: Path, tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    trap("marft.training.trainer:Trainer.estimate", 3, send)
    trap("marft.training.checkpoint:save_adapter", 4, send)
    with pytest.raises(Interrupted, match="is kept as it was after iteration 0"):
        start(run, **SETTINGS)
    monkeypatch.undo()
    assert ending(resume(run)) == ending(whole)


@pytest.mark.parametrize(
    ("where", "nth", "kept"),
    [("marft.training.trainer:Trainer.estimate", 3, 2), ("marft.learners.local:LocalLearner._clip", 5, 0)],
)
def test_in_a_thread_a_plain_interrupt_is_all_there_is(
    whole: Path, tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch, where: str, nth: int, kept: int
) -> None:
    """No signal reaches it. An update that is broken off leaves the last checkpoint; before it the position is saved."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    ended: list[BaseException] = []

    def work() -> None:
        try:
            start(run, **SETTINGS)
        except BaseException as error:
            ended.append(error)

    run = tmp_path / "run"
    trap(where, nth, interrupt)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(ended[0], Interrupted)
    assert newest(run) == kept
    monkeypatch.undo()
    assert ending(resume(run)) == ending(whole)


def test_an_interrupt_while_a_run_is_resumed_saves_nothing(
    whole: Path, tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    trap("marft.training.trainer:Trainer.estimate", 4, send)
    with pytest.raises(Interrupted):
        start(run, **SETTINGS)
    before = files(run)
    monkeypatch.undo()
    trap("marft.training.resuming:read_checkpoint", 1, send)
    with pytest.raises(Interrupted, match="is kept as it was after iteration 3"):
        resume(run)
    events = "events.jsonl"  # which tells of both interruptions
    assert files(run) | {events: b""} == before | {events: b""}
    monkeypatch.undo()
    assert ending(resume(run)) == ending(whole)


# --- the signals themselves -------------------------------------------------------------------------------------------
@pytest.fixture
def handlers() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("handlers")
def test_what_is_ignored_stays_ignored() -> None:
    """As for a job in the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruption() as interruption:
        interruption.hold()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        send()
        assert interruption.requests == 0
        send(signal.SIGTERM)
        assert interruption.requests == 1
        with pytest.raises(KeyboardInterrupt):
            interruption.release()
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("handlers")
def test_a_hangup_that_nohup_has_ignored_stays_ignored(tmp_path: Path, trap: Trap) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    trap("marft.learners.local:LocalLearner._clip", 3, lambda: send(signal.SIGHUP))
    start(tmp_path / "run", **SETTINGS)
    assert newest(tmp_path / "run") == 4
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_hangups_count_as_one(tmp_path: Path, trap: Trap) -> None:
    """The kernel and the shell both send one; the second must not break off what the first lets finish and saves."""
    trap("marft.learners.local:LocalLearner._clip", 3, lambda: send(signal.SIGHUP))
    trap("marft.learners.local:LocalLearner._clip", 4, lambda: send(signal.SIGHUP))
    trap("marft.training.checkpoint:save_adapter", 4, lambda: send(signal.SIGHUP))
    with Interruption() as outer:
        with pytest.raises(Interrupted, match="is kept as it was after iteration 2"):
            start(tmp_path / "run", **SETTINGS)
        send(signal.SIGHUP)
        assert (outer.hung_up, outer.requests) == (True, 0)


def test_a_closed_terminal_loses_nothing(tmp_path: Path) -> None:
    """What is printed to it would fail; the iteration is finished and saved all the same."""
    run = tmp_path / "run"
    child, terminal = pty.fork()
    if child == 0:
        try:
            code = main(["train", *ECHO, "train.iterations=500", "checkpoint.every=500", "--run", str(run)])
        finally:
            os._exit(code)
    until = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() and time.monotonic() < until:
        with suppress(BlockingIOError):
            os.set_blocking(terminal, False)
            os.read(terminal, 1 << 16)
        time.sleep(0.02)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    done = newest(run)
    assert 0 < done < 500
    assert len(rows(run / "metrics.jsonl")) == done


@pytest.mark.usefixtures("handlers")
def test_who_has_a_handler_keeps_it() -> None:
    came: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: came.append(number))
    with Interruption() as interruption:
        interruption.hold()
        send()
        send(signal.SIGTERM)
        send(signal.SIGHUP)
        interruption.release()
    assert came == list(SIGNALS)


def test_an_interrupt_that_was_lost_is_heeded_later() -> None:
    """As one that comes in the middle of a finalizer is."""
    with Interruption() as interruption:
        with suppress(KeyboardInterrupt):
            send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            interruption.hold()
        with pytest.raises(KeyboardInterrupt), Interruption():
            pass


def test_a_trainer_that_listens_to_nothing_leaves_the_signals_alone(tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    plays_of(trainer_of(tmp_path))
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_one_within_another_gives_the_signals_back() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interruption() as outer:
        with Interruption() as inner:
            inner.hold()
            send(signal.SIGTERM)
            assert (outer.requests, inner.requests) == (0, 1)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM)
        assert outer.requests == 1
    assert [signal.getsignal(each) for each in SIGNALS] == before


# --- the commands -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("command", "where", "nth", "number"),
    [
        (["eval", *ECHO, "eval.samples=20"], "marft.evaluation.evaluate:play_chunk", 2, signal.SIGINT),
        (["eval", *ECHO, "eval.samples=20"], "marft.evaluation.evaluate:play_chunk", 2, signal.SIGTERM),
        (["eval", *ECHO, "eval.samples=20"], "marft.evaluation.evaluate:play_chunk", 2, signal.SIGHUP),
        (["compare", *ECHO, "--seeds", "1"], "marft.training.trainer:Trainer.estimate", 3, signal.SIGINT),
        (["compare", *ECHO, "--seeds", "1"], "marft.training.trainer:Trainer.estimate", 3, signal.SIGHUP),
        (["compare", *ECHO, "--seeds", "1"], "marft.commands.compare:evaluate_run", 1, signal.SIGTERM),
    ],
    ids=["eval", "eval, SIGTERM", "eval, SIGHUP", "compare", "compare, SIGHUP", "vote, SIGTERM"],
)
def test_a_command_that_is_stopped_names_the_very_command_that_goes_on(
    tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    command: list[str], where: str, nth: int, number: int,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--run", "whole"]) == 0
    with monkeypatch.context():
        trap(where, nth, lambda: send(number))
        capsys.readouterr()
        assert main(command) == 1
    [line] = capsys.readouterr().err.splitlines()
    run = f"runs/{'eval' if command[0] == 'eval' else 'compare'}-duo-1"
    kept, _, again = line.partition("; go on with: marft ")
    assert kept == f"marft: interrupted; what was done in {run} is kept"
    assert again.endswith(f" --run {run}")
    assert not (Path(run) / "lock").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(again)) == 0
    assert outcome(Path(run)) == outcome(Path("whole"))


def outcome(folder: Path) -> Any:
    """Figures without times."""

    def timeless(found: Any) -> Any:
        match found:
            case dict():
                return {key: timeless(value) for key, value in found.items() if "seconds" not in key}
            case list():
                return [timeless(each) for each in found]
        return found

    [results] = [p for p in (folder / "results.json", folder / "compare.json") if p.exists()]
    return timeless(json.loads(results.read_text()))


def test_before_anything_is_there_nothing_is_left(
    tmp_path: Path, trap: Trap, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, room in (("train", "commands.train"), ("eval", "training.loading")):
        with monkeypatch.context():
            trap(f"marft.{room}:assemble", 1, send)
            assert main([command, *ECHO]) == 1
        assert capsys.readouterr().err == "marft: interrupted\n"
        assert list(tmp_path.iterdir()) == []
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
