"""A run without training: everything is resolved, one episode is played by stand-ins, and all that agents would read is
printed. No weights are loaded and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from textwrap import indent

from marft.commands.prompts import prompt_parts
from marft.commands.train import require_learner
from marft.config import Config
from marft.envs.base import Split
from marft.envs.hosting import Host
from marft.evaluation.benchmarks import benchmarks_of, read_held_out_tasks
from marft.files import is_folder
from marft.game.agent import Agent, TextEngine
from marft.game.lockstep import Lockstep
from marft.models.loading import TokenizerInfo, pick_device, pick_dtype, read_tokenizer
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import EpisodeRunner, Start
from marft.terminal import say
from marft.terminal.status import Status
from marft.training.agents import OpenTools, make_agent, make_agent_engine
from marft.training.build import (
    adapter_of,
    adapter_spec,
    base_names,
    describe_limits,
    make_workflow,
    model_of,
    open_host,
)
from marft.types import PLAIN_CHAT, ChatOptions, Completion, Episode, MarftError, Message, Request, Turn

FIRST: dict[str, Split] = {"first task for training": "train", "first held-out task": "test"}
WHOLE = 16  # turns printed in full; long games follow with a line each
MARGIN = "  "


class StandIn:
    """Speaks for an agent: first what it has to say for the team to come to an end, then always the same."""

    def __init__(
        self, name: str, encode: Callable[[Sequence[Message], ChatOptions], tuple[int, ...]], decisions: Iterator[str]
    ) -> None:
        self._encode, self.decisions, self.usual = encode, decisions, f"(what {name} says)"

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """As the agent's own engine would."""
        return self._encode(messages, options)

    async def generate(self, request: Request) -> Completion:
        """The next fixed text, without tokens or log-probs."""
        text = next(self.decisions, self.usual)
        return Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)


def dry_run(config: Config, status: Status | None = None) -> None:
    """Prints what training would begin with."""
    status = status or Status()
    require_learner(config)
    check_adapters(config)
    pick_dtype(config.dtype, pick_device(config.device))
    workflow = make_workflow(config)
    lockstep = Lockstep()
    status.begin(f"preparing the environment {config.env.name} and its tasks")
    with (
        open_host(config.env, lockstep) as host,
        closing(OpenTools(config.team.agents, lockstep)) as tools,
        ExitStack() as stack,
    ):
        stack.callback(getattr(workflow, "close", lambda: None))
        train = host.tasks("train")
        tokenizers: dict[str, TokenizerInfo] = {}
        for name in base_names(config):
            status.begin(f"reading the tokenizer of {name}")
            tokenizers[name] = read_tokenizer(name)
        team = {name: make_stand_in(config, name, tokenizers, tools) for name in config.team.agents}
        runner = EpisodeRunner(team=team, host=host, workflow=workflow)
        [episode] = run_async(runner.episodes([Start(task=train[0], sample=0)], f"{config.seed}/dry"))
        others = [
            f"benchmark  {name}: {len(read_held_out_tasks(name, env)):,} tasks"
            for name, env in benchmarks_of(config).items()
        ]
        status.rest()
        for line in (*describe_run(config, tokenizers, host, episode, team), *others, ""):
            say(line)
        for what, split in FIRST.items() if config.eval.tasks else [*FIRST.items()][:1]:
            task = host.tasks(split)[0]
            say(f"{what} ({task.id}):\n{indent(task.prompt, MARGIN)}\n")
    for turn in episode.turns:
        print_turn(turn, config, tokenizers)
    if episode.error:
        raise MarftError(f"the episode failed: {episode.error}", episode.trace)
    say(f"the environment: {describe_outcome(episode)}\ndry run: nothing was trained or written")


# --- resolving -------------------------------------------------------------------------------------------------------
def check_adapters(config: Config) -> None:
    """Adapters that agents bring along are there."""
    if config.init_from and not is_folder(Path(config.init_from)):
        raise MarftError(f"init_from: {config.init_from} is neither a run nor a folder of adapters")
    for name, agent in config.team.agents.items():
        if agent.init_from and (adapter := adapter_of(config, name)):
            adapter_spec(config, adapter, agent, None)


