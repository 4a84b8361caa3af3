"""Which GPUs are whose."""

from __future__ import annotations

import pytest
import torch

from marft.distributed.gpus import other_gpus


@pytest.mark.parametrize(
    ("device", "visible", "others"),
    [
        ("cpu", None, []),
        ("cuda:0", None, ["1", "2"]),
        ("cuda:1", "5,7,GPU-ab", ["5", "GPU-ab"]),
        ("cuda:0", "5", []),
    ],
)
def test_the_gpu_of_rank_0_is_nobody_elses(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, others: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert other_gpus(device) == others
