"""Python for agents: a few lines run in the sandbox, and what they print comes back."""

from __future__ import annotations

from marft.envs.sandbox import Limits, Outcome, SandboxBroken, require_sandbox, run
from marft.envs.tools.text import SHOWN

LIMITS = Limits(seconds=10.0, cpu_seconds=5)
LENGTH = 20_000  # characters of code
FENCES = ("```python", "```py", "```")
# It runs inside the sandbox, so that not even the parser of our own process meets what a model wrote.
PROGRAM = """
import ast
tree = ast.parse(CODE, "code")
last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
scope = {"__name__": "__main__"}
exec(compile(tree, "code", "exec"), scope)
if last is not None:
    value = eval(compile(ast.Expression(last), "code", "eval"), scope)
    if value is not None:
        print(repr(value))
"""


class Python:
    """Runs code as an interactive session would: the value of a last expression is shown without a print."""

    name = "python"
    help = (
        "python: write <python>print(sum(range(10)))</python> and what it prints is shown to you; "
        "it has the standard library, no network, 5 seconds, and forgets everything between calls."
    )
    description = (
        "Runs Python code and gives what it prints. It has the standard library, no network, 5 seconds, and forgets "
        "everything between calls."
    )

    def __init__(self) -> None:
        require_sandbox()

    def use(self, text: str) -> str:
        """What the code prints, in at most SHOWN characters."""
        code = strip_fence(text)
        if len(code) > LENGTH:
            return "error: the code is too long"
        try:
            outcome = run(f"CODE = {code!a}\n{PROGRAM}", limits=LIMITS)
        except (SandboxBroken, OSError):  # no process or file can be had at the moment
            return "error: the sandbox is not available"
        return describe_outcome(outcome)


def describe_outcome(outcome: Outcome) -> str:
    """What was printed, and how it went wrong: for an exception the last line of its traceback."""
    match outcome.ended:
        case "ok":
            trouble = ""
        case "timeout":
            trouble = "error: it took too long"
        case "memory":
            trouble = "error: out of memory"
        case "output":
            trouble = "error: it printed too much"
        case _:
            trouble = outcome.stderr.strip().rpartition("\n")[2] or f"error: exit code {outcome.exit_code}"
    trouble = trouble[: SHOWN // 2]
    printed = outcome.stdout.rstrip()
    room = SHOWN - len(trouble) - 1
    printed = printed if len(printed) <= room else printed[: room - 1] + "…"
    return "\n".join(part for part in (printed, trouble) if part) or "(no output)"


def strip_fence(text: str) -> str:
    """The code without the fence that a chat model likes to put around it."""
    code = text.strip("\n").rstrip()
    for fence in FENCES:
        if code.startswith(fence) and code.endswith("```") and len(code) >= len(fence) + 3:
            return code[len(fence) : -3].strip("\n")
    return code
