"""Games of PettingZoo's agent-environment cycle, played by a team of language models in words."""

from marft.envs.aec.environment import PettingZoo

__all__ = ["PettingZoo"]
