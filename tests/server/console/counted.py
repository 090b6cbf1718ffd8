"""An agent whose runs do known things, so that their figures are known."""

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_TOOL,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import shadow
from hookline.payloads import Usage

HOSTILE = "<script>alert(1)</script>"


@tool
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def no_deleting(ctx, request):
    return HookResult.block("No.") if request.arguments["path"] == "secret" else None


@guard(BEFORE_TOOL)
def never_angry(ctx, request):
    return None


@shadow
@guard(BEFORE_TOOL, name="strict")
def strict(ctx, request):
    return HookResult.block("In future.")


@hook(AFTER_TOOL, on_failure="open", name=f"broken{HOSTILE}")
def broken(ctx, result):
    raise ValueError("broken")


@guard(AFTER_LLM)
def not_so_short(ctx, answer):
    return HookResult.retry("Say more.") if answer.content == "short" else None


def turn(request):
    """Call the tool with the words of the task, one after another, and then reply."""
    words = next(str(each.content) for each in reversed(request.messages) if each.role == "user").split()
    done = sum(each.role == "tool" for each in request.messages)
    used = {"usage": Usage(100, 10, 40), "cost": 0.5, "model": "small" if done == 0 else f"large{HOSTILE}"}
    if done < len(words):
        return reply("", tool_calls=(call("delete", path=words[done]),), **used)
    return reply("done", **used)


def counted_agent(name="clerk", *, hooks=(), turns=None):
    """A run of it with ``n`` words makes ``n`` tool calls and ``n + 1`` model calls; the word ``secret`` is blocked."""
    own = [no_deleting, never_angry, strict, broken, not_so_short]
    return Agent(name, llm=ScriptedModel(turns or [turn], loop=True), tools=[delete], hooks=[*own, *hooks])
