"""Log tool calls as JSON lines.

The hook writes one line for each tool call, with the user, the decision and the hook that made it, so that you can find
out next week what the agent did today. An observer decides nothing and is always called, also after a block; with a
parameter `verdict`, it gets the outcome of the point. `AuditLogHook` writes a tamper-evident audit log.
"""

import json
import sys
from typing import IO

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest, call, guard, tool
from hookline.hooks import Verdict


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


@guard(BEFORE_TOOL, tools="restart")
def keep_database(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    return HookResult.block("Not that one.") if request.arguments["service"] == "database" else None


@tool
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} is back"


if __name__ == "__main__":
    llm = ScriptedModel([[call("restart", service="shop"), call("restart", service="database")], "One of two."])
    agent = Agent("ops", llm=llm, tools=[restart], hooks=[keep_database, WriteJsonLines(sys.stdout)])
    agent.run("Restart both.", metadata={"user": "ann"})

# prints:
# {"user": "ann", "tool": "restart", "arguments": {"service": "shop"}, "decision": "cont", "by": ""}
# {"user": "ann", "tool": "restart", "arguments": {"service": "database"}, "decision": "block", "by": "keep_database"}
