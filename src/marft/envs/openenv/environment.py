"""The environment: a server that speaks OpenEnv's protocol, whose actions have a field for a text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from marft.config.team import check_url, check_variable
from marft.envs.openenv.schema import read_action_schema, text_field
from marft.envs.openenv.sessions import ServerSettings, Sessions, State
from marft.envs.turn_based.environment import TurnBasedEnv, check_name, require_library
from marft.types import MAX_TURNS, MarftError

SECONDS_TO_OPEN = 10.0  # of a connection; to close one takes as long at most


class OpenEnv(TurnBasedEnv[State]):
    """One player, whom the listed agents play in turn. A message is the text of an action's field; the server answers it, and
    scores."""

    kind = "openenv"

    def __init__(
        self, url: str, agents: Sequence[str], rules: str = "", action: str | None = None,
        options: Mapping[str, Any] = MappingProxyType({}), turns: int = 32, seconds: float = 20.0, sessions: int = 1,
        key_env: str | None = None,
    ) -> None:  # fmt: skip
        if type(url) is not str:
            raise ValueError(f"url must be the server's address such as http://127.0.0.1:8000, not {url!r}")
        super().__init__(urlsplit(check_url(url)).netloc, agents, rules, None, options)
        if "seed" in options:
            raise ValueError("options: the seed comes from the task; leave it out")
        self.field = None if action is None else check_name("action", action, "the name of an action's field")
        for key, value, least, most in (("turns", turns, 1, MAX_TURNS), ("sessions", sessions, 1, 512)):
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{key} must be a whole number in {least}…{most}, not {value!r}")
        if type(seconds) not in (int, float) or not 0 < seconds <= 3600:
            raise ValueError(f"seconds must be a number in 0…3600, not {seconds!r}")
        require_library("openenv", "env: openenv needs OpenEnv; pip install 'marft[openenv]'")
        self.key_env = None if key_env is None else check_variable(str(key_env))
        self.url, self.turns, self.sessions = url.rstrip("/"), turns, sessions
        self.seconds, self.patience = float(seconds), seconds + 2 * SECONDS_TO_OPEN

    @cached_property
    def action_field(self) -> str:
        """The field of an action that a message goes into: the one text there is, or the one that the config names."""
        return text_field(read_action_schema(self.url, self.seconds, self._headers()), self.field)

    def _open_games(self) -> Sessions:
        server = ServerSettings(
            url=self.url, headers=self._headers(), field=self.action_field, options=self.options, seconds=self.seconds,
            seconds_to_open=SECONDS_TO_OPEN,
        )  # fmt: skip
        return Sessions(server, turns=self.turns, most=self.sessions)

    def _move_form(self) -> str:
        """Nothing to say: the whole message is the action. A server that is not there ends here, in one line."""
        self.action_field  # noqa: B018
        return ""

    def _default_rules(self) -> str:
        return "Act in the environment."

    def _headers(self) -> dict[str, str]:
        if self.key_env is None:
            return {}
        if not (key := os.environ.get(self.key_env)):
            raise MarftError(f"env.key_env: the variable {self.key_env} is not set")
        return {"Authorization": f"Bearer {key}"}
