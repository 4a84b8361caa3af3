"""Whole runs, as the tests of training make them, for tests of what they leave behind."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "training"))  # for `quick`
