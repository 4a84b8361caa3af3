"""Finding a control group to make others in, and using it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from marft.envs.sandbox import Limits
from marft.envs.sandbox.cgroup import SETTING, ParentGroup, RunGroup, own_groups, parent_group
from marft.envs.sandbox.limits import MIB
from marft.types import MarftError

V2 = "35 24 0:30 {root} {place} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "36 24 0:31 {root} {place} rw,nosuid shared:9 - cgroup cgroup rw,{controllers}\n"


def v1(controllers: str, root: str = "/") -> str:
    place = f"/sys/fs/cgroup/{controllers}"
    return V1.format(root=root, place=place, controllers=controllers)


@pytest.mark.parametrize(
    ("memberships", "mounts", "found"),
    [
        ("0::/user.slice/a.scope\n", V2.format(root="/", place="/sys/fs/cgroup"), ["/sys/fs/cgroup/user.slice/a.scope"]),
        ("0::/\n", V2.format(root="/", place="/sys/fs/cgroup"), ["/sys/fs/cgroup"]),
        (
            "4:memory:/a\n3:cpu:/b\n0::/\n",
            v1("cpu") + v1("memory") + V2.format(root="/", place="/sys/fs/cgroup/unified"),
            ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory/a"],
        ),
        ("4:memory:/docker/a\n", v1("memory", "/docker/a"), ["/sys/fs/cgroup/memory"]),
        ("4:memory,hugetlb:/a:b\n", v1("memory,hugetlb"), ["/sys/fs/cgroup/memory,hugetlb/a:b"]),
        ("0::/../../other\n", V2.format(root="/", place="/sys/fs/cgroup"), []),
        ("3:cpu:/b\n", v1("cpu"), []),
        ("", "", []),
    ],
)  # fmt: skip
def test_the_groups_that_a_process_is_in(memberships: str, mounts: str, found: list[str]) -> None:
    assert [str(path) for path in own_groups(memberships, mounts)] == found


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "off")
    assert parent_group() is None


def test_a_folder_that_is_no_group_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        monkeypatch.setenv(SETTING, str(folder))
        with pytest.raises(MarftError, match=rf"^{SETTING}={folder} is no control group [^\n]*; or off$"):
            parent_group()
    assert list(tmp_path.iterdir()) == []


class Files:
    """What the kernel makes in a group of version 2, as plain files."""

    def __init__(self, path: Path, **contents: str) -> None:
        path.mkdir(exist_ok=True)
        for name, content in contents.items():
            (path / name.replace("__", ".")).write_text(content)


def files_of(group: RunGroup) -> list[str]:
    return [name for name in os.listdir(group.path) if name != "memory.events"]


def test_version_2_has_its_own_names(tmp_path: Path) -> None:
    files = dict.fromkeys(("memory__max", "memory__swap__max", "pids__max", "cgroup__procs"), "")
    Files(tmp_path / "a", **files, memory__events="low 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n")
    group = RunGroup(tmp_path / "a")
    group.limit(Limits(memory=64 * MIB))
    group.add(17)
    wrote = {name: (group.path / name).read_text().rstrip() for name in files_of(group)}
    assert wrote == {"memory.max": f"{64 * MIB}", "memory.swap.max": "0", "pids.max": "16", "cgroup.procs": "17"}
    assert not group.exceeded_memory()
    (group.path / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert group.exceeded_memory()


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> ParentGroup:
    found = parent_group()
    if found is None:
        pytest.skip("no control group can be made here")
    return found


def test_a_group_counts_and_kills_and_goes(parent: ParentGroup) -> None:
    group = parent.child(Limits(memory=32 * MIB))
    code = "input()\nkept = b'x' * (256 << 20)\nprint('all of it')"
    process = subprocess.Popen(["python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    group.add(process.pid)
    assert not group.exceeded_memory()
    said, _ = process.communicate(b"\n")
    assert (said, process.returncode) == (b"", -9)
    assert group.exceeded_memory()
    group.close()
    assert not group.path.exists()


def test_groups_of_the_dead_are_swept(parent: ParentGroup) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, held = (parent.path / f"marft-sandbox-{pid}-0" for pid in (gone.pid, os.getpid()))
    left.mkdir()
    held.mkdir()
    parent.remove_orphans()
    assert (left.exists(), held.exists()) == (False, True)
    held.rmdir()


def test_a_process_that_is_gone_is_no_error(parent: ParentGroup) -> None:
    group = parent.child(Limits())
    gone = subprocess.Popen(["true"])
    gone.wait()
    group.add(gone.pid)
    group.close()
