"""A durable gateway in its own process. Its platform consists of files, and its tool writes down what it does.

``said`` has a message per line: chat, id and text. ``arrived`` gets the replies, and ``effects`` the calls of the tool.
"""

import asyncio
import os
import sys
from pathlib import Path

from hookline import Agent, ScriptedModel, call, tool
from hookline.channels import approvals
from hookline.channels.access import Access
from hookline.channels.gateway import Gateway
from hookline.channels.options import GatewayOptions
from hookline.channels.protocol import Address, Capabilities, Health
from hookline.hooks import PlanModeHook
from hookline.stores import RunStore, mailbox
from hookline.stores.approvals import ApprovalStore
from hookline.stores.mailbox import LEASE, Mailbox
from hookline.stores.messages import InboundMessage
from hookline.stores.sessions import SqliteSessionStore
from tests.lines import add_line, read_lines

STEPS = 3
"""Calls that the agent makes for each message."""


class Platform:
    name = "platform"
    capabilities = Capabilities()

    def __init__(self, folder):
        self.folder = folder
        self.task = None

    async def start(self, deliver):
        self.task = asyncio.create_task(self._read(deliver))

    async def _read(self, deliver):
        """Deliver all messages, and those that are written later; a gateway recognizes those that it has."""
        known = 0
        while True:
            lines = read_lines(self.folder / "said")
            for chat, id, text in lines[known:]:
                await deliver(InboundMessage(text, "platform", chat, "ada", id, direct=True))
            known = len(lines)
            await asyncio.sleep(0.02)

    async def stop(self):
        self.task.cancel()

    async def send(self, address: Address, message, *, key):
        add_line(self.folder / "arrived", address.chat_id, message.text, key)
        return key

    def health(self):
        return Health(True)


def make_agent(folder, tool_seconds, instructions):
    @tool
    async def note(text: str, ctx) -> str:
        """Write a note."""
        add_line(folder / "effects", "begin", text, ctx.call_key)
        await asyncio.sleep(tool_seconds)
        add_line(folder / "effects", "end", text, ctx.call_key)
        return f"noted {text}"

    @tool
    async def pay(text: str, ctx) -> str:
        """Pay."""
        add_line(folder / "effects", "begin", text, ctx.call_key)
        add_line(folder / "effects", "end", text, ctx.call_key)
        return f"paid {text}"

    def play(request):
        users = [n for n, message in enumerate(request.messages) if message.role == "user"]
        said, done = request.messages[users[-1]].content, len(request.messages) - users[-1] - 1
        steps = 1 if said.startswith("pay") else STEPS
        if done >= 2 * steps:
            return f"did {said}"
        return [call("pay" if steps == 1 else "note", text=f"{said}/{done // 2}")]

    llm = ScriptedModel([play], loop=True)
    return Agent("bot", llm=llm, tools=[note, pay], hooks=[PlanModeHook(["pay"])], instructions=instructions)


async def main(folder, url="", tool_seconds="0.02", instructions="", poll_seconds="0.1"):
    mailbox.POLL_SECONDS, approvals.HOLD_SECONDS = float(poll_seconds), 0.1
    lease = 2.0 if url else LEASE
    platform = Platform(folder)
    gateway = Gateway(
        make_agent(folder, float(tool_seconds), instructions),
        [platform],
        mailbox=Mailbox(url or folder / "gateway.db", lease=lease),
        sessions=SqliteSessionStore(url or folder / "sessions.db"),
        options=GatewayOptions(max_waiting=None, max_queued=None),
        access={"platform": Access(approve=["ada"])},
        approvals=ApprovalStore(url or folder / "approvals.db"),
        durable=RunStore(url or folder / "runs.db", lease_seconds=lease),
    )
    await gateway.start()
    add_line(folder / "up", os.getpid())
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
