"""Ask a second person before a payment.

Payments above 100 need approval by a person other than the one who requested them. The guard asks; the approver is a
hook too, and may deny the call or change the amount, which the guard then judges again. `ApprovalsHook` keeps such
questions in a store, so that people can answer them from anywhere.
"""

import asyncio
from collections.abc import Callable

from hookline import APPROVAL_REQUESTED, BEFORE_TOOL
from hookline import Agent, AgentContext, ApprovalRequest, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool


@guard(BEFORE_TOOL, tools="pay")
def ask_above_a_hundred(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    amount, to = request.arguments["amount"], request.arguments["to"]
    return HookResult.ask(f"Pay {amount} to {to}?") if amount > 100 else None


class SecondPerson:
    points = frozenset({APPROVAL_REQUESTED})

    def __init__(self, ask: Callable[[str], str]) -> None:
        self.ask = ask

    async def __call__(self, point: str, ctx: AgentContext, request: ApprovalRequest) -> HookResult:
        question = f"{request.questions[0].text} (NAME yes, NAME no, or NAME and an amount) "
        name, _, decision = (await asyncio.to_thread(self.ask, question)).partition(" ")  # does not block the loop
        if name == ctx.state.metadata.get("user"):
            return HookResult.deny("Somebody else must agree.", by=name)
        if decision.isdigit():
            return HookResult.edit({**request.call.arguments, "amount": int(decision)}, by=name)
        return HookResult.approve(by=name) if decision == "yes" else HookResult.deny("The payment was denied.", by=name)


second_person = SecondPerson(input)


@tool
def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


if __name__ == "__main__":
    answers = iter(["ann yes", "ben yes", "ben 250", "ben no"])  # instead of input
    llm = ScriptedModel([call("pay", amount=500, to="the printer"), "Done."], loop=True)
    agent = Agent(
        "clerk", llm=llm, tools=[pay], hooks=[ask_above_a_hundred, SecondPerson(lambda question: next(answers))]
    )
    for _ in range(4):
        print(agent.run("Pay the printer.", metadata={"user": "ann"}).messages[2].content)

# prints:
# Somebody else must agree.
# paid 500 to the printer
# paid 250 to the printer
# The payment was denied.
