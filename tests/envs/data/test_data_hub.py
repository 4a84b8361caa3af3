"""The hub: fetched from once, its cache where it is away, and every failure in one line."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from marft.envs.data import hub
from marft.envs.data.known import HubPart
from marft.types import MarftError

ASK = """
import sys
from marft.envs.data import DataSource, read_rows
from marft.types import MarftError
for data, test in [line.split() for line in sys.argv[1:]]:
    try:
        print([row["question"] for row in read_rows(DataSource(data=data, test=test), "test")])
    except MarftError as error:
        print(error)
"""
AWAY = "http://127.0.0.1:9"  # nobody listens there
COMMIT = "a" * 40
CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train.jsonl}
  - {split: test, path: main/test.jsonl}
---
"""


def lines(split: str) -> bytes:
    return "".join(json.dumps({"question": f"{split} {i}", "answer": f"#### {i}"}) + "\n" for i in range(3)).encode()


FILES = {"README.md": CARD.encode(), "main/train.jsonl": lines("train"), "main/test.jsonl": lines("test")}


class SmallHub(BaseHTTPRequestHandler):
    """As much of a hub as `datasets` asks for, with one set."""

    def do_GET(self) -> None:
        path, api = self.path.partition("?")[0], "/api/datasets/openai/gsm8k"
        name = path.removeprefix("/datasets/openai/gsm8k/resolve/").partition("/")[2]
        if path.startswith("/datasets/openai/gsm8k/") and name in FILES:
            etag = hashlib.sha1(FILES[name]).hexdigest()
            self.say(200, FILES[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        elif path.startswith("/datasets/openai/gsm8k/"):
            self.say(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        elif path.startswith(f"{api}/tree/"):
            below = [name for name in FILES if name.startswith("main/")]
            tree = [{"type": "file", "oid": "0" * 40, "size": len(FILES[name]), "path": name} for name in below]
            self.say(200, json.dumps(tree).encode(), {})
        elif path.startswith(api):
            self.say(200, json.dumps({"id": "openai/gsm8k", "sha": COMMIT, "siblings": []}).encode(), {})
        else:
            self.say(200 if path == "/" else 404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def small_hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SmallHub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def ask(home: Path, endpoint: str, *sets: str) -> list[str]:
    """What reading these sets' splits says in a process of its own, where nothing else may be printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    env |= {"HF_HOME": str(home), "HF_ENDPOINT": endpoint}
    done = subprocess.run([sys.executable, "-c", ASK, *sets], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_fetched_once_and_read_again_without_a_connection(tmp_path: Path, small_hub: str) -> None:
    there = ("gsm8k test", "gsm8k train[:2]", "openai/gsm8k:main test")
    rows = ["['test 0', 'test 1', 'test 2']", "['train 0', 'train 1']", "['test 0', 'test 1', 'test 2']"]
    not_there = ("gsm8k nosuch", "openai/gsm8k:small test", "some/set test")
    locally = "or point at local files: env.train=FILE env.test=FILE"
    assert ask(tmp_path, small_hub, *there, *not_there) == [
        *rows,
        "the hub did not give openai/gsm8k main nosuch: Unknown split \"nosuch\". Should be one of ['train', 'test']; "
        f"check the name, {locally}",
        "the hub did not give openai/gsm8k small: BuilderConfig 'small' not found. Available: ['main']; "
        f"check the name, {locally}",
        "the hub did not give some/set: Dataset 'some/set' doesn't exist on the Hub or cannot be accessed; "
        f"check the name, {locally}",
    ]
    cannot = "the hub cannot be reached and its cache has no"
    assert ask(tmp_path, AWAY, *there, *not_there) == [
        *rows,
        f"{cannot} openai/gsm8k main nosuch; connect, {locally}",
        f"{cannot} openai/gsm8k small; connect, {locally}",
        f"{cannot} some/set; connect, {locally}",
    ]


def test_whether_the_hub_can_be_reached(monkeypatch: pytest.MonkeyPatch, small_hub: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", small_hub)
    assert hub.is_hub_reachable()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(hub, "ANSWERS_WITHIN", 0.1)
        assert not hub.is_hub_reachable()
        monkeypatch.setattr(constants, "ENDPOINT", "no url")
        assert not hub.is_hub_reachable()
    monkeypatch.setattr(constants, "ENDPOINT", small_hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.is_hub_reachable()


def test_the_library_does_not_ask_again_where_the_hub_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    offline: list[bool] = []

    def load(*_: object, **__: object) -> None:
        offline.append(datasets.config.HF_HUB_OFFLINE)
        raise ConnectionError

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    for there, said in (
        (False, "the hub cannot be reached"),
        (True, "the hub did not give a/b test: ConnectionError;"),
    ):
        monkeypatch.setattr(hub, "is_hub_reachable", lambda there=there: there)
        with pytest.raises(MarftError, match=said):
            hub.load_parts("a/b", [HubPart(split="test")])
        assert datasets.config.HF_HUB_OFFLINE is False
    assert offline == [True, False]


def test_a_split_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(hub, "is_hub_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list([]))
    with pytest.raises(MarftError, match=r"a/b c test\[:0\] has no rows; choose another split"):
        hub.load_parts("a/b", [HubPart(config="c", split="test[:0]")])


def test_importing_loads_no_heavy_library() -> None:
    heavy = ("datasets", "pyarrow", "huggingface_hub", "torch", "sympy", "math_verify")
    code = f"import sys, marft.envs.data, marft.envs.math; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
