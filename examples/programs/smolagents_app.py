"""A planner and a solver with smolagents; the solver calls tools, and gives its answer with one."""

import json
import os
import sys

from smolagents import ChatMessage, LogLevel, MessageRole, OpenAIServerModel, ToolCallingAgent, tool
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

PLANNER = "You are the planner. List the steps."
SOLVER = 'You are the solver. Follow the plan and end with "Answer: N".'
# smolagents' own prompts have thousands of tokens, more than a small model can read
TEMPLATES = {
    **EMPTY_PROMPT_TEMPLATES,
    "system_prompt": SOLVER,
    "final_answer": {"pre_messages": SOLVER, "post_messages": "{{task}}"},
}


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a * b


def solve(task, base_url, api_key):
    """The solver's answer to `task["prompt"]`."""
    planner = OpenAIServerModel(model_id="planner", api_base=base_url, api_key=api_key)
    asked = [
        ChatMessage(role=MessageRole.SYSTEM, content=PLANNER),
        ChatMessage(role=MessageRole.USER, content=task["prompt"]),
    ]
    plan = planner.generate(asked).content
    solver = ToolCallingAgent(
        tools=[multiply],
        model=OpenAIServerModel(model_id="solver", api_base=base_url, api_key=api_key),
        prompt_templates=TEMPLATES,
        max_steps=1,
        verbosity_level=LogLevel.OFF,
    )
    return str(solver.run(f"{task['prompt']}\n\nplanner: {plan}"))


if __name__ == "__main__":  # echo '{"prompt": "Start with 17. Add 5. Multiply by 3."}' | python smolagents_app.py
    print(solve(json.load(sys.stdin), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]))
