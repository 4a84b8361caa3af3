"""The beginnings of one's own environment: what `marft new env` writes."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path

from marft.types import MarftError

FILES = {".py": "environment.txt", ".yaml": "config.txt"}


def new_env(name: str, folder: Path) -> list[str]:
    """Writes NAME.py and NAME.yaml, never over a file that is there; what was done, and the two commands to go on with."""
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        raise MarftError(f"{name!r} cannot be a Python module; use letters, digits and _, as in `marft new env guess`")
    if name in sys.stdlib_module_names or is_installed(name):
        raise MarftError(f"{name!r} is a module that Python has already; choose another name")
    paths = {suffix: folder / f"{name}{suffix}" for suffix in FILES}
    if there := [path for path in paths.values() if path.exists()]:
        raise MarftError(f"{there[0]} is there already; choose another name, or move it away")
    words = {"MODULE": name, "CLASS": class_name(name)}
    for suffix, template in FILES.items():
        text = (resources.files(__package__) / template).read_text(encoding="utf-8")
        try:
            with paths[suffix].open("x", encoding="utf-8") as file:
                file.write(re.sub("|".join(words), lambda word: words[word[0]], text))
        except OSError as error:
            raise MarftError(f"cannot write {paths[suffix]}: {error.strerror}") from None
    done = f"wrote {' and '.join(map(str, paths.values()))}; go on {'with' if folder == Path() else 'there with'}"
    return [done, f"marft check-env {name}:{class_name(name)}", f"marft train {name}.yaml"]


def is_installed(name: str) -> bool:
    """Whether a package outside the working directory has this name: a file of ours would hide it."""
    elsewhere = [folder for folder in sys.path if folder and Path(folder).resolve() != Path.cwd()]
    return PathFinder.find_spec(name, elsewhere) is not None or name == "marft"


def class_name(module: str) -> str:
    """word_guess → WordGuess."""
    return "".join(part[:1].upper() + part[1:] for part in module.split("_") if part) or "Env"
