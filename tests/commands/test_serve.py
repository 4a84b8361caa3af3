"""`marft serve`: what clients are answered is what the team plays; and how the command begins and ends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion
from toys import ECHO

from marft.cli import main
from marft.commands.listening import base_url, bind
from marft.commands.play import play_task
from marft.commands.serve import curl_command, describe_server, served_team, team_name
from marft.config import Config
from marft.engines.local import LocalEngine
from marft.evaluation.benchmarks import evaluation_runner
from marft.game.guarded_env import GuardedEnv
from marft.game.play import Game
from marft.models.chat import ChatFormat
from marft.models.scoring import action_span, hidden_states, logprobs
from marft.programs.served_team import make_server
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import Start
from marft.training.build import Assembly
from marft.training.loading import load_team
from marft.types import MarftError, Message, Turn

QUESTION = "Start with 17. Add 5. Multiply by 3."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
AGENTS = ("planner", "solver")
GREEDY = ["eval.temperature=0", "team.agents.planner.max_tokens=24", "team.agents.solver.max_tokens=32"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "duo-1"
    assert main(["train", *ECHO, "optimizer.lr=0.05", "--run", str(path)]) == 0
    return path


@contextmanager
def loaded(trained: Path, *words: str) -> Iterator[tuple[Config, Assembly]]:
    config, parts = load_team(str(trained), list(words))
    with parts:
        yield config, parts


@asynccontextmanager
async def client_of(config: Config, parts: Assembly) -> AsyncIterator[AsyncOpenAI]:
    with served_team(config, parts, "duo-1") as team, bind("127.0.0.1", 0) as bound:
        server = make_server(team, None)
        await server.listen(bound)
        try:
            async with AsyncOpenAI(base_url=base_url(bound), api_key="any", max_retries=0) as client:
                yield client
        finally:
            await server.close()


async def chat(config: Config, parts: Assembly, name: str, *, seed: int) -> Turn:
    """The same asked of the game itself."""
    with evaluation_runner(config, parts, config.env.name, None) as runner:
        task = runner.host.tasks("test")[0]
        env = GuardedEnv(runner.host)
        game = Game(task=task, team=runner.team, env=env, seed=f"{config.seed}/eval/yours/{seed}")
        return await game.chat(name, MESSAGES, aside=True)


def token_ids(answer: ChatCompletion) -> list[int]:
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    return [int(each.token.removeprefix("token_id:")) for each in found.content]


def token_logprobs(answer: ChatCompletion) -> torch.Tensor:
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    return torch.tensor([each.logprob for each in found.content])


def test_an_agent_answers_as_game_chat_does(trained: Path) -> None:
    with loaded(trained, *GREEDY[1:]) as (config, parts):
        base = parts.bases["nano"].team
        prompt = ChatFormat(base.tokenizer, base.end_ids).encode([Message(role="user", content=QUESTION)])

        async def play() -> None:
            async with client_of(config, parts) as client:
                for name in AGENTS:
                    for heat in (0.0, None):  # greedy, and the agent's own
                        answer = await client.chat.completions.create(
                            model=name,
                            messages=MESSAGES,
                            seed=3,
                            logprobs=True,
                            **({} if heat is None else {"temperature": 0}),
                        )
                        ids = token_ids(answer)
                        again = GREEDY if heat is not None else GREEDY[1:]
                        expected = await chat(config_of(trained, again), parts, name, seed=3)
                        assert tuple(ids) == expected.completion.token_ids
                        assert answer.choices[0].message.content == expected.text
                        assert answer.usage is not None
                        assert answer.usage.prompt_tokens == len(prompt)
                        if heat is None:
                            recomputed = recompute(base, name, prompt, tuple(ids))
                            torch.testing.assert_close(token_logprobs(answer), recomputed, atol=1e-4, rtol=0)

        run_async(play())


def config_of(trained: Path, words: list[str]) -> Config:
    from marft.runs.directory import RunDirectory
    from marft.training.loading import read_run_config

    return read_run_config(RunDirectory.open(trained), words)


def recompute(team: Any, adapter: str, prompt: tuple[int, ...], said: tuple[int, ...]) -> torch.Tensor:
    """The log-probs of an answer's tokens, of one pass over all of it."""
    with torch.no_grad():
        hidden = hidden_states(team, [action_span(adapter, prompt, said)])
        return logprobs(team, hidden, torch.tensor(said), torch.ones(len(said)))[0]


