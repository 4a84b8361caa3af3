"""Workflows decide who acts when: plain async Python, `async def workflow(game): await game.act(...)`."""

from marft.game.workflows.finding import Workflow, check_workflow, find_workflow

__all__ = ["Workflow", "check_workflow", "find_workflow"]
