"""The typed configuration: YAML files, recipes by name and dotted overrides become one checked `Config`.

One fact, one field. An unknown key, a wrong type or a combination without meaning ends in a `MarftError` of one line.
"""

from marft.config.algorithm import ALGORITHMS, CREDITS, AlgorithmConfig, CreditConfig, GaeConfig
from marft.config.reading import (
    free_settings,
    load_config,
    merge,
    merge_settings,
    parse,
    read_source,
    recipes,
    to_yaml,
)
from marft.config.safe_yaml import parse_yaml
from marft.config.schema import Config, EnvConfig
from marft.config.team import WORKFLOWS, AgentConfig, RemoteConfig, ServerConfig, TeamConfig

__all__ = [
    "ALGORITHMS",
    "CREDITS",
    "WORKFLOWS",
    "AgentConfig",
    "AlgorithmConfig",
    "Config",
    "CreditConfig",
    "EnvConfig",
    "GaeConfig",
    "RemoteConfig",
    "ServerConfig",
    "TeamConfig",
    "free_settings",
    "load_config",
    "merge",
    "merge_settings",
    "parse",
    "parse_yaml",
    "read_source",
    "recipes",
    "to_yaml",
]