def make_stand_in(config: Config, name: str, tokenizers: Mapping[str, TokenizerInfo], tools: OpenTools) -> Agent:
    """The agent as in a run, but with an engine that says fixed texts; a script speaks for itself."""
    agent, told = config.team.agents[name], scripted_decisions(config, name)
    engine: TextEngine | None = make_agent_engine(agent)
    chat = tokenizers[model_of(config, name)].chat if engine is None else None
    if chat is not None:
        engine = StandIn(name, chat.encode, told)
    elif engine is not None and agent.kind == "remote":
        engine = StandIn(name, engine.encode, told)
    assert engine is not None
    return make_agent(config, name, adapter_of(config, name), engine, tools.by_agent[name], chat)


def scripted_decisions(config: Config, name: str) -> Iterator[str]:
    """An orchestrator calls everybody once, and is done; others have nothing to decide."""
    boss, *workers = config.team.agents
    if config.team.workflow != "orchestrated" or name != boss:
        return iter(())
    return iter([*(f"Next: {worker}" for worker in workers), "Done"])


# --- telling ---------------------------------------------------------------------------------------------------------
def describe_run(
    config: Config, tokenizers: Mapping[str, TokenizerInfo], host: Host, episode: Episode, team: Mapping[str, Agent]
) -> Iterator[str]:
    """A line each for models, environment, team, algorithm and the size of an iteration."""
    for name, tokenizer in tokenizers.items():
        yield f"model      {name}: {tokenizer.words:,} tokens in its vocabulary, {tokenizer.longest:,} at most to read and say"
        if line := describe_limits(config, name, tokenizer.longest):
            yield f"warning    {line}"
    settings = "".join(f" {key}={value}" for key, value in config.env.settings.items())
    held_out = f"{len(host.tasks('test')):,} held out" if config.eval.tasks else "no evaluation"
    sizes = f"{len(host.tasks('train')):,} tasks for training, {held_out}"
    yield f"env        {config.env.name}{settings}: {sizes}"
    yield f"team       {config.team.workflow}: {', '.join(describe_agent(config, name) for name in config.team.agents)}"
    yield (
        f"algorithm  {config.algorithm.name}, credit {config.credit.name}, critic {config.critics}, "
        f"schedule {config.schedule.mode}"
    )
    ours = {name for name, agent in config.team.agents.items() if agent.kind in ("trained", "frozen")}
    most = sum(team[turn.agent].sampling.max_tokens for turn in episode.turns if turn.agent in ours)
    train = config.train
    yield (
        f"iteration  {train.tasks} tasks × {train.samples} samples; episodes like the one below generate at most "
        f"{train.tasks * train.samples * most:,} tokens; {train.iterations} iterations"
    )


def describe_agent(config: Config, name: str) -> str:
    """`solver (64 tokens, uses calculator)`, or an agent's kind where it is not trained."""
    agent = config.team.agents[name]
    told = f"{agent.max_tokens} tokens" if agent.kind == "trained" else agent.kind
    named = [tool if isinstance(tool, str) else tool.mcp for tool in agent.tools]
    tools = f", uses {' and '.join(named)}" if named else ""
    return f"{name} ({told}{tools})"


def print_turn(turn: Turn, config: Config, tokenizers: Mapping[str, TokenizerInfo]) -> None:
    """Print one turn: the messages that the agent reads, and what it says."""
    ours = turn.agent in config.team.agents and config.team.agents[turn.agent].kind in ("trained", "frozen")
    count = f" reads {len(turn.prompt_ids):,} tokens" if ours else ""
    if turn.index >= WHOLE:
        say(f"turn {turn.index}: {turn.agent}{count} and says: {turn.text}")
        return
    say(f"turn {turn.index}: {turn.agent}{count}")
    for kind, text in prompt_parts(turn):
        say(f"  [{kind}]\n{indent(text, MARGIN)}")
    say(f"  says: {turn.text}\n")
    if ours and len(turn.prompt_ids) >= (longest := tokenizers[model_of(config, turn.agent)].longest):
        say(f"  note: the model can take in {longest:,} tokens; this turn would fail\n")


def describe_outcome(episode: Episode) -> str:
    """The episode's reward, whether it is right, and how it ended."""
    reward = episode.reward
    right = {None: "", True: ", right", False: ", wrong"}[reward.correct]
    turns = f", of single turns {dict(reward.turns)}" if reward.turns else ""
    cut = f", cut off before {episode.cut_before}" if episode.cut_before else ""
    return f"reward {reward.team:g}{right}{turns}{'' if reward.done else ', not done'}{cut}"
