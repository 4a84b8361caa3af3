"""A planner and a solver with AG2, streamed; the solver may call a tool."""

import asyncio
import json
import os
import ssl
import sys

from ag2 import Agent
from ag2.config import OpenAIConfig
from openai import DefaultAsyncHttpxClient

PLANNER = "You are the planner. List the steps."
SOLVER = 'You are the solver. Follow the plan and end with "Answer: N".'
TLS = ssl.create_default_context()  # making one takes longer than asking


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


async def solve(task, base_url, api_key):
    """The solver's answer to `task["prompt"]`."""
    async with DefaultAsyncHttpxClient(verify=TLS, timeout=600) as http:

        def config(model):
            return OpenAIConfig(model=model, base_url=base_url, api_key=api_key, streaming=True, http_client=http)

        planner = Agent("planner", prompt=PLANNER, config=config("planner"))
        solver = Agent("solver", prompt=SOLVER, config=config("solver"), tools=[multiply])
        plan = await planner.ask(task["prompt"])
        answer = await solver.ask(f"{task['prompt']}\n\nplanner: {plan.body}")
        return answer.body


if __name__ == "__main__":  # echo '{"prompt": "Start with 17. Add 5. Multiply by 3."}' | python ag2_app.py
    print(asyncio.run(solve(json.load(sys.stdin), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])))
