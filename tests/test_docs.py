"""Blocks of code in README and docs: YAML is a config, shell lines are commands with settings that exist, Python runs."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from marft.arguments import make_parser, parse_arguments, split_words
from marft.cli import main
from marft.config import Config, load_config, merge_settings, parse, parse_yaml, read_source
from marft.envs import make_env
from marft.envs.sandbox import require_sandbox
from marft.types import MarftError

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "recipes/nano/README.md",
]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[\w-]+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\b")  # a block's first line names the file that it is
KINDS = {"sh", "bash", "yaml", "python", "text"}
OPTIONAL = {  # what some environments import
    "gymnasium": "gymnasium",
    "textarena": "textarena",
    "openenv": "openenv",
    "verifiers": "verifiers.v1",
}
TUTORIAL = "tutorial.md"  # test_tutorial.py does all of it
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|…")  # RUN, RECIPE, FILE: the reader's own
[COMMANDS] = [
    action.choices or () for action in make_parser()._actions if action.dest == "command" or action.metavar == "COMMAND"
]
KNOWN = {
    "export",
    "jq",
    "marft",
    "python",
    "pip",
    "peers/bin/pip",
    "pytest",
    "ruff",
    "mypy",
    "mkdocs",
    "vllm",
    "tensorboard",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: Path
    kind: str
    text: str
    mark: str | None

    @property
    def file(self) -> str | None:
        found = FILE.match(self.text)
        return found[1] if found else None


def blocks(*kinds: str) -> list[Block]:
    return [
        Block(page=page, kind=found["kind"], text=found["text"], mark=found["mark"])
        for page in PAGES
        for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if not kinds or found["kind"] in kinds
    ]


def named(block: Block) -> str:
    return f"{block.page.stem}: {block.text.splitlines()[0][:50]}"


def beside(block: Block, folder: Path) -> None:
    """The files that the block's page shows."""
    for other in blocks("yaml", "python"):
        if other.page == block.page and other.file:
            (folder / other.file).write_text(other.text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the files of a page lie, beside the examples. A module of theirs may have the name of one of the tests', and
    gives it back."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ours = {name: sys.modules.pop(name) for name in ("teams",) if name in sys.modules}
    yield tmp_path
    sys.modules.pop("teams", None)
    sys.modules.update(ours)


def test_there_are_blocks_of_every_kind_and_of_no_other() -> None:
    assert {block.kind for block in blocks()} == KINDS
    fences = sum(page.read_text(encoding="utf-8").count("\n```") for page in PAGES)
    assert fences == 2 * len(blocks())


# --- YAML -------------------------------------------------------------------------------------------------------------
def is_whole(block: Block) -> bool:
    return "team" in parse_yaml(block.text, "a block")


@pytest.mark.parametrize("block", blocks("yaml"), ids=named)
def test_yaml_is_a_config(block: Block, folder: Path) -> None:
    """Whatever has a team is whole and could be given to marft train as it stands; the rest is laid over a recipe."""
    if is_whole(block):
        path = folder / (block.file or "block.yaml")
        path.write_text(block.text, encoding="utf-8")
        config = load_config(str(path))
    else:
        config = parse(merge_settings(read_source("duo"), parse_yaml(block.text, "a block")))
    installed(config)
    if config.env.name not in ("math", "code"):  # whose data is not here
        make_env(config.env.name, config.env.settings)


def installed(config: Config) -> None:
    if config.env.name in OPTIONAL:
        pytest.importorskip(OPTIONAL[config.env.name], reason=f"{config.env.name} is not installed")


def is_here(block: Block) -> bool:
    """Whether all that it needs lies on this machine."""
    return not re.search(r"Qwen|https?://|script:", block.text) and block.page.name != TUTORIAL


@pytest.mark.parametrize("block", [b for b in blocks("yaml") if is_whole(b) and is_here(b)], ids=named)
def test_a_whole_config_runs_dry(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "python]" in block.text:
        sandboxed()
    beside(block, folder)
    path = folder / (block.file or "block.yaml")
    path.write_text(block.text, encoding="utf-8")
    installed(load_config(path.name))
    assert main(["train", path.name, "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("dry run: nothing was trained or written\n")


# --- shell ------------------------------------------------------------------------------------------------------------
def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, without what is set before it."""
    for line in text.splitlines():
        words: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|")
        lexer.whitespace_split = True
        for word in [*lexer, "&&"]:
            if word in ("&&", "|"):
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words:
                    yield words
                words = []
            else:
                words.append(word)


SHELL = [(block, words) for block in blocks("sh", "bash") for words in commands(block.text)]
INLINE = [
    (Block(page=page, kind="sh", text=line, mark=None), words)
    for page in PAGES
    for line in dict.fromkeys(re.findall(r"(?<!`)`(marft\s[^`]*)`(?!`)", page.read_text(encoding="utf-8")))
    if not re.search(r"[\[|]", line)  # a list of what may be written
    for words in commands(" ".join(line.split()))
]


def config_of(words: list[str]) -> Config | None:
    """What a command's settings come to; None where it has none, or leaves them to the reader."""
    arguments = parse_arguments(words)
    if not hasattr(arguments, "words") or words[0] == "check-env" or PLACEHOLDER.search(" ".join(words)):
        return None
    source, overrides = split_words(arguments.words)
    a_run = source is not None and source.startswith("runs/")
    return load_config("duo" if a_run else source, overrides)


@pytest.mark.parametrize(
    ("block", "words"), SHELL + INLINE, ids=lambda each: " ".join(each)[:60] if isinstance(each, list) else ""
)
def test_a_shell_line_is_a_command(block: Block, words: list[str], folder: Path) -> None:
    program, *rest = words
    assert program in KNOWN
    if program == "marft" and block.page.name != TUTORIAL:
        beside(block, folder)
        if rest[1:] or block in [each for each, _ in SHELL]:
            config_of(rest)
        else:  # a command's bare name
            assert rest[0] in COMMANDS
    if program == "python" and rest[0].endswith(".py"):
        source = (ROOT / rest[0]).read_text(encoding="utf-8")
        for option in (word for word in rest[1:] if word.startswith("--")):
            assert f'"{option}"' in source, f"{rest[0]} has no {option}"


def test_a_wrong_line_is_found(folder: Path) -> None:
    for wrong in (["train", "duoo"], ["train", "lr=1"], ["train", "--rnu", "x"], ["train", "nowhere.yaml"], ["trian"]):
        with pytest.raises(Exception, match=r"unknown|cannot read|invalid"):
            config_of(wrong)


def sandboxed() -> None:
    try:
        require_sandbox()
    except MarftError as error:
        pytest.skip(str(error))


# --- Python -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block.page), "exec")


@pytest.mark.parametrize("block", [b for b in blocks("python") if b.mark == "run"], ids=named)
def test_marked_python_runs_and_gives_what_it_says(block: Block) -> None:
    """`expression  # value` under <!-- run -->."""
    if "sandbox" in block.text:
        sandboxed()
    names: dict[str, object] = {}
    checked = 0
    lines = block.text.splitlines()
    for node in ast.parse(block.text).body:
        line = lines[node.lineno - 1]
        if isinstance(node, ast.Expr) and "  # " in line:
            expected = ast.literal_eval(line.rpartition("  # ")[2])
            assert eval(ast.unparse(node), names) == expected
            checked += 1
        else:
            exec(ast.unparse(node), names)
    assert checked
