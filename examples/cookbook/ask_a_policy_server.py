"""Ask a policy server, with a timeout.

Often another service decides what is allowed. The guard is async, so that a slow answer delays only this run.
`timeout=` limits the wait, and `on_failure="block"` blocks the call after a timeout or an error, while the run goes on.
Without `on_failure`, a guard that fails ends the run. Either way nothing gets past the guard.
"""

import asyncio

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool


async def allowed(service: str) -> bool:
    """Stands for a request to your server."""
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
