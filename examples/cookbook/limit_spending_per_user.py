"""Limit the spending of each user.

The cost of every model call is added to the account of its user, over all conversations. A user who has spent the
allowance gets no further model call. The hook is registered for the conversation (`AgentContext(hooks=...)`), so other
users of the same agent need not have it. `CostLimitHook` limits one run.
"""

from collections import defaultdict

from hookline import AFTER_LLM, BEFORE_LLM, Agent, AgentContext, HookResult, ModelReply, ScriptedModel, reply


class LimitSpendingPerUser:
    points = frozenset({BEFORE_LLM, AFTER_LLM})
    priority = 200

    def __init__(self, dollars: float) -> None:
        self.dollars = dollars
        self.spent: dict[str, float] = defaultdict(float)  # or a row in your database

    def __call__(self, point: str, ctx: AgentContext, payload: object) -> HookResult | None:
        user = ctx.state.metadata.get("user", "unknown")
        if isinstance(payload, ModelReply):
            self.spent[user] += payload.cost or 0.0  # an unknown price counts as 0: set prices for your model
        elif self.spent[user] >= self.dollars:
            return HookResult.stop(f"{user} has spent ${self.spent[user]:.2f} of ${self.dollars:.2f}.", "cost_limit")
        return None


limit_spending_per_user = LimitSpendingPerUser(dollars=0.05)

if __name__ == "__main__":
    agent = Agent("helper", llm=ScriptedModel([reply("Here you are.", cost=0.03)], loop=True))
    for user in ("ann", "ann", "ann", "ben"):
        result = agent.run("Help.", ctx=AgentContext(hooks=[limit_spending_per_user]), metadata={"user": user})
        print(user, result.status, result.reply or (result.stop and result.stop.message))

# prints:
# ann completed Here you are.
# ann completed Here you are.
# ann stopped ann has spent $0.06 of $0.05.
# ben completed Here you are.
