"""A key that goes to its endpoint and nowhere else: not into errors, not into logs, not into what a team-mate says."""

from __future__ import annotations

import logging
import os

from marft.types import MarftError

PLACEHOLDER = 8  # a shorter key is a word such as EMPTY, which texts may hold, and no secret


class Secret:
    """The key in the environment variable `name`, if there is to be one; `where` in the config its endpoint stands."""

    def __init__(self, name: str | None, url: str, where: str = "agents") -> None:
        self._key = os.environ.get(name, "").strip() if name else ""
        if name and not self._key:
            raise MarftError(f"{where}: set the environment variable {name} to the key of {url}")
        if not (self._key.isascii() and self._key.isprintable() and " " not in self._key):
            # told here, because the HTTP library would quote it
            raise MarftError(f"{where}: the environment variable {name} is no key of {url}: it has letters no key has")

    def __bool__(self) -> bool:
        return bool(self._key)

    def headers(self) -> dict[str, str]:
        """The authorization header, where there is a key."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def scrub(self, text: str) -> str:
        """The text with the key replaced."""
        return text.replace(self._key, "***") if self._key else text

    def scrub_speech(self, text: str) -> str:
        """The same of a team-mate's text, unless the key is so short that it may be a word."""
        return self.scrub(text) if len(self._key) >= PLACEHOLDER else text

    def scrub_logs(self, *names: str) -> None:
        """Keep the key out of what these loggers write."""
        for name in names if self._key else ():
            logging.getLogger(name).addFilter(self._scrub_record)

    def _scrub_record(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if self._key in message:
            record.msg, record.args = self.scrub(message), None
        return True
