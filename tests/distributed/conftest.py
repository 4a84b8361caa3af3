"""One Ray cluster for all tests that need one: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray_nodes import two_nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Each of the two nodes has room for two players, or for a rank and a player."""
    with two_nodes(cpus=2) as made:
        yield made
