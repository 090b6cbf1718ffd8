"""A model tries to delete files, and a hook of four lines blocks it. The model is scripted.

python examples/first_hook.py
"""

import asyncio
import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    Event,
    HookResult,
    ScriptedModel,
    ToolCallRequest,
    ToolCallResult,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.events import HookExecuted, ModelReplied, RunFinished, TextDelta, ToolSettled

FOLDER = Path(tempfile.mkdtemp(prefix="hookline-"))
atexit.register(shutil.rmtree, FOLDER)


@tool(effects=["read"])
def list_files() -> list[str]:
    """List the files in the folder."""
    return sorted(path.name for path in FOLDER.iterdir())


@tool(effects=["delete"])
def delete_file(path: str) -> str:
    """Delete one file.

    Args:
        path: the file to delete.
    """
    (FOLDER / Path(path).name).unlink()
    return f"{path} deleted"


@guard(BEFORE_TOOL, tools="delete_*")
def keep_originals(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    if not request.arguments["path"].endswith(".tmp"):
        return HookResult.block("Only .tmp files may be deleted.", reason="not a temporary file")
    return None


@hook(AFTER_TOOL, tools="list_files")
def hide_secrets(ctx: AgentContext, result: ToolCallResult) -> HookResult | None:
    shown = [name for name in result.result or [] if not name.startswith("secret")]
    return HookResult.replace(result.replace(result=shown), reason="secrets hidden")


SCRIPT: list[Any] = [
    call("list_files"),
    ["I tidy up.", call("delete_file", path="cache.tmp"), call("delete_file", path="thesis.doc")],
    reply("I deleted cache.tmp. I may not delete thesis.doc."),
]

BOLD, DIM, RED, GREEN, YELLOW, END = (
    ("\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m", "\033[0m") if sys.stdout.isatty() else ("",) * 6
)


def show(event: Event) -> None:
    """Print a line for each event worth reading."""
    match event:
        case ModelReplied(tool_calls=calls) if calls:
            print("".join(f"\n  {BOLD}{c.name}{END} {DIM}{dict(c.arguments)}{END}" for c in calls))
        case HookExecuted(hook=name, verb=verb, reason=reason):
            print(f"    {YELLOW}hook {name}: {verb}{END} {DIM}({reason}){END}")
        case ToolSettled(tool=name, outcome=outcome, text=text):
            print(f"    {GREEN if outcome == 'ok' else RED}{name} {outcome}{END}: {text}")
        case TextDelta(text=text):
            print(text, end="", flush=True)
        case RunFinished(result=result):
            print(f"\n\n{BOLD}{result.status}{END} in {len(result.steps)} steps, {result.tool_calls} tool calls")


async def main() -> None:
    for name in ("cache.tmp", "thesis.doc", "secret.key"):
        (FOLDER / name).touch()
    agent = Agent(
        "janitor",
        "tidies folders",
        "You tidy up.",
        llm=ScriptedModel(SCRIPT, delay=0.02),
        tools=[list_files, delete_file],
        hooks=[keep_originals, hide_secrets],
    )
    print(f"{BOLD}You:{END} clean up")
    async for event in agent.stream("clean up"):
        show(event)
    print(f"still there: {', '.join(list_files())}")


if __name__ == "__main__":
    asyncio.run(main())
