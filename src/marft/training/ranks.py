"""Where the learner's ranks run, and whether they can."""

from __future__ import annotations

import torch

from marft import import_paths
from marft.config import Config
from marft.models.loading import pick_device
from marft.types import MarftError


def rank_device(config: Config, rank: int) -> str:
    """The device of one of several ranks: a GPU each, beginning with the config's, or the CPU for all. On a cluster the
    others see the GPU alone that they were given."""
    if config.learner.ranks == 1:
        return config.device
    first = pick_device(config.device)
    if first.type != "cuda" or (rank > 0 and config.cluster.address is not None):
        return first.type
    return f"cuda:{(first.index or 0) + rank}"


def require_ranks(config: Config) -> None:
    """Before anything is loaded: raise a MarftError where the ranks of the learner cannot be had."""
    ranks = config.learner.ranks
    if ranks == 1:
        return
    first = pick_device(config.device)
    if first.type == "mps":
        raise MarftError(
            "learner.ranks: there is one Apple GPU, and it is one rank's; say learner.ranks=1 or device=cpu"
        )
    here = config.cluster.address is None
    if here and first.type == "cuda" and (first.index or 0) + ranks > (found := torch.cuda.device_count()):
        raise MarftError(
            f"learner.ranks: {ranks} ranks from {rank_device(config, 0)} on need a GPU each, and this machine has {found}; "
            "lower it, or say device=cpu"
        )
    for key, name in (("algorithm", config.algorithm.name), ("credit", config.credit.name)):
        if ":" in name and not import_paths.is_importable(name):
            raise MarftError(f"learner.ranks: {key} {name!r} cannot be found by other processes; define it in a module")
