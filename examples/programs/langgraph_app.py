"""A planner and a solver as a LangGraph graph; the solver may call a tool."""

import asyncio
import json
import os
import ssl
import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import DefaultAsyncHttpxClient

PLANNER = "You are the planner. List the steps."
SOLVER = 'You are the solver. Follow the plan and end with "Answer: N".'
TLS = ssl.create_default_context()  # making one takes longer than asking


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def make_graph(base_url, api_key, http):
    """planner → solver ⇄ tools"""
    endpoint = {"base_url": base_url, "api_key": api_key, "http_async_client": http}
    planner = ChatOpenAI(model="planner", **endpoint)
    solver = ChatOpenAI(model="solver", **endpoint).bind_tools([multiply])

    async def plan(state: MessagesState):
        answer = await planner.ainvoke([SystemMessage(PLANNER), *state["messages"]])
        return {"messages": [HumanMessage(f"planner: {answer.content}")]}

    async def work(state: MessagesState):
        return {"messages": [await solver.ainvoke([SystemMessage(SOLVER), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("planner", plan)
    graph.add_node("solver", work)
    graph.add_node("tools", ToolNode([multiply]))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "solver")
    graph.add_conditional_edges("solver", tools_condition)
    graph.add_edge("tools", "solver")
    return graph.compile()


async def solve(task, base_url, api_key):
    """The solver's answer to `task["prompt"]`."""
    async with DefaultAsyncHttpxClient(verify=TLS, timeout=600) as http:
        state = await make_graph(base_url, api_key, http).ainvoke({"messages": [HumanMessage(task["prompt"])]})
    return state["messages"][-1].content


if __name__ == "__main__":  # echo '{"prompt": "Start with 17. Add 5. Multiply by 3."}' | python langgraph_app.py
    print(asyncio.run(solve(json.load(sys.stdin), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])))
