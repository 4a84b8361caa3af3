"""Which folder or hub name a model name means. Imports no torch: a mistyped model fails before anything heavy loads."""

from __future__ import annotations

import os
from pathlib import Path

from marft.models import smollm2
from marft.types import MarftError

NANO = Path(__file__).parent / "nano"


def resolve(name: str) -> str:
    """`nano` and `smollm2-135m` are ours, a path is a folder, and what is left is a Hugging Face hub name."""
    if not name.strip():
        raise MarftError(
            "the model has no name: use nano, smollm2-135m, a folder (model=DIR) or a Hugging Face hub name"
        )
    match name:
        case "nano":
            return str(NANO)
        case smollm2.NAME:
            return str(smollm2.cached_folder())
        case _ if looks_like_path(name):
            return str(check_folder(Path(name).expanduser()))
        case _ if name.casefold() in (NANO.name, smollm2.NAME):
            raise MarftError(f"unknown model {name!r}; did you mean {name.casefold()!r}?")
        case _:
            return name


def looks_like_path(name: str) -> bool:
    """`org/model` may be either; it is a folder where `org` exists here. A hub name has at most one slash."""
    if name.startswith((".", "~", os.sep)) or name.count(os.sep) > 1:
        return True
    return os.sep in name and Path(name).parent.is_dir()


def check_folder(folder: Path) -> Path:
    """The folder, if it can hold a model; else one line that says what to give."""
    if folder.is_file():
        raise MarftError(f"model {folder} is a file: give the folder that save_pretrained wrote")
    if not folder.is_dir():
        raise MarftError(f"model folder {folder} does not exist")
    if not (folder / "config.json").is_file() and (folder / "adapter_config.json").is_file():
        raise MarftError(
            f"model folder {folder} holds an adapter, not a model: give its base (model=…), and "
            f"the adapter to an agent (team.agents.NAME.init_from={folder})"
        )
    if not (folder / "config.json").is_file():
        raise MarftError(f"model folder {folder} holds no config.json: give the folder that save_pretrained wrote")
    return folder
