"""Combinations without meaning are refused, with the key, the reason and a way out; their neighbours are not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mistakes import DUO, checked, read
from pydantic import ValidationError

import marft.config
from marft.types import MarftError

A, B = "team.agents.a", "team.agents.b"
REMOTE = "remote={url: 'http://h/v1', model: m}"
SOURCE = Path(marft.config.__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Overrides of a team of a and b that are refused at `key` because of `why`, and neighbours that are allowed."""

    given: Sequence[str]
    key: str
    why: str
    allowed: Sequence[Sequence[str]] = field(default=())


def refusal(given: str, key: str, why: str, *allowed: str) -> Refusal:
    """Overrides are split at ` & `."""
    return Refusal(given=given.split(" & "), key=key, why=why, allowed=[each.split(" & ") for each in allowed])


NAMES = [
    refusal("team.agents.Big=x", "team.agents.Big", "begins with a letter; change it", "team.agents.b-1_g=x"),
    refusal(f"team.agents.{'x' * 33}=x", f"team.agents.{'x' * 33}", "32 at most", f"team.agents.{'x' * 32}=x"),
    refusal("team.agents.critic=x", "team.agents.critic", "'critic' is reserved", "team.agents.crit=x"),
    refusal("team.agents.critic-b=x", "team.agents.critic-b", "is reserved, as are all names that begin with 'critic'"),
    refusal("team.agents.base=x", "team.agents.base", "'base' is reserved", "team.agents.based=x"),
    refusal(f"{A}.adapter=base", f"{A}.adapter", "'base' is reserved", f"{A}.adapter=bass"),
    refusal(f"{A}.adapter=critic", f"{A}.adapter", "'critic' is reserved"),
    refusal(f"{A}.adapter=A/B", f"{A}.adapter", "a name has small letters", f"{A}.adapter=a-b"),
    refusal(f"{A}.script=f", f"{A}.script", "'f' names no function; write package.module:function", f"{A}.script=m:f"),
    refusal(f"{A}.calls=2", f"{A}.calls", "it has no tools to call", f"{A}.calls=2 & {A}.tools=[python]"),
    refusal(f"{A}.tools=[python, python]", f"{A}.tools", "comes twice", f"{A}.tools=[python, calculator]"),
    refusal(
        f"{A}.tools=[calculater]",
        f"{A}.tools.0",
        "'calculater' is none of calculator, python; did you mean 'calculator'?; or give package.module:Class",
        f"{A}.tools=[m:Mine]",
        f"{A}.tools=[m:function, {{mcp: python server.py}}]",
        f"{A}.tools=[{{mcp: http://127.0.0.1:8000/mcp}}]",
    ),
    refusal(
        f"{A}.inline_call={{text}}=",
        f"{A}.inline_call",
        "it needs one tool, and a model of ours to go on behind the answer",
        f"{A}.inline_call={{text}}= & {A}.tools=[python]",
    ),
    refusal(f"{A}.inline_call={{text}}= & {A}.tools=[python, calculator]", f"{A}.inline_call", "it needs one tool"),
    refusal(
        f"{A}.inline_call=<<{{text}} & {A}.tools=[python]",
        f"{A}.inline_call",
        "'<<{text}' does not say where a call ends; write it like '<<{text}=' or '{text}='",
        f"{A}.inline_call=<<{{text}}>> & {A}.tools=[python]",
    ),
    refusal(
        f"{A}.tool_deadline=2",
        f"{A}.tool_deadline",
        "it has no tools to call",
        f"{A}.tool_deadline=2 & {A}.tools=[python]",
    ),
    refusal(
        f"{A}.tools=[{{mcp: ' '}}]",
        f"{A}.tools.0.mcp",
        "not a command line; write it like python server.py",
        f"{A}.tools=[{{mcp: server}}]",
    ),
    refusal(f'{A}.tools=[{{mcp: "a \'b"}}]', f"{A}.tools.0.mcp", "not a command line: no closing quotation; close it"),
    refusal(
        f"{A}.tools=[{{mcp: 'http://h/mcp?key=1'}}]",
        f"{A}.tools.0.mcp",
        "would be saved with the run; drop it and give the key by a variable that the server reads",
    ),
    refusal(
        "engine.name=locl", "engine.name", "'locl' is none of local, vllm; did you mean 'local'?", "engine.name=m:Mine"
    ),
    refusal("team.workflow=m:", "team.workflow", "'m:' names no function", "team.workflow=m.n:f"),
    refusal(
        "team.workflow=x",
        "team.workflow",
        "use sequential, dag, debate, vote, orchestrated, rounds, turns, program or package.module:f",
    ),
    refusal("team.workflow=debat", "team.workflow", "did you mean 'debate'?", "team.workflow=debate"),
    refusal(f"{A}.{REMOTE} & {A}.remote.url=h", f"{A}.remote.url", "write it like https://api.openai.com/v1"),
    refusal(f"{A}.{REMOTE} & {A}.remote.url=http://u@h", f"{A}.remote.url", "saved with the run; drop it"),
    refusal(f"{A}.{REMOTE} & {A}.remote.key_env=k", f"{A}.remote.key_env", "put the key into one", f"{A}.{REMOTE}"),
    refusal("track.wandb=true", "track.wandb", "'true' is no project; give the project's name", "track.wandb=maths"),
    refusal("lora.targets=q_proj", "lora.targets", "give all-linear, or a list", "lora.targets=all-linear"),
    refusal("lora.targets=[]", "lora.targets", "it names no layers", "lora.targets=[q_proj, v_proj]"),
    refusal("lora.targets=['']", "lora.targets", "it names no layers"),
    refusal("lora.targets=[1]", "lora.targets", "it names no layers"),
    refusal(
        "algorithm.trust_region=true",
        "algorithm.trust_region",
        "true has no meaning here",
        "algorithm.trust_region=1",
        "algorithm.trust_region=null",
    ),
    refusal("algorithm.kl=false", "algorithm.kl", "false has no meaning here; give a value", "algorithm.kl=0"),
    refusal("train.budget=no", "train.budget", "false has no meaning here", "train.budget=null", "train.budget=1"),
    refusal("critic.warmup=yes", "critic.warmup", "true has no meaning here", "track.tensorboard=yes"),
]

