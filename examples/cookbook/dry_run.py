"""Do a dry run.

Before an agent works on a real system, you want to see what it would do. In a dry run every tool that may do
more than read is answered instead of being run, so the model continues as if it had worked. The hook is given to
that one run (`agent.run(..., hooks=[...])`). `PlanModeHook` asks for approval instead.
"""

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool


@guard(BEFORE_TOOL)
def dry_run(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    tools = ctx.tool_registry
    called = tools.get(request.name) if tools is not None else None
    if called is not None and called.dangerous:
        return HookResult.answer("done (dry run)", reason="dry run")
    return None


@tool(effects=["read"])
def list_tables() -> list[str]:
    """List the tables."""
    return ["orders", "orders_old"]


@tool(effects=["delete"])
def drop_table(name: str) -> str:
    """Remove a table."""
    return f"{name} is gone"


if __name__ == "__main__":
    llm = ScriptedModel([call("list_tables"), call("drop_table", name="orders_old"), "Tidied."], loop=True)
    agent = Agent("dba", llm=llm, tools=[list_tables, drop_table])
    for hooks in ([dry_run], []):
        for message in agent.run("Tidy up.", hooks=hooks).messages:
            if message.role == "tool":
                print(f"{message.name}: {message.content}")

# prints:
# list_tables: ["orders","orders_old"]
# drop_table: done (dry run)
# list_tables: ["orders","orders_old"]
# drop_table: orders_old is gone
