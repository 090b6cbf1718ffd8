"""What is asked about: a hook for each answer that a program can get from `POST /decide`."""

import asyncio

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    AgentContext,
    HookResult,
    ToolCallRequest,
    guard,
    hook,
)
from hookline.payloads import AgentResult, ModelReply, ModelRequest, PromptBuild, RunStart, Stopping, ToolCallResult
from hookline.points import BEFORE_PROMPT_BUILD, ON_STOP


def cleaned(text: str) -> str:
    """Return a text without the secret."""
    return text.replace("SECRET-1", "[secret]")


@guard(BEFORE_TOOL, tools="send_*")
def colleagues_only(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block mail to strangers."""
    if str(request.arguments.get("to", "")).endswith("@example.com"):
        return None
    return HookResult.block("Mail goes to colleagues only.")


@hook(BEFORE_TOOL, tools="convert")
def in_metres(ctx: AgentContext, request: ToolCallRequest) -> ToolCallRequest:
    """Change the arguments."""
    return request.replace(arguments={**request.arguments, "unit": "m"})


@guard(BEFORE_TOOL, tools="pay")
def ask_to_pay(ctx: AgentContext, request: ToolCallRequest) -> HookResult:
    """Ask people."""
    return HookResult.ask(f"Pay {request.arguments['amount']}?")


@hook(BEFORE_TOOL, tools="today")
def today(ctx: AgentContext, request: ToolCallRequest) -> HookResult:
    """Answer in place of the tool."""
    return HookResult.answer({"day": 1})


@guard(BEFORE_TOOL, tools="fails")
def fails(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Fail."""
    raise RuntimeError("a bug")


@guard(BEFORE_TOOL, tools="hangs")
async def hangs(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Never answer."""
    await asyncio.Event().wait()


@guard(BEFORE_TOOL, tools="finish")
def finish(ctx: AgentContext, request: ToolCallRequest) -> HookResult:
    """End the run."""
    return HookResult.end("That is enough.")


@guard(BEFORE_TOOL, tools="pause")
def pause(ctx: AgentContext, request: ToolCallRequest) -> HookResult:
    """Stop the run."""
    return HookResult.stop("A pause is due.")


@hook(AFTER_TOOL)
def redact_result(ctx: AgentContext, result: ToolCallResult) -> ToolCallResult:
    """Redact the secret in results, and in errors."""
    return result.with_text(cleaned(result.text)) if "SECRET-1" in result.text else result


@guard(AFTER_TOOL, tools="flaky")
def again(ctx: AgentContext, result: ToolCallResult) -> HookResult | None:
    """Want another attempt."""
    return HookResult.retry("Try the other server.") if result.text == "nothing" else None


@hook(BEFORE_LLM)
def redact_request(ctx: AgentContext, request: ModelRequest) -> HookResult | ModelRequest | None:
    """Redact the secret, and let no request with the forbidden word pass."""
    texts = [message.content for message in request.messages]
    if any("forbidden" in text for text in texts):
        return HookResult.end("This is not allowed.")
    if not any("SECRET-1" in text for text in texts):
        return None
    return request.replace(messages=[{**dict(each), "content": cleaned(each.content)} for each in request.messages])


@guard(AFTER_LLM)
def no_insults(ctx: AgentContext, reply: ModelReply) -> HookResult | None:
    """Reject an insult."""
    return HookResult.retry("Be polite.") if "idiot" in reply.content else None


@hook(AFTER_LLM)
def redact_reply(ctx: AgentContext, reply: ModelReply) -> ModelReply | None:
    """Redact the secret in replies."""
    return reply.replace(content=cleaned(reply.content)) if "SECRET-1" in reply.content else None


@hook(ON_RUN_START)
def short_tasks(ctx: AgentContext, start: RunStart) -> RunStart:
    """Shorten the task."""
    return start.replace(task=start.task[:40])


@hook(BEFORE_PROMPT_BUILD)
def house_rules(ctx: AgentContext, build: PromptBuild) -> HookResult:
    """Add to the system prompt."""
    return HookResult.merge(append_system="Be brief.")


@hook(ON_STOP)
def go_on(ctx: AgentContext, stopping: Stopping) -> HookResult | None:
    """Keep a run going whose task says so, once."""
    last = ctx.state.messages[-1].content
    return HookResult.keep_going("You have not said goodbye.") if last == "Not yet." else None


@hook(ON_RUN_END)
def signed(ctx: AgentContext, result: AgentResult) -> AgentResult:
    """Change the reply."""
    return result.replace(reply=f"{result.reply} -- a machine")
