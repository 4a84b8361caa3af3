"""What users and models wrote reaches the terminal as text: nothing of it is a colour, an emoji's name or a command."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.terminal import complain, say, visible, warn

SOURCE = Path(__file__).parents[2] / "src" / "marft"
# who may name them: `print` where lines for people are made, and where a child process answers in JSON
ALLOWED = {
    "print": {"terminal/__init__.py", "envs/checking/check_process.py"},
    "Console": {"terminal/console.py"},
    "TextColumn": set[str](),
    "SpinnerColumn": set[str](),
    "Table": {"terminal/console.py"},
    "Text": {"terminal/console.py"},
}
RICH = ("Console", "TextColumn", "SpinnerColumn", "Table", "Text")


def offences(source: Path) -> Iterator[str]:
    """`file:line: name` for each use of print or of a part of rich that reads markup, outside its one place."""
    for path in sorted(source.rglob("*.py")):
        where = path.relative_to(source).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="print")):
                    names = ["print"]
                case ast.ImportFrom(module=module, names=found) if (module or "").partition(".")[0] == "rich":
                    names = [alias.name for alias in found if alias.name in RICH or alias.name == "print"]
                case ast.Import(names=found):
                    names = ["Console" for alias in found if alias.name.partition(".")[0] == "rich"]
                case ast.Attribute(attr="write", value=ast.Attribute(attr="stdout" | "stderr")):
                    names = ["print"]
                case _:
                    continue
            yield from (f"{where}:{node.lineno}: {name}" for name in names if where not in ALLOWED[name])


def test_lines_for_people_are_made_in_one_place() -> None:
    assert list(offences(SOURCE)) == []


@pytest.mark.parametrize(
    "code",
    [
        "print('x')",
        "from rich.console import Console",
        "from rich import print",
        "import rich.console",
        "from rich.progress import TextColumn",
        "from rich.table import Table as T",
        "import sys\nsys.stdout.write('x')",
    ],
)
def test_the_walker_finds_other_places(tmp_path: Path, code: str) -> None:
    (tmp_path / "new.py").write_text(code)
    assert len(list(offences(tmp_path))) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, [red], :ledger: é 👍🏽\ttab\nline", "plain, [red], :ledger: é 👍🏽\ttab\nline"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("done\rfake", r"done\rfake"),
        ("a\r\nb", "a\nb"),
        ("a\x00b\x08\x7f\x9b31m", r"a\x00b\x08\x7f\x9b31m"),
        ("user\u202etxt.exe\u2066x\u200f", r"user\u202etxt.exe\u2066x\u200f"),
        ("half \ud83d", r"half \ud83d"),
        ("hidden\U000e0041\ufeff\u200b\u2028", r"hidden\U000e0041\ufeff\u200b\u2028"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_is_shown_does_nothing(text: str) -> None:
    shown = visible(text)
    shown.encode()  # halves of surrogate pairs cannot be written
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in shown)
    assert visible(shown) == shown


def test_a_stream_that_lacks_a_letter_gets_its_number() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    say("0.3 → 0.9", file=stream)
    assert stream.buffer.getvalue() == b"0.3 \\u2192 0.9\n"  # type: ignore[attr-defined]


def test_warnings_and_complaints_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    warn("it\nquotes \x1b[31m")
    complain("a\nb\x00")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "marft: warning: it quotes \\x1b[31m\na\nb\\x00\n"
