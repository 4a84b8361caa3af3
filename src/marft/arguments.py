"""What `marft` may be told on its command line: the options of each command, and words before and after them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from marft.types import MarftError
from marft.version import __version__


class OneLineParser(argparse.ArgumentParser):
    """A mistake is one line here as everywhere, without the usage text before it."""

    def error(self, message: str) -> NoReturn:
        """Raise a MarftError instead of printing the usage and exiting."""
        raise MarftError(f"{message}; see {self.prog} --help")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes words only in one place; ours may stand before and after options."""
    arguments, rest = make_parser().parse_known_args(argv)
    arguments.given = sys.argv[1:] if argv is None else list(argv)
    for word in rest:
        if word.startswith("-") or not hasattr(arguments, "words"):
            from marft.config.hints import hint_for_option

            raise MarftError(f"unknown argument {word!r}{hint_for_option(word)}; see marft --help")
    if rest:
        arguments.words = [*arguments.words, *rest]
    return arguments


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; `command` is the name of the one that was given."""
    top = OneLineParser(
        prog="marft", description="Train a team of language-model agents together with reinforcement learning."
    )
    top.add_argument("--version", action="version", version=f"marft {__version__}")
    commands = top.add_subparsers(required=True, dest="command", metavar="COMMAND")

    train = commands.add_parser(
        "train", help="train a team (without arguments: the embedded default, minutes on a laptop)"
    )
    train.add_argument(
        "words", nargs="*", metavar="CONFIG.yaml | RECIPE | key=value", help="what to train, and overrides"
    )
    train.add_argument("--run", type=Path, metavar="DIR", help="the run directory (default: runs/RECIPE-NUMBER)")
    train.add_argument("--resume", action="store_true", help="go on with the run in --run DIR")
    train.add_argument("--at", type=int, metavar="N", help="with --resume: go back to the checkpoint of iteration N")
    train.add_argument(
        "--dry-run", action="store_true", help="train nothing: resolve everything, and print the prompts of one episode"
    )
    train.add_argument(
        "--plan", action="store_true", help="train nothing: predict memory and time from a short probe on the device"
    )

    compare = commands.add_parser(
        "compare", help="train a team, one agent alone and others under one budget of tokens: is the team worth it?"
    )
    compare.add_argument("words", nargs="*", metavar="CONFIG.yaml | RECIPE | key=value")
    compare.add_argument(
        "--run", type=Path, metavar="DIR", help="its folder (default: runs/compare-RECIPE-NUMBER); if it exists, go on"
    )
    compare.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="how many, from the config's on (default: 3)"
    )
    compare.add_argument(
        "--single", metavar="TEXT", help="what the single agent is told (default: as the last agent that learns)"
    )
    compare.add_argument(
        "--frozen", action="append", metavar="NAME", help="keep this agent untrained (default: the first that learns)"
    )
    compare.add_argument("--json", action="store_true", help="print compare.json, and progress to stderr")

    evaluate = commands.add_parser("eval", help="evaluate a run, or an untrained team, on held-out tasks or benchmarks")
    evaluate.add_argument("words", nargs="*", metavar="RUN | CONFIG.yaml | RECIPE | key=value")
    evaluate.add_argument(
        "--run", type=Path, metavar="DIR", help="its folder (default: runs/eval-NAME-NUMBER); if it exists, go on"
    )
    evaluate.add_argument(
        "--ablate", action="store_true", help="also with each agent silent: who matters, and how much"
    )
    evaluate.add_argument("--json", action="store_true", help="print results.json, and progress to stderr")

    play = commands.add_parser("play", help="watch a team solve one task")
    play.add_argument("words", nargs="*", metavar="RUN | CONFIG.yaml | RECIPE | key=value")
    play.add_argument(
        "--task", default="0", metavar="N | ID", help="which held-out task, by its number or id (default: 0)"
    )
    play.add_argument(
        "--sample", type=int, default=0, metavar="K", help="which sample of it, as evaluation draws them (default: 0)"
    )
    play.add_argument("--benchmark", metavar="NAME", help="a task of this benchmark (default: of the run's own tasks)")
    play.add_argument(
        "--at", type=int, metavar="N", help="of a run, the checkpoint of iteration N (default: the newest)"
    )
    play.add_argument("--prompt", metavar="TEXT", help="a task of your own; it is not graded")
    play.add_argument("--show-prompts", action="store_true", help="print exactly what each agent saw")

    serve = commands.add_parser(
        "serve", help="put a team, and each of its agents, behind an OpenAI-compatible endpoint"
    )
    serve.add_argument("words", nargs="*", metavar="RUN | CONFIG.yaml | RECIPE | key=value")
    serve.add_argument(
        "--at", type=int, metavar="N", help="of a run, the checkpoint of iteration N (default: the newest)"
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="0: any free one (default: 8000)")
    serve.add_argument(
        "--token", help="clients' key (default: the environment's MARFT_TOKEN; on a loopback address none is needed)"
    )

    export = commands.add_parser("export", help="write a run's adapters as plain PEFT folders")
    export.add_argument("run", type=Path, metavar="RUN")
    export.add_argument("folder", type=Path, metavar="DIR")
    export.add_argument("--at", type=int, metavar="N", help="of the checkpoint of iteration N (default: the newest)")

    check = commands.add_parser("check-env", help="does your own environment keep the contract?")
    check.add_argument("env", metavar="MODULE:CLASS")
    check.add_argument("words", nargs="*", metavar="key=value", help="its settings")
    check.add_argument(
        "--deadline", type=float, default=10.0, metavar="SECONDS", help="of each call of a method (default: 10)"
    )

    new = commands.add_parser("new", help="begin something of your own: new env NAME")
    new.add_argument("what", choices=["env"])
    new.add_argument("name", metavar="NAME")
    new.add_argument("folder", nargs="?", type=Path, default=Path(), metavar="DIR", help="where (default: here)")

    commands.add_parser("recipes", help="list the embedded recipes")
    return top


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """At most one word without `=` (what to run); the others are overrides."""
    if odd := next(
        (word for word in words if word.startswith("=") or (word.endswith("=") and word != words[-1])), None
    ):
        raise MarftError(f"{odd!r}: write key=value in one word, without spaces around the =")
    sources = [word for word in words if "=" not in word]
    for before, word in pairwise(words):
        if "=" in before and word in sources:
            check_quotes(word)
    if len(sources) > 1:
        raise MarftError(f"one config at a time: {sources[0]!r} or {sources[1]!r}; overrides are written key=value")
    return (sources[0] if sources else None), [word for word in words if "=" in word]


def check_quotes(word: str) -> None:
    """A word after an override that names nothing is often the rest of its value, which the shell has cut."""
    from marft.config import recipes
    from marft.config.hints import hint_for_recipe

    path = Path(word)
    if word not in recipes() and not path.exists() and path.suffix not in (".yaml", ".yml") and os.sep not in word:
        raise MarftError(
            f"unknown recipe {word!r}{hint_for_recipe(word, recipes())}; if it belongs to the value before it, quote "
            "both: 'key=two words'"
        )
