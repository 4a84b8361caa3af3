"""The environment: where tasks come from. What an episode of them is, and what it is worth, verifiers says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from marft.envs.base import LastMessage, LastMessageEnv, Split
from marft.envs.data.splitting import HELD_OUT, split_by_prompt
from marft.envs.verifiers.library import Source, load_tasks, require_library
from marft.types import MarftError, Reward, Task

PROGRAM = "marft.envs.verifiers:play"


class Verifiers(LastMessageEnv):
    """Tasks of the taskset `environment`, an installed package; `arguments` are verifiers' own `[env]` section.

    Of at most `size` tasks the share `held_out`, by their prompts, is for testing. `agents` says which agent of the team
    plays which role of the environment, where their names differ.
    """

    takes_prompts = False  # what is played is the taskset's task of that number

    def __init__(
        self, environment: str, arguments: Mapping[str, Any] = MappingProxyType({}), size: int | None = None,
        held_out: float = HELD_OUT, agents: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        if type(environment) is not str or not environment:
            raise ValueError(f"environment must be the name of a taskset's package, not {environment!r}")
        if not isinstance(arguments, Mapping):
            raise ValueError(
                f"arguments must be a mapping, what verifiers' [env] section would hold, not {arguments!r}"
            )
        if size is not None and (type(size) is not int or size < 2):
            raise ValueError(f"size must be a whole number of at least 2, not {size!r}")
        if type(held_out) is not float or not 0 < held_out < 1:
            raise ValueError(f"held_out must be a share between 0 and 1, such as 0.1, not {held_out!r}")
        if not isinstance(agents, Mapping) or not all(type(name) is str for name in agents.values()):
            raise ValueError(f"agents must say which agent plays which role, as in {{solver: planner}}, not {agents!r}")
        require_library()
        self.held_out = held_out
        self.source = Source(environment=environment, arguments=dict(arguments), size=size, agents=dict(agents))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of the taskset, each by its position in it."""
        found = load_tasks(self.source)
        prompts = [prompt_of(task) for task in found]
        return [
            Task(
                id=f"{self.source.environment}/{split}/{number}",
                prompt=prompts[number],
                data={"source": self.source.as_dict(), "number": number, "key": found[number].key},
            )
            for number in split_by_prompt(prompts, split, self.held_out)
        ]

    def reward(self, state: LastMessage) -> Reward:
        """Only verifiers knows, when it has played the episode."""
        raise MarftError(f"verifiers plays its own episodes: team.workflow=program team.program.function={PROGRAM}")


def prompt_of(task: Any) -> str:
    """What the task begins with; where a user opens the conversation, what the task is called."""
    data = task.data
    return str(data.prompt_text or data.description or data.name or data.id or f"task {data.idx}")
