"""Rows from the Hugging Face hub through `datasets`; where it cannot be reached, from its cache or in one clear line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from marft.envs.data.files import Row
from marft.envs.data.known import HubPart
from marft.types import MarftError

ANSWERS_WITHIN = 5.0  # seconds; the library alone asks six times with pauses before it gives up
LOCALLY = "or point at local files: env.train=FILE env.test=FILE"


def load_parts(hub: str, parts: Sequence[HubPart]) -> list[Row]:
    """All rows of these parts, one after another."""
    import datasets

    rows: list[Row] = []
    for part in parts:
        what = " ".join(filter(None, (hub, part.config, part.split)))
        with hub_access(what):
            found = datasets.load_dataset(hub, part.config, split=part.split).to_list()
        if not found:
            raise MarftError(f"{what} has no rows; choose another split")
        rows.extend(found)
    return rows


def split_names(hub: str, config: str | None) -> list[str]:
    """What the publisher calls the splits."""
    import datasets

    with hub_access(f"{hub} {config}" if config else hub):
        return list(datasets.get_dataset_split_names(hub, config))


@contextmanager
def hub_access(what: str) -> Iterator[None]:
    """Ask the hub once whether it is there, go by the cache where it is not, and tell any failure in one line."""
    import datasets

    for library in ("datasets", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
    if not sys.stderr.isatty():  # a bar helps who watches a long download, and fills nobody's log
        datasets.disable_progress_bars()
    was_offline, reached = datasets.config.HF_HUB_OFFLINE, is_hub_reachable()
    datasets.config.HF_HUB_OFFLINE = was_offline or not reached
    try:
        yield
    except MarftError:
        raise
    except Exception as error:  # the network's, the hub's and the library's: too many kinds to name
        if not reached:
            raise MarftError(f"the hub cannot be reached and its cache has no {what}; connect, {LOCALLY}") from None
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise MarftError(f"the hub did not give {what}: {said[:300]}; check the name, {LOCALLY}") from None
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def is_hub_reachable() -> bool:
    """Whether the hub answers at all, through the proxies and mirrors that the user has set."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever http library it uses

    try:
        get_session().head(constants.ENDPOINT, timeout=ANSWERS_WITHIN)
    except (HTTPError, OSError):  # the latter where the user has switched the network off
        return False
    return True
