"""Hooks that keep a very small model on track. A larger model does not need them."""

from hookline import (
    BEFORE_LLM,
    BEFORE_TOOL,
    AgentContext,
    HookResult,
    ModelRequest,
    ToolCallRequest,
    hook,
)
from hookline.models import ModelResponse

WORDS = {"deploy": ("deploy", "release", "ship"), "status": ("status", "version", "which", "what runs")}
SERVICES = ("shop", "search")
HELP = "Ask for the status of shop or search, or have one of them deployed."


@hook(BEFORE_LLM)
def one_tool_at_a_time(ctx: AgentContext, request: ModelRequest) -> HookResult | None:
    """Offer the model only the tool that the user asked for, or reply with help if there is none.

    A small model also summarizes badly, so the result of the tool is the reply.
    """
    last = request.messages[-1]
    if last.role == "tool":
        return HookResult.answer(ModelResponse(last.content), reason="the result of the tool is the reply")
    text = last.content.lower()
    wanted = next((name for name, words in WORDS.items() if any(word in text for word in words)), "")
    tools = [tool for tool in request.tools if tool.name == wanted]
    if not tools or not any(service in text for service in SERVICES):
        return HookResult.answer(ModelResponse(HELP), reason="the request names no known action and service")
    return HookResult.replace(
        request.replace(tools=tools, tool_choice="required"), reason=f"the user asked for {wanted}"
    )


@hook(BEFORE_TOOL)
def the_named_service(ctx: AgentContext, call: ToolCallRequest) -> HookResult | None:
    """Use the service that the user named, because a small model mixes up names."""
    text = next(message.content.lower() for message in reversed(ctx.state.messages) if message.role == "user")
    service = next((service for service in SERVICES if service in text), "")
    return HookResult.replace(call.replace(arguments={"service": service}), reason="the service that the user named")
