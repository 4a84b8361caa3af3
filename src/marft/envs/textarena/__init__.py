"""Games of TextArena, played by a team of language models."""

from marft.envs.textarena.environment import TextArena

__all__ = ["TextArena"]
