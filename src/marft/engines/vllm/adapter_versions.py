"""Adapters on disk for those who read them from there: a new folder, name and number for every version of the policy.

vLLM keys its prefix cache by an adapter's name, and later also by its path. A name that never comes back is what keeps
the keys of an old version away from a new one.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from marft.models.peft_format import WEIGHTS, save_adapter, to_peft
from marft.models.team import TeamModel

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
BASE = "base"  # no agent may have this name
CONSTANT = -1  # the version of what never changes


@dataclass(slots=True, kw_only=True, eq=False)
class AdapterVersion:
    """One adapter at one version. `users`: requests under way; `ready`: done once vLLM has read it."""

    adapter: str | None
    version: int
    name: str
    number: int
    folder: Path
    users: int = 0
    ready: asyncio.Future[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether no request uses it and nothing is being loaded."""
        return not self.users and (self.ready is None or self.ready.done())


class AdapterVersions:
    """All versions that may be in use. The names differ from those of any other run on the same server."""

    def __init__(self, team: TeamModel) -> None:
        self.team = team
        in_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
        self.folder = make_folder(MEMORY if in_memory else Path(tempfile.gettempdir()))
        self.close = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.stem = f"marft-{secrets.token_hex(4)}"
        self.known: dict[tuple[str | None, int], AdapterVersion] = {}
        self.replaced: list[AdapterVersion] = []  # by others of the same version, after a run went back
        self.count = 0

    def current(self, adapter: str | None, version: int) -> AdapterVersion | None:
        """The version that answers for `adapter` now, written when it is first asked for.

        The base alone is an adapter of zeros: in a batch that mixes both kinds, vLLM on a CPU computes requests without
        an adapter with the one in the last slot. A team without adapters needs none at all.
        """
        if not self.team.agents:
            return None
        key = adapter, CONSTANT if adapter is None else version
        if key not in self.known:
            self.count += 1
            name = f"{self.stem}-{self.count}-{adapter or BASE}" + ("" if adapter is None else f"@{version}")
            folder = self.folder / name
            self._write(adapter, folder)
            self.known[key] = AdapterVersion(
                adapter=adapter, version=key[1], name=name, number=self.count, folder=folder
            )
        return self.known[key]

    def renew(self, version: int) -> None:
        """This version is about to be published: what has its number already is of a past that the run went back from.

        What nobody has had loaded by now is not needed any more either.
        """
        for key, one in list(self.known.items()):
            if one.version == CONSTANT:
                continue
            if one.ready is None and one.idle:
                erase(self.known.pop(key))
            elif one.version == version:
                self.replaced.append(self.known.pop(key))

    def pop_outdated(self, version: int) -> AdapterVersion | None:
        """One of another version, or past, that nobody uses; it is known no longer."""
        for i, one in enumerate(self.replaced):
            if one.idle:
                return self.replaced.pop(i)
        old = (key for key, one in self.known.items() if one.version not in (version, CONSTANT) and one.idle)
        key = next(old, None)
        return None if key is None else self.known.pop(key)

    def _write(self, adapter: str | None, folder: Path) -> None:
        save_adapter(self.team, adapter or self.team.agents[0], folder)
        if adapter is None:
            from safetensors.torch import save_file

            blank = {
                key: side.new_zeros(side.shape).cpu() for key, side in to_peft(self.team, self.team.agents[0]).items()
            }
            save_file(blank, folder / WEIGHTS, metadata={"format": "pt"})


def erase(adapter_version: AdapterVersion) -> None:
    """Delete the folder of a version."""
    shutil.rmtree(adapter_version.folder, ignore_errors=True)


def make_folder(parent: Path) -> Path:
    """A folder of this process, which its name tells; those of processes that were killed go."""
    space = process_space()
    for path in parent.glob(f"marft-{space}-*"):
        found = re.fullmatch(r"(\d+)-\w+", path.name.removeprefix(f"marft-{space}-"))
        if found and not is_alive(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"marft-{space}-{os.getpid()}-", dir=parent))


def process_space() -> int:
    """Containers may share the folder and still number their processes apart: where our numbers hold, where that is known."""
    space = Path("/proc/self/ns/pid")
    return space.stat().st_ino if space.exists() else 0


def is_alive(process: int) -> bool:
    """Whether a process of this number runs."""
    try:
        os.kill(process, 0)  # signals nothing, but fails where nobody is
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True
