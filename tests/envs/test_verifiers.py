"""Environments of verifiers, with the real package: its own rollouts at our endpoint, its own scoring, and what may fail."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from voices import Voice, in_turn, run, team

from marft.api import train
from marft.config.team import ProgramConfig
from marft.envs import make_env
from marft.envs.verifiers import Verifiers
from marft.envs.verifiers.episode import result_of, serve
from marft.envs.verifiers.library import Source, cast_roles
from marft.programs.workflow import ProgramWorkflow
from marft.types import Ended, Episode, MarftError, Reward

TASKSETS = Path(__file__).parent / "verifiers_tasksets"
MULTIPLY = '<tool_call>\n{"name": "desk_multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


@pytest.fixture(scope="module")
def tasksets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tasksets that every process can import, and the file in which their scoring writes."""
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    folder = tmp_path_factory.mktemp("verifiers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TASKSETS))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TASKSETS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("VF_SCORES", str(folder / "scores"))
        patch.chdir(folder)
        yield folder / "scores"


@pytest.fixture(scope="module")
def workflow(tasksets: Path) -> Iterator[ProgramWorkflow]:
    """The program, in one process for all tests: it takes seconds to import."""
    made = ProgramWorkflow(ProgramConfig(function="marft.envs.verifiers:play", deadline=120))
    yield made
    made.close()


def made(**settings: Any) -> Verifiers:
    env = make_env("verifiers", settings)
    assert isinstance(env, Verifiers)
    return env


def played(
    workflow: ProgramWorkflow,
    env: Verifiers,
    *texts: str,
    agents: tuple[str, ...] = ("solver",),
    ended: Ended = "terminated",
) -> tuple[Episode, Voice]:
    """An episode of the first task, in which these texts are said, one after the other."""
    voice = Voice(in_turn(*texts))
    return run(team(*agents, voice=voice), workflow, env=env, task=env.tasks("train")[0], ended=ended), voice


def scores(path: Path) -> list[tuple[str, str, float]]:
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def test_one_message(workflow: ProgramWorkflow, tasksets: Path) -> None:
    env = made(environment="vf_sums", arguments={"taskset": {"highest": 20}})
    assert len(env.tasks("train")) + len(env.tasks("test")) == 20
    episode, voice = played(workflow, env, "a 12 e 34")
    assert episode.reward == Reward(team=0.875, parts={"digits": 1.0, "vowels": -0.125})
    assert scores(tasksets)[-2:] == [("digits", "a 12 e 34", 0.5), ("vowels", "a 12 e 34", 0.25)]
    assert [turn.agent for turn in episode.turns] == ["solver", "program"]
    assert [message.content for message in voice.requests[0].messages] == [env.tasks("train")[0].prompt]


def test_several_turns(workflow: ProgramWorkflow) -> None:
    """The environment's own user speaks between the agent's turns, and each of them is one of the episode."""
    episode, voice = played(workflow, made(environment="vf_talk"), "a long answer", "shorter", "short")
    assert [(turn.agent, turn.text) for turn in episode.turns] == [
        ("solver", "a long answer"), ("solver", "shorter"), ("solver", "short"), ("program", "short"),
    ]  # fmt: skip
    assert [(m.role, m.content) for m in voice.requests[2].messages][2:] == [
        ("assistant", "a long answer"),
        ("user", "That had 13 letters. Shorter."),
        ("assistant", "shorter"),
        ("user", "That had 7 letters. Shorter."),
    ]
    assert episode.reward == Reward(team=3 + 0.25 * 8, parts={"turns": 3.0, "brevity": 2.0})


@pytest.mark.parametrize("environment", ["vf_tools", "vf_shared_tools"])
def test_tools(workflow: ProgramWorkflow, environment: str) -> None:
    """The agent calls a tool of the environment's, which runs in a server of verifiers'."""
    env = made(environment=environment)
    tasks = [*env.tasks("train"), *env.tasks("test")]
    answer = next(task for task in tasks if "6 times 7" in task.prompt)
    voice = Voice(in_turn(MULTIPLY, "It is 42."))
    episode = run(team("solver", voice=voice), workflow, env=env, task=answer)
    assert episode.error is None
    assert [turn.agent for turn in episode.turns] == ["solver", "solver", "program"]
    assert "desk_multiply" in episode.turns[0].chat.tools[0]
    assert "the product is 42" in voice.requests[1].messages[-1].content
    assert episode.reward == Reward(team=1.5, parts={"right": 1.0, "used": 0.5})


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("raise", "TaskError: task Fragile scoring: KeyError: 'brittle'"),
        ("nan", "gave a reward of nan"),
        ("huge", "rewards lie within ±1e+12"),
    ],
)
def test_scoring_that_fails_is_a_failed_episode(workflow: ProgramWorkflow, said: str, complaint: str) -> None:
    episode, _ = played(workflow, made(environment="vf_broken", size=20), said, ended="failed")
    assert episode.fault == "workflow"
    assert episode.error is not None
    assert complaint in episode.error


