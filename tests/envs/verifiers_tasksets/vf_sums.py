"""A taskset of verifiers: one message answers a sum; its scoring writes down what it gave."""

import json
import os
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumData(vf.TaskData):
    answer: str


class SumConfig(vf.TasksetConfig):
    highest: int = 12


def written(name: str, text: str, value: float) -> float:
    """What scoring gave, for the test to compare with."""
    with Path(os.environ["VF_SCORES"]).open("a") as file:
        file.write(json.dumps([name, text, value]) + "\n")
    return value


class Sum(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def digits(self, trace: vf.Trace) -> float:
        return written("digits", trace.last_reply, sum(map(str.isdigit, trace.last_reply)) / 8)

    @vf.reward(weight=-0.5)
    async def vowels(self, trace: vf.Trace) -> float:
        return written("vowels", trace.last_reply, sum(letter in "aeiou" for letter in trace.last_reply) / 8)

    @vf.metric
    async def spaces(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.count(" "))


class Sums(vf.Taskset[Sum, SumConfig]):
    def load(self):
        for i in range(self.config.highest):
            yield Sum(SumData(prompt=f"Start with {i}. Add {i}.", answer=str(2 * i)), self.config.task)