AGENTS = [
    refusal("team.agents.c.temperature=1", "team.agents.c.prompt", "is missing; say what this agent is told",
            "team.agents.c.prompt=''", "team.agents.c.script=m:f"),
    refusal(f"team.agents.c.{REMOTE}", "team.agents.c.prompt", "is missing; say what this agent is told"),
    refusal(f"{A}.script=m:f & {A}.{REMOTE}", f"{A}.script", "either a script or an endpoint speaks for an agent; drop script",
            f"{A}.script=m:f", f"{A}.{REMOTE}"),
    *(refusal(f"{A}.{voice} & {A}.{key}={value}", f"{A}.{key}", f"a {kind} agent has no weights of ours; drop {key}",
              f"{A}.{key}={value}", f"{A}.{voice} & {A}.{key}=null")
      for key, value in {"adapter": "x", "rank": 4, "lr": 0.1, "init_from": "x", "model": "m"}.items()
      for kind, voice in {"scripted": "script=m:f", "remote": REMOTE}.items()),
    refusal(f"{A}.script=m:f & {A}.trainable=true", f"{A}.trainable", "a scripted agent has no weights of ours to train",
            f"{A}.script=m:f & {A}.trainable=false", f"{A}.trainable=true"),
    refusal(f"{A}.{REMOTE} & {A}.trainable=true", f"{A}.trainable", "a remote agent has no weights of ours to train",
            f"{A}.{REMOTE} & {A}.trainable=false"),
    refusal(f"{A}.trainable=false & {A}.lr=0.1", f"{A}.lr", "a frozen agent does not learn; drop lr or trainable: false",
            f"{A}.lr=0.1", f"{A}.trainable=true & {A}.lr=0.1"),
    refusal(f"{A}.trainable=false & {A}.rank=4", f"{A}.rank", "has the rank it was saved with; drop rank",
            f"{A}.rank=4", f"{A}.trainable=false"),
    refusal(f"{A}.trainable=false & {A}.init_from=x & {A}.rank=4", f"{A}.rank", "has the rank it was saved with",
            f"{A}.trainable=false & {A}.init_from=x", f"{A}.init_from=x & {A}.rank=4"),
    refusal(f"{A}.trainable=false & {A}.adapter=x", f"{A}.adapter", "is the base model alone; drop adapter or give init_from",
            f"{A}.trainable=false & {A}.adapter=x & {A}.init_from=y", f"{A}.trainable=false & {A}.adapter=x & init_from=y"),
    # sampling
    *(refusal(f"{A}.script=m:f & {A}.{key}={value}", f"{A}.{key}", f"a script is not sampled from and would ignore it; drop {key}",
              f"{A}.script=m:f & {A}.stop=[x]")
      for key, value in {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_tokens": 9}.items()),
    refusal(f"{A}.{REMOTE} & {A}.top_k=3", f"{A}.top_k", "OpenAI's protocol has none; drop top_k or use top_p",
            f"{A}.{REMOTE} & {A}.top_p=0.9", f"{A}.{REMOTE} & {A}.temperature=0"),
    refusal(f"{A}.{REMOTE} & eval.top_k=3", "eval.top_k", "'a' is remote, and OpenAI's protocol has none; use eval.top_p",
            f"{A}.{REMOTE} & eval.top_p=0.9", f"{A}.{REMOTE} & eval.top_k=0", f"{A}.script=m:f & eval.top_k=3"),
    refusal(f"{A}.top_p=0.9", f"{A}.top_p", "gives probability 0 to tokens it could learn; use eval.top_p, or trainable: false",
            f"{A}.top_p=0.9 & {A}.trainable=false", "eval.top_p=0.9", f"{A}.top_p=1"),
    refusal(f"{A}.top_k=3", f"{A}.top_k", "gives probability 0 to tokens it could learn; use eval.top_k, or trainable: false",
            f"{A}.top_k=3 & {A}.trainable=false", "eval.top_k=3", f"{A}.top_k=0"),
    refusal(f"{A}.temperature=0", f"{A}.temperature", "learns nothing; use eval.temperature=0, or trainable: false",
            f"{A}.temperature=0 & {A}.trainable=false", "eval.temperature=0", f"{A}.temperature=0.1"),
    refusal(f"{A}.trainable=false & {A}.temperature=0 & {A}.top_p=0.9", f"{A}.top_p", "would ignore it; drop top_p",
            f"{A}.trainable=false & {A}.temperature=0.1 & {A}.top_p=0.9"),
    refusal(f"{A}.{REMOTE} & {A}.temperature=0 & {A}.top_p=0.9", f"{A}.top_p", "would ignore it; drop top_p"),
    refusal("eval.temperature=0 & eval.top_p=0.9", "eval.top_p", "takes the likeliest token and would ignore it; drop top_p",
            "eval.temperature=0.1 & eval.top_p=0.9", "eval.temperature=0 & eval.top_p=1 & eval.top_k=0"),
    refusal("eval.temperature=0 & eval.top_k=3", "eval.top_k", "would ignore it; drop top_k", "eval.top_k=3"),
    refusal("eval.temperature=0 & eval.samples=2", "eval.samples", "they are all the same; drop samples or temperature",
            "eval.temperature=0 & eval.samples=1", "eval.temperature=0.1 & eval.samples=2"),
    refusal("eval.k=[1, 2]", "eval.k", "there are no 2 among 1 samples; raise samples or drop 2", "eval.k=[1]",
            "eval.samples=2 & eval.k=[1, 2]", "eval.samples=3 & eval.k=[2, 2]", "eval.samples=3 & eval.k=[]"),
    refusal("eval.benchmarks=[x, x]", "eval.benchmarks", "a list holds names of data sets, each once", "eval.benchmarks=[x, y]",
            "eval.benchmarks=[]"),
    refusal("eval.benchmarks=[3]", "eval.benchmarks", "or give {NAME: {KEY: VALUE}}", "eval.benchmarks=['3']"),
    refusal("eval.benchmarks=x", "eval.benchmarks", "it names no benchmarks; give [NAME, NAME]", "eval.benchmarks={x: {level: 3}}"),
    refusal('eval.benchmarks={"x\\ny": {}}', "eval.benchmarks", "drop the line break from it", "eval.benchmarks={a/b c: {}}"),
]  # fmt: skip

WORKFLOWS = [
    refusal("team.rounds=2", "team.rounds", "it is for debate and rounds, and 'sequential' would ignore it; drop rounds",
            "team.workflow=debate & team.rounds=2", "team.workflow=rounds & team.rounds=2", "team.rounds=null"),
    refusal("team.workflow=debate & team.votes=2", "team.votes", "it is for vote, and 'debate' would ignore it",
            "team.workflow=vote & team.votes=2"),
    refusal("team.workflow=m:f & team.steps=2", "team.steps", "it is for orchestrated, and 'm:f' would ignore it",
            "team.workflow=orchestrated & team.steps=2"),
    refusal("team.options={a: 1}", "team.options", "they are for a workflow of your own, and 'sequential' has none; drop them",
            "team.workflow=m:f & team.options={a: 1}"),
    refusal(f"{B}.sees=[aa]", f"{B}.sees", "unknown agent 'aa'; did you mean 'a'?; the team is a, b", f"{B}.sees=[a]"),
    refusal(f"team.workflow=m:f & {B}.sees=[zed]", f"{B}.sees", "unknown agent 'zed'; the team is a, b",
            f"team.workflow=m:f & {B}.sees=[a, b]"),
    refusal(f"{A}.sees=[b]", f"{A}.sees", "'b' has said nothing by then; list it earlier or drop it",
            f"{B}.sees=[a]", f"{A}.sees=[]", f"team.workflow=rounds & {A}.sees=[b]"),
    refusal(f"{B}.sees=[a, b]", f"{B}.sees", "'b' has said nothing by then", f"team.workflow=rounds & {B}.sees=[a, b]"),
    refusal(f"team.workflow=dag & {B}.sees=[a]", f"{A}.sees", "is missing, and a dag is made of it; give []",
            f"team.workflow=dag & {A}.sees=[] & {B}.sees=[a]", f"team.workflow=dag & {A}.sees=[b] & {B}.sees=[]"),
    refusal(f"team.workflow=dag & {A}.sees=[b] & {B}.sees=[a]", f"{A}.sees", "a → b → a would wait for ever; drop one"),
    refusal(f"team.workflow=dag & {A}.sees=[] & {B}.sees=[b]", f"{B}.sees", "b → b would wait for ever; drop one"),
    refusal(f"team.workflow=debate & {A}.sees=[b]", f"{A}.sees", "'b' judges when all have spoken; drop it",
            f"team.workflow=debate & {A}.sees=[a]", f"team.workflow=debate & {B}.sees=[a]"),
    refusal(f"team.workflow=debate & team.rounds=1 & {A}.sees=[a]", f"{A}.sees", "in one round all debaters speak at once; drop sees",
            f"team.workflow=debate & team.rounds=1 & {B}.sees=[a]", f"team.workflow=debate & team.rounds=1 & {A}.sees=[]"),
    refusal(f"team.workflow=rounds & team.rounds=1 & {A}.sees=[b]", f"{A}.sees", "'b' has said nothing by then",
            f"team.workflow=rounds & team.rounds=2 & {A}.sees=[b]", f"team.workflow=rounds & team.rounds=1 & {B}.sees=[a]"),
    refusal("team.workflow=program", "team.program", "is missing; say which with program.function or program.cmd",
            "team.workflow=program & team.program.cmd=ls", "team.workflow=program & team.program.function=m:f"),
    refusal("team.workflow=program & team.program.deadline=3", "team.program.function", "is a function or a cmd; give one of them"),
    refusal("team.workflow=program & team.program.cmd=ls & team.program.function=m:f", "team.program.function",
            "is a function or a cmd; give one of them"),
    refusal("team.program.cmd=ls", "team.program", "it is for program, and 'sequential' would ignore it"),
    refusal("team.workflow=vote & team.votes=128", "team.votes", "an episode would take 257 turns, and has at most 256",
            "team.workflow=vote & team.votes=127"),
    refusal("team.workflow=rounds & team.rounds=129", "team.rounds", "an episode would take 258 turns",
            "team.workflow=rounds & team.rounds=128", "team.workflow=debate & team.rounds=129"),
    refusal(f"team.workflow=debate & {B}.sees=[b]", f"{B}.sees", "'b' judges when all have spoken"),
    refusal(f"team.workflow=vote & {B}.sees=[a]", f"{B}.sees", "voters do not see one another; drop sees",
            "team.workflow=vote", f"team.workflow=vote & {B}.sees=[]"),
    refusal("team.workflow=program & team.program.cmd=ls & team.agents.program=x", "team.agents.program",
            "a program's answer is announced by this name", "team.agents.program=x"),
    refusal("team.workflow=vote & team.agents.majority=x", "team.agents.majority", "a vote's result is announced by this name",
            "team.workflow=debate & team.agents.majority=x"),
    refusal("team.workflow=orchestrated & team.agents.nobody=x", "team.agents.nobody", "the orchestrator's word",
            "team.workflow=rounds & team.agents.nobody=x"),
    refusal("team.workflow=orchestrated & team.agents.everyone=x", "team.agents.everyone", "choose another"),
    refusal("team.workflow=orchestrated & team.anonymous=true", "team.anonymous", "calls agents by their names; drop it",
            "team.workflow=orchestrated", "team.workflow=debate & team.anonymous=true", "team.anonymous=true"),
]  # fmt: skip

ADAPTERS = [
    *(refusal(f"{A}.adapter=team & {B}.adapter=team & {A}.{key}={value}", f"{B}.{key}",
              f"'b' and 'a' share an adapter; give both the same {key}", f"{A}.{key}={value}",
              f"{A}.adapter=team & {B}.adapter=team & {A}.{key}={value} & {B}.{key}={value}")
      for key, value in {"rank": 4, "lr": 0.1, "init_from": "x", "model": "m"}.items()),
    refusal(f"{A}.adapter=team & {B}.adapter=team & {A}.lr=0.1 & {B}.lr=0.2", f"{B}.lr", "give both the same lr"),
    refusal(f"{B}.adapter=a & {A}.lr=0.1", f"{B}.lr", "'b' and 'a' share an adapter", f"{B}.adapter=a",
            f"{B}.adapter=a & {A}.lr=0.1 & {B}.lr=0.1"),
    refusal(f"{A}.adapter=b & {B}.rank=4", f"{B}.rank", "'b' and 'a' share an adapter", f"{A}.adapter=b"),
    refusal(f"{B}.adapter=a & {B}.trainable=false & init_from=x", f"{B}.trainable", "give both the same trainable",
            f"{B}.adapter=a & {B}.trainable=true", f"{B}.adapter=a & {A}.trainable=false & {B}.trainable=false & init_from=x"),
    refusal(f"{A}.trainable=false & {B}.adapter=a", f"{B}.trainable", "'b' and 'a' share an adapter"),
    refusal(f"{A}.adapter=b & {B}.adapter=x", f"{A}.adapter", "the agent 'b' does not speak with an adapter of that name",
            f"{A}.adapter=b & {B}.adapter=b", f"{A}.adapter=x & {B}.adapter=x"),
    refusal(f"{A}.adapter=b & {B}.script=m:f", f"{A}.adapter", "choose another", f"{A}.adapter=x & {B}.script=m:f"),
    refusal(f"{A}.adapter=b & {B}.{REMOTE}", f"{A}.adapter", "choose another"),
]  # fmt: skip

LEARNING = [
    *(refusal(f"algorithm.kl.{key}={value}", "algorithm.kl.weight", "it is 0, so the KL's other settings would be ignored",
              f"algorithm.kl=0.1 & algorithm.kl.{key}={value}")
      for key, value in {"estimator": "k2", "where": "reward", "target": 0.1}.items()),
    refusal("algorithm.kl=0.1 & algorithm.kl.estimator=k1", "algorithm.kl.estimator", "so it does nothing; use k2, k3",
            "algorithm.kl=0.1 & algorithm.kl.estimator=k1 & algorithm.kl.where=reward", "algorithm.kl.estimator=k3"),
    refusal("algorithm=grpo & algorithm.kl={weight: 0, where: reward}", "algorithm.kl.weight", "give a weight or drop them"),
    *(refusal(f"{credit} & algorithm.lam=1.0", "algorithm.lam", "turns are not chained, and it would be ignored",
              credit, f"{credit} & algorithm.lam=null", "algorithm.lam=1.0")
      for credit in ("credit=difference", "credit=tree", "credit.name=per_step & credit.gamma=0")),
    refusal("algorithm.huber_delta=2", "algorithm.huber_delta", "mse would ignore it; drop it or say algorithm.value_loss=huber",
            "algorithm.huber_delta=2 & algorithm.value_loss=huber"),
    *(refusal(f"schedule={mode} & schedule.interval=2", "schedule.interval", f"{mode} would ignore it, only alternate has it",
              "schedule=alternate & schedule.interval=2")
      for mode in ("joint", "sequential", "resample")),
    *(refusal(f"schedule={mode} & schedule.clip=3", "schedule.clip", f"{mode} would ignore it, only sequential has it",
              "schedule=sequential & schedule.clip=3")
      for mode in ("joint", "alternate", "resample")),
    *(refusal(f"schedule={mode} & {given}", "schedule.mode", f"{mode} orders several adapters and only one is trained; use joint",
              given, f"schedule={mode}")
      for mode in ("alternate", "sequential", "resample")
      for given in (f"{A}.trainable=false", f"{A}.script=m:f", f"{A}.adapter=t & {B}.adapter=t", f"{B}.adapter=a")),
    refusal("schedule=alternate & schedule.interval=20", "schedule.interval", "the last of 2 adapters would never learn; lower it",
            "schedule=alternate & schedule.interval=19", "schedule=alternate & schedule.interval=20 & train.iterations=21"),
    refusal("schedule=alternate & schedule.interval=10 & team.agents.c=x", "schedule.interval", "the last of 3 adapters",
            "schedule=alternate & schedule.interval=9 & team.agents.c=x", "schedule=alternate & train.iterations=2"),
    refusal("schedule=alternate & train.iterations=1", "schedule.interval", "the last of 2 adapters would never learn"),
    refusal("schedule=alternate & train.iterations=4 & critic.warmup=3", "schedule.interval", "the last of 2 adapters would never learn",
            "schedule=alternate & train.iterations=4 & critic.warmup=2"),
    *(refusal(f"algorithm={name} & critic=none", "critic.mode", f"{name} estimates advantages with a critic; say critic=shared",
              f"algorithm={name} & critic=shared", f"algorithm={name} & critic=per_agent & critic.lr=0.1 & critic.warmup=2")
      for name in ("marft-token", "marft-action")),
    *(refusal(f"algorithm={name} & {given}", key, why, f"algorithm={name} & critic=none", f"algorithm={name}")
      for name in ("grpo", "dr_grpo", "rloo", "gspo", "reinforce++", "rae")
      for given, key, why in (
          ("critic=shared", "critic.mode", f"{name} uses no critic and would ignore it; drop it"),
          ("critic=per_agent", "critic.mode", f"{name} uses no critic and would ignore it"),
          ("critic.warmup=2", "critic.warmup", f"{name} has no critic and would ignore it; drop it"),
          ("critic.lr=0.1", "critic.lr", f"{name} has no critic and would ignore it"))),
    refusal("critic.warmup=20", "critic.warmup", "the agents would never learn; lower it or raise train.iterations",
            "critic.warmup=19", "critic.warmup=20 & train.iterations=21"),
    *(refusal(f"algorithm={name} & train.samples=1", "train.samples", f"{name} compares samples of one task; give 2 or more",
              f"algorithm={name} & train.samples=2")
      for name in ("grpo", "dr_grpo", "rloo", "gspo")),
    *(refusal(f"algorithm={name} & credit=tree & train.samples=1", "train.samples", "tree credit compares samples",
              f"algorithm={name} & train.samples=1", f"algorithm={name} & credit=tree & train.samples=2")
      for name in ("marft-token", "marft-action", "reinforce++", "rae")),
    refusal("train.tasks=2 & train.samples=1 & train.minibatches=3", "train.minibatches", "more minibatches than episodes; lower",
            "train.tasks=2 & train.samples=1 & train.minibatches=2"),
    *(refusal(f"algorithm.correction={given}", "algorithm.correction", "it is no number from 1 on; give one such as 2",
              "algorithm.correction=1", "algorithm.correction=auto", "algorithm.correction=null")
      for given in ("0.99", "-2", ".inf", ".nan", "often", "[2]")),
    refusal("train.lag=1 & schedule=resample", "train.lag", "resample plays again with what was just learnt; use sequential",
            "train.lag=1 & schedule=sequential", "train.lag=0 & schedule=resample", "train.lag=1 & schedule=alternate"),
]  # fmt: skip

VLLM = "engine.name=vllm"
ROLLOUTS = [
    refusal("rollout.gpus=[1]", "rollout.gpus", "they are the workers', and this process plays; give rollout.workers",
            "rollout.gpus=[1] & rollout.workers=1", "rollout.gpus=[1] & train.lag=1"),
    refusal("cluster.address=local", "cluster.address",
            "workers and ranks of the learner run there, and there are none; give rollout.workers or learner.ranks",
            "cluster.address=local & rollout.workers=1", "cluster.address=local & train.lag=1",
            "cluster.address=local & learner.ranks=2"),
    refusal("cluster.address=ray://head:10001 & learner.ranks=2", "learner.ranks",
            "ranks find one another by their addresses in the cluster, and who comes by ray:// has none; start on a node",
            "cluster.address=head:6379 & learner.ranks=2", "cluster.address=ray://head:10001 & rollout.workers=2"),
    refusal("cluster.address=auto & rollout.workers=1 & rollout.gpus=[1]", "rollout.gpus",
            "Ray gives each worker a GPU of its own; drop it, or cluster.address", "cluster.address=auto & rollout.workers=1"),
    *(refusal(f"cluster.address={wrong} & rollout.workers=1", "cluster.address", "is no cluster; give local, auto, HOST:PORT or ray",
              f"cluster.address={right} & rollout.workers=1")
      for wrong, right in (("loca", "local"), ("head", "head:6379"), ("http://head:80", "ray://head:10001"))),
    refusal(f"{VLLM} & engine.url=http://h & rollout.workers=2", "rollout.workers", "a server is one engine for all; drop",
            f"{VLLM} & rollout.workers=2", f"{VLLM} & engine.url=http://h"),
    *(refusal(f"engine.name={name} & train.lag=1 & rollout.swap=token", "rollout.swap",
              "only the local engine changes weights while it speaks; use turn",
              f"engine.name={name} & train.lag=1 & rollout.swap=turn", "train.lag=1 & rollout.swap=token")
      for name in ("vllm", "marft.engines.scripted:ScriptedEngine")),
    *(refusal(f"rollout.swap=token & {given}", "rollout.swap", "no newer weights come while a play is under way; give train.lag",
              "rollout.swap=token & train.lag=1 & rollout.workers=2", "rollout.swap=turn")
      for given in ("train.lag=0", "rollout.workers=2", "train.lag=2 & rollout.workers=0")),
    refusal(f"quantize=nf4 & {VLLM}", "quantize",
            "vLLM has a base of its own, which would not be the one that is trained on; use local, or drop it", "quantize=nf4", VLLM),
    refusal("quantize=int8 & learner.shard=true & learner.ranks=2 & rollout.workers=1", "quantize",
            "shards are gathered in the base's own dtype; drop it, or learner.shard",
            "quantize=int8 & learner.ranks=2 & rollout.workers=1", "learner.shard=true & learner.ranks=2 & rollout.workers=1"),
    refusal("learner.shard=true & rollout.workers=1", "learner.shard", "one rank has the whole base; give learner.ranks, or drop it",
            "learner.shard=true & rollout.workers=1 & learner.ranks=2", "learner.shard=false"),
    refusal("learner.shard=true & learner.ranks=2", "learner.shard",
            "this process cannot play with a part of the base; give rollout.workers, or servers by engine.url",
            "learner.shard=true & learner.ranks=2 & train.lag=1",
            f"learner.shard=true & learner.ranks=2 & {VLLM} & engine.url=http://h"),
    *(refusal(f"learner.shard=true & learner.ranks=2 & engine.name={name}", "learner.shard", "this process cannot play",
              f"learner.shard=true & learner.ranks=2 & engine.name={name} & rollout.workers=1")
      for name in ("vllm", "m:Mine")),
    refusal("rollout.replay=runs/a", "rollout.replay", "without swaps a run repeats itself; say rollout.swap=token or drop it",
            "rollout.replay=runs/a & rollout.swap=token & train.lag=1"),
]  # fmt: skip
ENGINES = [
    refusal("engine.options={a: 1}", "engine.options", "they are for an engine of your own, and local has none; drop them",
            "engine.name=m:Mine & engine.options={a: 1}"),
    refusal("engine.url=http://h", "engine.url", "only vLLM has one; say engine.name=vllm", f"{VLLM} & engine.url=http://h"),
    *(refusal(f"{VLLM} & engine.url={given}", "engine.url", said, f"{VLLM} & engine.url=[http://h:1,http://h:2]")
      for given, said in (
          ("[]", "it names no server; give http://127.0.0.1:8000, or a list of such addresses"),
          ("7", "it names no server; give"),
          ("[http://h, 7]", "it names no server; give"),
          ("nowhere", "not an endpoint's address; write it like"),
          ("[http://h, nowhere]", "not an endpoint's address; write it like"),
          ("[http://h, http://me:sesame@h]", "would be saved with the run; drop it and give the key by VLLM_API_KEY"),
          ("[http://h, http://h/v1/]", "it names one server twice; drop one of the two"))),
    refusal("engine.url=[http://h,http://i]", "engine.url", "only vLLM has one; say engine.name=vllm", f"{VLLM} & engine.url=[http://h,http://i]"),
    refusal(f"{VLLM} & engine.url=[http://h,http://i] & rollout.workers=2", "rollout.workers", "a server is one engine for all; drop",
            f"{VLLM} & engine.url=[http://h,http://i]"),
    refusal(f"{VLLM} & engine.keep=8", "engine.keep", "only the local engine's keys are ours to keep; drop it", "engine.keep=8", VLLM),
    refusal(f"{VLLM} & engine.url=http://h & engine.memory=0.5", "engine.memory", "a server is told when it is started; drop it", f"{VLLM} & engine.memory=0.5", "engine.memory=0.5"),
    refusal(f"{VLLM} & {A}.model=other", "engine.name", "vllm serves one base model and this team has 2; use local",
            f"{A}.model=other", f"{VLLM} & {A}.model=nano", f"{VLLM} & {A}.script=m:f"),
    refusal(f"{VLLM} & {A}.temperature=2.1", "engine.name", "at temperatures from 0.01 to 2, not at 2.1; use local",
            f"{VLLM} & {A}.temperature=2", f"{A}.temperature=2.1", f"{VLLM} & eval.temperature=0"),
    refusal(f"{VLLM} & eval.temperature=0.005", "engine.name", "at temperatures from 0.01 to 2, not at 0.005",
            f"{VLLM} & eval.temperature=0.01", "eval.temperature=0.005"),
]  # fmt: skip

ALONE: dict[str, Any] = {"team": {"agents": {"a": "One."}}, "algorithm": "marft-token"}
REFUSALS = [*NAMES, *AGENTS, *WORKFLOWS, *ADAPTERS, *LEARNING, *ROLLOUTS, *ENGINES]
ids = [" ".join(each.given) for each in REFUSALS]


def refused(given: Sequence[str], base: dict[str, Any] = DUO) -> tuple[str, BaseException]:
    """The line, and what was raised inside the config."""
    with pytest.raises(MarftError) as caught:
        read(given, base)
    inside = caught.value.__context__
    assert isinstance(inside, ValidationError)
    [cause] = [each["ctx"]["error"] for each in inside.errors()][:1]
    return checked(str(caught.value)), cause


@pytest.mark.parametrize("case", REFUSALS, ids=ids)
def test_it_is_refused_with_a_reason_and_a_way_out(case: Refusal) -> None:
    line, _ = refused(case.given)
    assert line.startswith(f"{case.key}: ")
    assert case.why in line
    assert "; " in line


@pytest.mark.parametrize("case", REFUSALS, ids=ids)
def test_its_neighbours_are_allowed(case: Refusal) -> None:
    for given in case.allowed:
        read(given)


@pytest.mark.parametrize(("workflow", "role"), [("debate", "a judge"), ("orchestrated", "an orchestrator")])
def test_workflows_for_two(workflow: str, role: str) -> None:
    line, _ = refused([f"team.workflow={workflow}"], ALONE)
    assert line == f"team.workflow: {workflow} needs {role} and somebody else; list two agents or more"
    for other in ("sequential", "vote", "rounds", "m:f"):
        read([f"team.workflow={other}"], ALONE)
    read(["team.workflow=dag", f"{A}.sees=[]"], ALONE)


@pytest.mark.parametrize("word", ["nobody", "everyone"])
def test_words_of_an_orchestrator(word: str) -> None:
    team: dict[str, Any] = {"workflow": "orchestrated", "agents": {"a": "One.", word: "Two."}}
    line, _ = refused([], {**DUO, "team": team})
    assert line == f"team.agents.{word}: the orchestrator's word for whom an agent sees; choose another"
    read([], {**DUO, "team": {**team, "agents": {word: "One.", "a": "Two."}}})  # the orchestrator itself is never named


def refusals_in_the_source() -> Iterator[tuple[str, int]]:
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id="ValueError"))):
                    yield path.name, node.lineno


