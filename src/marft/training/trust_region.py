"""A trust region per adapter: a step that went too far is taken back in part, and its adapter rests until the next update.

Too far is, for an agent, a mean KL from the policy that played past its limit; for a critic, a loss that is worse than a
constant guess's and much worse than the same turns had before the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from marft.algorithms.trust_region import shortening, token_limit
from marft.training.lesson import Tally
from marft.training.roster import Member

MOMENTS = ("exp_avg", "exp_avg_sq")
WORSE = 3.0  # times the loss before a critic's step, or a constant guess's
TINY = 1e-8  # a loss that is as good as none
TRIES = 8  # shortenings of one step; two are mostly enough


class TrustRegion:
    """Takes the steps of one update after the other, and holds them within their bounds."""

    def __init__(self, optimizers: Mapping[str, Optimizer], members: Sequence[Member], limit: float | None) -> None:
        self.optimizers, self.limit = optimizers, limit
        self.agents = {
            adapter: [i for i, member in enumerate(members) if member.adapter == adapter]
            for adapter in dict.fromkeys(member.adapter for member in members)
        }
        self.before: dict[str, list[Tensor]] = {}  # weights and Adam's moments before the last step, in buffers
        self.begin()

    def begin(self, lengths: Mapping[str, float] | None = None, guess: float = 0.0) -> None:
        """A new update: how long each adapter's turns are, and the loss of a critic that always says the mean return."""
        self.lengths, self.guess = lengths or {}, guess
        self.bounds: dict[str, float] = {}  # of what may be found after the last step
        self.kept: dict[str, float] = {}  # the share of its last step that each adapter kept
        self.excess: dict[str, float] = {}  # how many times its bound each reached, before anything was taken back

    @property
    def resting(self) -> set[str]:
        """Who went too far in this update."""
        return {name for name, share in self.kept.items() if share < 1}

    def step(self, name: str, found: Tally) -> None:
        """One step of the adapter's optimizer; `found` is what its minibatch showed before it."""
        if self.limit is not None:
            self._remember(name)
            judges = name in found.critics
            self.bounds[name] = (
                self._worse(found.critics[name]) if judges else token_limit(self.limit, self.lengths[name])
            )
            self.kept[name] = 1.0
        self.optimizers[name].step()

    def hold(self, found: Tally, look: Callable[[Collection[str]], Tally]) -> Tally:
        """Shorten the last steps of those who are past their bounds in `found`; `look` measures again. What holds then."""
        self._compare_critics(found, look)
        for name, reach in self._reach(found).items():
            self.excess[name] = max(self.excess.get(name, 0.0), reach)
        for _ in range(TRIES):
            over = {name: reach for name, reach in self._reach(found).items() if not reach <= 1}
            if not over:
                break
            for name, reach in over.items():
                ratio = shortening(reach)
                self._shorten(name, ratio)
                self.kept[name] *= ratio
            agents = [i for name in over for i in self.agents.get(name, ())]
            found = found.replaced(look(over), agents, over)
        return found

    def _reach(self, found: Tally) -> dict[str, float]:
        """How many times its bound each adapter that has stepped and is in `found` reaches; what is no number is past it."""
        figures = {name: found.moved(own) for name, own in self.agents.items()} | found.critics
        known = ((name, figures.get(name), bound) for name, bound in self.bounds.items())
        return {
            name: figure / bound if math.isfinite(figure) else math.inf
            for name, figure, bound in known
            if figure is not None
        }

    def _compare_critics(self, found: Tally, look: Callable[[Collection[str]], Tally]) -> None:
        """Minibatches differ: what a critic's loss may be here is told by the weights from before its step, on these turns."""
        for name in [name for name, reach in self._reach(found).items() if name not in self.agents and reach > 1]:
            self._exchange(name)
            self.bounds[name] = self._worse(look([name]).critics[name])
            self._exchange(name)

    def _worse(self, loss: float) -> float:
        return WORSE * max(loss, self.guess, TINY)

    def _remember(self, name: str) -> None:
        now = self._state(name)
        if name not in self.before:
            self.before[name] = [torch.empty_like(tensor) for tensor in now]
        torch._foreach_copy_(self.before[name], now)

    def _shorten(self, name: str, ratio: float) -> None:
        """Weights and moments go back, to `ratio` of the way that is left of the step."""
        torch._foreach_lerp_(self._state(name), self.before[name], 1 - ratio)

    def _exchange(self, name: str) -> None:
        """The weights from before the step for those from after it, and back."""
        now = self._state(name)
        kept = [tensor.clone() for tensor in now]
        torch._foreach_copy_(now, self.before[name])
        torch._foreach_copy_(self.before[name], kept)

    def _state(self, name: str) -> list[Tensor]:
        optimizer = self.optimizers[name]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            if not optimizer.state[parameter]:  # what AdamW makes of one that has never moved
                optimizer.state[parameter] = {"step": torch.tensor(0.0)}
                optimizer.state[parameter] |= {key: torch.zeros_like(parameter) for key in MOMENTS}
        return [p.detach() for p in parameters] + [optimizer.state[p][key] for key in MOMENTS for p in parameters]
