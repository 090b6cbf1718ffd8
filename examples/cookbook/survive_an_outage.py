"""Survive an outage of the model.

If a provider is overloaded, the hook retries after the requested delay. If that does not help, the user gets an honest
reply instead of an error, and the conversation continues. At `on_error`, a hook can only handle failures of a model;
failures of hooks and tools are reported there too. `ModelRetryHook` and `FallbackModelHook` are the built-in hooks.
"""

import asyncio

from hookline import ON_ERROR, Agent, AgentContext, ErrorReport, HookResult, ScriptedModel, hook
from hookline.models import OverloadedError


@hook(ON_ERROR)
async def survive_an_outage(ctx: AgentContext, failure: ErrorReport) -> HookResult | None:
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
