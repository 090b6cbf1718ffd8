"""Write what happens as JSON lines.

One line for each call of a tool, with who asked, what was decided and why: enough to find out next week what the agent
did today. An observer decides nothing and is always called, also after a block; where it has a parameter `verdict`, it
sees what the point concluded. `AuditLogHook` writes an audit log whose lines cannot be changed unnoticed.
"""

import json
import sys
from typing import IO

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, Verdict
from hookline import call, guard, tool


class WriteJsonLines:
    points = frozenset({BEFORE_TOOL})
    phase = "observe"

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def __call__(self, point: str, ctx: AgentContext, request: ToolCallRequest, verdict: Verdict) -> None:
        line = {"user": ctx.state.metadata.get("user"), "tool": request.name, "arguments": request.arguments}
        line |= {"decision": verdict.action, "by": verdict.hook}
        print(json.dumps(line), file=self.file, flush=True)


write_json_lines = WriteJsonLines(sys.stderr)


@guard(BEFORE_TOOL, tools="remove_*")
def only_below_tmp(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return None if request.arguments["path"].startswith("/tmp/") else HookResult.block("Only below /tmp.")


@tool
def remove_file(path: str) -> str:
    """Remove a file."""
    return "removed"


if __name__ == "__main__":
    llm = ScriptedModel([[call("remove_file", path=path) for path in ("/tmp/a", "/home")], "Half done."])
    hooks = [only_below_tmp, WriteJsonLines(sys.stdout)]
    Agent("janitor", llm=llm, tools=[remove_file], hooks=hooks).run("Tidy up.", metadata={"user": "ann"})

# prints:
# {"user": "ann", "tool": "remove_file", "arguments": {"path": "/tmp/a"}, "decision": "cont", "by": ""}
# {"user": "ann", "tool": "remove_file", "arguments": {"path": "/home"}, "decision": "block", "by": "only_below_tmp"}
