"""Running programs that nobody trusts: only inside bubblewrap, as nobody, without network, within limits."""

from __future__ import annotations

from marft.envs.sandbox.limits import Ended, Limits, Outcome
from marft.envs.sandbox.machine import require_sandbox
from marft.envs.sandbox.program import Running, SandboxBroken, launch, run

__all__ = ["Ended", "Limits", "Outcome", "Running", "SandboxBroken", "launch", "require_sandbox", "run"]
