"""A planner and a solver with the OpenAI Agents SDK, over the Responses API; the solver streams and may call a tool."""

import asyncio
import json
import os
import ssl
import sys

from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

PLANNER = "You are the planner. List the steps."
SOLVER = 'You are the solver. Follow the plan and end with "Answer: N".'
TLS = ssl.create_default_context()  # making one takes longer than asking


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


planner = Agent(name="Planner", instructions=PLANNER, model="planner")
solver = Agent(name="Solver", instructions=SOLVER, model="solver", tools=[multiply])


async def solve(task, base_url, api_key):
    """The solver's answer to `task["prompt"]`."""
    http = DefaultAsyncHttpxClient(verify=TLS, timeout=600)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
        plan = await Runner.run(planner, task["prompt"], run_config=config)
        answer = Runner.run_streamed(solver, f"{task['prompt']}\n\nplanner: {plan.final_output}", run_config=config)
        async for _ in answer.stream_events():
            pass
        return answer.final_output


if __name__ == "__main__":  # echo '{"prompt": "Start with 17. Add 5. Multiply by 3."}' | python agents_app.py
    print(asyncio.run(solve(json.load(sys.stdin), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])))
