"""How CPU threads wait for one another; to be said before torch is loaded."""

from __future__ import annotations

import os

SPINS = "5000"  # some ten microseconds


def limit_spinning() -> None:
    """Idle OpenMP threads spin only briefly before they sleep, unless the user has said otherwise.

    With GNU OpenMP's own default, a single busy core beside us slows training tenfold; without any spinning, a quiet
    machine loses a quarter of its speed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
