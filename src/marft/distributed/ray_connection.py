"""Ray as this process meets it: one of its own that nobody else can reach, or a cluster that is there."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from marft.channels import LOOPBACK
from marft.distributed.gpus import other_gpus
from marft.processes import ChildProcess
from marft.types import MarftError

START_S = 55.0
CONNECT_S = 40.0
REACH_S = 5.0
ALONE = {  # has to be there when Ray is imported
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listens on the loopback address, on every system; no argument does that
    "RAY_AUTH_MODE": "token",
}
HEALTH = {  # how soon a node is found dead
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
QUIET: Mapping[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
# Ray tries for minutes to reach what is no cluster, and keeps this process from saying so
PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
WRONG_TOKEN = ("InvalidAuthToken", "AuthenticationError")


class ClusterError(MarftError):
    """There is no cluster, it does not let us in, or it has no place for the workers."""


class LocalRay:
    """A Ray of this machine with so many CPUs, and the GPUs that are not this process's `device`. It ends with this process,
    and only who knows the token of this process can speak to it."""

    def __init__(self, cpus: int, device: str) -> None:
        if "ray" in sys.modules and os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") != "0":
            raise ClusterError(
                "cluster.address: Ray was imported before it could be kept to this machine; import it after marft.train, "
                "or give the address of a cluster"
            )
        os.environ.update(ALONE)
        load_ray()
        gpus = other_gpus(device)
        given = {"RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ",".join(gpus), **HEALTH}
        with token_given():
            self.process = ChildProcess("marft.distributed.ray_head", str(cpus), str(len(gpus)), variables=given)
            try:
                join(self._address())
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """All that it has started ends at once."""
        self.process.end()

    def _address(self) -> str:
        try:
            said = self.process.lines().next(START_S)
        except TimeoutError as error:
            raise ClusterError(f"cluster.address: Ray has not started here within {START_S:g} s") from error
        if said is None:
            raise ClusterError("cluster.address: Ray does not start here; see what it said above")
        found: dict[str, str] = json.loads(said)
        if "error" in found:
            raise ClusterError(f"cluster.address: Ray does not start here: {last_line(found['error'])}")
        if not found["address"].startswith(f"{LOOPBACK}:"):
            raise ClusterError(f"cluster.address: a local Ray would listen at {found['address']}; it was ended")
        return found["address"]


def connect(address: str) -> None:
    """To a cluster that is there."""
    load_ray()
    probe(address)
    join(address)


def join(address: str) -> None:
    """As a driver."""
    ray = load_ray()
    with handlers_kept():
        try:
            ray.init(address=address, **QUIET)
        except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            raise ClusterError(f"cluster.address: {address} does not answer: {last_line(str(error))}") from error


def probe(address: str) -> None:
    """Raise a ClusterError, soon, where no cluster lets us in."""
    if ":" in address:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_S).close()
        except (OSError, OverflowError) as error:
            raise ClusterError(f"cluster.address: nobody answers at {address}: {error}") from error
    try:
        tried = subprocess.run(
            [sys.executable, "-c", PROBE, address], capture_output=True, text=True, errors="replace", timeout=CONNECT_S,
            start_new_session=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"cluster.address: {address} has not answered within {CONNECT_S:g} s; is it the address of a Ray cluster?"
        ) from error
    if tried.returncode == 0:
        return
    if any(sign in tried.stderr for sign in WRONG_TOKEN):
        raise ClusterError(
            f"cluster.address: the cluster at {address} refuses our token; set RAY_AUTH_MODE=token, and the cluster's own "
            "token by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    raise ClusterError(f"cluster.address: no way to the cluster at {address}: {last_line(tried.stderr)}")


def load_ray() -> Any:
    """The package; nothing of it is in use yet."""
    try:
        import ray
    except ImportError as error:
        raise ClusterError("cluster.address: Ray is not installed; pip install 'marft[ray]'") from error
    if ray.is_initialized():
        raise ClusterError("cluster.address: Ray is in use in this process already; call ray.shutdown() before")
    return ray


@contextmanager
def token_given() -> Iterator[None]:
    """Where Ray reads it, which it does once: the user's own, or a random one that what environments start later does not
    see."""
    if "RAY_AUTH_TOKEN" in os.environ:
        yield
        return
    os.environ["RAY_AUTH_TOKEN"] = local_token()
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_TOKEN"]


@cache
def local_token() -> str:
    """Of every local Ray of this process."""
    return secrets.token_hex(32)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Ray would end the process at SIGTERM; a run ends by its own rules."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_line(text: str) -> str:
    """Of what Ray says, which may be long."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it does not say why"
