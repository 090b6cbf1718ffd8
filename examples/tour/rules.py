"""The hooks of the tour: each one is an ordinary function."""

import re

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_STOP,
    AgentContext,
    HookResult,
    ModelRequest,
    Stopping,
    ToolCallRequest,
    ToolCallResult,
    guard,
    hook,
)

LIST = ["Read the note doctor.", "Read the note taxes.", "Read the note plans."]


@guard(BEFORE_TOOL, tools="discard_*")
def keep_notes(ctx: AgentContext, call: ToolCallRequest) -> HookResult:
    """The tool does not run; the model reads the message and goes on."""
    return HookResult.block("Notes are kept.", reason="nobody may throw notes away")


@hook(AFTER_TOOL, priority=50)
def hide_pins(ctx: AgentContext, done: ToolCallResult) -> HookResult | None:
    """What leaves this point is what the model and the transcript get."""
    hidden = re.sub(r"\d{4,}", "****", done.text)
    if done.error is not None or hidden == done.text:
        return None
    return HookResult.replace(done.replace(result=hidden), reason="a PIN was in the result")


@hook(BEFORE_LLM)
def look_first(ctx: AgentContext, request: ModelRequest) -> HookResult | None:
    """A small model would rather guess than look: its first reply to a request has to be a call."""
    if request.messages[-1].role != "user":
        return None
    return HookResult.replace(request.replace(tool_choice="required"), reason="look before you answer")


@hook(ON_STOP)
def work_through_the_list(ctx: AgentContext, stopping: Stopping) -> HookResult | None:
    """The model thinks it is done, but the list is not. A limit would hold, whatever this says."""
    done = sum(message.role == "user" for message in ctx.state.messages) - 1
    if done >= len(LIST) or stopping.signals[0].kind != "completed":
        return None
    return HookResult.keep_going(LIST[done], reason="the list is not done")
