"""The rules of the real sessions. What a call is about is in its arguments."""

import time
from pathlib import Path

from hookline import HookResult, guard, hook
from hookline.hooks import PathGuard
from hookline.points import AFTER_TOOL, APPROVAL_REQUESTED, BEFORE_PROMPT_BUILD, BEFORE_TOOL, ON_RUN_START, ON_STOP

paths = PathGuard(Path(__file__).parent, write=True)


@hook(BEFORE_TOOL, tools="shell")
def copy_instead(ctx, request):
    command = request.arguments["command"]
    return request.replace(arguments={**request.arguments, "command": command.replace("original", "copy")})


@guard(BEFORE_TOOL)
def judge(ctx, request):
    text = str(request.arguments)
    if request.name in ("subagent", "delegate"):
        return None
    if "denied" in text:
        return HookResult.block("The rule of the heron forbids it.")
    if "asked" in text:
        return HookResult.ask("May the heron do it?")
    if "crash" in text:
        raise RuntimeError("password=hunter2")
    if "hang" in text:
        time.sleep(300)
    return None


@hook(APPROVAL_REQUESTED)
def approver(ctx, request):
    return HookResult.approve() if "approved" in str(request.call.arguments) else None


@hook(AFTER_TOOL)
def redact(ctx, result):
    return result.with_text(result.text.replace("SECRET", "[hidden]")) if "SECRET" in result.text else None


@hook(ON_RUN_START)
def prompts(ctx, start):
    return HookResult.end("The heron does no homework.") if "homework" in start.task else None


@hook(BEFORE_PROMPT_BUILD)
def add_context(ctx, build):
    return HookResult.merge(append_system="The office is closed today.")


@hook(ON_STOP)
def once_more(ctx, stopping):
    if ctx.scratch.get("asked"):
        return None
    ctx.scratch["asked"] = True
    return HookResult.keep_going("Say it again.")
