"""A planner and a solver with OpenAI's own client."""

import asyncio
import json
import os
import ssl
import sys

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

PLANNER = "You are the planner. List the steps."
SOLVER = 'You are the solver. Follow the plan and end with "Answer: N".'
TLS = ssl.create_default_context()  # making one takes longer than asking


async def solve(task, base_url, api_key):
    """The solver's answer to `task["prompt"]`."""
    http = DefaultAsyncHttpxClient(verify=TLS, timeout=600)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:

        async def ask(model, system, question):
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            answer = await client.chat.completions.create(model=model, messages=messages)
            return answer.choices[0].message.content

        plan = await ask("planner", PLANNER, task["prompt"])
        return await ask("solver", SOLVER, f"{task['prompt']}\n\nplanner: {plan}")


if __name__ == "__main__":  # echo '{"prompt": "Start with 17. Add 5. Multiply by 3."}' | python openai_app.py
    print(asyncio.run(solve(json.load(sys.stdin), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])))