def test_roles_are_agents(workflow: ProgramWorkflow) -> None:
    env = made(environment="vf_pair", agents={"writer": "author"})
    episode, voice = played(workflow, env, "12345", "bad", agents=("critic", "author"))
    assert [(turn.agent, turn.text) for turn in episode.turns] == [
        ("author", "12345"), ("critic", "bad"), ("program", "bad"),
    ]  # fmt: skip
    assert voice.requests[1].messages[-1].content == "Judge: 12345"
    assert episode.reward == Reward(
        team=4.0, parts={"writer/length": 2.5, "critic/harsh": 1.5}, turns={0: 5.0, 1: 3.0, 2: 0.0}, itemised=True
    )
    failed, _ = played(workflow, made(environment="vf_pair"), agents=("critic", "author"), ended="failed")
    assert "env.agents: nobody plays 'writer'" in (failed.error or "")


class Provider(BaseHTTPRequestHandler):
    """A model of somebody else, who finds everything bad."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": "bad"}}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "stranger", "choices": [choice]}
        said = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_a_role_with_a_model_of_its_own_counts_for_nothing(workflow: ProgramWorkflow, provider: str) -> None:
    critic = {"model": "stranger", "client": {"type": "eval", "base_url": provider, "api_key_var": "VF_SCORES"}}
    env = made(environment="vf_pair", arguments={"critic": critic})
    episode, _ = played(workflow, env, "12345", agents=("writer",))
    assert [(turn.agent, turn.text) for turn in episode.turns] == [("writer", "12345"), ("program", "12345")]
    assert episode.reward == Reward(team=5.0, parts={"length": 5.0})


def trace(role: str, model: str, reward: float, trainable: bool = True) -> SimpleNamespace:
    agent = SimpleNamespace(name=role, trainable=trainable, config=SimpleNamespace(model=model))
    rewards = {"score": SimpleNamespace(value=reward)}
    return SimpleNamespace(agent=agent, reward=reward, rewards=rewards, last_reply=role, errors=[])


@pytest.mark.parametrize(
    ("traces", "result"),
    [
        (
            [trace("writer", "ann", 5.0), trace("critic", "stranger", 1.0)],
            {"reward": 5.0, "parts": {"score": 5.0}, "answer": "writer"},
        ),
        (
            [trace("writer", "ann", 5.0, trainable=False), trace("critic", "stranger", 1.0)],
            {"reward": 5.0, "parts": {"score": 5.0}, "answer": "writer"},
        ),
        (
            [trace("writer", "ann", 5.0), trace("judge", "stranger", 9.0), trace("critic", "bob", 1.0)],
            {
                "reward": 3.0, "parts": {"writer/score": 2.5, "critic/score": 0.5}, "answer": "critic",
                "agents": {"ann": 5.0, "bob": 1.0},
            },
        ),
        (
            [trace("writer", "stranger", 5.0), trace("critic", "another", 1.0)],
            {"reward": 3.0, "parts": {"writer/score": 2.5, "critic/score": 0.5}, "answer": "critic"},
        ),
    ],
)  # fmt: skip
def test_whose_traces_count(traces: list[SimpleNamespace], result: dict[str, Any]) -> None:
    assert result_of(SimpleNamespace(ok=True, traces=traces, errors=[]), ["ann", "bob"]) == result


def test_a_start_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: Iterator[Any] = iter([RuntimeError("no port is free"), "up"])

    async def start(source: Source, agents: Sequence[str]) -> Any:
        if isinstance(outcome := next(outcomes), Exception):
            raise outcome
        return outcome

    async def serve_three_times() -> list[Any]:
        source = Source(environment="vf_sums", arguments={}, size=None, agents={})
        return [
            *await asyncio.gather(serve(source, ["ann"]), return_exceptions=True),
            await serve(source, ["ann"]),
            await serve(source, ["ann"]),
        ]

    monkeypatch.setattr("marft.envs.verifiers.episode.start", start)
    monkeypatch.setattr("marft.envs.verifiers.episode.SERVED", {})
    failed, *served = asyncio.run(serve_three_times())
    assert str(failed) == "no port is free"
    assert served == ["up", "up"]


@pytest.mark.parametrize(
    ("roles", "agents", "team", "cast"),
    [
        (["agent"], {}, ["solver", "other"], {"agent": "solver"}),
        (["agent"], {}, ["solver", "agent"], {"agent": "agent"}),
        (["agent"], {"agent": "other"}, ["solver", "other"], {"agent": "other"}),
        (["a", "b"], {"b": "c"}, ["c", "a"], {"a": "a", "b": "c"}),
        (["a", "b"], {}, ["a", "c"], "env.agents: nobody plays 'b'; say who with env.agents={b: a}, or give it"),
        (["a"], {"b": "c"}, ["c"], "env.agents: there is no role 'b'; the environment has a"),
    ],
)
def test_who_plays_which_role(roles: list[str], agents: dict[str, str], team: list[str], cast: Any) -> None:
    if isinstance(cast, dict):
        assert cast_roles(roles, agents, team) == cast
    else:
        with pytest.raises(MarftError) as error:
            cast_roles(roles, agents, team)
        assert str(error.value).startswith(cast)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "env.environment is missing; verifiers needs it"),
        ({"environment": 3}, "env: environment must be the name of a taskset's package, not 3"),
        ({"environment": "vf_sums", "arguments": 3}, "env: arguments must be a mapping"),
        ({"environment": "vf_sums", "size": 1}, "env: size must be a whole number of at least 2, not 1"),
        ({"environment": "vf_sums", "held_out": 1}, "env: held_out must be a share between 0 and 1"),
        ({"environment": "vf_sums", "agents": {"agent": 1}}, "env: agents must say which agent plays which role"),
        ({"environment": "vf_nothing"}, "env.environment: vf_nothing: taskset 'vf_nothing' not found"),
        (
            {"environment": "vf_broken"},
            "env.environment: vf_broken has tasks without end; say how many with env.size=N",
        ),
        ({"environment": "vf_sums", "arguments": {"taskset": {"hihgest": 3}}}, "env.environment: vf_sums: .*hihgest"),
    ],
)
def test_bad_settings_are_one_line(tasksets: Path, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MarftError, match=complaint) as error:
        made(**settings).tasks("train")
    assert "\n" not in str(error.value)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.envs.verifiers.library.find_spec", lambda name: None)
    with pytest.raises(MarftError, match="pip install 'marft\\[verifiers\\]'"):
        made(environment="vf_sums")


def test_another_workflow_is_told_which_one_it_takes(tasksets: Path) -> None:
    env = made(environment="vf_sums")
    with pytest.raises(MarftError, match=r"team\.program\.function=marft\.envs\.verifiers:play"):
        env.reward(env.reset(env.tasks("train")[0]))


@pytest.mark.parametrize("environment", ["vf_talk", "vf_shared_tools"])
def test_nano_is_trained_with_its_own_scoring(tasksets: Path, tmp_path: Path, environment: str) -> None:
    """Every episode's reward, and each part of it, is one that verifiers' scoring gave for these very words."""
    config: dict[str, Any] = {
        "model": "nano", "device": "cpu", "algorithm": "grpo", "lora": {"rank": 4}, "eval": {"tasks": 0},
        "env": {"name": "verifiers", "environment": environment},
        "workflow": "program",
        "team": {"program": {"function": "marft.envs.verifiers:play", "deadline": 120}},
        "agents": {"solver": {"prompt": "", "max_tokens": 8}},
        "train": {"iterations": 2, "tasks": 2, "samples": 2, "minibatches": 1},
    }  # fmt: skip
    train(run=tmp_path / "run", **config)
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    weights = {"turns": 1.0, "brevity": 0.25, "right": 1.0, "used": 0.5}
    given = Counter((name, text, value * weights[name]) for name, text, value in scores(tasksets) if name in weights)
    episodes = [json.loads(line) for line in (tmp_path / "run/episodes.jsonl").read_text().splitlines()]
    assert [row["failed"] for row in rows] == [0, 0]
    assert len(episodes) == 8
    for episode in episodes:
        assert episode["reward"] == pytest.approx(sum(episode["parts"].values()))
        said = episode["turns"][-1]["text"]
        assert all(given[name, said, value] for name, value in episode["parts"].items())
    for row in rows:
        assert row["reward"] == pytest.approx(sum(row["reward_parts"].values()))
        assert row["agents"]["solver"]["grad_norm"] >= 0
