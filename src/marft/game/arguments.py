"""What workflows give the game's methods, checked: plain texts, and names that there are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from marft.game.endings import EpisodeFailed
from marft.types import MarftError, Turn
from marft.untrusted_values import exact, flaw_of, kind_of, quoted


def checked_names(
    names: Sequence[str], sees: Sequence[str] | None, team: Iterable[str], turns: Iterable[Turn]
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Who acts and whom they see, as plain texts; also those may be seen whom game.say spoke for."""
    if sees is not None and (isinstance(sees, str) or not isinstance(sees, Collection)):
        raise MarftError(f"the workflow calls game.act with sees={quoted(sees)}; give it a list of names")
    members = list(team)
    heard = [*members, *(turn.agent for turn in turns)]

    def known(name: object, those: Sequence[str]) -> str:
        if isinstance(name, str) and (found := exact(name)) in those:
            return found
        raise MarftError(f"the workflow names {quoted(name)} in game.act; the team has {', '.join(members)}")

    acting = tuple(known(name, members) for name in names)
    return acting, None if sees is None else tuple(known(name, heard) for name in sees)


def require_workflow_text(what: str, text: object) -> str:
    """A text of the workflow's; one that no agent could be shown is the episode's failure."""
    if not isinstance(text, str):
        raise MarftError(f"the workflow gives {what} {kind_of(text)}, not str")
    if (flaw := flaw_of(found := exact(text))) is not None:
        raise EpisodeFailed(f"the workflow gives {what} a text that {flaw}", "workflow")
    return found
