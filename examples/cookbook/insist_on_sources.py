"""Require sources.

A reply without a source is rejected, with a note for the model. The model gets at most two more attempts; after that
the hook ends the run with its own reply. `SchemaRetryHook` and `GroundedReplyHook` work in a similar way.
"""

import re

from hookline import AFTER_LLM, Agent, AgentContext, HookResult, ModelReply, ScriptedModel, hook


@hook(AFTER_LLM, priority=60)
def insist_on_sources(ctx: AgentContext, answer: ModelReply) -> HookResult | None:
    if answer.tool_calls or answer.purpose != "step" or re.search(r"\[\d+\]", answer.content):
        return None
    if answer.attempt > 2:
        return HookResult.end("I found no reliable source.", reason="no sources after three tries")
    return HookResult.retry("Name your sources, as [1], [2] and so on. Leave out what you have no source for.")


if __name__ == "__main__":
    for turns in (["It rains.", "It rains [1].\n[1] weather.example"], ["It rains."]):
        llm = ScriptedModel(turns, loop=True)
        result = Agent("reporter", llm=llm, hooks=[insist_on_sources]).run("How is the weather?")
        print(f"{result.status} after {len(llm.requests)} tries: {result.reply}")

# prints:
# completed after 2 tries: It rains [1].
# [1] weather.example
# ended after 3 tries: I found no reliable source.
