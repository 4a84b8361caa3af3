"""The team: its agents, what each is made of, who sees whom, and the workflow."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from marft.config.section import Function, Name, Section, Text, check_class, check_function, nearest
from marft.types import MAX_TURNS, Sampling

Kind = Literal["trained", "frozen", "scripted", "remote"]

# What each built-in workflow may be told.
WORKFLOWS: Mapping[str, frozenset[str]] = {
    "sequential": frozenset(),
    "dag": frozenset(),
    "debate": frozenset({"rounds"}),
    "vote": frozenset({"votes"}),
    "orchestrated": frozenset({"steps"}),
    "rounds": frozenset({"rounds"}),
    "turns": frozenset(),
    "program": frozenset({"program"}),
}
TOOLS = ("calculator", "python")


def check_url(url: str, key: str = "key_env") -> str:
    """Never quotes the address: it may hold what nobody should read. `key` is where a key belongs."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("not an endpoint's address; write it like https://api.openai.com/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"a login, ?… or #… in it would be saved with the run; drop it and give the key by {key}")
    return url


def check_variable(name: str) -> str:
    """Never quotes the name: it may be the key itself. Most keys have small letters, and few variables do."""
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
        raise ValueError(
            "not an environment variable in capitals; put the key into one, and its name (OPENAI_API_KEY) here"
        )
    return name


class RemoteConfig(Section):
    """An OpenAI-compatible endpoint. The key stays in the environment: the config knows only the variable's name."""

    url: Annotated[str, AfterValidator(check_url)]
    model: Text
    key_env: Annotated[str, AfterValidator(check_variable)] | None = None
    timeout: Annotated[float, Field(gt=0)] = 60.0  # seconds, of one request
    retries: Annotated[int, Field(ge=0)] = 4


class ServerConfig(Section):
    """An MCP server, all of whose tools are offered: a command line that starts one, or its HTTP address."""

    mcp: Text

    @field_validator("mcp")
    @classmethod
    def check_address(cls, mcp: str) -> str:
        """Raise a ValueError for what is neither."""
        if mcp.startswith(("http://", "https://")):
            return check_url(mcp, "a variable that the server reads")
        try:
            words = shlex.split(mcp)
        except ValueError as error:
            raise ValueError(f"not a command line: {str(error).lower()}; close it") from None
        if not words:
            raise ValueError("not a command line; write it like python server.py, or http://127.0.0.1:8000/mcp")
        return mcp


ToolConfig = Annotated[
    Annotated[str, check_class(*TOOLS), Tag("[name]")] | Annotated[ServerConfig, Tag("[server]")],
    Discriminator(lambda given: "[server]" if isinstance(given, Mapping | ServerConfig) else "[name]"),
]


def check_inline_call(form: str) -> str:
    """Raise a ValueError where it does not say what stands around a call."""
    if form.count("{text}") != 1 or form.endswith("{text}"):
        raise ValueError(f"{form!r} does not say where a call ends; write it like '<<{{text}}=' or '{{text}}='")
    return form


InlineCallText = Annotated[str, AfterValidator(check_inline_call)]


