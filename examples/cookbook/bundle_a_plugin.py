"""Bundle tools with their guards.

Distribute a tool together with its guard. A plugin is a named bundle of both, switched on and off as one: in a run that
excludes it (`allowed_plugins=[]`), neither its tools nor its hooks are active. A package provides a plugin through the
entry point group `hookline.plugins`, and `Agent(plugins=["its-name"])` finds it there.
"""

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool
from hookline.plugins import Plugin


@tool
def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


@guard(BEFORE_TOOL, tools="pay", priority=100)
def only_known_payees(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    to = request.arguments["to"]
    return None if to in ("the printer", "the landlord") else HookResult.block(f"{to} is not on the list.")


payments = Plugin("payments", hooks=[only_known_payees], tools=[pay])

if __name__ == "__main__":
    calls = [call("pay", amount=50, to="the printer"), call("pay", amount=50, to="eve")]
    agent = Agent("clerk", llm=ScriptedModel([calls, "Well."], loop=True), plugins=[payments])
    for allowed in (["payments"], []):
        result = agent.run("Pay them.", allowed_plugins=allowed)
        print(*(message.content for message in result.messages[2:4]), sep="\n")

# prints:
# paid 50 to the printer
# eve is not on the list.
# Unknown tool 'pay'. Available tools: none.
# Unknown tool 'pay'. Available tools: none.
