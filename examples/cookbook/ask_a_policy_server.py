"""Ask a policy server, and do not hang with it.

What is allowed is often decided elsewhere. The guard is async, so that a slow answer holds up this run and no other;
`timeout=` ends the wait; `on_failure="block"` says what a timeout or a crash means: this call does not happen, and the
run goes on. Without it a guard that fails ends the run, so that nothing slips through either way.
"""

import asyncio

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool


async def allowed(service: str) -> bool:
    """A request to your server, in real life."""
    if service == "billing":
        await asyncio.sleep(60)  # it hangs
    return service == "shop"


@guard(BEFORE_TOOL, tools="restart", timeout=0.1, on_failure="block")
async def ask_the_policy_server(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return None if await allowed(request.arguments["service"]) else HookResult.block("The policy forbids it.")


@tool
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} is back"


if __name__ == "__main__":
    services = ("shop", "database", "billing")
    llm = ScriptedModel([[call("restart", service=service) for service in services], "One of three."])
    result = Agent("ops", llm=llm, tools=[restart], hooks=[ask_the_policy_server]).run("Restart all.")
    for outcome, message in zip(result.steps[0].outcomes, result.messages[2:5], strict=True):
        print(f"{outcome}: {message.content}")

# prints:
# ok: shop is back
# blocked: The policy forbids it.
# blocked: Blocked: the hook 'ask_the_policy_server' failed.
