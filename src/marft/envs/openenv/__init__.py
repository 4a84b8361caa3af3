"""Environments behind a server of OpenEnv, played over the network with its own client."""

from marft.envs.openenv.environment import OpenEnv

__all__ = ["OpenEnv"]
