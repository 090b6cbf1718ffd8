"""A tool keeps the signature of its function."""

from typing import Any, assert_type

from hookline import Agent, AgentContext, ScriptedModel, tool
from hookline.tools import Sandbox, Tool, ToolRegistry, shell_tool


@tool
def add(a: int, b: int = 2) -> int:
    return a + b


@tool(name="search_web", timeout=3, effects=["read", "network"], untrusted=True)
async def search(query: str, *, limit: int = 10) -> list[str]:
    return [query] * limit


@tool
def remember(ctx: AgentContext, text: str) -> None: ...


assert_type(add(1, b=3), int)


async def call_tools(ctx: AgentContext) -> None:
    assert_type(await search("x", limit=3), list[str])
    remember(ctx, "x")


def shells(folder: str) -> list[Tool]:
    sandbox = Sandbox("bubblewrap", readable=["/opt"], hosts=("example.com",))
    return [shell_tool(folder, sandbox=sandbox), shell_tool(folder, sandbox="off")]


any_tools: list[Tool] = [add, search, remember]
strict_tools: list[Tool[..., Any]] = [add, search]
registry = ToolRegistry(any_tools)
agent = Agent("calculator", llm=ScriptedModel([]), tools=[add, search, remember])
