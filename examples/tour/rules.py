"""The hooks of the tour: each one is an ordinary function."""

import re

from hookline import AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_STOP, HookResult, guard, hook

NEXT = ["Read the note doctor.", "Read the note taxes.", "Read the note plans."]


@guard(BEFORE_TOOL, tools="delete_*")
def keep_notes(ctx, call):
    """The tool does not run; the model reads the message and goes on."""
    return HookResult.block("Notes are never deleted.", reason="nobody may delete notes")


@hook(AFTER_TOOL, priority=50)
def hide_pins(ctx, done):
    """What leaves this point is what the model and the transcript get."""
    hidden = re.sub(r"\d{4,}", "****", done.text)
    if done.error is None and hidden != done.text:
        return HookResult.replace(done.replace(result=hidden), reason="a PIN was in the result")


@hook(BEFORE_LLM)
def look_first(ctx, request):
    """A small model would rather guess than look: its first reply to a request has to be a call."""
    if request.messages[-1].role == "user":
        return HookResult.replace(request.replace(tool_choice="required"), reason="look before you answer")


@hook(ON_STOP)
def go_through_the_list(ctx, stopping):
    """The run is about to stop: there is more to do. The step limit still holds."""
    done = sum(message.role == "user" for message in ctx.state.messages) - 1
    if done < len(NEXT):
        return HookResult.keep_going(NEXT[done], reason="the list is not done")
