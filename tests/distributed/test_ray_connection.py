"""What can be known of a cluster before Ray is asked, and what Ray must not change in this process."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest
from quick import config_of

from marft.distributed import ray_connection
from marft.distributed.ray_cluster import RayCluster, describe
from marft.distributed.ray_connection import (
    ClusterError,
    LocalRay,
    handlers_kept,
    last_line,
    probe,
    token_given,
)


def test_everybody_has_a_place_of_their_own() -> None:
    """A GPU each, where rank 0 has one."""
    given = {"rollout": {"workers": 2}, "learner": {"ranks": 3}, "cluster": {"address": "auto"}}
    rank, player = {"CPU": 4, "GPU": 1}, {"CPU": 3, "GPU": 1}
    assert RayCluster(config_of(**given), "cuda:1", 3, 4).bundles == [rank, rank, player, player]
    assert RayCluster(config_of(**given), "cpu", 3, 4).bundles == [{"CPU": 4}, {"CPU": 4}, {"CPU": 3}, {"CPU": 3}]


def test_where_ray_is_not_installed_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"^cluster\.address: Ray is not installed; pip install 'marft\[ray\]'$"):
        RayCluster(config_of(rollout={"workers": 1}, cluster={"address": "auto"}), "cpu", 1).open()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nobody_at_the_address_is_one_line_at_once(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ClusterError, match=rf"^cluster\.address: nobody answers at {address}: .*refused"):
        probe(address)


def test_something_else_at_the_address_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connection, "CONNECT_S", 1.0)
    monkeypatch.setattr(ray_connection, "PROBE", "import time; time.sleep(60)")
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ClusterError, match=r"has not answered within 1 s; is it the address of a Ray cluster\?$"),
    ):
        probe(f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("W gcs_client.cc: InvalidAuthToken: Authentication token is missing", "refuses our token; set RAY_AUTH_MODE=token"),
        ("Traceback\nRuntimeError: Version mismatch: 2.60 and 2.61\n\n", "no way to .*: RuntimeError: Version mismatch: 2.60"),
        ("", "no way to the cluster at auto: it does not say why"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch, said: str, line: str) -> None:
    monkeypatch.setattr(ray_connection, "PROBE", f"import sys; sys.exit({said!r} or 1)")
    with pytest.raises(ClusterError, match=line) as caught:
        probe("auto")
    assert "\n" not in str(caught.value)


def test_the_token_is_there_while_ray_starts_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with token_given():
        first = os.environ["RAY_AUTH_TOKEN"]
    assert len(first) == 64
    assert "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the user's cluster")
    with token_given():
        assert os.environ["RAY_AUTH_TOKEN"] == "of the user's cluster"
    assert os.environ["RAY_AUTH_TOKEN"] == "of the user's cluster"


def test_a_ray_that_could_be_heard_by_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported earlier, it does not listen to what it is told about where to listen."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    with pytest.raises(
        ClusterError, match=r"^cluster\.address: Ray was imported before it could be kept to this machine"
    ):
        LocalRay(1, "cpu")


def test_a_run_keeps_its_own_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with handlers_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_last_line_is_short() -> None:
    assert last_line("a\n  b  \n\n") == "b"
    assert len(last_line("x" * 1000)) == 300


def test_resources_are_told_in_words() -> None:
    assert describe({"CPU": 2.0, "memory": 1e9}) == "2 CPU"
    assert describe({"GPU": 1.0}) == "0 CPU and 1 GPU"
