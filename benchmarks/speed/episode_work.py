"""Work for `episodes.py` done by marft: an environment of given prompts, and a workflow in which nobody sees anybody.

python episode_work.py JOB.json: prints JSON, as `episode_peers.py` does.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import marft
from benchmarks.speed.episode_peers import worth
from marft.config import Config, parse
from marft.envs.base import Split
from marft.game.play import Game
from marft.openmp import limit_spinning

AGENTS = ("first", "second")


class Work(marft.Environment[float]):
    """Tasks from a list; the team earns the sum of what its texts are worth."""

    light = True

    def __init__(self, prompts: Sequence[str]) -> None:
        self.prompts = list(prompts)

    def tasks(self, split: Split) -> Sequence[marft.Task]:
        return [marft.Task(id=f"{split}/{i}", prompt=prompt) for i, prompt in enumerate(self.prompts)]

    def reset(self, task: marft.Task) -> float:
        return 0.0

    def transition(self, state: float, turn: marft.Turn) -> float:
        return state + worth(turn.text)

    def reward(self, state: float) -> marft.Reward:
        return marft.Reward(team=state)


async def together(game: Game) -> None:
    await game.act(*game.team)


def told(agents: int, words: int) -> dict[str, str]:
    """What each agent is told: who it is, and so many words more."""
    more = "".join(f" Step {i} comes first." if i % 2 else f" Then add {i}." for i in range(words // 4))
    return {name: f"You are {name}.{more}" for name in AGENTS[:agents]}


def config_of(job: Mapping[str, Any], agents: int) -> Config:
    rank, steps = job["rank"], job["steps"]
    return parse(
        {
            "model": job["model"],
            "device": "cpu",
            "env": {"name": "benchmarks.speed.episode_work:Work", "prompts": job["tasks"]},
            "team": {
                "workflow": "benchmarks.speed.episode_work:together",
                "agents": {
                    name: {"prompt": prompt, "sees": [], "max_tokens": job["tokens"]}
                    for name, prompt in told(agents, job["instructions"]).items()
                },
            },
            "algorithm": "grpo",
            "lora": {"rank": rank, "alpha": 2 * rank},
            "optimizer": {"lr": job["lr"]},
            "train": {"iterations": steps, "tasks": job["prompts_a_step"], "samples": job["group"], "minibatches": 1},
            "eval": {"tasks": 0},
            "checkpoint": {"every": steps},
            "track": {"tensorboard": False, "episodes": 0},
        }
    )


def main(path: Path) -> None:
    limit_spinning()  # as the command line does, and before torch is loaded
    from benchmarks.speed.timed import Stopwatch, timed_run

    job = json.loads(path.read_text())
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        trainer = timed_run(config_of(job, len(job["prompts"])), Path(folder) / "run", watch)
    episodes = job["steps"] * job["prompts_a_step"] * job["group"]
    print(
        json.dumps(
            {
                "ends": watch.ends,
                "episodes": episodes,
                "completions": episodes * len(job["prompts"]),
                "tokens": trainer.position.tokens_generated,
                "packages": {package: version(package) for package in ("marft", "torch", "transformers", "peft")},
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
