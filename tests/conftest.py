"""Makes `toys` importable for every test (pytest puts this folder on sys.path), keeps each test to one thread, and has
Triton's kernels interpreted where there is no GPU."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests of a run are many small matrices

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything loads Triton
