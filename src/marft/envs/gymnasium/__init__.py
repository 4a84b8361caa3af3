"""Environments registered with Gymnasium whose actions are numbers or texts, played in words."""

from marft.envs.gymnasium.environment import Gymnasium

__all__ = ["Gymnasium"]
