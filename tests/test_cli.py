"""The command line: its surface, its exit codes, and one line on stderr for every mistake."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from toys import ECHO, TINY, files, rows, without_progress

from marft.arguments import make_parser
from marft.cli import main
from marft.models.registry import NANO
from marft.rollouts.runner import Start
from marft.runs.checkpoints import MANIFEST, seal
from marft.training.loading import load_team
from marft.version import __version__

Fails = Callable[..., str]
SURFACE = {
    "train": {"words", "--run", "--resume", "--at", "--dry-run", "--plan"},
    "compare": {"words", "--run", "--seeds", "--single", "--frozen", "--json"},
    "eval": {"words", "--run", "--ablate", "--json"},
    "play": {"words", "--task", "--sample", "--benchmark", "--at", "--prompt", "--show-prompts"},
    "serve": {"words", "--at", "--host", "--port", "--token"},
    "export": {"run", "folder", "--at"},
    "recipes": set(),
    "check-env": {"env", "words", "--deadline"},
    "new": {"what", "name", "folder"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", *ECHO, "optimizer.lr=0.05", "--run", str(path)]) == 0
    return path


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fails:
    """The one line in which a command ends that exits with 2, in an empty working directory. Above it there may be the
    traceback of the user's own code."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        *trace, line = without_progress(capsys.readouterr().err)
        assert not trace or trace[0].startswith("Traceback ")
        assert line.startswith("marft: ")
        return line.removeprefix("marft: ")

    return run


