"""Every Triton kernel compiles in the shapes in which it is launched, for GPUs that need not be here, and fits into them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROUTED = {"TILE": 256, "ROWS": 16}
ATTEND = {"groups": 2, "KEYS": 64, "SHARING": 16}
LAUNCHES: dict[str, list[dict[str, Any]]] = {  # where a shape depends on the precision: of half, or of fp32
    "add_norm_kernel": [{"BLOCK": 2048, "HAS_DELTA": True}, {"BLOCK": 2048, "HAS_DELTA": False}],
    "add_norm_backward_kernel": [{"BLOCK": 2048}],
    "rotary_kernel": [{"HEADS": 16, "HALF": 64}],
    "swiglu_kernel": [{"BLOCK": 1024}],
    "swiglu_backward_kernel": [{"BLOCK": 1024}],
    "add_routed_kernel": [{**ROUTED, "RANKS": (64, 32)}],
    "swiglu_routed_kernel": [{"TILE": 64, "ROWS": rows, "RANKS": (64, 32)} for rows in (16, 64)],
    "dequantize_kernel": [{"NIBBLES": nibbles, "BLOCK": 1024} for nibbles in (False, True)],
    "token_statistics_kernel": [{"BLOCK": 4096, "warps": 8}],
    "logit_gradient_kernel": [{"BLOCK": 1024, "OF_ENTROPY": False}, {"BLOCK": 1024, "OF_ENTROPY": True}],
    "masses_kernel": [{"BLOCK": 1024}],
    "attend_kernel": [
        {**ATTEND, "heads": 12, "dim": 128, "DIM": 128, "warps": 2},
        {**ATTEND, "heads": 14, "dim": 64, "DIM": 64, "warps": 1},
    ],
}
POINTERS = {
    **dict.fromkeys(("positions", "length", "token", "first"), "*i64"),
    **dict.fromkeys(("stream", "total", "rstd", "cos", "sin", "d_total", "d_stream", "logits", "cold", "top"), "*fp32"),
    **dict.fromkeys(("mass", "heat", "found", "entropy"), "*fp32"),
    "reach": "*i32",
    "codes": "*u8",
    "scales": "*fp16",
    "table": "*fp32",
}
NUMBERS = {
    **dict.fromkeys(
        ("width", "stride", "delta_stride", "rotated", "half", "rank", "rows", "blocks", "count", "size"), "i32"
    ),
    **dict.fromkeys(("middle", "last", "heads"), "i32"),
    **dict.fromkeys(("eps", "sign", "scale"), "fp32"),
}
ELSEWHERE = {  # names that mean a pointer in other kernels
    "attend_kernel": {"positions": "i32"},
    "swiglu_routed_kernel": {"first": "i32"},
    "add_routed_kernel": {"out": "i32"},
}
SHARED = {75: 64, 86: 99, 90: 227}  # KiB of shared memory that a program may take
COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from marft.engines import kernels as steps
from marft.models import head_kernels, kernels

launches, types, elsewhere, precisions, capability = json.loads(sys.argv[1])
found = {n: k for room in (steps, kernels, head_kernels) for n, k in vars(room).items() if n.endswith("_kernel")}
assert found.keys() == launches.keys(), found.keys() ^ launches.keys()
for name, shapes in launches.items():
    for shape in shapes:
        for which, precision in enumerate(precisions):
            chosen = {k: v[which > 0] if isinstance(v, list) else v for k, v in shape.items()}
            warps = chosen.pop("warps", 4)
            known = {**types, **elsewhere.get(name, {})}
            signature = {
                p.name: "constexpr" if p.is_constexpr else known.get(p.name, precision) for p in found[name].params
            }
            made = triton.compile(
                ASTSource(fn=found[name], signature=signature, constexprs=chosen),
                target=GPUTarget("cuda", capability, 32),
                options={"num_warps": warps},
            )
            print(json.dumps([name, precision, made.metadata.shared]))
"""


@pytest.mark.parametrize("capability", SHARED)
def test_kernels_compile_and_fit(capability: int) -> None:
    precisions = ["*fp16" if capability < 80 else "*bf16", "*fp32"]
    given = json.dumps([LAUNCHES, POINTERS | NUMBERS, ELSEWHERE, precisions, capability])
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, given],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(made) == 2 * sum(map(len, LAUNCHES.values()))
    assert [one for one in made if one[2] > 1024 * SHARED[capability]] == []
