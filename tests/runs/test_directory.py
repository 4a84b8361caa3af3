"""The run directory: what it refuses, what survives a kill or a full disk, what a resumed run finds."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from marft.config import Config, load_config
from marft.runs.directory import RunDirectory
from marft.types import MarftError

FIGURES: dict[str, Any] = {
    "iteration": 0, "settings": {}, "tasks": 2, "failed": 0, "reward": 0.5, "tokens_per_task": 3.0,
}  # fmt: skip
EARLIER, LATER = {"before": FIGURES}, {"before": {**FIGURES, "reward": 0.6}}


def duo(*overrides: str) -> Config:
    return load_config("duo", list(overrides))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", duo(), {"seed": 0})


def refusal(error: pytest.ExceptionInfo[MarftError]) -> str:
    """What the user reads: always one line."""
    text = str(error.value)
    assert "\n" not in text
    return text


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- creating and opening --------------------------------------------------------------------------------------------
def test_create_writes_config_and_manifest(run: RunDirectory) -> None:
    assert sorted(os.listdir(run.path)) == ["config.yaml", "manifest.json"]
    assert RunDirectory.open(run.path).config() == duo()
    assert (run.path / "manifest.json").read_text() == '{\n  "seed": 0\n}\n'


def test_config_comes_back_as_it_was(tmp_path: Path) -> None:
    prompt = 'say "${oc.env:HOME} ${" — ünï:\n  - x'
    config = duo("optimizer.lr=1e-5", "env.level=3")
    solver = config.team.agents["solver"].model_copy(update={"prompt": prompt})
    team = config.team.model_copy(update={"agents": config.team.agents | {"solver": solver}})
    config = config.model_copy(update={"team": team})
    assert RunDirectory.create(tmp_path / "run", config, {}).config() == config


def test_same_config_again_points_to_resume(run: RunDirectory) -> None:
    with pytest.raises(MarftError) as error:
        RunDirectory.create(run.path, duo(), {})
    assert refusal(error) == f"the run {run.path} exists already; continue it with --resume or choose another --run"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train.tasks=3", "optimizer.lr=0.5"], "optimizer.lr is 0.003 there and 0.5 here"),
        (["algorithm=grpo"], 'algorithm.name is "marft-token" there and "grpo" here'),
        (["env.digits=2"], "env.digits is nothing there and 2 here"),
        (["train.iterations=7"], "train.iterations is 12 there and 7 here"),
    ],
)
def test_another_config_names_the_first_difference(run: RunDirectory, overrides: Sequence[str], said: str) -> None:
    with pytest.raises(MarftError) as error:
        RunDirectory.create(run.path, duo(*overrides), {})
    assert refusal(error) == f"{run.path} belongs to a run with another config: {said}; choose another --run"
    assert run.config() == duo()


def test_order_of_agents_is_a_difference(tmp_path: Path) -> None:
    config = duo("team.agents.solver.sees=[]")
    run = RunDirectory.create(tmp_path / "run", config, {})
    team = config.team.model_copy(update={"agents": dict(reversed(config.team.agents.items()))})
    with pytest.raises(MarftError) as error:
        run.check_same(config.model_copy(update={"team": team}))
    assert 'team.agents: it is ["planner", "solver"] there and ["solver", "planner"] here' in refusal(error)


def test_create_where_a_file_stands(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(MarftError, match="choose another --run") as error:
            RunDirectory.create(path, duo(), {})
        assert refusal(error).startswith(f"cannot make the run {path}: ")


def test_create_in_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(MarftError) as error:
        RunDirectory.create(tmp_path / "run", duo(), {})
    assert refusal(error) == f"cannot make the run {tmp_path / 'run'}: Read-only file system; choose another --run"


def test_create_on_a_full_disk_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(MarftError, match="free space or choose another --run"):
            RunDirectory.create(tmp_path / "run", duo(), {})
    assert os.listdir(tmp_path / "run") == []
    RunDirectory.create(tmp_path / "run", duo(), {})


def test_create_needs_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=1_500_000))
    with pytest.raises(MarftError) as error:
        RunDirectory.create(tmp_path / "a" / "run", duo(), {}, needed=1_500_001)
    assert "the run needs 1.5 MB of disk and 1.5 MB are free" in refusal(error)
    assert os.listdir(tmp_path) == []
    RunDirectory.create(tmp_path / "a" / "run", duo(), {}, needed=1_500_000)


def test_open_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file" / "run"):
        with pytest.raises(MarftError, match="is not a run") as error:
            RunDirectory.open(path)
        refusal(error)


def test_damaged_config_is_one_line(run: RunDirectory) -> None:
    for text in ("model: [", "colour: red\n"):
        (run.path / "config.yaml").write_text(text)
        with pytest.raises(MarftError, match="choose another --run") as error:
            run.config()
        refusal(error)


# --- resuming with overrides -----------------------------------------------------------------------------------------
def test_resume_may_change_length_and_watching(run: RunDirectory) -> None:
    longer = duo("train.iterations=50", "eval.tasks=0", "checkpoint.every=1", "track.tensorboard=false")
    run.check_same(longer)
    assert run.config() == duo()  # what is refused later changes nothing
    run.write_config(longer)
    assert run.config() == longer


def test_resume_may_not_change_what_is_learned(run: RunDirectory) -> None:
    with pytest.raises(MarftError) as error:
        run.check_same(duo("train.iterations=50", "train.tasks=3"))
    assert refusal(error) == (
        f"cannot resume {run.path} with another train.tasks: it is 64 there and 3 here; "
        "drop the override or choose another --run"
    )
    assert run.config() == duo()


@pytest.mark.parametrize(
    "overrides",
    ["rollout.workers=3", "rollout.shards=4", "rollout.threads=1", "rollout.patience=9", "learner.ranks=2"],
)
def test_resume_may_change_who_plays(run: RunDirectory, overrides: str) -> None:
    run.check_same(duo(overrides))


def test_resume_may_not_change_which_versions_play(tmp_path: Path) -> None:
    with_workers = ["train.lag=2", "rollout.workers=2"]
    turns = RunDirectory.create(tmp_path / "turns", duo(*with_workers), {})
    with pytest.raises(MarftError, match=r'another rollout\.swap: it is "turn" there and "token" here'):
        turns.check_same(duo(*with_workers, "rollout.swap=token"))
    turns.check_same(duo("train.lag=2", "rollout.workers=3"))


def test_resume_may_not_change_the_shards_that_a_log_of_swaps_is_of(tmp_path: Path) -> None:
    swaps = ["train.lag=2", "rollout.swap=token"]
    run = RunDirectory.create(tmp_path / "run", duo(*swaps, "rollout.workers=2"), {})
    with pytest.raises(MarftError) as error:
        run.check_same(duo(*swaps, "rollout.workers=3"))
    assert refusal(error) == (
        f"cannot resume {run.path} in 3 shards: its log of swaps is by shard, of which there are 2 so far; "
        "give rollout.shards=2"
    )
    run.check_same(duo(*swaps, "rollout.workers=3", "rollout.shards=2"))


# --- lines -----------------------------------------------------------------------------------------------------------
def test_metrics_are_on_the_disk_at_once(run: RunDirectory) -> None:
    assert run.metrics() == []
    run.append_metrics({"iteration": 1, "reward": 0.5})
    assert (run.path / "metrics.jsonl").read_text() == '{"iteration": 1, "reward": 0.5}\n'
    run.append_metrics({"iteration": 2, "agents": {"solver": {"kl": 0.1}}})
    assert run.metrics() == [{"iteration": 1, "reward": 0.5}, {"iteration": 2, "agents": {"solver": {"kl": 0.1}}}]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_a_number_is_our_bug(run: RunDirectory, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        run.append_metrics({"iteration": 1, "reward": value})
    with pytest.raises(ValueError, match="JSON"):
        run.append_episodes([{"iteration": 1}, {"iteration": 1, "reward": value}])
    with pytest.raises(ValueError, match="iteration"):
        run.append_metrics({"reward": 0.5})
    assert run.metrics() == []
    assert not (run.path / "episodes.jsonl").exists()


@pytest.mark.parametrize("torn", [b'{"iteration": 3, "rew', b'{"iteration": 3, "text": "\xc3', b"\0\0\0\n"])
def test_torn_last_line_is_left_out(run: RunDirectory, torn: bytes) -> None:
    whole = b'{"iteration": 1}\n{"iteration": 2}\n'
    path = run.path / "metrics.jsonl"
    path.write_bytes(whole + torn)
    assert run.metrics() == [{"iteration": 1}, {"iteration": 2}]
    run.truncate(9)
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_not_hidden(run: RunDirectory) -> None:
    (run.path / "metrics.jsonl").write_bytes(b'{"iteration": 1}\n{"iter\n{"iteration": 3}\n')
    with pytest.raises(MarftError, match="line 2: it is not JSON") as error:
        run.metrics()
    refusal(error)


def test_truncate_leaves_the_bytes_of_a_run_never_interrupted(tmp_path: Path) -> None:
    runs = [RunDirectory.create(tmp_path / name, duo(), {}) for name in ("straight", "interrupted")]

    def play(run: RunDirectory, iterations: range) -> None:
        for iteration in iterations:
            run.append_metrics({"iteration": iteration, "reward": 1 / iteration, "text": "ü"})
            run.append_episodes([{"iteration": iteration, "sample": sample} for sample in range(2)])

    play(runs[0], range(1, 5))
    play(runs[1], range(1, 4))
    runs[1].truncate(2)
    assert [row["iteration"] for row in runs[1].metrics()] == [1, 2]
    play(runs[1], range(3, 5))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (runs[1].path / name).read_bytes() == (runs[0].path / name).read_bytes()


def test_truncate_completes_a_line_that_lacks_only_its_end(run: RunDirectory) -> None:
    path = run.path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n{"iteration": 2}')
    run.truncate(2)
    assert path.read_bytes() == b'{"iteration": 1}\n{"iteration": 2}\n'


def test_truncate_before_anything_was_written(run: RunDirectory) -> None:
    run.truncate(0)
    assert sorted(os.listdir(run.path)) == ["config.yaml", "manifest.json"]


def test_an_event_after_a_torn_one_is_a_line_of_its_own(run: RunDirectory) -> None:
    run.append_event("started", 0)
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"iteration": 1, "ev')
    run.append_event("resumed", 0)
    assert [row["event"] for row in run.events()] == ["started", "resumed"]


def test_parts_of_a_run_without_its_config_are_left_alone(run: RunDirectory) -> None:
    for name in ("metrics.jsonl", "episodes.jsonl", "held_out.jsonl", "events.jsonl", "summary.json", "checkpoints"):
        folder = run.path.parent / name
        folder.mkdir()
        (folder / name).symlink_to("nowhere")
        with pytest.raises(MarftError, match=f"holds {name} of a run that has lost its config.yaml"):
            RunDirectory.create(folder, duo(), {})
        assert os.listdir(folder) == [name]


def test_how_far_a_run_has_come_is_told_by_every_file(run: RunDirectory) -> None:
    assert run.last_iteration() == 0
    run.append_metrics({"iteration": 2})
    assert run.last_iteration() == 2
    run.append_event("finished", 3)
    assert run.last_iteration() == 3
    run.write_summary({"iterations": 4, "seconds": 1.0, "tokens": {"generated": 1, "trained": 1}})
    assert run.last_iteration() == 4


# --- a full disk -----------------------------------------------------------------------------------------------------
def test_full_disk_loses_nothing_written(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.append_metrics({"iteration": 1})
    run.write_summary(EARLIER)
    real_open = Path.open

    class Full:
        """A file on a disk with room for 4 bytes more."""

        def __init__(self, path: Path, mode: str) -> None:
            self.file = real_open(path, mode)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            self.file.write(data[:4])
            no_space()
            return 4

    said = (
        f"the disk of {run.path} is full; nothing already written is lost: "
        f"free space, then `marft train --resume --run {run.path}`"
    )
    writes: list[Callable[[], None]] = [
        lambda: run.append_metrics({"iteration": 2}),
        lambda: run.append_episodes([{"iteration": 2}]),
        lambda: run.write_summary(LATER),
        lambda: run.truncate(0),
        lambda: run.write_config(duo("train.iterations=50")),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(
            Path, "open", lambda path, mode="r", **_: Full(path, mode) if "r" not in mode else real_open(path, mode)
        )
        for write in writes:
            with pytest.raises(MarftError) as error:
                write()
            assert refusal(error) == said
    assert (run.path / "metrics.jsonl").read_bytes() == b'{"iteration": 1}\n'
    assert (run.path / "episodes.jsonl").read_bytes() == b""
    assert run.summary() == EARLIER
    assert run.config() == duo()
    assert not [name for name in os.listdir(run.path) if name.startswith(".")]


def test_disk_gone_read_only_says_what_to_do(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", read_only)
    with pytest.raises(MarftError, match="Read-only file system; nothing already written is lost") as error:
        run.write_summary({})
    refusal(error)


def test_other_errors_of_the_system_are_our_bugs(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "replace", absent)
    with pytest.raises(FileNotFoundError):
        run.write_summary({})


# --- summary ---------------------------------------------------------------------------------------------------------
def test_summary_is_replaced_whole(run: RunDirectory) -> None:
    assert run.summary() is None
    run.write_summary(EARLIER)
    run.write_summary({**EARLIER, "after": FIGURES})
    assert run.summary() == {**EARLIER, "after": FIGURES}


def test_reader_never_sees_half_a_file(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_summary(EARLIER)

    def killed(*_: Any) -> None:
        assert run.summary() == EARLIER  # the new bytes lie beside the old ones, not over them
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run.write_summary(LATER)
    assert run.summary() == EARLIER