def test_every_refusal_has_a_case() -> None:
    seen = set()
    for given, base in [*((case.given, DUO) for case in REFUSALS), (["team.workflow=debate"], ALONE)]:
        step = refused(given, base)[1].__traceback__
        while step is not None:
            seen.add((Path(step.tb_frame.f_code.co_filename).name, step.tb_lineno))
            step = step.tb_next
    missing = set(refusals_in_the_source()) - seen
    assert not missing


def test_a_team_that_does_not_learn_can_be_evaluated() -> None:
    config = read([f"{A}.trainable=false", f"{B}.script=m:f"])
    assert config.team.trained == {}


@pytest.mark.parametrize(
    ("given", "critics"),
    [([], "shared"), (["algorithm=grpo"], "none"), (["critic=per_agent"], "per_agent"), (["algorithm=rae", "critic=none"], "none")],
)  # fmt: skip
def test_the_critics_mode_is_spelled_out(given: list[str], critics: str) -> None:
    assert read(given).critics == critics


@pytest.mark.parametrize(
    ("given", "kept"),
    [([], 0), (["engine.keep=7"], 7), (["team.workflow=rounds"], 1024), (["team.workflow=rounds", "engine.keep=0"], 0),
     (["team.workflow=m:f"], 1024), (["team.workflow=vote"], 0), ([f"{A}.tools=[calculator]"], 1024),
     ([f"{A}.adapter=one"], 0), ([f"{A}.adapter=one", f"{B}.adapter=one"], 1024),
     ([f"{A}.trainable=false"], 0), ([f"{A}.trainable=false", f"{A}.model=other"], 0)],
)  # fmt: skip
def test_keys_are_kept_where_an_adapter_speaks_again(given: list[str], kept: int) -> None:
    assert read(given).kept_turns == kept


