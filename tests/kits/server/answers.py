"""Answers every request, with what the last message has."""

from hookline import BEFORE_LLM, AgentContext, HookResult, hook
from hookline.payloads import ModelRequest


@hook(BEFORE_LLM)
def answer(ctx: AgentContext, request: ModelRequest) -> HookResult | None:
    """Repeat the task, and count its files. Programs that only ask for decisions have models of their own."""
    if ctx.state.metadata["platform"] in ("decide", "litellm"):
        return None
    last = request.messages[-1]
    return HookResult.answer(f"You said {last.content!r} with {len(last.attachments)} files.")
