"""A device that is the CPU under another name and, like Apple's GPUs, has no float64: what they would refuse, it refuses.

Run as `python pretend.py DEVICE RUN`: a short run on `pretend` or on `cpu`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
ACROSS = ("aten::_to_copy", "aten::copy_", "aten::index")  # may have tensors of both devices


class There(torch.Tensor):
    """A tensor of the device; `raw` holds its numbers."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> There:
        if raw.dtype == torch.float64:
            raise TypeError("the device has no float64")
        made: There = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            device=torch.device(NAME, 0), requires_grad=raw.requires_grad,
        )  # fmt: skip
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Pretend(TorchDispatchMode):
    """Also for what is made on the device from nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Literals(TorchFunctionMode):
    """Two functions that no dispatch mode sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return torch.tensor(*args, **kwargs).to(device)
        if func is torch.Tensor.tolist:
            return func(args[0].cpu())
        return func(*args, **kwargs)


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the numbers, and its results where they belong."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    known = {id(x.raw): x for x in tensors if isinstance(x, There)}
    if known and not func.name().startswith(ACROSS) and any(not isinstance(x, There) and x.dim() for x in tensors):
        raise RuntimeError(f"{func}: tensors of two devices")
    asked = kwargs.get("device")
    belongs = bool(known) if asked is None else torch.device(asked).type == NAME
    if func is torch.ops.aten.copy_.default:
        belongs = isinstance(args[0], There)
    own_args, own_kwargs = tree_map(lambda x: x.raw if isinstance(x, There) else x, (args, kwargs))
    if asked is not None and belongs:
        own_kwargs["device"] = torch.device("cpu")

    def placed(x: Any) -> Any:
        if not belongs or not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else There(x)

    return tree_map(placed, func(*own_args, **own_kwargs))


def main(device: str, run: str) -> None:
    import marft
    from marft.engines import sampling
    from marft.models import loading

    if device == NAME:
        _setup_privateuseone_for_python_backend(NAME)
        sampling.WITHOUT_DOUBLES.add(NAME)
        loading.pick_device = lambda asked: torch.device(NAME, 0)  # type: ignore[assignment]
    brief = {"max_tokens": 3}
    with Pretend(), Literals():
        marft.train(
            algorithm="marft-token", team={"agents": {"planner": brief, "solver": brief}}, eval={"tasks": 0},
            train={"iterations": 2, "tasks": 2, "samples": 2, "minibatches": 1}, track={"episodes": 10}, run=run,
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
