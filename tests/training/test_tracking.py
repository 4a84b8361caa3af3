"""Dashboards: what is logged is what TensorBoard reads, also after a resume; absent packages are one line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marft.config import load_config
from marft.runs.transcripts import Said, Transcript
from marft.training.tracking import TensorBoard, flatten, open_trackers
from marft.types import MarftError


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """What TensorBoard would draw."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_flatten() -> None:
    row = {
        "iteration": 3,
        "reward": 0.5,
        "accuracy": None,
        "seconds": {"rollout": 2},
        "agents": {"solver": {"kl": 0.1, "name": "x", "iteration": 1}},
    }
    assert flatten(row) == {
        "reward": 0.5,
        "seconds/rollout": 2.0,
        "agents/solver/kl": 0.1,
        "agents/solver/iteration": 1.0,
    }


# --- TensorBoard -----------------------------------------------------------------------------------------------------
def test_tensorboard_reads_what_was_logged_before_the_close(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tensorboard")
    board.log(1, {"reward": 0.25, "agents/solver/kl": 2.0})
    board.log(2, {"reward": 0.5})
    assert scalars(tmp_path / "tensorboard", "reward") == [(1, 0.25), (2, 0.5)]
    assert scalars(tmp_path / "tensorboard", "agents/solver/kl") == [(1, 2.0)]
    board.close()


def test_tensorboard_goes_on_after_a_resume(tmp_path: Path) -> None:
    config = load_config("duo")
    (first,) = open_trackers(config, tmp_path)
    for iteration in (1, 2, 3):
        first.log(iteration, {"reward": 0.25})
    first.close()
    (torn,) = (tmp_path / "tensorboard").iterdir()
    with torn.open("ab") as file:
        file.write(b"\x20\0\0\0\0\0\0\0\x01")  # the start of a record, as a kill leaves it
    (second,) = open_trackers(config, tmp_path, resumed=1)
    second.log(2, {"reward": 0.5})
    second.close()
    assert scalars(tmp_path / "tensorboard", "reward") == [(1, 0.25), (2, 0.5)]


TRANSCRIPT = Transcript(
    task="t/1", sample=0, prompt="1 + 1?", gold="2", reward=0.0, correct=False, ended="terminated", error=None, fault=None,
    trace="", turns=(Said(agent="solver", text="# three\n<b>3</b>", finish="stop"), Said(agent="judge", text="", finish="stop")),
)  # fmt: skip


def test_tensorboard_shows_transcripts_as_they_are(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path / "tensorboard")
    board.show(3, [TRANSCRIPT])
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    [event] = reader.Tensors("episodes")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert "task t/1, gold answer 2\n\n    1 + 1?" in text
    assert "solver\n\n    # three\n    <b>3</b>" in text  # indented: neither a heading nor bold
    assert text.endswith("reward 0, wrong")


def test_what_is_done_again_after_going_back_replaces_what_was(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tensorboard")
    for iteration in (1, 2, 3):
        board.log(iteration, {"reward": 0.25})
    board.rewind(1)
    board.log(2, {"reward": 0.5})
    assert scalars(tmp_path / "tensorboard", "reward") == [(1, 0.25), (2, 0.5)]


def test_tensorboard_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = TensorBoard(tmp_path / "tensorboard")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(board._records, "flush", full)
    with pytest.raises(MarftError, match=f"free space, then `marft train --resume --run {tmp_path}`"):
        board.log(1, {"reward": 0.5})


# --- services --------------------------------------------------------------------------------------------------------
class Service(ModuleType):
    """Stands in for wandb and trackio: notes how it is called."""

    class Error(Exception):
        pass

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []

    def init(self, **arguments: Any) -> Service:
        self.calls.append(("init", arguments))
        return self

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.calls.append(("log", (dict(values), step)))

    def finish(self) -> None:
        self.calls.append(("finish", None))

    class Table:
        """Both services' tables take these two."""

        def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
            self.rows = [dict(zip(columns, row, strict=True)) for row in data]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_services_get_a_table_of_transcripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    service = Service(name)
    monkeypatch.setitem(sys.modules, name, service)
    (tracker,) = open_trackers(load_config("duo", ["track.tensorboard=false", f"track.{name}=maths"]), tmp_path)
    tracker.show(2, [TRANSCRIPT])
    [(logged, step)] = [arguments for call, arguments in service.calls if call == "log"]
    [row] = logged["episodes"].rows
    assert step == 2
    assert row["transcript"] == "solver: # three\n<b>3</b>\n\njudge: "
    assert (row["task"], row["gold"], row["reward"], row["correct"]) == ("t/1", "2", 0.0, False)


def test_wandb_keeps_what_comes_after_a_later_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops whatever has an earlier step than the last: an evaluation beside training says its own."""
    service = Service("wandb")
    monkeypatch.setitem(sys.modules, "wandb", service)
    (tracker,) = open_trackers(load_config("duo", ["track.tensorboard=false", "track.wandb=maths"]), tmp_path)
    for iteration, values in ((4, {"reward": 0.5}), (2, {"eval/reward": 0.25}), (5, {"reward": 1.0})):
        tracker.log(iteration, values)
    assert [arguments for call, arguments in service.calls if call == "log"] == [
        ({"reward": 0.5}, 4),
        ({"eval/reward": 0.25, "eval/iteration": 2.0}, 4),
        ({"reward": 1.0}, 5),
    ]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_service_gets_each_iteration_and_resumes_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service = Service(name)
    monkeypatch.setitem(sys.modules, name, service)
    config = load_config("duo", ["track.tensorboard=false", f"track.{name}=maths"])
    for iteration in (1, 2):
        (tracker,) = open_trackers(config, tmp_path)
        tracker.log(iteration, {"reward": 0.5})
        tracker.close()
    assert [call for call, _ in service.calls] == ["init", "log", "finish"] * 2
    first, second = (arguments for call, arguments in service.calls if call == "init")
    assert first == second
    assert (first["project"], first["resume"], first["config"]["seed"]) == ("maths", "allow", 0)
    assert first["name"].startswith(tmp_path.name)
    assert [arguments for call, arguments in service.calls if call == "log"] == [
        ({"reward": 0.5}, 1),
        ({"reward": 0.5}, 2),
    ]
    (tmp_path / "other" / tmp_path.name).mkdir(parents=True)
    open_trackers(config, tmp_path / "other" / tmp_path.name)
    other = service.calls[-1][1]
    key = "id" if name == "wandb" else "name"
    assert other[key] != first[key]


def test_wandb_refusing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("wandb")

    def refuse(**_: Any) -> None:
        raise Service.Error("api_key not configured\n(no-tty)")

    monkeypatch.setattr(service, "init", refuse)
    monkeypatch.setitem(sys.modules, "wandb", service)
    with pytest.raises(MarftError) as error:
        open_trackers(load_config("duo", ["track.wandb=maths"]), tmp_path)
    assert str(error.value) == "track.wandb: api_key not configured (no-tty); fix it or drop track.wandb"


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MarftError) as error:
        open_trackers(load_config("duo", [f"track.{name}=maths"]), tmp_path)
    assert str(error.value) == f"track.{name} needs the package {name}: pip install 'marft[track]'"


def test_nothing_asked_nothing_made(tmp_path: Path) -> None:
    assert open_trackers(load_config("duo", ["track.tensorboard=false"]), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_room_stays_light(tmp_path: Path) -> None:
    """Importing it loads no dashboard, and writing for TensorBoard loads neither torch nor TensorFlow."""
    code = (
        "import sys, pathlib, marft.training.tracking as t, marft.runs.directory, marft.runs.checkpoints\n"
        "assert not {'torch', 'tensorboard', 'wandb', 'trackio'} & set(sys.modules)\n"
        f"t.TensorBoard(pathlib.Path({str(tmp_path)!r}) / 'tensorboard').log(1, {{'reward': 0.5}})\n"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
