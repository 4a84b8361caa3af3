"""Data sets: from a name, a hub name or a path to rows, in the publishers' own formats, split without overlap."""

from __future__ import annotations

from marft.envs.data.files import Row
from marft.envs.data.known import KNOWN, KnownSet
from marft.envs.data.overlap import overlapping_tasks, repeated_tasks
from marft.envs.data.reading import read_rows, read_split
from marft.envs.data.source import DataSource

__all__ = ["KNOWN", "DataSource", "KnownSet", "Row", "overlapping_tasks", "read_rows", "read_split", "repeated_tasks"]
