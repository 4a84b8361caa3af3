"""What a model thinks before it answers: it is trained on like all it says, but team-mates and graders do not read it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThoughtMarkers:
    """What stands around a thought; `begun` where the prompt itself opens one, so that every message begins inside it."""

    opening: str = "<think>"
    closing: str = "</think>"
    begun: bool = False

    def without_thoughts(self, text: str) -> str | None:
        """What others read of a message, None where that is all of it. A thought that is never closed leaves nothing: there
        is no answer yet."""
        if self.begun:
            text = self.opening + text
        elif self.opening not in text and self.closing not in text:
            return None
        spoken = re.sub(f"{re.escape(self.opening)}.*?{re.escape(self.closing)}", "", text, flags=re.DOTALL)
        if self.opening in spoken:
            return ""
        return spoken.rpartition(self.closing)[2].strip()  # one that was closed alone began where nobody marked it


USUAL_MARKERS = ThoughtMarkers()
