"""The same tool, in one server for all rollouts."""

import verifiers.v1 as vf
from vf_tools import Desk, Product, Products

__all__ = ["SharedProducts"]


class SharedDesk(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = "desk"
    multiply = Desk.multiply


class SharedProduct(Product):
    @classmethod
    def toolsets(cls, config):
        return []


class SharedProducts(vf.Taskset[SharedProduct, vf.TasksetConfig]):
    def load(self):
        return (SharedProduct(task.data, task.config) for task in Products(self.config).load())

    @classmethod
    def toolsets(cls, config):
        return [SharedDesk(vf.SharedToolsetConfig())]


if __name__ == "__main__":
    SharedDesk.run()
