"""Insist on sources.

An answer that names no source is sent back, with a note that says what is missing. A model gets at most two more tries;
after that this rail does not give in, but ends the run with words of its own. `SchemaRetryHook` and `GroundedReplyHook`
are rails of this kind.
"""

import re

from hookline import AFTER_LLM, Agent, AgentContext, HookResult, ModelReply, ScriptedModel, hook


@hook(AFTER_LLM, priority=60)
def insist_on_sources(ctx: AgentContext, answer: ModelReply) -> HookResult | None:
    if answer.tool_calls or answer.purpose != "step" or re.search(r"\[\d+\]", answer.content):
        return None
    if answer.attempt > 2:
        return HookResult.end("I found nothing that I could prove.", reason="no sources after three tries")
    return HookResult.retry("Name your sources, as [1], [2] and so on. Leave out what you have no source for.")


if __name__ == "__main__":
    for turns in (["It rains.", "It rains [1].\n[1] weather.example"], ["It rains."]):
        llm = ScriptedModel(turns, loop=True)
        result = Agent("reporter", llm=llm, hooks=[insist_on_sources]).run("How is the weather?")
        print(f"{result.status} after {len(llm.requests)} tries: {result.reply}")

# prints:
# completed after 2 tries: It rains [1].
# [1] weather.example
# ended after 3 tries: I found nothing that I could prove.
