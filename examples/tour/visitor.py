"""The other side of `make run`: a list of tasks, a person, and help for a very small model."""

import asyncio
import select
import sys

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    ON_STOP,
    AgentContext,
    ApprovalRequest,
    HookResult,
    ModelRequest,
    Stopping,
    hook,
)

TASKS = ["Throw a note away: taxes.", "Mail a note: taxes."]
SECONDS = 8


@hook(APPROVAL_REQUESTED)
async def a_person(ctx: AgentContext, request: ApprovalRequest) -> HookResult:
    """Ask at the terminal. The demo approves the call itself if nobody is there, or nobody answers."""
    if not sys.stdin.isatty():
        return HookResult.approve(by="the demo, which has no terminal to ask at")
    arguments = ", ".join(f"{name}={value!r}" for name, value in request.call.arguments.items())
    sys.stderr.write(
        f"? May the model call {request.call.name}({arguments})? Type y or n and Enter: yes in {SECONDS} s.\n"
    )
    sys.stderr.flush()
    answered, _, _ = await asyncio.to_thread(select.select, [sys.stdin], [], [], SECONDS)
    if not answered:
        return HookResult.approve(by="the demo, which got no answer")
    if sys.stdin.readline().strip().lower().startswith("n"):
        return HookResult.deny("The person said no.", by="you")
    return HookResult.approve(by="you")


@hook(ON_STOP)
def next_task(ctx: AgentContext, stopping: Stopping) -> HookResult | None:
    """Continue with the next task of the list. Limits still apply."""
    done = sum(message.role == "user" for message in ctx.state.messages) - 1
    if done >= len(TASKS) or stopping.signals[0].kind != "completed":
        return None
    return HookResult.keep_going(TASKS[done], reason="there are more tasks")


@hook(BEFORE_LLM)
def only_tools(ctx: AgentContext, request: ModelRequest) -> HookResult:
    """Let the model choose tools and nothing else: it is too small for sentences. The result is the reply."""
    last = request.messages[-1]
    if last.role == "tool":
        return HookResult.answer(last.content, reason="the result of the tool is the reply")
    return HookResult.replace(request.replace(tool_choice="required"), reason="the model must call a tool")
