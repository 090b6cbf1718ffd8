"""Ask a policy server, and do not hang with it.

What is allowed is often decided elsewhere. The guard is async, so that a slow answer holds up this run and no other;
`timeout=` ends the wait; `on_failure="block"` says what a timeout or a crash means: this call does not happen, and the
run goes on. Without it a guard that fails ends the run, so that nothing slips through either way.
"""

import asyncio

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool


async def allowed(request: ToolCallRequest) -> bool:
    """A request to your server, in real life."""
    path: str = request.arguments["path"]
    if path == "/backups":
        await asyncio.sleep(60)  # it hangs
    return path.startswith("/tmp")


@guard(BEFORE_TOOL, tools="wipe", timeout=0.1, on_failure="block")
async def ask_the_policy_server(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return None if await allowed(request) else HookResult.block("The policy forbids it.")


@tool
def wipe(path: str) -> str:
    """Empty a folder."""
    return f"{path} is empty"


if __name__ == "__main__":
    llm = ScriptedModel([[call("wipe", path=path) for path in ("/tmp/x", "/home", "/backups")], "One of three."])
    result = Agent("janitor", llm=llm, tools=[wipe], hooks=[ask_the_policy_server]).run("Make room.")
    for outcome, message in zip(result.steps[0].outcomes, result.messages[2:5], strict=True):
        print(f"{outcome}: {message.content}")

# prints:
# ok: /tmp/x is empty
# blocked: The policy forbids it.
# blocked: Blocked: hook 'ask_the_policy_server' failed at before_tool: HookTimeout: still running after 0.1 s
