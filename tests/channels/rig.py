"""A gateway that only remembers, and channels served by a real web server."""

import asyncio
from contextlib import asynccontextmanager

import msgspec

from hookline._web.http_server import HttpServer
from hookline.channels.protocol import Address
from hookline.channels.webhook.signatures import HEADER, sign
from hookline.stores.messages import OutboundMessage

SECRET = "a secret that nobody can guess"


class Remembering:
    """What a gateway does when a message arrives: keep it once, and answer if the test says how."""

    def __init__(self, answer=None):
        self.messages, self._seen, self._answer, self._tasks = [], set(), answer, set()

    async def __call__(self, message):
        if (message.chat_id, message.message_id) in self._seen:
            return False
        self._seen.add((message.chat_id, message.message_id))
        self.messages.append(message)
        if self._answer is not None:
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
        return True

    @property
    def texts(self):
        return [message.text for message in self.messages]


@asynccontextmanager
async def served(*channels, deliver=None, **options):
    """Channels that are started and served; gives the URL."""
    host = HttpServer(channels, **{"port": 0, "grace": 1.0, **options})
    for channel in channels:
        await channel.start(deliver or Remembering())
    await host.start()
    try:
        yield host.url
    finally:
        await host.stop()
        for channel in channels:
            await channel.stop()


def signed(body, secret=SECRET, at=None):
    """A body as bytes, and headers that fit it."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return {"content": data, "headers": {"Content-Type": "application/json", HEADER: sign(secret, data, at=at)}}


def signed_get(target, secret=SECRET):
    """Headers for a GET of a path with its query."""
    return {HEADER: sign(secret, b"GET " + target.encode())}


async def reply(channel, message, text, key):
    """Send a text to where a message came from."""
    return await channel.send(Address(channel.name, message.chat_id), OutboundMessage(text), key=key)
