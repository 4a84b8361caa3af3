"""Programs as answers: tasks in their publishers' formats, graded by running tests inside the sandbox."""

from __future__ import annotations

from marft.envs.code.environment import Code

__all__ = ["Code"]
