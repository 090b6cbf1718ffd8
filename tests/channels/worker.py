"""A gateway in its own process. Its platform consists of two files: messages to deliver, and sent replies."""

import asyncio
import json
import os
import sys
from pathlib import Path

from hookline import Agent, ScriptedModel
from hookline.channels.gateway import Gateway
from hookline.channels.options import GatewayOptions
from hookline.channels.protocol import Address, Capabilities, Health
from hookline.stores import mailbox
from hookline.stores.mailbox import LEASE, Mailbox
from hookline.stores.messages import InboundMessage
from hookline.stores.sessions import SqliteSessionStore
from tests.lines import add_line


class Platform:
    name = "platform"
    capabilities = Capabilities()

    def __init__(self, folder):
        self.folder = folder

    async def start(self, deliver):
        self.deliver = deliver

    async def stop(self):
        pass

    async def send(self, address: Address, message, *, key):
        await asyncio.sleep(0.001)
        add_line(self.folder / "arrived", address.chat_id, message.text, key)
        return key

    def health(self):
        return Health(True)

    async def say_all(self):
        """Deliver all messages again, like a platform that got no acknowledgement."""

        async def chat(name, count):
            for number in range(count):
                await self.deliver(InboundMessage(str(number), "platform", name, "x", f"{name}-{number}"))

        chats = json.loads((self.folder / "said").read_text())
        await asyncio.gather(*(chat(name, count) for name, count in chats.items()))


async def main(folder, url=""):
    mailbox.POLL_SECONDS = 0.1
    platform = Platform(folder)
    agent = Agent("bot", llm=ScriptedModel([lambda r: f"echo {r.messages[-1].content}"], loop=True, delay=0.001))
    on_postgres = url or "TEST_RUN_POSTGRES" in os.environ  # after a kill, others wait for the end of the lease there
    gateway = Gateway(
        agent,
        [platform],
        mailbox=Mailbox(url or folder / "gateway.db", lease=2.0 if on_postgres else LEASE),
        sessions=SqliteSessionStore(url or folder / "sessions.db"),
        options=GatewayOptions(max_waiting=None, max_queued=None),
    )
    await gateway.start()
    await platform.say_all()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