@pytest.mark.parametrize(
    ("given", "compares"),
    [([], False), (["engine.mismatch=true"], True), (["algorithm.correction=2"], True), (["engine.name=vllm"], True),
     (["train.lag=1"], False), (["train.lag=2"], True), (["train.lag=2", "algorithm.correction=null"], False)],
)  # fmt: skip
def test_whether_log_probs_are_compared(given: list[str], compares: bool) -> None:
    assert read(given).compares is compares


@pytest.mark.parametrize(
    ("given", "correction"),
    [([], None), (["train.lag=1"], None), (["train.lag=2"], 2.0), (["train.lag=4", "algorithm.correction=auto"], 2.0),
     (["engine.name=vllm"], None), (["algorithm.correction=1.5"], 1.5), (["train.lag=1", "algorithm.correction=5"], 5.0),
     (["train.lag=2", "algorithm.correction=null"], None)],
)  # fmt: skip
def test_the_correction_is_spelled_out(given: list[str], correction: float | None) -> None:
    assert read(given).correction == correction


@pytest.mark.parametrize(
    ("given", "beta1"),
    [([], 0.9), (["train.lag=1"], 0.5), (["train.lag=1", "optimizer.beta1=0"], 0.0), (["optimizer.beta1=0.8"], 0.8)],
)
def test_the_momentum_is_spelled_out(given: list[str], beta1: float) -> None:
    assert read(given).beta1 == beta1


def test_the_correction_was_an_engine_s() -> None:
    with pytest.raises(MarftError, match=r"^unknown key 'engine.correction'; did you mean 'algorithm.correction'\?$"):
        read(["engine.correction=2"])
