"""A Ray of this machine alone, in a process that ends with its trainer and takes along all that Ray has started.

`python -m marft.distributed.ray_head CPUS GPUS` says its address, or why there is none, in one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from marft.processes import adopt_orphans, claim_stdout, receive_in_thread


def main() -> None:
    """Ray's own processes outlive a trainer that is killed by a minute: here they stay below us, whoever their parents were."""
    adopt_orphans()
    output = claim_stdout(prints_to=2)
    receive_in_thread(os.fdopen(os.dup(0), "rb"), lambda _: None)
    cpus, gpus = map(int, sys.argv[1:])
    os.write(output, json.dumps(start(cpus, gpus)).encode() + b"\n")
    threading.Event().wait()


def start(cpus: int, gpus: int) -> dict[str, Any]:
    """Its address, or what Ray said."""
    import ray

    try:
        ray.init(
            address="local", num_cpus=cpus, num_gpus=gpus, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR",
        )  # fmt: skip
    except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
        return {"error": str(error)}
    return {"address": ray.get_runtime_context().gcs_address}


if __name__ == "__main__":
    main()
