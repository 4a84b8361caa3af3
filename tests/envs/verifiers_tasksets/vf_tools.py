"""A taskset of verifiers with a tool of its own for every rollout."""

import verifiers.v1 as vf
from vf_sums import written

__all__ = ["Products"]


class Desk(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def multiply(self, a: int, b: int) -> str:
        """Multiply two numbers."""
        return f"the product is {a * b}"


class ProductData(vf.TaskData):
    answer: str


class Product(vf.Task[ProductData]):
    @classmethod
    def toolsets(cls, config):
        return [Desk(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, task: ProductData, trace: vf.Trace) -> float:
        return written("right", trace.last_reply, float(task.answer in trace.last_reply))

    @vf.reward(weight=0.5)
    async def used(self, trace: vf.Trace) -> float:
        answers = [message for message in trace.branches[-1].messages if message.role == "tool"]
        return written("used", trace.last_reply, float(len(answers)))


class Products(vf.Taskset[Product, vf.TasksetConfig]):
    def load(self):
        for i in range(2, 10):
            yield Product(ProductData(prompt=f"What is {i} times 7?", answer=str(7 * i)), self.config.task)


if __name__ == "__main__":
    Desk.run()
