"""The rules of the office. A very small model works here: hooks see to it that it does."""

import re

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    AgentContext,
    HookResult,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
    ToolCallResult,
    hook,
)
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
    """A claim rejects: the ticket needs revision, and whoever completed it is told why."""
    if any(character.isdigit() for character in ticket.summary):
        return None
    return HookResult.claim(reason="the summary does not say how many")


@hook(BEFORE_LLM)
def one_tool_at_a_time(ctx: AgentContext, request: ModelRequest) -> HookResult | None:
    """A small model chooses badly among many tools: it is offered the one that was meant, and has to use it.

    Where none is meant it would make one up: it is told what can be said instead.
    """
    if request.messages[-1].role != "user" or not request.tools:  # the poet has none
        return None
    said = request.messages[-1].content.lower()
    meant = next((tool for tool, words in WORDS.items() if any(word in said for word in words)), "")
    tools = [tool for tool in request.tools if tool.name == meant]
    if not tools:
        return HookResult.answer(ModelResponse(HELP), reason="nothing to do with tickets")
    return HookResult.replace(request.replace(tools=tools, tool_choice="required"), reason=f"{meant} is meant")


@hook(BEFORE_TOOL, tools="ticket_*")
def the_words_that_were_said(ctx: AgentContext, call: ToolCallRequest) -> HookResult | None:
    """A small model mixes up ids and adds to summaries: what the person wrote counts."""
    said = next(message.content for message in reversed(ctx.state.messages) if message.role == "user")
    found = re.search(r"\b(T-\d+)\b\W*(.*)", said, flags=re.IGNORECASE | re.DOTALL)
    if found is None or "id" not in call.arguments:
        return None
    meant = {"id": found[1].upper()}
    if "summary" in call.arguments and found[2]:
        meant["summary"] = found[2]
    return HookResult.replace(call.replace(arguments={**call.arguments, **meant}), reason="as it was said")


@hook(AFTER_TOOL, tools="ticket_*")
def the_board_speaks_for_itself(ctx: AgentContext, done: ToolCallResult) -> HookResult:
    """A small model retells badly: the board's own words are the reply."""
    return HookResult.end(done.text, reason="the board has answered")
