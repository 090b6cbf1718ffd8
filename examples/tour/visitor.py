"""The other side of `make run`: a list of tasks that need tools, and a person who takes silence for a yes."""

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
    """Ask at the terminal. Where nobody can answer, the demo goes on at once."""
    if not sys.stdin.isatty():
        return HookResult.approve(by="nobody, in a demo")
    arguments = ", ".join(f"{name}={value!r}" for name, value in request.call.arguments.items())
    sys.stderr.write(f"  {request.call.name}({arguments})? [Y/n, yes in {SECONDS} s] ")
    sys.stderr.flush()
    answered, _, _ = await asyncio.to_thread(select.select, [sys.stdin], [], [], SECONDS)
    if not answered:
        sys.stderr.write("yes\n")
        return HookResult.approve(by="silence, in a demo")
    if sys.stdin.readline().strip().lower().startswith("n"):
        return HookResult.deny("The person said no.", by="you")
    return HookResult.approve(by="you")


@hook(ON_STOP)
def work_through_the_list(ctx: AgentContext, stopping: Stopping) -> HookResult | None:
    """Continue until the list is done. Limits still apply."""
    done = sum(message.role == "user" for message in ctx.state.messages) - 1
    if done >= len(TASKS) or stopping.signals[0].kind != "completed":
        return None
    return HookResult.keep_going(TASKS[done], reason="the list is not done")


@hook(BEFORE_LLM)
def look_first(ctx: AgentContext, request: ModelRequest) -> HookResult | None:
    """Require a tool call as the first reply, because a small model guesses."""
    if request.messages[-1].role != "user":
        return None
    return HookResult.replace(request.replace(tool_choice="required"), reason="look before you answer")
