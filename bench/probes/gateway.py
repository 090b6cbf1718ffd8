"""Many conversations through a gateway, with a scripted model.

As in production, every message is on disk before it is accepted, and every reply before it is sent. ``flood``: all
messages are sent as fast as they are accepted. ``talk``: each conversation sends its next message after the reply.
Both run in this process and through a webhook. Then another process sends the messages and polls for replies, or
receives them as callbacks.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from probes.gateway_client import SECRET

from hookline import Agent, ScriptedModel
from hookline._web.http_server import HttpServer
from hookline.channels import Channel, Gateway, GatewayOptions, MemoryChannel, WebhookChannel
from hookline.channels.protocol import Address
from hookline.stores import Mailbox, SqliteSessionStore
from hookline.stores.messages import OutboundMessage

HERE = Path(__file__).parent
KINDS = {
    "flood": ("flood", None),
    "talk": ("talk", None),
    "webhook flood, fetched": ("flood", False),
    "webhook talk, fetched": ("talk", False),
    "webhook talk, posted": ("talk", True),
}
"""Kind of traffic, and whether replies are posted; ``None`` means no webhook."""


class Platform(MemoryChannel):
    """Record the time of every sent message, by chat."""

    def __init__(self) -> None:
        super().__init__("bench")
        self.arrived: dict[str, list[tuple[str, float]]] = {}
        self.waiting: dict[str, asyncio.Event] = {}

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        self.arrived.setdefault(address.chat_id, []).append((message.text, time.perf_counter()))
        if address.chat_id in self.waiting:
            self.waiting[address.chat_id].set()
        return key


@asynccontextmanager
async def started(folder: str, channel: Channel, **options: Any) -> AsyncIterator[Gateway]:
    """Start a gateway that echoes every message."""
    model = ScriptedModel([lambda request: f"echo {request.messages[-1].content}"], loop=True)
    gateway = Gateway(
        Agent("bench", llm=model), [channel], mailbox=Mailbox(Path(folder) / "gateway.db"),
        sessions=SqliteSessionStore(Path(folder) / "sessions.db"),
        options=GatewayOptions(max_concurrent=64, max_waiting=None, max_queued=None), **options,
    )  # fmt: skip
    await gateway.start()
    yield gateway
    await gateway.wait_until_idle()
    await gateway.stop()


async def inside(folder: str, kind: str, conversations: int, each: int) -> dict[str, Any]:
    """Run the conversations in this process."""
    platform, sent_at = Platform(), dict[str, list[float]]()

    async def talk(chat: str) -> None:
        answered = asyncio.Event()
        if kind == "talk":
            platform.waiting[chat] = answered
        for number in range(each):
            answered.clear()
            sent_at.setdefault(chat, []).append(time.perf_counter())
            await platform.say(str(number), chat=chat, message_id=f"{chat}-{number}")
            if kind == "talk":
                await answered.wait()

    async with started(folder, platform) as gateway:
        began = time.perf_counter()
        await asyncio.gather(*(talk(f"chat{n}") for n in range(conversations)))
        await gateway.wait_until_idle()
        took = time.perf_counter() - began
    wanted = [f"echo {number}" for number in range(each)]
    got = {chat: [text for text, _ in sent] for chat, sent in platform.arrived.items()}
    pairs = [zip(sent, sent_at[chat], strict=False) for chat, sent in platform.arrived.items()]
    return {
        "took": took,
        "waits": [at - begun for pair in pairs for (_, at), begun in pair],
        "lost": each * conversations - sum(map(len, got.values())),
        "out_of_order": sum(texts != wanted for texts in got.values()),
    }


async def through_http(folder: str, kind: str, conversations: int, each: int, posted: bool) -> dict[str, Any]:
    """Run the conversations in another process, through a local web server."""
    command = [str(HERE / "gateway_client.py"), kind, "--conversations", str(conversations), "--each", str(each)]
    client = await asyncio.create_subprocess_exec(
        sys.executable, *command, *(["--posted"] if posted else []), limit=2**26,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    callback = (await client.stdout.readline()).decode().strip()
    channel = WebhookChannel(
        "bench", secret=SECRET, callback=callback if posted else None, store=Path(folder) / "chats.db"
    )
    host = HttpServer([channel], port=0)
    async with started(folder, channel, servers=[host]) as gateway:
        client.stdin.write(f"{host.url}\n".encode())
        outcome: dict[str, Any] = json.loads(await client.stdout.readline() or "null")
        assert await client.wait() == 0, "the client failed"
        status = gateway.status()
        assert (status.received, status.refused) == (each * conversations, 0), status
    return outcome


async def _measured(name: str, conversations: int, messages: int) -> dict[str, Any]:
    """Return messages per second, reply latencies, and whether all replies are complete and in order."""
    kind, posted = KINDS[name]
    each = messages // conversations
    with tempfile.TemporaryDirectory() as folder:
        cpu = time.process_time()
        if posted is None:
            outcome = await inside(folder, kind, conversations, each)
        else:
            outcome = await through_http(folder, kind, conversations, each, posted)
        cpu = time.process_time() - cpu
    cuts = statistics.quantiles(outcome.pop("waits"), n=100)
    count = each * conversations
    figures = {"messages": count, "per_second": count / outcome.pop("took"), "cpu": cpu / count}
    return figures | {"p50": cuts[49], "p95": cuts[94]} | outcome


def talk(kind: str, conversations: int, messages: int) -> dict[str, Any]:
    """Run one kind of measurement."""
    return asyncio.run(_measured(kind, conversations, messages))
