"""Imports point one way, heavy libraries stay in their rooms, and what must be instant loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "marft"
EVERYTHING = frozenset(
    {
        "types",
        "version",
        "openmp",
        "processes",
        "channels",
        "import_paths",
        "files",
        "untrusted_values",
        "watchdog",
        "api",
        "terminal",
        "config",
        "game",
        "envs",
        "models",
        "engines",
        "algorithms",
        "programs",
        "rollouts",
        "learners",
        "training",
        "distributed",
        "evaluation",
        "runs",
        "commands",
        "arguments",
        "cli",
        "marft",
    }
)
HEAVY = ("torch", "transformers", "numpy", "tensorboard", "matplotlib", "safetensors", "ray", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a room may import of marft, which foreign libraries when it is imported, and whether others inside functions."""

    marft: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()
    lazily: bool = False


ROOMS: Mapping[str, Room] = {
    "types": Room(),
    "version": Room(),
    "openmp": Room(),
    "processes": Room(),
    "channels": Room(marft=frozenset({"openmp", "processes"})),
    "import_paths": Room(marft=frozenset({"types"})),
    "files": Room(marft=frozenset({"types"}), libraries=frozenset({"pydantic"})),  # what may be damaged, read safely
    "untrusted_values": Room(),  # of what users' code gave; every room that meets it may import it
    "watchdog": Room(),
    "terminal": Room(
        libraries=frozenset({"rich"}), lazily=True
    ),  # what people read; every room that tells them may import it
    "config": Room(
        marft=frozenset({"types", "import_paths", "files", "untrusted_values"}),
        libraries=frozenset({"yaml", "omegaconf", "pydantic", "pydantic_core"}),
    ),
    "game": Room(
        marft=frozenset({"types", "import_paths", "untrusted_values", "watchdog", "config"}),
        libraries=frozenset({"pydantic"}),
    ),
    "envs": Room(
        marft=frozenset(
            {"types", "processes", "import_paths", "untrusted_values", "watchdog", "terminal", "config", "game"}
        ),
        lazily=True,
    ),
    "envs.tools.function": Room(  # a signature is a schema
        marft=frozenset({"types", "untrusted_values", "game"}), libraries=frozenset({"pydantic"})
    ),
    "envs.verifiers.harness": Room(libraries=frozenset({"verifiers", "openai", "httpx"})),  # a plug-in of verifiers
    "models": Room(
        marft=frozenset({"types", "terminal", "files", "config"}),
        # the table says torch and transformers; the others are parts of these two: file format, hub, chat templates
        libraries=frozenset({"torch", "transformers", "safetensors", "huggingface_hub", "jinja2"}),
        lazily=True,
    ),
    "models.layout": Room(marft=frozenset({"models"}), libraries=frozenset({"torch", "numpy"})),
    "models.kernels": Room(libraries=frozenset({"torch", "triton"})),
    "models.head_kernels": Room(libraries=frozenset({"torch", "triton"})),
    "engines": Room(marft=frozenset({"types", "terminal", "config", "models"}), lazily=True),
    "engines.local": Room(marft=frozenset({"types", "config", "models"}), libraries=frozenset({"torch"})),
    "engines.batch_state": Room(marft=frozenset({"types", "engines"}), libraries=frozenset({"torch"})),
    "engines.kept_keys": Room(marft=frozenset({"models"}), libraries=frozenset({"torch"})),
    "engines.kv_cache": Room(marft=frozenset({"models"}), libraries=frozenset({"torch"})),
    "engines.eager": Room(marft=frozenset({"engines", "models"}), libraries=frozenset({"torch"})),
    "engines.slot_cache": Room(marft=frozenset({"models"}), libraries=frozenset({"torch"}), lazily=True),
    "engines.cuda_graphs": Room(marft=frozenset({"engines", "models"}), libraries=frozenset({"torch"})),
    "engines.kernels": Room(libraries=frozenset({"torch", "triton"})),
    "engines.sampling": Room(libraries=frozenset({"torch"}), lazily=True),
    "engines.stop_tokens": Room(marft=frozenset({"models"}), libraries=frozenset({"torch"})),
    **{
        f"engines.vllm.{name}": Room(
            marft=frozenset({"types", "config", "engines", "models"}), libraries=frozenset({"httpx2"})
        )
        for name in ("discovery", "server")
    },
    "engines.openai": Room(marft=frozenset({"types"}), libraries=frozenset({"httpx2"})),
    "engines.connections": Room(marft=frozenset({"types"}), libraries=frozenset({"httpx2"})),
    "engines.scripted": Room(marft=frozenset({"types", "import_paths", "untrusted_values"})),
    "algorithms": Room(
        marft=frozenset({"types", "config"}),  # an algorithm is its own settings
        libraries=frozenset({"torch", "pydantic", "safetensors"}),
        lazily=True,
    ),
    **{  # pure maths
        f"algorithms.{name}": Room(marft=frozenset({"algorithms"}), libraries=frozenset({"torch"}))
        for name in ("losses", "advantages", "sequential", "trust_region", "grouped", "decoupled", "kl_penalty")
    },
    "programs": Room(
        marft=frozenset(
            {"types", "channels", "processes", "import_paths", "untrusted_values", "terminal", "config", "game"}
        ),
        libraries=frozenset({"aiohttp"}),
    ),
    "rollouts": Room(
        marft=frozenset({"types", "watchdog", "terminal", "config", "game", "envs", "engines", "algorithms"}),
        libraries=frozenset({"torch", "pydantic"}),
    ),
    "learners": Room(
        marft=frozenset({"types", "channels", "terminal", "models", "algorithms"}),
        libraries=frozenset({"torch"}),
    ),
    "training": Room(
        # exceptions: the trainer writes into the run directory; safetensors is how tensors are saved without pickle
        marft=frozenset(
            {
                "types",
                "version",
                "channels",
                "import_paths",
                "terminal",
                "files",
                "config",
                "game",
                "envs",
                "models",
                "engines",
                "algorithms",
                "programs",
                "rollouts",
                "learners",
                "runs",
            }
        ),
        libraries=frozenset({"torch", "safetensors"}),
        lazily=True,
    ),
    "distributed": Room(
        marft=frozenset(
            {
                "types",
                "openmp",
                "processes",
                "channels",
                "terminal",
                "config",
                "engines",
                "algorithms",
                "rollouts",
                "runs",
                "learners",
                "training",
                "evaluation",
            }
        ),
        libraries=frozenset({"torch", "pydantic"}),
        lazily=True,
    ),
    "distributed.ray_channel": Room(  # loaded by those who have Ray
        marft=frozenset({"types", "channels"}), libraries=frozenset({"ray"})
    ),
    "evaluation": Room(
        marft=frozenset(
            {
                "types",
                "terminal",
                "files",
                "config",
                "game",
                "envs",
                "engines",
                "rollouts",
                "runs",
                "training",
            }
        ),
        libraries=frozenset({"rich"}),
        lazily=True,
    ),
    "runs": Room(marft=frozenset({"types", "import_paths", "terminal", "files", "config"}), lazily=True),
    "commands": Room(
        marft=EVERYTHING - {"api", "cli", "arguments"}, libraries=frozenset({"torch", "rich"}), lazily=True
    ),
    "api": Room(marft=EVERYTHING, lazily=True),
    "arguments": Room(marft=frozenset({"types", "version", "config"})),
    "cli": Room(marft=EVERYTHING, lazily=True),
    "marft": Room(marft=EVERYTHING, lazily=True),  # marft/__init__.py
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    module: str
    line: int
    eager: bool  # runs when the file is imported


def imports(tree: ast.AST, package: str, eager: bool = True) -> Iterator[Import]:
    """Every import below `tree`, also those in functions and under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(module=alias.name, line=node.lineno, eager=eager) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = package.split(".")
                start = [*parts[: len(parts) - level + 1], *([module] if module else [])] if level else [module or ""]
                # `from marft import runs` names a room as `import marft.runs` does
                for alias in names:
                    yield Import(module=".".join([*start, alias.name]), line=node.lineno, eager=eager)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imports(ast.Module(body=node.body, type_ignores=[]), package, False)
                yield from imports(ast.Module(body=node.orelse, type_ignores=[]), package, eager)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from imports(node, package, False)
            case _:
                yield from imports(node, package, eager)


def violations(source: Path) -> list[str]:
    """`file:line: what it must not import` for a tree laid out like src/marft."""
    found: list[str] = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = "marft" if parts == ("__init__",) else ".".join(p for p in parts if p != "__init__")
        room = ROOMS.get(name) or ROOMS.get(name.partition(".")[0])
        if room is None:
            found.append(f"{name}: no such room")
            continue
        package = ".".join(["marft", *parts[:-1]])
        for each in imports(ast.parse(path.read_text()), package):
            top, _, rest = each.module.partition(".")
            if top == "marft":
                target = rest.partition(".")[0]
                target = target if target in EVERYTHING else "marft"
                own = name.partition(".")[0]
                wrong = target != own and target not in room.marft
            elif top in sys.stdlib_module_names:
                wrong = False
            else:
                wrong = top not in room.libraries and (each.eager or not room.lazily)
            if wrong:
                found.append(f"{'/'.join(parts)}.py:{each.line}: {each.module}")
    return found


def test_every_import_follows_the_table() -> None:
    assert violations(SOURCE) == []


def test_the_walker_reads_the_real_rooms() -> None:
    seen = {p.relative_to(SOURCE).with_suffix("").parts[0] for p in SOURCE.rglob("*.py")}
    assert seen - {"__init__"} == EVERYTHING - {"marft"}


@pytest.mark.parametrize(
    ("path", "code", "expected"),
    [
        ("types.py", "import torch", "torch"),
        ("config.py", "def f():\n    import torch", "torch"),
        ("game/play.py", "from marft.training.trainer import Trainer", "marft.training.trainer.Trainer"),
        ("game/play.py", "from marft import training", "marft.training"),
        ("game/play.py", "from ..training import trainer", "marft.training.trainer"),
        ("game/play.py", "if TYPE_CHECKING:\n    from marft.models.team import TeamModel", "marft.models.team.TeamModel"),
        ("game/play.py", "class A:\n    try:\n        import numpy.linalg\n    except ImportError:\n        pass", "numpy.linalg"),
        ("algorithms/losses.py", "from marft.types import Episode", "marft.types.Episode"),
        ("algorithms/losses.py", "from marft.config import Config", "marft.config.Config"),
        ("models/lora.py", "from marft.engines.local import LocalEngine", "marft.engines.local.LocalEngine"),
        ("runs/disk.py", "import torch", "torch"),
        ("engines/scripted.py", "import torch", "torch"),
        ("cli.py", "import torch", "torch"),
        ("learners/local.py", "import marft.cli", "marft.cli"),
        ("helpers/a.py", "", "no such room"),
    ],
)  # fmt: skip
def test_the_walker_finds_what_is_forbidden(tmp_path: Path, path: str, code: str, expected: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    [found] = violations(tmp_path)
    assert expected in found


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("cli.py", "def f():\n    import torch\n    from marft.training import trainer"),
        ("envs/code.py", "def f():\n    import datasets"),
        ("algorithms/credit.py", "from marft.types import Episode"),
        ("game/play.py", "from marft.game.workflows import Workflow\nfrom . import observation\nimport math"),
    ],
)
def test_the_walker_lets_through_what_is_allowed(tmp_path: Path, path: str, code: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    "code",
    [
        "import marft",
        "import marft.config; marft.config.load_config()",
        "import marft.models.registry",
        "import marft.cli\ntry:\n    marft.cli.main(['--help'])\nexcept SystemExit as done:\n    assert done.code == 0",
        "import marft.cli; assert marft.cli.main(['recipes']) == 0",
        "import marft.cli; assert marft.cli.main(['compare', '--frozen', 'nobody']) == 2",
    ],
)
def test_nothing_heavy_is_loaded_for(code: str) -> None:
    check = f"{code}\nimport sys\nprint('LOADED', [m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "LOADED []"
