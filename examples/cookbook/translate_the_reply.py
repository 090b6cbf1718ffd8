"""Translate the reply for the user.

The agent works in English; the user reads Dutch. When the model has answered and calls no more tools, a second model
call translates the reply, and the translation is recorded, returned and streamed.
`purpose` keeps the hook from translating the model calls of other hooks.
"""

from hookline import AFTER_LLM, Agent, AgentContext, HookResult, ModelReply, ModelRequest, ScriptedModel, hook


@hook(AFTER_LLM, priority=40)
async def translate(ctx: AgentContext, answer: ModelReply) -> HookResult | None:
    language = ctx.state.metadata.get("language", "English")
    if language == "English" or answer.tool_calls or answer.purpose != "step":
        return None
    assert ctx.llm is not None
    translated = await ctx.llm.complete(f"Translate into {language}:\n\n{answer.content}", purpose="translation")
    return HookResult.replace(answer.replace(content=translated.content), reason=f"into {language}")


def model(request: ModelRequest) -> str:
    return "Het is zonnig." if request.purpose == "translation" else "It is sunny."


if __name__ == "__main__":
    agent = Agent("weather", llm=ScriptedModel([model], loop=True), hooks=[translate])
    for language in ("English", "Dutch"):
        result = agent.run("How is the weather?", metadata={"language": language})
        print(f"{language}: {result.reply}")

# prints:
# English: It is sunny.
# Dutch: Het is zonnig.
