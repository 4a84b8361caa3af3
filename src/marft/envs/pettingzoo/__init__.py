"""Games of PettingZoo's agent-environment cycle, played by a team of language models in words."""

from marft.envs.pettingzoo.environment import PettingZoo

__all__ = ["PettingZoo"]
