"""Every Triton kernel compiles for GPUs that need not be here."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

WHOLE = "*i64"  # numbers of tokens, rows and places
TYPES = {
    **dict.fromkeys(("positions", "length", "token", "first"), WHOLE),
    **dict.fromkeys(("stream", "total", "rstd", "cos", "sin", "d_total", "d_stream", "logits", "cold", "top"), "*fp32"),
    **dict.fromkeys(("mass", "heat", "found", "entropy"), "*fp32"),
    **dict.fromkeys(("eps", "sign", "scale"), "fp32"),
    "reach": "*i32",
}
NUMBERS = {
    "width",
    "stride",
    "delta_stride",
    "heads",
    "turned",
    "half",
    "rank",
    "rows",
    "blocks",
    "gated",
    "middle",
    "last",
}
SIZES = {
    "BLOCK": 1024, "HEADS": 16, "HALF": 64, "TILE": 64, "ROWS": 16, "RANKS": 32, "HAS_DELTA": True, "OF_ENTROPY": True,
    "heads": 12, "groups": 2, "dim": 128, "SHARING": 16, "DIM": 128, "KEYS": 64,
}  # fmt: skip
OTHERWISE = {
    ("attend_kernel", "positions"): "i32",
    ("gate_routed_kernel", "first"): "i32",
    ("add_routed_kernel", "out"): "i32",
    ("turn_kernel", "heads"): "i32",
}
COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from marft.engines import kernels as steps
from marft.models import kernels as models

types, numbers, sizes, otherwise, half, capability = json.loads(sys.argv[1])
otherwise = {tuple(key): value for key, value in otherwise}
done = []
for room in (steps, models):
    for name, kernel in vars(room).items():
        if not name.endswith("_kernel"):
            continue
        signature, constants = {}, {}
        for parameter in kernel.params:
            key = parameter.name
            if parameter.is_constexpr:
                signature[key], constants[key] = "constexpr", sizes[key]
            else:
                found = otherwise.get((name, key)) or types.get(key) or ("i32" if key in numbers else half)
                signature[key] = found
        made = triton.compile(
            ASTSource(fn=kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", capability, 32)
        )
        assert made.asm["cubin"], name
        done.append(name)
print(json.dumps(done))
"""


@pytest.mark.parametrize(("capability", "half"), [(80, "*bf16"), (90, "*bf16"), (75, "*fp16")])
def test_kernels_compile(capability: int, half: str) -> None:
    given = json.dumps([TYPES, sorted(NUMBERS), SIZES, [[list(k), v] for k, v in OTHERWISE.items()], half, capability])
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, given], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(json.loads(done.stdout)) >= 10
