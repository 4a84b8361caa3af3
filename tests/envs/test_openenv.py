"""Servers of OpenEnv, with its own server and client: what is shown, what is paid, and what a server may do wrong."""

from __future__ import annotations

import importlib.util
import json
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from quick import start
from toys import rows
from turns import begun, played, said_by, trained_and_resumed

from marft.cli import main
from marft.envs import make_env
from marft.envs.openenv import OpenEnv
from marft.envs.openenv.schema import text_field
from marft.envs.openenv.sessions import observation_text
from marft.types import MarftError, Reward

if importlib.util.find_spec("openenv") is None:
    pytest.skip("OpenEnv is not installed", allow_module_level=True)

SERVER = Path(__file__).parents[1] / "openenv_server.py"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A real server on the loopback interface."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)])
    try:
        for _ in range(600):
            try:
                httpx2.get(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except httpx2.HTTPError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def env(url: str) -> Iterator[OpenEnv]:
    env = OpenEnv(url, ["ann", "bob"])
    yield env
    close(env)


def close(env: OpenEnv) -> None:
    sessions: Any = env.games
    for session in (*sessions._live.values(), *sessions._free):
        session.close()


def earned(turns: dict[int, float], done: bool = True) -> Reward:
    players = dict.fromkeys(turns, "player")
    return Reward(team=sum(turns.values()), turns=turns, done=done, itemised=True, players=players)


def worth(text: str) -> float:
    """As the server has it."""
    return float(sum(map(ord, text)) % 5)


def test_a_game_by_hand(env: OpenEnv) -> None:
    assert env.tasks("train")[1].prompt == "Act in the environment."
    assert env.tasks("train")[1].id.endswith("/train/2")
    assert env.observe(begun(env, 4), "ann") == "hint: seed 4\ntries: 3"
    state = played(env, ["b"], seed=4)
    assert env.whose_turn(state) == "bob"
    assert env.observe(state, "bob") == "hint: calm, 'b' of seed 4\ntries: 2"
    assert env.reward(state) == earned({0: 3.0}, done=False)
    over = played(env, ["b", "c", "bb"], seed=4)
    assert env.whose_turn(over) is None
    assert env.reward(over) == earned({0: 3.0, 1: 4.0, 2: 1.0})
    assert env.transition(over, said_by("bob", "more", 3)) == over


def test_so_many_turns_and_no_more(url: str) -> None:
    short = OpenEnv(url, ["ann"], turns=2)
    assert short.whose_turn(played(short, ["b", "c"])) is None
    close(short)


def test_any_session_goes_on_with_any_game(env: OpenEnv) -> None:
    """One session for all: games that alternate are played again, and forks do not disturb one another."""
    states = {seed: begun(env, seed) for seed in range(3)}
    for index, text in enumerate(("b", "cc")):
        for seed, state in list(states.items()):
            agent = env.whose_turn(state)
            assert agent is not None
            env.transition(state, said_by(agent, "a fork", index))
            states[seed] = env.transition(state, said_by(agent, text, index))
    assert [env.observe(state, "ann") for state in states.values()] == [
        f"hint: calm, 'cc' of seed {seed}\ntries: 1" for seed in range(3)
    ]
    sessions: Any = env.games
    assert len(sessions._live) + len(sessions._free) == 1
    copy = pickle.loads(pickle.dumps(env))
    state = pickle.loads(pickle.dumps(states[1]))
    assert copy.reward(copy.transition(state, said_by("ann", "d", 2))) == earned({0: 3.0, 1: 3.0, 2: 0.0})
    close(copy)


def test_a_server_that_does_not_go_by_its_seed(url: str) -> None:
    env = OpenEnv(url, ["ann"], options={"unfair": True})
    first = begun(env, 0)
    env.transition(first, said_by("ann", "b"))  # in the session it began in
    with pytest.raises(ValueError, match="answers otherwise to the same seed and actions"):
        env.transition(first, said_by("ann", "b"))
    close(env)


def test_what_a_server_may_do(url: str) -> None:
    env = OpenEnv(url, ["ann"], seconds=2)
    with pytest.raises(RuntimeError, match="the board is broken"):
        played(env, ["raise"])
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="gave no answer within 2 s"):
        played(env, ["hang"])
    assert time.monotonic() - began < env.patience
    sessions: Any = env.games
    assert not sessions._live
    assert not sessions._free  # nobody knows where a session stands that failed
    assert env.reward(played(env, ["b"])) == earned({0: 3.0}, done=False)  # and the next game goes on
    close(env)


