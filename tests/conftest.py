"""Makes `toys` importable for every test (pytest puts this folder on sys.path), and keeps each test to one thread."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests of a run are many small matrices