@pytest.mark.parametrize("words", [GREEDY, GREEDY[1:]], ids=["greedy", "sampled"])
def test_the_team_answers_as_it_plays(trained: Path, words: list[str]) -> None:
    with loaded(trained, *words) as (config, parts):
        episode = play_task(config, parts, prompt=QUESTION, sample=4).episode

        async def play() -> None:
            async with client_of(config, parts) as client:
                answer = await client.chat.completions.create(model="duo-1", messages=MESSAGES, seed=4, logprobs=True)
                planned, solved = episode.turns
                assert answer.choices[0].message.content == solved.text
                assert answer.choices[0].message.reasoning_content == f"planner: {planned.text}"  # type: ignore[attr-defined]
                assert tuple(token_ids(answer)) == solved.completion.token_ids

        run_async(play())


def test_the_team_answers_what_evaluation_plays(trained: Path) -> None:
    """Many held-out questions at once, each as it is answered in an evaluation; and they share batches."""
    with loaded(trained, *GREEDY) as (config, parts):
        with evaluation_runner(config, parts, config.env.name, None) as runner:
            tasks = [runner.host.tasks("test")[i] for i in range(5)]
            evaluated = run_async(
                runner.episodes([Start(task=task, sample=0) for task in tasks], f"{config.seed}/eval")
            )
        engine = parts.bases["nano"].engine
        assert isinstance(engine, LocalEngine)
        rows: list[int] = []
        settled = engine.settled

        async def watch() -> None:
            rows.append(len(engine.live))
            await settled()

        engine.settled = watch

        async def play() -> None:
            async with client_of(config, parts) as client:

                async def say(model: str, content: str) -> str | None:
                    answer = await client.chat.completions.create(
                        model=model, messages=[{"role": "user", "content": content}]
                    )
                    return answer.choices[0].message.content

                alone = [await say("solver", task.prompt) for task in tasks]
                assert max(rows) == 1
                team = [say("duo-1", task.prompt) for task in tasks]
                agent = [say("solver", task.prompt) for task in tasks]
                found = await asyncio.gather(*team, *agent)
                assert found[:5] == [episode.turns[-1].text for episode in evaluated]
                assert found[5:] == alone
                assert max(rows) >= 5

        run_async(play())


@pytest.mark.parametrize(
    ("source", "name"),
    [("runs/duo-1", "duo-1"), ("teams/mine.yaml", "mine"), (None, "duo"), ("trio", "trio"), ("solver", "solver-team")],
)
def test_the_team_s_name(source: str | None, name: str) -> None:
    from marft.config import load_config

    assert team_name(source, load_config(None, [])) == name


def test_an_environment_that_takes_no_prompts_has_its_agents_served_alone() -> None:
    config, parts = load_team(None, [*ECHO, "env.name=toys:Seeded"])
    with parts, served_team(config, parts, "duo") as team, bind("127.0.0.1", 0) as bound:
        assert list(team.models) == ["planner", "solver"]
        serving, curl, _ = describe_server(team, bound, None)
        assert serving == f"serving at {base_url(bound)}: planner, solver"
        assert '"model": "planner"' in curl