# --- surface ----------------------------------------------------------------------------------------------------------
def test_the_commands_and_options() -> None:
    """They are public: whoever adds, renames or drops one changes this list too, on purpose."""
    [commands] = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    found = {
        name: {(a.option_strings or [a.dest])[-1] for a in command._actions} - {"--help"}
        for name, command in commands.choices.items()
    }
    assert found == SURFACE


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith(f"marft {__version__}" if arguments == ["--version"] else "usage: marft")


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert "duo " in capsys.readouterr().out


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("train du", "unknown recipe 'du'; did you mean 'duo'?"),
        ("eval du", "unknown recipe 'du'; did you mean 'duo'?"),
        ("play du", "unknown recipe 'du'; did you mean 'duo'?"),
        ("train nowhere.yaml", "cannot read nowhere.yaml"),
        ("train trian.tasks=3", "unknown key 'trian'; did you mean 'train'?"),
        ("train env.levels=3", "unknown key 'env.levels'; did you mean 'env.level'?; settings of arithmetic: level"),
        ("train env=poker", "unknown environment 'poker'"),
        ("train env=gsm8k", "did you mean 'env=math env.data=gsm8k'?"),
        ("train lr=1e-3", "unknown key 'lr'; did you mean 'optimizer.lr'"),
        ("train --learning-rate 1e-3", "settings are written key=value; did you mean 'optimizer.lr'?"),
        ("train --seed=3", "settings are written key=value; did you mean 'seed'?"),
        ("train algorithm=ppo", "our two forms of PPO are marft-token (a ratio a token) and marft-action"),
        (
            "train team.agents.solver.prompt=You solve. Go.",
            "'solve.'; if it belongs to the value before it, quote both",
        ),
        ("train seed=1 duoo", "unknown recipe 'duoo'; did you mean 'duo'?"),
        ("train team.agents.solver.prompt", "a setting is written key=value"),
        ("train device=gpu", "unknown device 'gpu'; did you mean cuda?: use auto, cpu, cuda"),
        ("train model=NANO", "unknown model 'NANO'; did you mean 'nano'?"),
        ("train debate.yaml", "cannot read debate.yaml: it is missing; did you mean the recipe 'debate'?"),
        ("train env=math", "env.data is missing; math needs it, as in env.data=gsm8k"),
        ("train env=math env.data=GSM8K", "did you mean 'gsm8k'?"),
        ("play runs/none", "there is no run and no config in runs/none"),
        ("train team.workflow=no.such:flow", "team.workflow: cannot import 'no.such:flow'"),
        ("train model=./nowhere", "model folder nowhere does not exist"),
        ("train model=/nowhere/at/all", "model folder /nowhere/at/all does not exist"),
        ("train device=tpu", "unknown device 'tpu'"),
        ("train lora.targets=[nothing]", "nothing"),
        ("train team.agents.solver.temperature=.inf", "team.agents.solver.temperature: "),
        ("train env.name=toys:NotAnEnvironment", "env.name: 'toys:NotAnEnvironment' is not a marft.Environment"),
        ("train env.name=toys:NoTasks eval.tasks=0", "environment.tasks('train') is empty"),
        ("train env.name=toys:NoTasks", "environment.tasks('test') is empty"),
        ("train env.name=toys:Breaks env.method=tasks", "environment.tasks('test') raised RuntimeError: out of paper"),
        ("train env.name=toys:Echo team.workflow=toys:nobody eval.tasks=0", "nobody who learns acted in any episode"),
        (
            "train env.name=toys:Echo team.workflow=toys:stranger",
            "names 'stranger' in game.act; the team has planner, solver",
        ),
        ("train a b", "one config at a time: 'a' or 'b'"),
        ("train --at 3", "--at goes with --resume"),
        ("train --resume", "--resume needs --run DIR"),
        ("train --resume --run x duo", "--resume takes the run's own config; drop 'duo'"),
        ("train --resume --run nowhere", "nowhere is not a run"),
        ("train --at many", "argument --at: invalid int value: 'many'; see marft train --help"),
        ("train --rnu x", "unknown argument '--rnu'; see marft --help"),
        ("eval --resume", "unknown argument '--resume'"),
        ("eval eval.tasks=0", "eval.tasks is 0"),
        ("eval env.name=toys:NoTasks", "environment.tasks('test') is empty"),
        ("play --task 5000", "--task 5000: the environment has 5000 held-out tasks"),
        ("play --task -1", "--task -1"),
        ("play env.name=toys:Breaks", "the episode failed: environment.reward raised RuntimeError: out of paper"),
        ("trian", "invalid choice: 'trian'"),
        ("", "the following arguments are required: COMMAND"),
        ("export", "the following arguments are required: RUN, DIR"),
        ("export nowhere there", "nowhere is not a run"),
        ("export a b c", "unknown argument 'c'"),
        ("recipes all", "unknown argument 'all'"),
    ],
)
def test_a_mistake_is_one_line(fails: Fails, arguments: str, expected: str) -> None:
    assert expected in fails(*arguments.split())
    assert list(Path("runs").glob("*/metrics.jsonl")) == []


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_missing_tracker_is_noticed_before_anything_is_made(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    from marft.training import build as compose

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    monkeypatch.setattr(compose, "load", lambda *_: pytest.fail("the model is loaded"))
    given = "true" if name == "tensorboard" else "maths"
    line = fails(command, *ECHO, f"track.{name}={given}", "--run", "made")
    assert line == f"track.{name} needs the package {name}: pip install 'marft[track]'"
    assert list(Path().iterdir()) == []


def test_a_folder_of_a_trackers_name_is_no_tracker(fails: Fails) -> None:
    (Path() / "wandb" / "run-1").mkdir(parents=True)  # as the package leaves behind
    assert fails("train", *ECHO, "track.wandb=maths").startswith("track.wandb needs the package wandb")
    assert not Path("runs").exists()


def test_a_missing_tracker_is_noticed_before_a_run_goes_on(fails: Fails, copy: Path) -> None:
    before = files(copy)
    line = fails("train", "--resume", "--run", copy, "train.iterations=9", "track.trackio=maths")
    assert "needs the package trackio" in line
    assert files(copy) == before


def test_a_run_is_no_config(fails: Fails, trained: Path) -> None:
    line = fails("train", trained)
    assert line.startswith(f"{trained} is a run: go on with it by --resume --run {trained}, or begin anew with its ")


def test_turns_longer_than_the_model_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [*ECHO, "team.agents.solver.max_tokens=1024", "train.iterations=1", "eval.tasks=0"]
    assert main(["train", *words, "--run", str(tmp_path / "run")]) == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert line == (
        "marft: warning: model nano reads at most 1024 tokens, prompt and answer together, and "
        "team.agents.solver.max_tokens=1024 asks for more: turns end when they are full; give less than 1024"
    )
    assert main(["train", *words, "--dry-run"]) == 0
    assert "warning    model nano reads at most 1024 tokens" in capsys.readouterr().out
    assert main(["train", *ECHO, "--dry-run"]) == 0
    assert "warning" not in capsys.readouterr().out


def test_a_model_without_a_chat_template(fails: Fails, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(NANO, model, ignore=shutil.ignore_patterns("chat_template.jinja"))
    assert "has no chat template" in fails("train", f"model={model}")
    (model / "config.json").unlink()
    assert "holds no config.json" in fails("train", f"model={model}")


def test_a_damaged_model(fails: Fails, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(NANO, model)
    (model / "model.safetensors").write_bytes(b"not tensors")
    assert f"cannot load model '{model}'" in fails("train", f"model={model}")


def test_a_run_that_is_there_already(fails: Fails, trained: Path) -> None:
    before = files(trained)
    again = ["train", *ECHO, "optimizer.lr=0.05", "--run", trained]
    assert "exists already; continue it with --resume or choose another --run" in fails(*again)
    assert "belongs to a run with another config: seed is 0 there and 1 here" in fails(*again, "seed=1")
    resumed = ["train", "--resume", "--run", trained]
    assert "cannot resume" in (line := fails(*resumed, "seed=1"))
    assert "another seed: it is 0 there and 1 here" in line
    assert "algorithm.name" in fails(*resumed, "algorithm=grpo")
    assert "unknown key" in fails(*resumed, "trian.tasks=1")
    assert files(trained) == before


def test_places_where_no_run_can_be(fails: Fails, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "run", Path("/proc/run"), Path("/dev/null/run")):
        assert str(place) in fails("train", *ECHO, "--run", place)
    assert file.read_text() == "mine"


def test_a_disk_that_is_full_before_it_starts(fails: Fails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    assert "of disk and 1.0 KB are free" in fails("train", *ECHO, "--run", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fills_up_on_the_way(fails: Fails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import errno

    from marft.training import trainer

    real, calls = trainer.write_checkpoint, 0

    def full(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "write_checkpoint", full)
    run = tmp_path / "run"
    line = fails("train", *ECHO, "checkpoint.every=1", "--run", run)
    assert "is full; nothing already written is lost: free space, then `marft train --resume --run" in line
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1]
    assert main(["train", "--resume", "--run", str(run)]) == 0
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("method", ["reset", "observe", "transition", "reward"])
def test_an_environment_that_always_raises(fails: Fails, method: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = fails("train", *TINY, "eval.tasks=2", "env.name=toys:Breaks", f"env.method={method}", "--run", run)
    found = (
        f"5 of 5 episodes of the sanity check failed; the first: environment.{method} raised RuntimeError: out of paper"
    )
    assert line == f"{found}. Nothing was written: mend it, then start again"
    assert not run.exists()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("toys:Nan", "environment.reward gave a reward of nan, not a finite number"),
        ("toys:Returns", "environment.reward returned float, not a marft.Reward"),
    ],
)
def test_a_reward_that_is_none(fails: Fails, env: str, expected: str, tmp_path: Path) -> None:
    assert expected in fails("train", *TINY, "eval.tasks=0", f"env.name={env}", "--run", tmp_path / "run")


def test_what_was_written_before_a_failure_stays(fails: Fails, tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = fails(
        "train", *TINY, "eval.tasks=0", "train.iterations=3", "checkpoint.every=1", "env.name=toys:Breaks", "env.after=12",
        "--run", run,
    )  # fmt: skip
    assert "failed in iteration 3" in line
    assert f"marft train --resume --run {run}" in line
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1, 2]
    assert {row["iteration"] for row in rows(run / "episodes.jsonl")} == {1, 2}
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["000000", "000001", "000002"]
    assert main(["train", "--resume", "--run", str(run)]) == 0  # the environment counts its calls anew
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1, 2, 3]


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from marft.training.trainer import Trainer

    def interrupt(self: Trainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "iterate", interrupt)
    assert main(["train", *ECHO, "eval.tasks=0", "--run", str(tmp_path / "run")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    run = tmp_path / "run"
    assert line == (
        f"marft: interrupted; {run} is kept as it was after iteration 0; go on with: marft train --resume --run {run}"
    )


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 20.44 MiB is "
            "free. Process 7 has 3.00 GiB memory in use.",
            "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 20.44 MiB is free: lower",
        ),
        (
            "[enforce fail at alloc_cpu.cpp:1]\nDefaultCPUAllocator: can't allocate memory",
            "can't allocate memory: lower",
        ),
    ],
)
def test_a_full_memory_is_one_line_whose_advice_can_be_followed(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, shown: str
) -> None:
    from marft.training.trainer import Trainer

    def run_out(self: Trainer) -> None:
        raise torch.OutOfMemoryError(said)

    run = str(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "iterate", run_out)
        line = fails("train", *ECHO, "eval.tasks=0", "--run", run)
    assert shown in line
    assert "Process 7" not in line
    lighter = ["train.tokens=256", "engine.slots=4", "engine.memory=0.2", "train.recompute=true"]
    assert main(["train", "--resume", "--run", run, *lighter]) == 0


def test_a_bug_is_loud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from marft.training.trainer import Trainer

    def fail(self: Trainer) -> None:
        raise RuntimeError("a shape is wrong")

    monkeypatch.setattr(Trainer, "iterate", fail)
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        main(["train", *ECHO, "eval.tasks=0", "--run", str(tmp_path / "run")])


def test_runs_are_numbered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["train", *ECHO, "eval.tasks=0", "train.iterations=1"]) == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["duo-1", "duo-2"]


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """From the shell: words before and after options, an environment in the working directory, exit codes, a clean stderr."""
    shutil.copy(Path(__file__).parent / "toys.py", tmp_path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def marft(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "marft"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=120
        )

    done = marft("train", "duo", "--run", "r", *TINY, "env.name=toys:Breaks", "env.after=16", "train.iterations=9")
    *trace, line = done.stderr.splitlines()
    assert done.returncode == 2
    assert (trace[0][:9], trace[-2:]) == ("Traceback", ["paper", ""])  # where the user's own code failed
    assert line.startswith(
        "marft: 6 of 6 episodes failed in iteration 3"
    )  # 2 checked, 4 held-out, 6 an iteration: 2 + 4 + 6 + 4
    assert "iteration    1/9" in done.stdout
    assert len(rows(tmp_path / "r" / "metrics.jsonl")) == 2
    wrong = marft("trian")
    assert (wrong.returncode, wrong.stdout, len(wrong.stderr.splitlines())) == (2, "", 1)


def test_another_base_model_is_refused(fails: Fails, copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["model"]["fingerprint"] = "another"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    for command in (["eval", copy], ["train", "--resume", "--run", copy]):
        assert "is not what" in fails(*command)


def test_a_folder_does_not_hide_a_recipe(fails: Fails) -> None:
    Path("gsm8k-duo-token").mkdir()
    assert "none.jsonl is not there" in fails("eval", "gsm8k-duo-token", "model=nano", "env.test=none.jsonl")
    assert "there is no run and no config in runs/duo-9" in fails("eval", "runs/duo-9")


def test_a_setting_an_environment_needs(fails: Fails) -> None:
    assert (
        fails("train", "env=math") == "env.data is missing; math needs it, as in env.data=gsm8k or env.data=FILE.jsonl"
    )


# --- eval, play, export -----------------------------------------------------------------------------------------------
def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    """What `marft eval` says of the one benchmark, without what only it knows."""
    capsys.readouterr()
    assert main(["eval", "--json", *map(str, arguments)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert list(row.pop("benchmarks").values()) == [row]
    ours = ("tasks", "reward", "failed", "tokens", "tokens_per_task", "accuracy", "accuracy_ci95")
    return {key: row[key] for key in ours}


def test_defect_13_eval_of_a_run_plays_its_trained_team(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The very figures of the summary; others once the adapters are changed; and an error where they are missing."""
    monkeypatch.chdir(copy.parent)
    summary = json.loads((copy / "summary.json").read_text())
    after = {key: value for key, value in summary["after"].items() if key not in ("iteration", "settings")}
    assert evaluated(capsys, copy) == after
    assert main(["eval", str(copy)]) == 0
    assert f"{after['accuracy']:.3f} [" in capsys.readouterr().out

    newest = copy / "checkpoints" / "000002"
    for agent in ("planner", "solver"):
        path = newest / "agents" / agent / "adapter_model.safetensors"
        g = torch.Generator().manual_seed(0)
        save_file({key: torch.randn(t.shape, generator=g) for key, t in load_file(path).items()}, path)
    (newest / MANIFEST).unlink()
    seal(newest, 2)
    assert evaluated(capsys, copy) != after

    shutil.rmtree(newest / "agents" / "solver")
    (newest / MANIFEST).unlink()
    seal(newest, 2)
    assert main(["eval", str(copy)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "has no adapter for 'solver'" in line


def test_eval_says_when_it_falls_back(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copy.parent)
    (copy / "checkpoints" / "000002" / "state.json").write_text("{}")
    assert main(["eval", str(copy), "--json"]) == 0
    assert without_progress(capsys.readouterr().err)[0].startswith("marft: warning: checkpoint")
    shutil.rmtree(copy / "checkpoints" / "000000")
    assert main(["eval", str(copy), "--json"]) == 2
    [line] = without_progress(capsys.readouterr().err)
    assert "000002 is corrupt: state.json has another SHA-256 than when written, and no other is there" in line


def test_eval_takes_overrides(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert evaluated(capsys, trained, "eval.tasks=2", "eval.temperature=0")["tasks"] == 2
    assert evaluated(capsys, *ECHO, "eval.tasks=3")["tasks"] == 3


def test_play_shows_exactly_what_each_agent_saw(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, parts = load_team(str(trained), [])
    task = parts.runner.host.tasks("test")[3]
    [episode] = asyncio.run(parts.runner.episodes([Start(task=task, sample=0)], f"{config.seed}/eval"))
    capsys.readouterr()
    assert main(["play", str(trained), "--task", "3", "--show-prompts"]) == 0
    expected = [f"task: {task.prompt}", f"id: {task.id}, sample 0"]
    for turn in episode.turns:
        for message in turn.observation:
            shown = "\n".join(f"  {line}" for line in message.content.split("\n"))
            expected.append(f"\n  [{turn.agent} saw, {message.role}]\n{shown}")
        cut = " (cut at its limit of tokens)" if turn.completion.finish == "length" else ""
        expected.append(f"\n{turn.agent}{cut}:\n{turn.text}")
    expected.append(f"\n{'right' if episode.reward.correct else 'wrong'}, reward: {episode.reward.team:g}")
    expected.append("the same texts as evaluated after training, iteration 2 (held_out.jsonl)\n")
    assert capsys.readouterr().out == "\n".join(expected)
    assert config.team.agents["solver"].prompt in "\n".join(expected)


def test_play_with_a_prompt_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--prompt", "Start with 3. Add 4."]) == 0
    out = capsys.readouterr().out
    assert out.startswith("task: Start with 3. Add 4.\n")
    assert "reward" not in out
    assert "saw" not in out


def test_exported_folders_are_plain_peft(
    trained: Path, tmp_path: Path, fails: Fails, capsys: pytest.CaptureFixture[str]
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "exported"
    assert main(["export", str(trained), str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: {folder / name}" for name in ("planner", "solver")]
    base = AutoModelForCausalLM.from_pretrained(NANO)
    ids = torch.arange(1, 20)[None]
    plain = base(ids).logits
    model = peft.PeftModel.from_pretrained(base, folder / "planner", adapter_name="planner")
    model.load_adapter(folder / "solver", adapter_name="solver")
    logits = {}
    for name in ("planner", "solver"):
        model.set_adapter(name)
        logits[name] = model(ids).logits
    assert not torch.allclose(logits["planner"], plain)
    assert not torch.allclose(logits["planner"], logits["solver"])
    assert files(folder) == {
        name.removeprefix("agents/"): data
        for name, data in files(trained / "checkpoints" / "000002").items()
        if name.startswith("agents/")
    }
    assert main(["export", str(trained), str(tmp_path / "first"), "--at", "0"]) == 0
    assert files(tmp_path / "first") != files(folder)
    assert "exists and is not an empty folder" in fails("export", trained, folder)
    assert "has no checkpoint of iteration 1; available: 0, 2" in fails("export", trained, tmp_path / "x", "--at", "1")
    assert "cannot write" in fails("export", trained, "/proc/exported")


def test_a_team_in_which_nobody_learns_can_be_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    frozen = [f"team.agents.{name}.trainable=false" for name in ("planner", "solver")]
    assert evaluated(capsys, "duo", *ECHO, *frozen)["tasks"] == 4
