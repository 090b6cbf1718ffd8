"""A gateway with an agent whose tool calls need approval."""

import re

from hookline import Agent, ScriptedModel, call, tool
from hookline.channels.access import Access
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.options import GatewayOptions
from hookline.hooks import PlanModeHook
from hookline.stores.approvals import ApprovalStore
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore

from ..waiting import wait_until

CODE = re.compile(r"(?m)^([A-Z2-9]{4}):")


class ApprovalSetup:
    """A gateway with an agent that calls ``write`` on request; each call needs approval."""

    def __init__(
        self, folder, approve=("ada",), *, channel=None, hooks=(), turns=None, servers=(), policy=None, **options
    ):
        self.wrote = wrote = []

        @tool
        def write(path: str, text: str = "") -> str:
            """Write a file."""
            wrote.append((path, text))
            return f"wrote {path}"

        def play(request):
            last = request.messages[-1]
            if last.role != "user":
                return f"The tool said: {last.content}"
            if last.content.startswith("write "):
                return [call("write", path=path) for path in last.content.split()[1:]]
            return f"echo {last.content}"

        self.channel = channel or MemoryChannel()
        self.store = ApprovalStore(folder / "approvals.db", policy=policy)
        agent = Agent(
            "bot", llm=ScriptedModel(turns or [play], loop=True), tools=[write], hooks=[PlanModeHook(["write"]), *hooks]
        )
        self.gateway = Gateway(
            agent,
            [self.channel],
            mailbox=Mailbox(folder / "gateway.db"),
            sessions=SqliteSessionStore(folder / "sessions.db"),
            options=GatewayOptions(**{"grace": 5.0, **options}),
            access={self.channel.name: Access(mention=False, approve=approve)},
            approvals=self.store,
            servers=servers,
        )

    async def __aenter__(self):
        await self.gateway.start()
        return self

    async def __aexit__(self, *_):
        await self.gateway.stop(grace=0)

    async def say(self, text, **fields):
        await self.channel.say(text, **{"sender": "ada", **fields})

    async def wait_for_requests(self, count=1, chat="chat"):
        """Wait for requests for approval and return their codes."""
        await wait_until(lambda: len(self.codes(chat)) >= count)
        return self.codes(chat)

    def codes(self, chat="chat"):
        requests = [text for text in self.channel.texts(chat) if "wants to call" in text]
        return [CODE.search(text)[1] for text in requests]

    async def wait_for_text(self, words, chat="chat"):
        """Wait for a message with these words and return it."""
        await wait_until(lambda: any(words in text for text in self.channel.texts(chat)))
        return next(text for text in self.channel.texts(chat) if words in text)
