"""From the config's `engine` section to a vLLM engine, and what must be there before a model is loaded for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable

from marft.config.schema import EngineConfig
from marft.engines.vllm.engine import Backend, VllmEngine
from marft.models.team import TeamModel
from marft.types import MarftError


def check_available(config: EngineConfig) -> None:
    """A package that is missing or a server that is away is better known before the model is read."""
    if config.url is not None:
        from marft.engines.vllm.server import find_server

        find_server(config.url)
    elif importlib.util.find_spec("vllm") is None:
        raise MarftError(
            "engine.name: vllm is not installed; pip install 'marft[vllm]', or on a machine without a GPU see docs/engines.md"
        )


def make_vllm_engine(team: TeamModel, config: EngineConfig, settled: Callable[[], Awaitable[None]]) -> VllmEngine:
    """An engine on the server at `config.url`, or on vLLM in this process."""
    backend: Backend
    if config.url is not None:
        from marft.engines.vllm.server import Server, find_server

        backend = Server(team, find_server(config.url), slots=config.slots)
    else:
        from marft.engines.vllm.process import Process

        backend = Process(team, slots=config.slots, memory=config.share, settled=settled)
    return VllmEngine(team, backend)
