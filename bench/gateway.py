"""Many conversations through a gateway, with a scripted model; prints a line of JSON.

Every message is kept on disk before it counts as arrived, and every reply before it is sent, as always. ``flood``:
all messages are said as fast as they are accepted. ``talk``: each conversation says its next when it has its answer.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from hookline import Agent, Gateway, GatewayOptions, Mailbox, MemoryChannel, ScriptedModel, SqliteSessionStore
from hookline.channels.protocol import Address
from hookline.kernel.values import OutboundMessage


class Platform(MemoryChannel):
    """Notes when what was sent, by chat."""

    def __init__(self) -> None:
        super().__init__("bench")
        self.arrived: dict[str, list[tuple[str, float]]] = {}
        self.waiting: dict[str, asyncio.Event] = {}

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        self.arrived.setdefault(address.chat_id, []).append((message.text, time.perf_counter()))
        if address.chat_id in self.waiting:
            self.waiting[address.chat_id].set()
        return key


async def measure(kind: str, conversations: int, messages: int) -> dict[str, Any]:
    """Messages a second, seconds from a message to its reply, and whether all is there and in order."""
    each = messages // conversations
    platform, said = Platform(), dict[str, list[float]]()
    model = ScriptedModel([lambda request: f"echo {request.messages[-1].content}"], loop=True)
    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(
            Agent("bench", llm=model), [platform], mailbox=Mailbox(Path(folder) / "gateway.db"),
            sessions=SqliteSessionStore(Path(folder) / "sessions.db"),
            options=GatewayOptions(max_concurrent=64, max_waiting=None, max_queued=None),
        )  # fmt: skip
        await gateway.start()

        async def talk(chat: str) -> None:
            answered = asyncio.Event()
            if kind == "talk":
                platform.waiting[chat] = answered
            for number in range(each):
                answered.clear()
                said.setdefault(chat, []).append(time.perf_counter())
                await platform.say(str(number), chat=chat, message_id=f"{chat}-{number}")
                if kind == "talk":
                    await answered.wait()

        began = time.perf_counter()
        await asyncio.gather(*(talk(f"chat{n}") for n in range(conversations)))
        await gateway.settled()
        took = time.perf_counter() - began
        await gateway.stop()
    wanted = [f"echo {number}" for number in range(each)]
    got = {chat: [text for text, _ in sent] for chat, sent in platform.arrived.items()}
    waits = [
        at - begun for chat, sent in platform.arrived.items() for (_, at), begun in zip(sent, said[chat], strict=True)
    ]
    cuts = statistics.quantiles(waits, n=100)
    return {
        "messages": each * conversations,
        "per_second": each * conversations / took,
        "p50": cuts[49],
        "p95": cuts[94],
        "lost": each * conversations - sum(map(len, got.values())),
        "out_of_order": sum(texts != wanted for texts in got.values()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--messages", type=int, default=10_000)
    given = parser.parse_args()
    taken = {kind: asyncio.run(measure(kind, given.conversations, given.messages)) for kind in ("flood", "talk")}
    print(json.dumps(taken))
