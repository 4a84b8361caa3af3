"""A taskset of verifiers whose scoring raises, forgets itself or gives what is no number."""

import math

import verifiers.v1 as vf

__all__ = ["Broken"]


class Fragile(vf.Task[vf.TaskData]):
    @vf.reward
    async def brittle(self, trace: vf.Trace) -> float:
        match trace.last_reply:
            case "raise":
                raise KeyError("brittle")
            case "nan":
                return math.nan
            case "huge":
                return 1e30
        return 1.0


class Broken(vf.Taskset[Fragile, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            yield Fragile(vf.TaskData(prompt=f"Say word {number}."), self.config.task)
            number += 1
