"""`marft train --plan`: what a run will need of memory and time, from its config, a short probe and some arithmetic."""

from __future__ import annotations

from marft.config import Config
from marft.training.compose import assemble
from marft.training.plan.forecast import Forecast, foresee
from marft.training.plan.telling import tell
from marft.training.start import splits
from marft.types import MarftError


def plan(config: Config) -> Forecast:
    """Prints the forecast. The real model is loaded and a few real episodes are played; nothing is written."""
    if not config.team.trained:
        raise MarftError("no agent of this team learns; make one trainable, or evaluate it with marft eval")
    keeps = config.model_copy(update={"train": config.train.model_copy(update={"recompute": False})})
    parts = assemble(keeps, reads=splits(config))
    with parts.table.host:
        found = foresee(config, parts)
    for line in tell(config, parts, found):
        print(line)
    return found
