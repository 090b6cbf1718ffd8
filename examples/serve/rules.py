"""A very small model works at this desk: hooks see to it that it does what was said. A larger one needs none."""

from hookline import (
    BEFORE_LLM,
    BEFORE_TOOL,
    AgentContext,
    HookResult,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
    hook,
)

WORDS = {"deploy": ("deploy", "release", "ship"), "status": ("status", "version", "which", "what runs")}
SERVICES = ("shop", "search")
HELP = "Ask for the status of shop or search, or have one of them deployed."


@hook(BEFORE_LLM)
def one_tool_at_a_time(ctx: AgentContext, request: ModelRequest) -> HookResult | None:
    """The model is offered the tool that was meant, and has to use it; where none was, people are told what to say.

    A small model also retells badly: what the tool said is the reply.
    """
    last = request.messages[-1]
    if last.role == "tool":
        return HookResult.answer(ModelResponse(last.content), reason="the desk's own words")
    said = last.content.lower()
    meant = next((name for name, words in WORDS.items() if any(word in said for word in words)), "")
    tools = [tool for tool in request.tools if tool.name == meant]
    if not tools or not any(service in said for service in SERVICES):
        return HookResult.answer(ModelResponse(HELP), reason="nothing that this desk does")
    return HookResult.replace(request.replace(tools=tools, tool_choice="required"), reason=f"{meant} is meant")


@hook(BEFORE_TOOL)
def the_service_that_was_said(ctx: AgentContext, call: ToolCallRequest) -> HookResult | None:
    """A small model mixes up names: what was said counts."""
    said = next(message.content.lower() for message in reversed(ctx.state.messages) if message.role == "user")
    meant = next((service for service in SERVICES if service in said), "")
    return HookResult.replace(call.replace(arguments={"service": meant}), reason="as it was said")