class AgentConfig(Section):
    """One agent's profile: what it is told, what it sees, how it speaks, and what of it is trained."""

    prompt: str = ""
    sees: tuple[str, ...] | None = None  # None: every predecessor
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    max_tokens: Annotated[int, Field(ge=1)] = 64
    stop: tuple[Text, ...] = ()
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)  # enable_thinking, …
    tools: tuple[ToolConfig, ...] = ()
    calls: Annotated[int, Field(ge=1)] | None = None  # of its tools, most in one turn; None: 4
    inline_call: InlineCallText | None = None  # "<<{text}=": how it calls its only tool in the middle of a message
    tool_deadline: Annotated[float, Field(gt=0)] | None = None  # seconds of a call; None: 30
    trainable: bool | None = None  # None: where it has weights of ours
    adapter: Name | None = None  # None: its own; agents that name the same one share it
    rank: Annotated[int, Field(ge=1)] | None = None  # None: lora.rank
    lr: Annotated[float, Field(gt=0)] | None = None  # None: optimizer.lr
    init_from: Text | None = None  # a folder with an adapter in PEFT's format to start from, or to stay with
    model: Text | None = None  # another base model than the team's
    script: Function | None = None  # that speaks for it
    remote: RemoteConfig | None = None

    @property
    def sampling(self) -> Sampling:
        """How the agent's tokens are sampled, without the stop strings of its tools."""
        return Sampling(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, max_tokens=self.max_tokens, stop=self.stop
        )

    @property
    def kind(self) -> Kind:
        """Who speaks for the agent: a script, a remote endpoint, or a base of ours that learns or is frozen."""
        if self.script is not None:
            return "scripted"
        if self.remote is not None:
            return "remote"
        return "frozen" if self.trainable is False else "trained"

    @model_validator(mode="after")
    def check(self) -> AgentConfig:
        """Raise a ValueError where settings contradict one another or would have no effect."""
        if "prompt" not in self.model_fields_set and self.script is None:
            raise ValueError('prompt: is missing; say what this agent is told, or "" for nothing')
        if self.script is not None and self.remote is not None:
            raise ValueError("script: either a script or an endpoint speaks for an agent; drop script or remote")
        if self.calls is not None and not self.tools:
            raise ValueError("calls: it has no tools to call; drop calls or give tools: [calculator]")
        if self.tool_deadline is not None and not self.tools:
            raise ValueError("tool_deadline: it has no tools to call; drop it or give tools: [calculator]")
        if self.inline_call is not None and (len(self.tools) != 1 or self.kind in ("scripted", "remote")):
            raise ValueError("inline_call: it needs one tool, and a model of ours to go on behind the answer; drop it")
        if len(set(self.tools)) < len(self.tools):
            raise ValueError("tools: one of them comes twice; name each once")
        self._check_weights()
        self._check_sampling()
        return self

    def _check_weights(self) -> None:
        if self.kind in ("scripted", "remote"):
            for key in ("adapter", "rank", "lr", "init_from", "model", "chat_template_kwargs"):
                if getattr(self, key):
                    raise ValueError(f"{key}: a {self.kind} agent has no weights of ours; drop {key}")
            if self.trainable:
                raise ValueError(f"trainable: a {self.kind} agent has no weights of ours to train; drop trainable")
        if self.kind == "frozen" and self.lr is not None:
            raise ValueError("lr: a frozen agent does not learn; drop lr or trainable: false")
        if self.kind == "frozen" and self.rank is not None:
            raise ValueError("rank: a frozen agent's adapter has the rank it was saved with; drop rank")

    def _check_sampling(self) -> None:
        for key, off in (("temperature", 1), ("top_p", 1), ("top_k", 0), ("max_tokens", 64)):
            if self.kind == "scripted" and getattr(self, key) != off:
                raise ValueError(f"{key}: a script is not sampled from and would ignore it; drop {key}")
        if self.kind == "remote" and self.top_k:
            raise ValueError("top_k: OpenAI's protocol has none; drop top_k or use top_p")
        for key in truncations(self.top_p, self.top_k):
            if self.kind == "trained":
                raise ValueError(
                    f"{key}: an agent is trained on the distribution it samples from, and a truncated one gives "
                    f"probability 0 to tokens it could learn; use eval.{key}, or trainable: false"
                )
            if not self.temperature:
                raise ValueError(f"{key}: temperature 0 takes the likeliest token and would ignore it; drop {key}")
        if self.kind == "trained" and not self.temperature:
            raise ValueError(
                "temperature: an agent that never tries another token learns nothing; use eval.temperature=0, or "
                "trainable: false"
            )


def truncations(top_p: float | None, top_k: int | None) -> list[str]:
    """Which of the two leave tokens out."""
    return [*(["top_p"] if top_p not in (None, 1) else []), *(["top_k"] if top_k else [])]


