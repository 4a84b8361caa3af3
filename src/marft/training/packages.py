"""What a trainer and its processes on other machines must have in common."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from marft.types import MarftError
from marft.version import __version__


def package_versions() -> dict[str, str]:
    """Of this process."""
    import torch

    return {
        "marft": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__.partition("+")[0],  # the rest says for which device it was built
    }


def require_same_packages(trainer: Mapping[str, str], own: Mapping[str, str], who: str) -> None:
    """Raise a MarftError where this process, `who`, has other versions than the trainer."""
    for package, ours in own.items():
        if (theirs := trainer.get(package)) != ours:
            raise MarftError(
                f"the trainer has {package} {theirs} and {who} on {platform.node()} {ours}; install the same version in "
                "both places"
            )
