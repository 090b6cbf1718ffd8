"""A recording gateway, channels served by a real web server, and signed requests."""

import asyncio
from contextlib import asynccontextmanager

import msgspec

from hookline._net.signatures import HEADER, sign
from hookline._web.http_server import HttpServer
from hookline.channels.protocol import Address
from hookline.stores.messages import OutboundMessage

SECRET = "a secret that nobody can guess"


class RecordingGateway:
    """A ``deliver`` function that records each message once, and runs ``answer`` for it."""

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
    """Start channels, serve their routes, and yield the URL."""
    server = HttpServer(channels, **{"port": 0, "grace": 1.0, **options})
    for channel in channels:
        await channel.start(deliver or RecordingGateway())
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()
        for channel in channels:
            await channel.stop()


def signed(body, secret=SECRET, at=None):
    """Request arguments for a signed body."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return {"content": data, "headers": {"Content-Type": "application/json", HEADER: sign(secret, data, at=at)}}


def signed_get(target, secret=SECRET):
    """Headers of a signed GET request for a path with its query."""
    return {HEADER: sign(secret, b"GET " + target.encode())}


async def reply(channel, message, text, key):
    """Send a text to the chat of a message."""
    return await channel.send(Address(channel.name, message.chat_id), OutboundMessage(text), key=key)


async def crash(gateway):
    """Leave a gateway as ``kill -9`` would: it does nothing more, and its files keep their state."""
    gateway._inbox.close()
    gateway._polling.cancel()
    for queues in gateway._queues:
        await queues.stop()
    await gateway._approvals.close()  # a killed process reports no outcome of a call
    await gateway._mailbox.detach()
    lifecycle = gateway._lifecycle  # a later stop() must do nothing
    lifecycle.state = "stopped"
    lifecycle._stopping = asyncio.create_task(asyncio.sleep(0))
    lifecycle._stopped.set()
