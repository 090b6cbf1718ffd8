"""Survive an outage of the model.

A provider that is overloaded is asked again, after as long as it wishes; if that does not help, people get an honest
answer in place of an error, and the conversation goes on. Only failures of a model take a verb at `on_error`; what
hooks and tools do wrong is shown there too. `ModelRetryHook` and `FallbackModelHook` are the built-in ones.
"""

import asyncio

from hookline import ON_ERROR, Agent, AgentContext, Failure, HookResult, ScriptedModel, hook
from hookline.models import OverloadedError


@hook(ON_ERROR)
async def survive_an_outage(ctx: AgentContext, failure: Failure) -> HookResult | None:
    error = failure.errors[0]
    if failure.where != "model" or error.type not in (
        "OverloadedError",
        "RateLimitError",
        "UnreachableError",
        "ModelTimeoutError",
    ):
        return None
    if failure.attempt > 2:
        return HookResult.answer("I cannot think right now. Please ask again in a minute.", reason="an outage")
    await asyncio.sleep(min(error.retry_after or 2.0**failure.attempt, 30))
    return HookResult.retry(reason=f"{error.type}, attempt {failure.attempt}")


if __name__ == "__main__":
    busy = OverloadedError("too many requests", retry_after=0.01)
    for llm in (ScriptedModel([busy, "Good morning."]), ScriptedModel([busy, busy, busy])):
        result = Agent("helper", llm=llm, hooks=[survive_an_outage]).run("Hello.")
        print(f"{result.status}: {result.reply}")

# prints:
# completed: Good morning.
# completed: I cannot think right now. Please ask again in a minute.