def test_it_is_a_method_of_a_team_too(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import marft
    from marft.commands import serve as module

    urls: list[str] = []

    async def once(team: Any, bound: socket.socket, token: str | None, ready: Any) -> None:
        urls.append(f"{base_url(bound)} {team.name} {token}")

    monkeypatch.setattr(module, "listen", once)
    monkeypatch.setenv("MARFT_TOKEN", "known")
    with marft.load(trained) as team:
        team.serve(port=0)
    assert urls[0].startswith("http://127.0.0.1:")
    assert urls[0].endswith(" duo-1 known")


# --- the command ------------------------------------------------------------------------------------------------------
class Running:
    """`marft serve` in a process of its own, once it listens."""

    def __init__(self, *words: str, token: str | None = None) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "MARFT_TOKEN"}
        environment |= {} if token is None else {"MARFT_TOKEN": token}
        paths = [str(Path(__file__).parents[1]), *sys.path]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "marft.cli", "serve", *words, "--port", "0"], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline().rstrip("\n") for _ in range(2)]

    @property
    def url(self) -> str:
        return self.lines[0].split()[2].rstrip(":")

    def end(self, number: int) -> tuple[int, str]:
        """The exit status, and what it complained of last."""
        self.process.send_signal(number)
        _, complained = self.process.communicate(timeout=20)
        return self.process.returncode, complained.splitlines()[-1]

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_command_from_its_first_line_to_a_signal(trained: Path) -> None:
    with Running(str(trained), *GREEDY) as running:
        assert running.lines[0] == f"serving at {running.url}: duo-1 (the whole team), planner, solver"
        client = OpenAI(base_url=running.url, api_key="any", max_retries=0)  # its connection stays open
        answer = client.chat.completions.create(model="duo-1", messages=MESSAGES)
        with loaded(trained, *GREEDY) as (config, parts):
            episode = play_task(config, parts, prompt=QUESTION).episode
        assert answer.choices[0].message.content == episode.turns[-1].text
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        if shutil.which("curl"):
            asked = subprocess.run(["bash", "-c", running.lines[1]], capture_output=True, text=True, timeout=60)
            assert json.loads(asked.stdout)["model"] == "duo-1"
        assert running.end(signal.SIGTERM) == (0, "loading the model nano")


def test_the_command_with_a_token_until_ctrl_c(trained: Path) -> None:
    with Running(str(trained), "--at", "2", *GREEDY, token="secret") as running:
        assert "Authorization: Bearer $MARFT_TOKEN" in running.lines[1]
        assert "secret" not in "".join(running.lines)
        with OpenAI(base_url=running.url, api_key="secret", max_retries=0) as client:
            assert client.chat.completions.create(model="planner", messages=MESSAGES).choices
        with (
            OpenAI(base_url=running.url, api_key="guess", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        assert running.end(signal.SIGINT)[0] == 0


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["serve", "--port", port]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"marft: --host 127.0.0.1 --port {port}: Address already in use; give another")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--host", "0.0.0.0"], "other machines reach it, so it needs a token: set MARFT_TOKEN"),
        (["--host", "0.0.0.0", "--token", " "], "a token is printable ASCII"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid --port 0"),
        (["--host", "a..b"], "--host a..b: not the name of a host"),
        (["--port", "99999"], "--port 99999"),
    ],
)
def test_mistakes_are_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.delenv("MARFT_TOKEN", raising=False)
    assert main(["serve", "--port", "0", *words]) == 2
    [found] = capsys.readouterr().err.splitlines()
    assert line in found


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert main(["serve"]) == 2
    assert "marft serve needs aiohttp; pip install 'marft[programs]'" in capsys.readouterr().err


def test_a_token_that_was_given_on_the_command_line_is_not_shown() -> None:
    line = curl_command("http://h/v1", "duo", "it's $5", "secret", {})
    assert line.endswith('-H "Authorization: Bearer TOKEN"')
    assert "secret" not in line


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")])
def test_the_address_that_clients_are_given(host: str, url: str) -> None:
    with bind(host, 0) as bound:
        assert base_url(bound).startswith(url)


def test_nothing_listens_before_the_model_is_loaded() -> None:
    with bind("127.0.0.1", 0) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=2)


def test_a_host_that_is_no_address() -> None:
    with pytest.raises(MarftError, match="--host"):
        bind("no.such.host.invalid", 0)