class ProgramConfig(Section):
    """A program that plays the episodes by asking an endpoint: a function or a command line."""

    function: Function | None = None  # async, or plain: then in a process of its own
    cmd: Text | None = None
    deadline: Annotated[float, Field(gt=0)] = 300.0  # seconds of one episode

    @model_validator(mode="after")
    def check(self) -> ProgramConfig:
        """Raise a ValueError where it is not one of the two."""
        if (self.function is None) == (self.cmd is None):
            raise ValueError("function: a program is a function or a cmd; give one of them")
        return self


class TeamConfig(Section):
    """The agents in order of play, and the workflow that decides who acts when."""

    workflow: str = "sequential"
    rounds: Annotated[int, Field(ge=1)] | None = None  # of debate and rounds
    votes: Annotated[int, Field(ge=1)] | None = None  # of each agent under vote
    steps: Annotated[int, Field(ge=1)] | None = None  # most turns that an orchestrator may give away
    program: ProgramConfig | None = None
    options: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of a workflow of your own
    anonymous: bool = False  # no role names, no system prompts: the ablation
    history: Literal["conversation", "flat", "shared"] = "flat"  # what an agent's earlier turns are to it
    agents: dict[Name, AgentConfig] = Field(min_length=1)

    @field_validator("workflow")
    @classmethod
    def check_workflow_name(cls, workflow: str) -> str:
        """Raise a ValueError for a workflow that is neither built in nor `package.module:function`."""
        if ":" in workflow:
            return check_function(workflow)
        if workflow not in WORKFLOWS:
            raise ValueError(
                f"unknown workflow {workflow!r}{nearest(workflow, WORKFLOWS)}; use {', '.join(WORKFLOWS)} or "
                "package.module:function"
            )
        return workflow

    @property
    def settings(self) -> dict[str, Any]:
        """What the workflow is told, where the config says it."""
        given = {"rounds": self.rounds, "votes": self.votes, "steps": self.steps}
        return {**{key: value for key, value in given.items() if value is not None}, **self.options}

    @property
    def trained(self) -> dict[str, str]:
        """Every agent that learns, and its adapter."""
        return {name: agent.adapter or name for name, agent in self.agents.items() if agent.kind == "trained"}

    @property
    def speaks_again(self) -> bool:
        """Whether an adapter, or the base alone, may be asked more than once in an episode, with prompts that differ."""
        ours = {name: agent for name, agent in self.agents.items() if agent.kind in ("trained", "frozen")}
        voices = {(agent.model, self.trained.get(name, agent.init_from)) for name, agent in ours.items()}
        return (
            self.workflow not in ("sequential", "dag", "vote")
            or any(agent.tools for agent in ours.values())
            or len(voices) < len(ours)
        )

    @model_validator(mode="after")
    def check(self) -> TeamConfig:
        """Raise a ValueError where the agents do not fit together or do not fit the workflow."""
        names = list(self.agents)
        if self.options and self.workflow in WORKFLOWS:
            raise ValueError(f"options: they are for a workflow of your own, and {self.workflow!r} has none; drop them")
        for key in ("rounds", "votes", "steps", "program"):
            if getattr(self, key) is not None and key not in WORKFLOWS.get(self.workflow, frozenset()):
                having = " and ".join(name for name, known in WORKFLOWS.items() if key in known)
                raise ValueError(f"{key}: it is for {having}, and {self.workflow!r} would ignore it; drop {key}")
        for name, agent in self.agents.items():
            for seen in agent.sees or ():
                if seen not in names:
                    raise ValueError(
                        f"agents.{name}.sees: unknown agent {seen!r}{nearest(seen, names)}; the team is {', '.join(names)}"
                    )
        self._check_workflow(names)
        self._check_turns(len(names))
        self._check_adapters()
        return self

    def _check_workflow(self, names: list[str]) -> None:
        sees = {name: agent.sees for name, agent in self.agents.items()}
        match self.workflow:
            case "sequential" | "rounds" if self.workflow == "sequential" or self.rounds == 1:
                for i, name in enumerate(names):
                    if late := [seen for seen in sees[name] or () if seen not in names[:i]]:
                        raise ValueError(
                            f"agents.{name}.sees: {late[0]!r} has said nothing by then; list it earlier or drop it"
                        )
            case "dag":
                if unsaid := [name for name in names if sees[name] is None]:
                    raise ValueError(
                        f"agents.{unsaid[0]}.sees: is missing, and a dag is made of it; give [] to those who begin"
                    )
                if cycle := find_cycle({name: seen or () for name, seen in sees.items()}):
                    raise ValueError(
                        f"agents.{cycle[0]}.sees: {' → '.join(cycle)} would wait for ever; drop one of these"
                    )
            case "debate":
                self._check_two(names, "a judge")
                if blind := [name for name in names if names[-1] in (sees[name] or ())]:
                    raise ValueError(f"agents.{blind[0]}.sees: {names[-1]!r} judges when all have spoken; drop it")
                if self.rounds == 1 and (blind := [name for name in names[:-1] if sees[name]]):
                    raise ValueError(f"agents.{blind[0]}.sees: in one round all debaters speak at once; drop sees")
            case "program":
                if self.program is None:
                    raise ValueError("program: is missing; say which with program.function or program.cmd")
                if "program" in names:
                    raise ValueError("agents.program: a program's answer is announced by this name; choose another")
            case "vote":
                if seeing := [name for name in names if sees[name]]:
                    raise ValueError(f"agents.{seeing[0]}.sees: voters do not see one another; drop sees")
                if "majority" in names:
                    raise ValueError("agents.majority: a vote's result is announced by this name; choose another")
            case "orchestrated":
                self._check_two(names, "an orchestrator")
                if words := [name for name in names[1:] if name in ("nobody", "everyone")]:
                    raise ValueError(
                        f"agents.{words[0]}: the orchestrator's word for whom an agent sees; choose another"
                    )
                if self.anonymous:
                    raise ValueError("anonymous: an orchestrator calls agents by their names; drop it")

    def _check_turns(self, count: int) -> None:
        turns = {"debate": (self.rounds or 2) * (count - 1) + 1, "vote": (self.votes or 1) * count + 1}
        turns["rounds"] = (self.rounds or 3) * count
        if turns.get(self.workflow, count) > MAX_TURNS:
            key = "votes" if self.workflow == "vote" else "rounds"
            raise ValueError(
                f"{key}: an episode would take {turns[self.workflow]} turns, and has at most {MAX_TURNS}; lower {key}"
            )

    def _check_two(self, names: list[str], role: str) -> None:
        if len(names) < 2:
            raise ValueError(f"workflow: {self.workflow} needs {role} and somebody else; list two agents or more")

    def _check_adapters(self) -> None:
        users: dict[str, list[str]] = {}
        for name, agent in self.agents.items():
            if agent.kind in ("trained", "frozen"):
                users.setdefault(agent.adapter or name, []).append(name)
        for adapter, (first, *others) in users.items():
            if adapter in self.agents and adapter not in users[adapter]:
                raise ValueError(
                    f"agents.{first}.adapter: the agent {adapter!r} does not speak with an adapter of that name; "
                    "choose another"
                )
            for other in others:
                one, two = self.agents[first], self.agents[other]
                same = {"trainable": one.kind == two.kind}
                same |= {key: getattr(one, key) == getattr(two, key) for key in ("rank", "lr", "init_from", "model")}
                for key in (key for key, agreed in same.items() if not agreed):
                    raise ValueError(
                        f"agents.{other}.{key}: {other!r} and {first!r} share an adapter; give both the same {key}"
                    )


def find_cycle(sees: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Agents that wait for one another, from one of them back to itself; empty where there is no cycle."""
    try:
        TopologicalSorter(sees).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # graphlib goes from the one who is waited for
    return []
