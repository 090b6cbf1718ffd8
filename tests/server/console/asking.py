"""An agent that asks before it deletes, and runs of it that wait."""

import asyncio
import re

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, guard, tool
from hookline.testing import call, reply

deleted = []


@tool
def delete(path: str) -> str:
    """Delete a file."""
    deleted.append(path)
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def careful(ctx, payload):
    return HookResult.ask("May this file go?", reason="files matter")


@guard(BEFORE_TOOL)
def not_outside(ctx, payload):
    return HookResult.block("outside") if payload.arguments["path"].startswith("/") else None


def cleaner(*hooks):
    """It deletes the file that its task names, if a person approves."""

    def turn(request):
        last = request.messages[-1]
        return reply(last.content) if last.role == "tool" else call("delete", path=last.content)

    return Agent("cleaner", llm=ScriptedModel([turn], loop=True), tools=[delete], hooks=[not_outside, careful, *hooks])


async def waiting_call(made, browser, path="a.txt", session=""):
    """Start a run whose call waits. Return the id of the run and the row of the call."""
    answer = await browser.post("/runs", json={"task": path, "session": session})
    run = answer.json()["id"]
    while not (rows := made.server.service.approvals.rows(status="pending", root_id=run)):
        await asyncio.sleep(0.005)
    return run, rows[0]


async def finished(browser, run):
    return (await browser.get(f"/runs/{run}?wait=60")).json()


def field(html, name):
    """Return the value of the first input with this name, as a browser would send it."""
    return re.search(f'name="{name}" value="([^"]*)"', html)[1]
