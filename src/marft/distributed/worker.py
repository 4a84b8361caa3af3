"""A player in a process of its own: `python -m marft.distributed.worker`, driven by `WorkerFleet`."""

from __future__ import annotations

from marft.channels import serve_parent
from marft.distributed.player import work

if __name__ == "__main__":
    serve_parent(work)
