"""The command line: `marft train | compare | eval | play | serve | export | check-env | new | recipes`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from marft.arguments import parse_arguments, split_words
from marft.openmp import limit_spinning
from marft.terminal import complain, say
from marft.types import Collapse, Interrupted, MarftError

if TYPE_CHECKING:
    from marft.config import Config
    from marft.terminal.display import Display

FULL = ("out of memory", "can't allocate memory", "ALLOC_FAILED")  # torch and Triton, the CPU's allocator, cuBLAS
LIGHTER = (
    "lower train.tokens, engine.slots or engine.memory, or give train.recompute=true (marft train --plan foretells what a "
    "run needs); a run goes on with them and --resume --run DIR"
)


def main(argv: Sequence[str] | None = None) -> int:
    """0: success; 2: the user's mistake, one line; 3: a run that stopped itself, one line; 1: anything else."""
    from marft.training.interruption import Interruption

    limit_spinning()
    if "" not in sys.path:  # the user's own environments and workflows lie where the command is given
        sys.path.insert(0, "")
    try:
        arguments = parse_arguments(argv)
        with Interruption():
            return COMMANDS[arguments.command](arguments)
    except MarftError as error:
        if error.trace:
            complain(error.trace)
        complain(f"marft: {' '.join(str(error).split())}")  # it may quote a user's many lines
        return 3 if isinstance(error, Collapse) else 2
    except RuntimeError as error:
        if not any(word in str(error) for word in FULL):
            raise
        sentences = " ".join(str(error).split()).split(". ")  # what was asked for, what there is, and much more
        complain(f"marft: {'. '.join(sentences[:3])}: {LIGHTER}")
        return 2
    except KeyboardInterrupt as error:
        complain(f"marft: {str(error) or 'interrupted'}")
        return 1
    except BrokenPipeError:  # the reader of our output has gone, as `marft recipes | head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def train_command(arguments: argparse.Namespace) -> int:
    """`marft train`; returns the exit status, as all commands do."""
    from marft.config import load_config
    from marft.terminal.display import start_display

    source, overrides = split_words(arguments.words)
    if arguments.at is not None and not arguments.resume:
        raise MarftError("--at goes with --resume: it names the checkpoint to go back to")
    if arguments.dry_run or arguments.plan:
        return without_training(arguments, load_config(source, overrides))
    if not arguments.resume:
        config = load_config(source, overrides)  # before the heavy imports: a typo is answered at once
        with start_display() as display:
            from marft.commands.train import next_run_path, start_run

            start_run(config, arguments.run or next_run_path(source or "duo"), display=display)
        return 0
    if arguments.run is None:
        raise MarftError("--resume needs --run DIR: which run to go on with")
    if source is not None:
        raise MarftError(f"--resume takes the run's own config; drop {source!r} (key=value overrides may stay)")
    with start_display() as display:
        from marft.commands.train import resume_run

        resume_run(arguments.run, overrides, arguments.at, display=display)
    return 0


def without_training(arguments: argparse.Namespace, config: Config) -> int:
    """`marft train --dry-run` and `--plan`."""
    from marft.terminal.display import start_display

    if arguments.dry_run and arguments.plan:
        raise MarftError("--dry-run loads no model and --plan measures it; ask for one of the two")
    option = "--dry-run" if arguments.dry_run else "--plan"
    if arguments.resume or arguments.run is not None:
        raise MarftError(f"{option} writes nothing and begins at the beginning; drop --run and --resume")
    with start_display(stderr=True) as display:
        if arguments.dry_run:
            from marft.commands.dry_run import dry_run

            dry_run(config, display)
        else:
            from marft.commands.plan import plan

            plan(config, display)
    return 0


def compare_command(arguments: argparse.Namespace) -> int:
    """`marft compare`."""
    from marft.config import load_config
    from marft.evaluation.comparison.cells import make_question

    source, overrides = split_words(arguments.words)
    question = make_question(
        load_config(source, overrides), seeds=arguments.seeds, single=arguments.single, frozen=arguments.frozen or ()
    )
    from marft.evaluation.comparison.folder import RESULTS

    def run(path: Path, display: Display) -> None:
        from marft.commands.compare import compare

        compare(question, path, display)

    return write_results(arguments, f"compare-{Path(source or 'duo').name}", RESULTS, run)


def eval_command(arguments: argparse.Namespace) -> int:
    """`marft eval`."""
    from marft.evaluation.folder import RESULTS

    source, overrides = split_words(arguments.words)
    overrides += ["eval.ablate=true"] if arguments.ablate else []
    check_source(source, overrides)

    def run(path: Path, display: Display) -> None:
        from marft.evaluation.evaluate import evaluate_team

        evaluate_team(source, overrides, path, display)

    return write_results(arguments, f"eval-{Path(source or 'duo').name}", RESULTS, run)


