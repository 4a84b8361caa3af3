"""A method that hangs, or ends its process, is cut off and reported; the checks go on behind it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from marft.cli import main
from marft.envs.checking import check_env
from marft.envs.checking.check_process import CHECKS

ALL = ["class", "methods", "constructor", *CHECKS, "same tasks in another process"]


def test_a_good_environment_in_processes_of_its_own() -> None:
    found = check_env("faulty:Good", {})
    assert [finding.check for finding in found] == ALL
    assert all(finding.ok for finding in found)


@pytest.mark.parametrize(
    ("name", "failing", "text"),
    [
        ("Hangs", {"observe", "instances", "hostile messages"}, "observe took longer than 1 s"),
        ("HangsOnLong", {"hostile messages"}, "transition on a megabyte took longer than 1 s"),
        ("Dies", {"answer", "hostile messages"}, "ended the whole process (exit code 7)"),
    ],
)
def test_it_is_cut_off_and_the_others_are_looked_at(name: str, failing: set[str], text: str) -> None:
    found = check_env(f"faulty:{name}", {}, deadline=1)
    assert sorted(finding.check for finding in found) == sorted(ALL)
    assert {finding.check for finding in found if finding.ok is False} == failing
    assert all(text.split(" took")[0].split(" on")[0] in f.text or text in f.text for f in found if f.ok is False)
    assert any(text in finding.text for finding in found)


@pytest.mark.parametrize(("name", "last"), [("HangsInConstructor", "constructor"), ("HangsInTasks", "tasks")])
def test_without_an_environment_or_tasks_nothing_follows(name: str, last: str) -> None:
    found = check_env(f"faulty:{name}", {}, deadline=1)
    assert found[-1].check == last
    assert "took longer than 1 s" in found[-1].text
    assert [finding.check for finding in found if not finding.ok] == [last]


def test_another_process_has_other_tasks() -> None:
    found = {finding.check: finding for finding in check_env("faulty:FromSet", {})}
    assert found["same tasks"].ok
    assert found["same tasks in another process"].ok is False
    assert "use sorted(…)" in found["same tasks in another process"].text


def test_what_it_prints_is_not_taken_for_a_finding(capfd: pytest.CaptureFixture[str]) -> None:
    assert all(finding.ok for finding in check_env("faulty:Prints", {}))
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left_running() -> None:
    before = children()
    check_env("faulty:StartsOthers", {}, deadline=5)
    for _ in range(100):
        if not children() - before:
            return
        time.sleep(0.05)
    raise AssertionError(f"still there: {children() - before}")


def children() -> set[int]:
    """Processes that run our checks, wherever they hang in the tree."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if b"marft.envs.checking.check_process" in command and state != "Z":
                found.add(int(entry.name))
    return found


# --- the command -----------------------------------------------------------------------------------------------------
def test_the_command_says_ok(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "faulty:BadSetting", "level=2"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * len(ALL)
    assert "ok    constructor: built with level=2" in out
    assert err == ""


def test_the_command_fails_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "faulty:BadSetting"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("FAILS constructor: env: level must be at least 1 (faulty.py, line ")
    assert err == "marft: faulty:BadSetting does not keep the contract of an environment: constructor\n"


def test_notes_fail_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "faulty:Constant"]) == 0
    assert "note  reward: every message tried earned 0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["faulty:Good", "another:One"], "one environment at a time"),
        (["faulty:Good", "--deadline", "0"], "--deadline"),
        (["no_such_module:Env"], "does not keep the contract of an environment: class"),
        ([], "the following arguments are required: MODULE:CLASS"),
    ],
)
def test_mistakes_of_the_command(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_module_that_does_not_even_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unparsable.py").write_text("import marft\n\ndef f(:\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    [found] = check_env("unparsable:Env", {})
    assert found.check == "class"
    assert "SyntaxError: invalid syntax (unparsable.py, line 3)" in found.text
