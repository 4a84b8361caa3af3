"""Environments of the library verifiers: its tasks are ours, and its own episodes, played at our endpoint, are scored by it."""

from marft.envs.verifiers.environment import Verifiers
from marft.envs.verifiers.episode import play

__all__ = ["Verifiers", "play"]
