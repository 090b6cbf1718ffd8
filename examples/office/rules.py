"""The hooks of the office. They make a very small model reliable."""

import re

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    AgentContext,
    HookResult,
    ModelRequest,
    ToolCallRequest,
    ToolCallResult,
    hook,
)
from hookline.models import ModelResponse
from hookline.payloads import Ticket
from hookline.points import BEFORE_TICKET_COMPLETE

WORDS = {
    "ticket_create": ("create", "new ticket"),
    "ticket_start": ("start", "begin", "take"),
    "ticket_complete": ("complete", "finish", "done"),
    "ticket_list": ("list", "which", "show", "tickets"),
}
HELP = (
    "I keep the tickets of the office. Ask me which are open, or say: create a ticket, start T-1, "
    "or complete T-1 and what you did."
)


@hook(BEFORE_TICKET_COMPLETE)
def says_how_many(ctx: AgentContext, ticket: Ticket) -> HookResult | None:
    """Reject a completion without a number: the ticket needs revision, and the agent gets the reason."""
    if any(character.isdigit() for character in ticket.summary):
        return None
    return HookResult.claim(reason="the summary does not say how many")


@hook(BEFORE_LLM)
def one_tool_at_a_time(ctx: AgentContext, request: ModelRequest) -> HookResult | None:
    """Offer only the tool that the message is about, and require its use: a small model chooses badly.

    If the message is about no tool, reply with the help text: a small model would invent a call.
    """
    if request.messages[-1].role != "user" or not request.tools:  # the poet has no tools
        return None
    message = request.messages[-1].content.lower()
    wanted = next((tool for tool, words in WORDS.items() if any(word in message for word in words)), "")
    tools = [tool for tool in request.tools if tool.name == wanted]
    if not tools:
        return HookResult.answer(ModelResponse(HELP), reason="not about tickets")
    return HookResult.replace(request.replace(tools=tools, tool_choice="required"), reason=f"about {wanted}")


@hook(BEFORE_TOOL, tools="ticket_*")
def use_the_words_of_the_user(ctx: AgentContext, call: ToolCallRequest) -> HookResult | None:
    """Copy the id and the summary from the user's message: a small model mixes up ids and invents summaries."""
    message = next(message.content for message in reversed(ctx.state.messages) if message.role == "user")
    found = re.search(r"\b(T-\d+)\b\W*(.*)", message, flags=re.IGNORECASE | re.DOTALL)
    if found is None or "id" not in call.arguments:
        return None
    arguments = {"id": found[1].upper()}
    if "summary" in call.arguments and found[2]:
        arguments["summary"] = found[2]
    return HookResult.replace(call.replace(arguments={**call.arguments, **arguments}), reason="words of the user")


@hook(AFTER_TOOL, tools="ticket_*")
def reply_with_the_tool_result(ctx: AgentContext, done: ToolCallResult) -> HookResult:
    """Reply with the tool result itself: a small model summarises badly."""
    return HookResult.end(done.text, reason="the tool result is the reply")
