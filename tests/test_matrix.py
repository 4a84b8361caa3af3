"""Every workflow with every credit, algorithm, critic and schedule: refused with its reason, or trained for two iterations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from known_answers.tiny import FOLDER, load_again, model_folder, scratch, train
from teams import team_of
from toys import files

import marft
from marft.config import ALGORITHMS, CREDITS, WORKFLOWS, parse
from marft.envs.base import Split
from marft.game.play import Game
from marft.models.peft_format import save_adapter

CRITICS = ("shared", "per_agent", "none")
SCHEDULES = ("joint", "alternate", "sequential", "resample")
OWN = "test_matrix:own"
WITH_CRITIC = {"marft-token", "marft-action"}
TARGETS = ("v_proj", "down_proj")
SMALL = {
    "env": "test_matrix:Noise",
    "lora": {"rank": 2, "targets": TARGETS},
    "train": {"iterations": 2, "tasks": 3, "samples": 4, "minibatches": 1},  # two iterations: alternate trains both
    "engine": {"slots": 64},
    "eval": {"tasks": 0},
    "checkpoint": {"every": 2},
    "track": {"tensorboard": False, "episodes": 0},
}


class Noise(marft.Environment[dict[int, int]]):
    """Whatever is said earns something, for the team and for each turn, and now and then it is enough."""

    light = True

    def tasks(self, split: Split) -> list[marft.Task]:
        return [marft.Task(id=f"{split}/{word}", prompt=word) for word in ("0", "1", "red", "blue")]

    def reset(self, task: marft.Task) -> dict[int, int]:
        return {}

    def transition(self, state: dict[int, int], turn: marft.Turn) -> dict[int, int]:
        return {**state, turn.index: sum(turn.text.encode()) % 7}

    def whose_turn(self, state: dict[int, int]) -> str | None:
        return ("bob", "ann", "cat", "ann", None)[len(state)]

    def reward(self, state: dict[int, int]) -> marft.Reward:
        total = sum(state.values())
        turns = {index: points / 10 for index, points in state.items()}
        return marft.Reward(team=total % 5 / 4, turns=turns, correct=total % 5 > 2, done=total % 3 == 0)


async def own(game: Game) -> None:
    """A user's workflow: parallel turns, a tool's words, an aside, a view for one turn, a note."""
    await game.act("bob", "cat")
    await game.say("tool", "2")
    await game.act("ann", aside=True, note="red")
    await game.act("ann", sees=["bob", "tool"])


async def asks_in_turn(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """A user's program: each agent answers the one before."""
    import aiohttp

    said = [task["prompt"]]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"}) as http:
        for name in ("bob", "cat", "ann"):
            body = {"model": name, "messages": [{"role": "user", "content": said[-1]}]}
            async with http.post(f"{base_url}/chat/completions", json=body) as answer:
                said.append((await answer.json())["choices"][0]["message"]["content"])
    return " ".join(said)


def team(workflow: str) -> dict[str, Any]:
    """`ann` and `bob` learn, `cat` is frozen."""
    agents: dict[str, dict[str, Any]] = {
        "ann": {"prompt": "ann"},
        "bob": {"prompt": "bob"},
        "cat": {"prompt": "cat", "trainable": False, "init_from": str(frozen_adapter())},
    }
    settings: dict[str, Any] = {}
    match workflow:
        case "dag":
            for name, sees in {"ann": ["bob", "cat"], "bob": [], "cat": ["bob"]}.items():
                agents[name]["sees"] = sees
        case "debate":
            agents = {name: agents[name] for name in ("cat", "ann", "bob")}
        case "vote":
            settings["votes"] = 2
        case "orchestrated":
            settings["steps"] = 1
        case "rounds":
            settings["rounds"] = 2
        case "program":
            settings["program"] = {"function": "test_matrix:asks_in_turn"}
    agents["bob"]["max_tokens"] = 2
    for agent in agents.values():
        agent.setdefault("max_tokens", 1)
    return {"workflow": workflow, "agents": agents, **settings}


@cache
def frozen_adapter() -> Path:
    folder = Path(FOLDER.name) / "cat"
    made = team_of({"cat": 3}, targets=TARGETS, loaded=load_again(str(model_folder()), "cpu", "auto"), std=0.5)
    save_adapter(made, "cat", folder)
    return folder


def numbers(row: Any) -> Iterator[float]:
    match row:
        case dict():
            for value in row.values():
                yield from numbers(value)
        case _:
            assert isinstance(row, int | float), row
            yield row


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("workflow", [*WORKFLOWS, OWN])
def test_every_combination_is_refused_or_trains(workflow: str, credit: str, algorithm: str) -> None:
    for critic, schedule in product(CRITICS, SCHEDULES):
        settings = {
            **SMALL, "model": str(model_folder()), "team": team(workflow), "credit": credit, "algorithm": algorithm, "critic": critic, "schedule": schedule,
        }  # fmt: skip
        try:
            if (critic == "none") == (algorithm in WITH_CRITIC):
                check_refused(settings, algorithm)
            else:
                check_trains(settings, critic, schedule)
        except Exception as error:
            raise AssertionError(f"{workflow}, {credit}, {algorithm}, {critic}, {schedule}: {error}") from error


@pytest.mark.parametrize("workflow", [*WORKFLOWS, OWN])
def test_the_untrained_base_as_a_baseline_trains(workflow: str) -> None:
    credit = {"name": "difference", "baseline": "base"}
    model = str(model_folder())
    check_trains(
        {**SMALL, "model": model, "team": team(workflow), "credit": credit, "algorithm": "grpo"}, "none", "joint"
    )


def check_refused(settings: dict[str, Any], algorithm: str) -> None:
    with pytest.raises(marft.MarftError) as caught:
        parse(settings)
    reason = "estimates advantages with a critic" if algorithm in WITH_CRITIC else "uses no critic"
    assert str(caught.value).startswith(f"critic.mode: {algorithm} {reason}")


def check_trains(settings: dict[str, Any], critic: str, schedule: str) -> None:
    with scratch() as folder:
        run = Path(folder) / "run"
        rows = train(run, settings)
        before, after = (files(run / "checkpoints" / f"{iteration:06d}") for iteration in (0, 2))
    critics = {"none": set(), "shared": {"critic"}, "per_agent": {"critic-ann", "critic-bob"}}[critic]

    assert [row["iteration"] for row in rows] == [1, 2]
    for i, row in enumerate(rows):
        assert all(math.isfinite(number) for number in numbers(row))
        assert row["failed"] == 0
        assert row["agents"].keys() == {"ann", "bob"}
        assert row.get("critics", {}).keys() == critics
        assert ("factor" in row) == (schedule == "sequential")
        learnt = {name for name, found in row["agents"].items() if found["steps"]}
        assert learnt == ({("ann", "bob")[i]} if schedule == "alternate" else {"ann", "bob"})
    assert all(any(row["agents"][name]["advantage_std"] > 0 for row in rows) for name in ("ann", "bob"))

    trained = {f"agents/{name}/adapter_model.safetensors" for name in ("ann", "bob")}
    for name in critics:
        trained |= {f"critics/{name}/adapter_model.safetensors", f"critics/{name}/value_head.safetensors"}
    weights = {name for name in before if name.startswith(("agents/", "critics/")) and name.endswith(".safetensors")}
    assert weights == trained | {"agents/cat/adapter_model.safetensors"} == weights & after.keys()
    assert {name for name in weights if before[name] != after[name]} == trained
    assert after["agents/cat/adapter_model.safetensors"] == files(frozen_adapter())["adapter_model.safetensors"]