def write_results(
    arguments: argparse.Namespace, name: str, results: str, run: Callable[[Path, Display], object]
) -> int:
    """What `run` makes in --run, or in the next free folder of that `name`; with --json its file `results` is printed."""
    from marft.terminal.display import start_display

    with redirect_stdout(sys.stderr) if arguments.json else nullcontext(), start_display() as display:
        from marft.commands.train import next_run_path

        path = arguments.run or next_run_path(name)
        try:
            run(path, display)
        except KeyboardInterrupt:
            if not path.exists():  # nothing has begun
                raise KeyboardInterrupt from None
            again = arguments.given if arguments.run else [*arguments.given, "--run", str(path)]
            command = shlex.join(["marft", *again])
            raise Interrupted(f"interrupted; what was done in {path} is kept; go on with: {command}") from None
    if arguments.json:
        say((path / results).read_text(encoding="utf-8").rstrip("\n"))
    return 0


def play_command(arguments: argparse.Namespace) -> int:
    """`marft play`."""
    from marft.terminal.display import start_display

    source, overrides = split_words(arguments.words)
    check_source(source, overrides)
    with start_display(stderr=True) as display:
        from marft.commands.play import describe_replay, match_transcript, play_task
        from marft.runs.directory import RunDirectory
        from marft.training.loading import is_run, load_team

        # read before the model is
        held_out = list(RunDirectory.open(Path(source)).held_out()) if is_run(source) else []
        config, parts = load_team(source, overrides, arguments.at, display)
        display.begin("playing")
        with parts:
            replay = play_task(
                config,
                parts,
                task=arguments.task,
                sample=arguments.sample,
                prompt=arguments.prompt,
                benchmark=arguments.benchmark,
            )
    for line in describe_replay(replay, prompts=arguments.show_prompts):
        say(line)
    if replay.episode.error:
        raise MarftError(f"the episode failed: {replay.episode.error}", replay.episode.trace)
    if note := match_transcript(replay, held_out):
        say(note)
    return 0


def serve_command(arguments: argparse.Namespace) -> int:
    """`marft serve`; an interrupt is its usual end."""
    from marft.commands.listening import bind, check_token, chosen_token, require_http
    from marft.terminal.display import start_display

    source, overrides = split_words(arguments.words)
    check_source(source, overrides)
    require_http()
    token = chosen_token(arguments.token)
    with bind(arguments.host, arguments.port) as bound:
        check_token(bound, token)
        with start_display(stderr=True) as display:
            from marft.commands.serve import serve, team_name
            from marft.training.loading import load_team

            config, parts = load_team(source, overrides, arguments.at, display)
        with parts:
            serve(config, parts, bound, name=team_name(source, config), token=token, ready=say)
    return 0


def export_command(arguments: argparse.Namespace) -> int:
    """`marft export`."""
    from marft.runs.export import export_adapters

    for line in export_adapters(arguments.run, arguments.folder, arguments.at):
        say(line)
    return 0


def check_env_command(arguments: argparse.Namespace) -> int:
    """`marft check-env`; 1 where a check failed."""
    from marft.config import free_settings
    from marft.envs.checking import check_env

    source, overrides = split_words(arguments.words)
    if source is not None:
        raise MarftError(f"one environment at a time: {arguments.env!r} or {source!r}; settings are written key=value")
    if arguments.deadline <= 0:
        raise MarftError("--deadline: every call needs some time; give it more than 0 seconds")
    findings = check_env(arguments.env, free_settings(overrides), arguments.deadline)
    for finding in findings:
        say(finding)
    if failed := list(dict.fromkeys(finding.check for finding in findings if finding.ok is False)):
        raise MarftError(f"{arguments.env} does not keep the contract of an environment: {', '.join(failed)}")
    return 0


def new_command(arguments: argparse.Namespace) -> int:
    """`marft new`."""
    from marft.envs.template import new_env

    for line in new_env(arguments.name, arguments.folder):
        say(line)
    return 0


def recipes_command(arguments: argparse.Namespace) -> int:
    """`marft recipes`."""
    from marft.config import recipes

    for name, line in recipes().items():
        say(f"{name:16s} {line}")
    return 0


def check_source(source: str | None, overrides: Sequence[str]) -> None:
    """A typo in a config is answered at once; a run's folder is looked at when everything is loaded."""
    from marft.config import load_config, recipes
    from marft.files import is_folder

    if source is None or source in recipes() or not is_folder(Path(source)):
        load_config(source, overrides)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "train": train_command,
    "compare": compare_command,
    "eval": eval_command,
    "play": play_command,
    "serve": serve_command,
    "export": export_command,
    "check-env": check_env_command,
    "new": new_command,
    "recipes": recipes_command,
}


if __name__ == "__main__":
    sys.exit(main())
