"""Games played turn by turn, for tests of environments: without a model, and in training with the embedded one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quick import resume, start
from toys import files, rows

from marft.envs.base import Environment
from marft.types import Completion, Task, Turn


def said_by(agent: str, text: str, index: int = 0) -> Turn:
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    return Turn(agent=agent, index=index, nth=0, shown="", observation=(), prompt_ids=(), completion=said)


def begun(env: Environment[Any], seed: int = 0) -> Any:
    """The state before anybody has acted."""
    return env.reset(Task(id="t", prompt="", data={"seed": seed}))


def played(env: Environment[Any], texts: list[str], seed: int = 0) -> Any:
    """The state after these messages, each of whoever's turn it is."""
    state = begun(env, seed)
    for index, text in enumerate(texts):
        agent = env.whose_turn(state)
        assert agent is not None
        state = env.transition(state, said_by(agent, text, index))
    return state


def trained_and_resumed(folder: Path, *, max_tokens: int = 4, **env: Any) -> Path:
    """A run of four iterations with `nano`, which has learnt something; the same run, broken off after two, has gone on to
    the same bytes."""
    settings: dict[str, Any] = {
        "env": {"workers": 1, **env}, "model": "nano", "optimizer": {"decay": "constant"}, "credit": "per_player",
        "team": {"workflow": "turns", "agents": {name: {"max_tokens": max_tokens} for name in ("ann", "bob")}}, "train": {"iterations": 2},
    }  # fmt: skip
    whole = start(folder / "whole", **{**settings, "train": {"iterations": 4}})
    broken_off = adapters(start(folder / "half", **settings))
    half = resume(folder / "half", None, "train.iterations=4")
    assert rows(whole / "metrics.jsonl") == rows(half / "metrics.jsonl")
    assert broken_off.items() < adapters(half).items()
    assert adapters(whole) == adapters(half)
    assert len(set(adapters(half).values())) == len(adapters(half))  # every checkpoint has learnt something more
    assert len({row["reward"] for row in rows(whole / "episodes.jsonl")}) > 1
    assert [row["failed"] for row in rows(whole / "metrics.jsonl")] == [0] * 4
    return whole


def adapters(run: Path) -> dict[str, bytes]:
    """The adapters of all checkpoints."""
    return {name: data for name, data in files(run / "checkpoints").items() if "adapter_model" in name}
