"""What is built holds what it needs: the sdist everything that its tests read, the wheel everything that runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = (
    "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml",
    ".gitignore",
)  # fmt: skip
FOLDERS = (".ci", "benchmarks", "docs", "examples", "recipes", "src", "tests")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", ".*_cache", ".hypothesis", ".DS_Store")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy: building leaves files behind."""
    copy = tmp_path_factory.mktemp("tree")
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=LEFT_OUT)
    return copy


@pytest.fixture(scope="module")
def held(tree: Path) -> set[str]:
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def dist(tree: Path, held: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it and not from the tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Deprecat" not in done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    [path] = dist.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_sdist_holds_the_whole_tree(dist: Path, held: set[str]) -> None:
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert held - names == set()
    more = {name for name in names - held if ".egg-info/" not in name}
    assert more == {"PKG-INFO", "setup.cfg"}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile, held: set[str]) -> None:
    package = {name.removeprefix("src/") for name in held if name.startswith("src/")}
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == package
    assert {"marft/py.typed", "marft/recipes/duo.yaml", "marft/models/nano/model.safetensors"} <= names
    assert "marft/envs/template/environment.txt" in names


def test_what_the_wheel_says_of_itself(wheel: zipfile.ZipFile) -> None:
    [name] = (name for name in wheel.namelist() if name.endswith("METADATA"))
    said: Message = Parser().parsestr(wheel.read(name).decode())
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Description-Content-Type"] == "text/markdown"
    assert said["Requires-Python"] == ">=3.11"
    assert said.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2504.16129"]
    classifiers = said.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert not [each for each in classifiers if each.startswith("License ::")]  # the expression says it
    assert said["Keywords"]
    [entry] = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "marft = marft.cli:main" in wheel.read(entry).decode()
