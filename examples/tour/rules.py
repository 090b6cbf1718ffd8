"""The hooks of the tour. Each is an ordinary function."""

import re

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    AgentContext,
    HookResult,
    ToolCallRequest,
    ToolCallResult,
    guard,
    hook,
)


@guard(BEFORE_TOOL, tools="discard_*")
def keep_notes(ctx: AgentContext, call: ToolCallRequest) -> HookResult:
    """Block the call: the tool does not run, and the model gets the message."""
    return HookResult.block("Notes are kept.", reason="notes are never thrown away")


@guard(BEFORE_TOOL, tools="mail_*")
def ask_first(ctx: AgentContext, call: ToolCallRequest) -> HookResult:
    """Let a person decide. The decision holds for exactly these arguments."""
    return HookResult.ask("Mail this note?", reason="a person decides about mail")


@hook(AFTER_TOOL, priority=50)
def hide_codes(ctx: AgentContext, done: ToolCallResult) -> HookResult | None:
    """Hide codes in the results and errors of tools, before the model and the transcript get them."""
    hidden = re.sub(r"\d{4,}", "[hidden]", done.text)
    if hidden == done.text:
        return None
    return HookResult.replace(done.with_text(hidden), reason="the result had a door code")
