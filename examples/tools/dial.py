"""Sums on a dial of 100: of every result only the last two digits count, which a tiny model cannot work out itself.

Numbers up to 40 are added and subtracted, and factors are 2 to 9. Of the tasks with three operations 27 % are plain sums:
no result leaves the dial. The tool is the function `work_out`; run as a program, this file is an MCP server that offers
the same function.
"""

import operator
import random
import re
import zlib

import marft

DIAL = 100
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
VERBS = {"+": "Add", "-": "Subtract", "*": "Multiply by"}
SUM = re.compile(r"\s*(\d{1,2})\s*([-+*])\s*(\d{1,2})\s*")
ANSWER = re.compile(r"Answer: (\d{1,9})(?!\d)")


def work_out(expression: str) -> str:
    """Works out A+B, A-B or A*B on a dial of 100."""
    found = SUM.fullmatch(expression)
    if found is None:
        raise ValueError("write A+B, A-B or A*B, numbers of two digits")
    return str(OPERATIONS[found[2]](int(found[1]), int(found[3])) % DIAL)


class Dial(marft.Environment):
    """A start value and a few operations, each result on the dial."""

    light = True

    def __init__(self, operations: int = 3):
        if not 1 <= operations <= 8:
            raise ValueError(f"operations must be 1 to 8, not {operations}")
        self.operations = operations

    def tasks(self, split):
        rng = random.Random(f"{split}/{self.operations}")
        chains = dict.fromkeys(self.draw(rng) for _ in range(40_000))
        own = [chain for chain in chains if (zlib.crc32(chain.encode()) % 8 == 0) == (split == "test")]
        return [self.task(f"{split}/{i}", chain) for i, chain in enumerate(own)]

    def draw(self, rng):
        steps = [
            (sign, rng.randint(2, 9) if sign == "*" else rng.randint(1, 40))
            for sign in rng.choices("+-*", k=self.operations)
        ]
        return "".join([str(rng.randint(2, 60)), *(f"{sign}{number}" for sign, number in steps)])

    def task(self, name, chain):
        start, *steps = re.findall(r"[-+*]?\d+", chain)
        value, plain = start, True
        for step in steps:
            plain &= 0 <= OPERATIONS[step[0]](int(value), int(step[1:])) < DIAL
            value = work_out(value + step)
        words = " ".join([f"Start with {start}.", *(f"{VERBS[step[0]]} {step[1:]}." for step in steps)])
        return marft.Task(id=name, prompt=words, data={"answer": int(value), "plain": plain})

    def reset(self, task):
        return task, ""

    def transition(self, state, turn):
        return state[0], turn.text

    def reward(self, state):
        task, said = state
        answers = ANSWER.findall(said)
        right = len(answers) == 1 and int(answers[0]) == task.data["answer"]
        return marft.Reward(team=float(right), correct=right)

    def gold(self, task):
        return str(task.data["answer"])


if __name__ == "__main__":
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("dial")
    server.tool()(work_out)
    server.run()
