"""Procedural reasoning tasks of reasoning-gym: made from their index, split by their question, scored by their own rules."""

from marft.envs.reasoning.environment import Reasoning

__all__ = ["Reasoning"]
