"""Which keys there are, and that the documentation knows each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from mistakes import DUO
from pydantic import BaseModel

from marft.config import ALGORITHMS, CREDITS, WORKFLOWS, Config, parse
from marft.config.algorithm import ScheduleConfig
from marft.import_paths import look_up

CHOICES: dict[str, dict[str, type[BaseModel]]] = {
    "algorithm": {name: look_up(where) for name, where in ALGORITHMS.items()},
    "credit": {name: look_up(where) for name, where in CREDITS.items()},
}
DOCS = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
KEYS = """
seed device dtype quantize model init_from
env.name env.deadline env.tasks_deadline env.workers
team.workflow team.rounds team.votes team.steps team.options team.anonymous team.history
team.program.function team.program.cmd team.program.deadline
team.agents.*.prompt team.agents.*.sees team.agents.*.chat_template_kwargs
team.agents.*.temperature team.agents.*.top_p team.agents.*.top_k team.agents.*.max_tokens team.agents.*.stop team.agents.*.tools team.agents.*.calls team.agents.*.inline_call team.agents.*.tool_deadline
team.agents.*.trainable team.agents.*.adapter team.agents.*.rank team.agents.*.lr team.agents.*.init_from
team.agents.*.model team.agents.*.script
team.agents.*.remote.url team.agents.*.remote.model team.agents.*.remote.key_env team.agents.*.remote.timeout
team.agents.*.remote.retries
algorithm.name:marft-token algorithm.name:marft-action algorithm.name:grpo algorithm.name:dr_grpo algorithm.name:rloo
algorithm.name:gspo algorithm.name:reinforce++ algorithm.name:rae
algorithm.clip_low algorithm.clip_high algorithm.dual_clip algorithm.entropy algorithm.trust_region algorithm.kl_stop
algorithm.correction algorithm.aggregation algorithm.huber_delta
algorithm.kl.weight algorithm.kl.estimator algorithm.kl.where algorithm.kl.target
algorithm.lam algorithm.whiten algorithm.value_clip algorithm.value_loss algorithm.token_gamma algorithm.token_lam
algorithm.normalise algorithm.std_floor algorithm.decay
credit.name:equal credit.name:step_discounted credit.name:per_step credit.name:per_player
credit.name:difference credit.name:tree
credit.beta credit.gamma credit.baseline
critic.mode critic.lr critic.warmup
schedule.mode schedule.interval schedule.clip
lora.rank lora.alpha lora.targets
optimizer.lr optimizer.weight_decay optimizer.beta1 optimizer.eps optimizer.grad_clip optimizer.warmup optimizer.decay
train.iterations train.budget train.tasks train.samples train.epochs train.minibatches train.tokens train.recompute train.failures train.on_collapse train.lag
learner.ranks learner.shard
rollout.workers rollout.shards rollout.threads rollout.gpus rollout.patience rollout.swap rollout.replay
cluster.address
engine.name engine.slots engine.memory engine.keep engine.url engine.mismatch engine.options
eval.tasks eval.every eval.temperature eval.top_p eval.top_k eval.samples eval.k eval.ablate
eval.benchmarks.*.name eval.benchmarks.*.deadline eval.benchmarks.*.tasks_deadline eval.benchmarks.*.workers
checkpoint.every checkpoint.keep
track.tensorboard track.wandb track.trackio track.episodes track.held_out
"""


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        section = next((k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if prefix == "" and name in CHOICES:
            for label, one in CHOICES[name].items():
                found |= {f"{name}.name:{label}"} | (keys(one, f"{name}.") - {f"{name}.name"})
        elif section is not None:
            found |= keys(section, f"{prefix}{name}.*." if get_origin(kind) is dict else f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


def test_the_keys_of_the_config() -> None:
    """They are public: a key that comes, goes or changes its name is changed here too, on purpose."""
    assert keys(Config) == set(KEYS.split())


@pytest.mark.parametrize("section", sorted(CHOICES))
def test_every_name_leads_to_its_own_section(section: str) -> None:
    for name, model in CHOICES[section].items():
        assert type(getattr(parse({**DUO, section: name}), section)) is model


# --- documentation ----------------------------------------------------------------------------------------------------
def rows(header: str) -> list[list[str]]:
    """What stands in `backticks` in the first column of each row of the table with this header."""
    table = DOCS.partition(f"\n\n| {header} |")[2].partition("\n\n")[0]
    return [re.findall(r"`(.*?)`", row.split("|")[1]) for row in table.splitlines()[2:]]


def test_every_key_is_documented() -> None:
    """`lora.rank`, `alpha` are lora.rank and lora.alpha."""
    found: set[str] = set()
    for first, *others in rows("key"):
        section = first.rpartition(".")[0]
        found |= {first, *(other if "." in other else f"{section}.{other}" for other in others)}
    assert {key.replace("NAME", "*") for key in found} - {"env.*"} == {key.partition(":")[0] for key in KEYS.split()}


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("team.workflow", WORKFLOWS),
        ("credit.name", CREDITS),
        ("algorithm.name", ALGORITHMS),
        ("schedule.mode", get_args(ScheduleConfig.model_fields["mode"].annotation)),
    ],
)
def test_every_name_is_documented(key: str, names: Iterable[str]) -> None:
    assert rows(f"`{key}`") == [[name] for name in names]
