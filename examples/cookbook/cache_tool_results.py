"""Cache the results of slow tools.

The same call of the same tool gets the same result for a while, in all runs of the agent, without running the tool
again. The hook stores results at `after_tool` and answers at `before_tool`; guards still judge a call that is answered.
`ResponseCacheHook` caches replies of a model.
"""

from typing import Any

from hookline import AFTER_TOOL, BEFORE_TOOL
from hookline import Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, ToolCallResult, call, tool


class CacheToolResults:
    points = frozenset({BEFORE_TOOL, AFTER_TOOL})

    def __init__(self, *tools: str, seconds: float = 60.0) -> None:
        self.tools, self.seconds = tools, seconds  # `tools` selects the calls of a hook, an option like `priority`
        self.cached: dict[Any, tuple[float, Any]] = {}  # never shrinks: for many calls, use a real cache

    def __call__(self, point: str, ctx: AgentContext, payload: ToolCallRequest | ToolCallResult) -> HookResult | None:
        key, now = (payload.name, payload.arguments), ctx.clock.monotonic()
        if isinstance(payload, ToolCallResult):
            if payload.outcome == "ok":
                self.cached[key] = now + self.seconds, payload.result
            return None
        until, result = self.cached.get(key, (0.0, None))
        return HookResult.answer(result, reason="from the cache") if now < until else None


cache_tool_results = CacheToolResults("weather", "search_*")


@tool
def weather(city: str) -> str:
    """Tell the weather, which takes a while."""
    print(f"(asking for {city})")
    return f"rain in {city}"


if __name__ == "__main__":
    llm = ScriptedModel([call("weather", city="Bonn"), call("weather", city="Kiel"), "It rains."], loop=True)
    agent = Agent("reporter", llm=llm, tools=[weather], hooks=[cache_tool_results])
    for _ in range(2):
        print([step.outcomes for step in agent.run("How is the weather?").steps[:2]])

# prints:
# (asking for Bonn)
# (asking for Kiel)
# [('ok',), ('ok',)]
# [('answered',), ('answered',)]
