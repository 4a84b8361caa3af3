"""A local Ray beside programs that have the ports it is known for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'marft[ray]'")

KNOWN = (6379, 8265, 10001, 52365)  # of its head, dashboard, client server and dashboard's agent
START = """
from marft.distributed.ray_connection import LocalRay
found = LocalRay(1, "cpu")
import ray
print(ray.get_runtime_context().gcs_address)
ray.shutdown()
found.close()
"""


def test_a_local_ray_takes_ports_that_are_free() -> None:
    with ExitStack() as stack:
        for port in KNOWN:
            with suppress(OSError):  # somebody has it already
                stack.enter_context(socket.create_server(("0.0.0.0", port)))
        done = subprocess.run(
            [sys.executable, "-c", START], capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    host, _, port = done.stdout.split()[-1].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) not in KNOWN
