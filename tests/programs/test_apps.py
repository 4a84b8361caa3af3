"""Programs with other people's libraries, unchanged: what they ask is what every agent is trained on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import toys
from proxy import Proxy, counting
from quick import Silent, plays_of
from torch import Tensor
from transformers import PreTrainedModel
from voices import Voice, in_turn, run, team

from marft.config import load_config
from marft.config.team import ProgramConfig
from marft.evaluation.held_out import HeldOut
from marft.models.loading import load
from marft.models.peft_format import save_adapter
from marft.programs.workflow import ProgramWorkflow
from marft.rollouts.event_loop import one_loop
from marft.runs.directory import RunDirectory
from marft.training.build import assemble
from marft.training.loading import load_initial_adapters
from marft.training.metrics import Play
from marft.training.trainer import Trainer
from marft.types import Turn

ROOT = Path(__file__).parents[2]
NEEDS = {
    "openai": ("openai",),
    "langgraph": ("langgraph", "langchain_openai"),
    "agents": ("agents",),
    "smolagents": ("smolagents",),
    "ag2": ("ag2",),
}  # of each program, the packages
SMALL = (
    "env=toys:Echo", "algorithm=grpo", "device=cpu", "lora.rank=4", "train.iterations=2", "train.tasks=2",
    "train.samples=3", "train.minibatches=1", "team.agents.planner.max_tokens=8", "team.agents.solver.max_tokens=12",
    "eval.tasks=0", "track.tensorboard=false",
)  # fmt: skip
AGENTS = ("planner", "solver")
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that report to their makers do not; programs are found from the root, as from the command line."""
    for name in ("OPENAI_AGENTS_DISABLE_TRACING", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.chdir(ROOT)


def require(app: str) -> None:
    for package in NEEDS[app]:
        pytest.importorskip(package, reason=f"{package} is not installed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What was played and learnt, and with which adapters."""

    play: Play
    adapters: Path  # as they were while it was played

    @property
    def turns(self) -> list[Turn]:
        return [turn for episode in self.play.rollout.episodes for turn in episode.turns if turn.agent in AGENTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole training."""

    iterations: Sequence[Iteration]
    proxy: Proxy
    before: dict[str, dict[str, Tensor]]  # weights of each agent's adapter
    after: dict[str, dict[str, Tensor]]


def train(program: Sequence[str], path: Path) -> Run:
    config = load_config("examples/programs/openai.yaml", (*SMALL, *program))
    with counting() as proxy, one_loop(), assemble(config) as parts:
        load_initial_adapters(config, parts)
        [base] = parts.bases.values()
        trainer = Trainer(config, parts, RunDirectory(path), HeldOut(config, parts, ""), Silent())

        def weights() -> dict[str, dict[str, Tensor]]:
            adapters = {name: base.team.lora.adapter_parameters(name) for name in AGENTS}
            return {name: {key: p.detach().clone() for key, p in of.items()} for name, of in adapters.items()}

        before, iterations = weights(), []
        for number in range(config.train.iterations):
            folder = path / "adapters" / str(number)
            for name in AGENTS:
                save_adapter(base.team, name, folder / name)
            [play] = plays_of(trainer)
            iterations.append(Iteration(play=play, adapters=folder))
        return Run(iterations=iterations, proxy=proxy, before=before, after=weights())


def logprobs(model: PreTrainedModel, turn: Turn) -> Tensor:
    """What transformers alone makes of a turn's tokens."""
    said = turn.completion.token_ids
    ids = torch.tensor([[*turn.prompt_ids, *said]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, -len(said) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0]


def models_of(iteration: Iteration) -> Iterator[tuple[str, PreTrainedModel]]:
    """Each agent's model as PEFT puts it together."""
    peft = pytest.importorskip("peft", reason="peft, the oracle, is not installed")
    for name in AGENTS:
        base = load("nano", "cpu", "float32").model
        yield name, peft.PeftModel.from_pretrained(base, iteration.adapters / name).eval()


def check(trained: Run) -> None:
    """All that must be true of a program's training, whatever library it is written with."""
    plays = [iteration.play for iteration in trained.iterations]
    assert [e.error for play in plays for e in play.rollout.episodes if e.ended != "terminated"] == []
    asked = Counter(trained.proxy.asked)
    assert asked == Counter((turn.agent, 200) for iteration in trained.iterations for turn in iteration.turns)
    assert {model for model, _ in asked} == set(AGENTS)
    for iteration in trained.iterations:
        for name, model in models_of(iteration):
            for turn in iteration.turns:
                if turn.agent == name:
                    torch.testing.assert_close(
                        torch.tensor(turn.completion.logprobs), logprobs(model, turn), atol=1e-4, rtol=0
                    )
    for play in plays[:1]:
        batch, advantages_N = play.data.batch, play.data.estimate.advantages_N
        for place, member in enumerate(batch.members):
            own_N = batch.agent_K[batch.turn_N] == place
            assert advantages_N[own_N].abs().max() > 0, f"no reward has reached {member.agent}"
    moved = {
        name: torch.cat([(trained.after[name][key] - old).flatten() for key, old in of.items()])
        for name, of in trained.before.items()
    }
    assert all(steps.abs().max() > 0 for steps in moved.values())
    assert not torch.equal(moved["planner"], moved["solver"])


@pytest.mark.parametrize("app", NEEDS)
def test_a_program_is_trained_on_what_it_asked(app: str, tmp_path: Path) -> None:
    require(app)
    check(train([f"team.program.function=examples.programs.{app}_app:solve"], tmp_path))


def test_a_program_as_a_command(tmp_path: Path) -> None:
    require("openai")
    command = f"{sys.executable} examples/programs/openai_app.py"
    check(train([f"team.program={{function: null, cmd: '{command}'}}", "train.iterations=1"], tmp_path))


@pytest.mark.parametrize("app", [app for app in NEEDS if app != "openai"])
def test_the_tool_of_a_program(app: str) -> None:
    require(app)
    workflow = ProgramWorkflow(ProgramConfig(function=f"examples.programs.{app}_app:solve", deadline=60))
    voice = Voice(in_turn("Multiply 6 by 7.", CALL, "Answer: 42"))
    try:
        episode = run(team(*AGENTS, voice=voice), workflow, env=toys.Echo())
    finally:
        workflow.close()
    assert [turn.agent for turn in episode.turns] == ["planner", "solver", "solver", "program"]
    _, called, answered, said = episode.turns
    assert "Multiply 6 by 7." in called.observation[-1].content
    assert called.completion.text == CALL
    assert "42" in "".join(message.content for message in answered.observation[2:])  # what the tool gave
    assert said.text == "Answer: 42"
