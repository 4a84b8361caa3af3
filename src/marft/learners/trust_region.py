"""A trust region per adapter: a step that went too far is taken back in part, and its adapter rests until the next update.

Too far is, for an agent, a KL of its turns from the policy that played past their limit; for a critic, a loss that is worse than a
constant guess's and than the critic's own before the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from marft.algorithms.batch import Member
from marft.algorithms.trust_region import shortening
from marft.learners.tally import Tally

MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam, as torch names them
WORSE = 1.5  # times what a critic's loss may be; one that passes this is taken back to where it may be
TINY = 1e-8  # a loss that is as good as none
TRIES = 8  # shortenings of one step; two are mostly enough


class TrustRegion:
    """Takes the steps of one update after the other, and holds them within their bounds.

    It keeps the weights and Adam's moments of every adapter from before its last step: three times the adapter.
    """

    def __init__(
        self,
        optimizers: Mapping[str, Optimizer],
        members: Sequence[Member],
        limit: float | None,
        *,
        kl_stop: float | None = None,
    ) -> None:
        self.optimizers, self.limit, self.kl_stop = optimizers, limit, kl_stop
        self.agents = {
            adapter: [i for i, member in enumerate(members) if member.adapter == adapter]
            for adapter in dict.fromkeys(member.adapter for member in members)
        }
        self.before: dict[str, list[Tensor]] = {}  # the last step
        self.begin({})

    def begin(self, lengths: Mapping[str, float]) -> None:
        """A new update; `lengths` are the adapters' turns', in tokens."""
        self.limits = {} if self.limit is None else {n: self.limit / length for n, length in lengths.items()}  # a token
        self.mismatch: dict[
            str, float
        ] = {}  # KL of each agent before its first step: how the engine rounds, no movement
        self.kept: dict[str, float] = {}  # the share of its last step that each adapter kept
        self.excess: dict[str, float] = {}  # how many times its bound each reached, before anything was taken back
        self.stopped: set[str] = set()  # who has moved by `kl_stop`

    @property
    def resting(self) -> set[str]:
        """Who takes no further step in this update."""
        return self.stopped | {name for name, share in self.kept.items() if share < 1}

    def step(self, name: str, found: Tally) -> None:
        """One step of the adapter's optimizer; `found` is what its minibatch showed before it."""
        if name in self.agents:
            self.mismatch.setdefault(name, found.moved(self.agents[name]) or 0.0)
        if self.limit is not None:
            self._remember(name)
            self.kept[name] = 1.0
        self.optimizers[name].step()

    def hold(self, found: Tally, losses: Mapping[str, float], look: Callable[[Collection[str]], Tally]) -> Tally:
        """Shorten the last steps of those who are past their bounds in `found`; `look` measures again. What holds then.

        `losses` are what the critics' losses may be on the same turns.
        """
        bounds = {**self.limits, **{critic: WORSE * max(loss, TINY) for critic, loss in losses.items()}}
        reached = self._reach(found, bounds)
        for name, reach in reached.items():
            self.excess[name] = max(self.excess.get(name, 0.0), reach)
        over = {name: reach for name, reach in reached.items() if not reach <= 1}
        bounds |= {critic: bounds[critic] / WORSE for critic in over if critic in losses}
        for left in reversed(range(TRIES)):
            if not over:
                break
            for name, reach in over.items():
                ratio = shortening(reach) if left else 0.0  # at last it is taken back whole
                self._shorten(name, ratio)
                self.kept[name] *= ratio
            agents = [i for name in over for i in self.agents.get(name, ())]
            found = found.replaced(look(over), agents, over)
            over = {
                name: reach for name, reach in self._reach(found, bounds).items() if name in over and not reach <= 1
            }
        return found

    def stop(self, found: Tally) -> None:
        """Who has moved far enough on this batch, without anything being taken back."""
        if self.kl_stop is None:
            return
        for name, mismatch in self.mismatch.items():
            moved = found.moved(self.agents[name])
            if moved is not None and moved - mismatch > self.kl_stop:
                self.stopped.add(name)

    def _reach(self, found: Tally, bounds: Mapping[str, float]) -> dict[str, float]:
        """How many times its bound each adapter that has stepped and is in `found` reaches; what is no number is past it."""
        figures: dict[str, float | None] = {**found.critics}
        for name, own in self.agents.items():
            moved = found.moved(own)
            figures[name] = None if moved is None else moved - self.mismatch.get(name, 0.0)
        known = ((name, figures.get(name)) for name in self.kept)
        return {
            name: max(0.0, figure / bounds[name]) if math.isfinite(figure) else math.inf
            for name, figure in known
            if figure is not None
        }

    def _remember(self, name: str) -> None:
        now = self._state(name)
        if name not in self.before:
            self.before[name] = [torch.empty_like(tensor) for tensor in now]
        torch._foreach_copy_(self.before[name], now)

    def _shorten(self, name: str, ratio: float) -> None:
        """Weights and moments go back, to `ratio` of the way that is left of the step.

        One by one: on CUDA `torch._foreach_lerp_` does not count as a change of a tensor, and whoever keeps a copy of the
        weights (the decoder's products, the engine) would not renew it.
        """
        for now, before in zip(self._state(name), self.before[name], strict=True):
            if ratio:
                now.lerp_(before, 1 - ratio)
            else:
                now.copy_(before)  # whatever it was: infinite, or no number

    def _state(self, name: str) -> list[Tensor]:
        optimizer = self.optimizers[name]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            if not optimizer.state[parameter]:  # what AdamW makes of one that has never moved
                optimizer.state[parameter] = {"step": torch.tensor(0.0)}
                optimizer.state[parameter] |= {key: torch.zeros_like(parameter) for key in MOMENTS}
        return [p.detach() for p in parameters] + [optimizer.state[p][key] for key in MOMENTS for p in parameters]
