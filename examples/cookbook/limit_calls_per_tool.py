"""Limit the calls of each tool.

A model that searches twenty times is stuck. Each tool gets a quota for one run; further calls are blocked, and the
model goes on with what it has. The count is in `ctx.own_state`, which is new for every run and private to the hook.
`Limits(tool_calls=10)` limits all calls of a run together.
"""

from collections import Counter

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, tool


class LimitCallsPerTool:
    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 200

    def __init__(self, **quota: int) -> None:
        self.quota = quota

    def __call__(self, point: str, ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
        used = ctx.own_state(self, Counter[str])
        used[request.name] += 1
        quota = self.quota.get(request.name)
        if quota is None or used[request.name] <= quota:
            return None
        return HookResult.block(f"{request.name} may be called {quota} times in a run. Use the results that you have.")


limit_calls_per_tool = LimitCallsPerTool(search=2)


@tool
def search(query: str) -> str:
    """Search the web."""
    return f"ten pages about {query}"


if __name__ == "__main__":
    llm = ScriptedModel(
        [[call("search", query="rain"), call("search", query="snow")], call("search", query="hail"), "Ok."]
    )
    agent = Agent("reader", llm=llm, tools=[search], hooks=[limit_calls_per_tool])
    for message in agent.run("What about the weather?").messages:
        if message.role == "tool":
            print(message.content)

# prints:
# ten pages about rain
# ten pages about snow
# search may be called 2 times in a run. Use the results that you have.