def test_trains_and_resumes_to_the_same_bytes(tmp_path: Path, url: str) -> None:
    run = trained_and_resumed(tmp_path, name="openenv", url=url, agents=["ann", "bob"])
    for row in rows(run / "episodes.jsonl"):  # paid by the server's own rule
        assert [turn["agent"] for turn in row["turns"]] == ["ann", "bob", "ann"]
        assert row["reward"] == sum(worth(turn["text"]) for turn in row["turns"])


def hangs(messages: Any) -> str:
    """For every other seed."""
    seed = int(messages[-1].content.partition("seed ")[2].split()[0])
    return "hang" if seed % 4 else "b"


def test_a_late_answer_is_recorded_on_the_episode(tmp_path: Path, url: str) -> None:
    """And the others are learnt from."""
    team = {"workflow": "turns", "agents": {"bob": None, "clerk": {"script": "test_openenv:hangs"}}}
    env = {"name": "openenv", "url": url, "agents": ["clerk", "ann"], "seconds": 1, "workers": 1, "turns": 2}
    train = {"iterations": 1, "tasks": 6, "samples": 2, "failures": 0.9}
    run = start(tmp_path / "run", env=env, team=team, train=train, track={"episodes": 12})
    [row] = rows(run / "metrics.jsonl")
    assert 0 < row["failed"] < 12
    for episode in rows(run / "episodes.jsonl"):
        late = int(episode["task"].rpartition("/")[2]) % 4 != 0
        assert ("gave no answer within 1 s" in json.dumps(episode)) == late


# --- mistakes ---------------------------------------------------------------------------------------------------------
SCHEMA = {"properties": {"metadata": {}, "text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text"]}


def test_which_field_is_the_message() -> None:
    assert text_field(SCHEMA, None) == "text"
    assert text_field(SCHEMA, "n") == "n"
    with pytest.raises(MarftError, match=r"^env\.action: actions have no field 'code', but text, n$"):
        text_field(SCHEMA, "code")
    two = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    with pytest.raises(MarftError, match="say which field of an action a message goes into: a, b"):
        text_field(two, None)


def test_the_configured_field(url: str) -> None:
    env = OpenEnv(url, ["ann"], action="mood")
    with pytest.raises(RuntimeError, match="message"):  # which the server misses
        played(env, ["b"])
    close(env)


def test_observations_in_words() -> None:
    assert observation_text({"text": "as it is", "reward": 1, "done": False, "metadata": {}}) == "as it is"
    assert observation_text({"cards": ["é", 2], "won": True, "note": None}) == 'cards: ["é", 2]\nwon: true'


class NotOpenEnv(BaseHTTPRequestHandler):
    """Answers, but otherwise."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"action": 3}')

    def log_message(self, *_: Any) -> None:
        pass


def test_servers_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    words = ["train", "env=openenv", f"env.url={address}", "env.agents=[planner]", "team.workflow=turns"]
    assert main([*words, "--run", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"env.url: {address} does not answer as a server of OpenEnv does: ConnectError" in line
    other = HTTPServer(("127.0.0.1", 0), NotOpenEnv)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with pytest.raises(MarftError, match="gives no schema of its actions"):
        OpenEnv(f"http://127.0.0.1:{other.server_port}", ["ann"]).tasks("train")
    other.shutdown()


def test_a_server_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    def drip(handler: NotOpenEnv) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)

    monkeypatch.setattr(NotOpenEnv, "do_GET", drip)
    server = HTTPServer(("127.0.0.1", 0), NotOpenEnv)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(MarftError, match="took more than 1 s"):
        OpenEnv(f"http://127.0.0.1:{server.server_port}", ["ann"], seconds=1).tasks("train")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"url": "127.0.0.1:8000"}, "not an endpoint's address"),
        ({"url": "http://me:secret@host"}, "a login"),
        ({"turns": 0}, "turns must be a whole number in 1…256"),
        ({"seconds": -1}, "seconds must be a number"),
        ({"seconds": True}, "seconds must be a number"),
        ({"sessions": "many"}, "sessions must be a whole number"),
        ({"options": {"seed": 3}}, "the seed comes from the task"),
        ({"key_env": "secret"}, "not an environment variable in capitals"),
        ({"action": 3}, "action must be the name"),
    ],
)
def test_wrong_settings(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError, match=line) as refused:
        make_env("openenv", {"url": "http://127.0.0.1:8000", "agents": ["ann"], **arguments})
    assert "secret" not in str(refused.value)


def test_a_key_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(MarftError, match=r"env\.key_env: the variable SOME_KEY is not set"):
        OpenEnv("http://127.0.0.1:9", ["ann"], key_env="SOME_KEY").tasks("train")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.envs.turn_based.environment.find_spec", lambda name: None)
    with pytest.raises(MarftError, match=r"^env: openenv needs OpenEnv; pip install 'marft\[openenv\]'$"):
        OpenEnv("http://127.0.0.1:8000", ["ann"])
