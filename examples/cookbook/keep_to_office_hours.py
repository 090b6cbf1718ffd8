"""Allow deployments only in office hours.

A deployment at three in the morning has nobody to watch it. This guard blocks it outside of working hours, and the
model gets the reason. The time comes from `ctx.clock`, so that you can test Saturday on a Monday.
"""

from datetime import datetime

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool
from hookline.testing import FakeClock


@guard(BEFORE_TOOL, tools="deploy*", priority=100)
def keep_to_office_hours(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    now = datetime.fromtimestamp(ctx.clock.time())
    if now.weekday() < 5 and 9 <= now.hour < 17:
        return None
    return HookResult.block(f"It is {now:%A, %H:%M}. Deploy from Monday to Friday, 9 to 17.")


@tool
def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is deployed"


if __name__ == "__main__":
    llm = ScriptedModel([call("deploy", service="shop"), "That is all."], loop=True)
    agent = Agent("ops", llm=llm, tools=[deploy], hooks=[keep_to_office_hours])
    for when in (datetime(2026, 11, 14, 3, 0), datetime(2026, 11, 16, 10, 30)):
        result = agent.run("Deploy the shop.", ctx=AgentContext(clock=FakeClock(when)))
        print(result.messages[2].content)

# prints:
# It is Saturday, 03:00. Deploy from Monday to Friday, 9 to 17.
# shop is deployed
