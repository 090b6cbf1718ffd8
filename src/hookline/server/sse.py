"""Server-sent events, with heartbeats and streams that a client can resume."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec
from starlette.responses import Response

from .._base.text import error_text
from .._web.middleware import Receive, Scope, Send
from ..stores.errors import StoreError
from ..stores.runs import StoredEvent
from .feed import FeedReader
from .live_run import EventReader
from .routing import wait_for_disconnect

log = logging.getLogger("hookline")

EVENT_STREAM = "text/event-stream"
RETRY_MS = 2000
"""Milliseconds that a client waits before it reconnects."""
HEADERS = {"content-type": f"{EVENT_STREAM}; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
"""Proxies must neither cache nor buffer the stream."""

_LINE_BREAKS = [(mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\u0085\u2028\u2029"]

More = Callable[[float], Awaitable[bytes | None]]
"""Waits up to a number of seconds for the next piece: empty after a timeout, ``None`` at the end of the stream."""


class SseResponse(Response):
    """A stream of server-sent events, read only as fast as the client reads, and closed when the client disconnects.

    Args:
        more: returns the next piece of the stream.
        close: called once, when the stream has ended or the client has disconnected.
        heartbeat: after how many silent seconds a comment is sent.
        resumable: whether the client may reconnect for the rest.
    """

    def __init__(self, more: More, close: Callable[[], object], *, heartbeat: float, resumable: bool = True) -> None:
        self.status_code, self.background, self.body = 200, None, b""
        self._more = more
        self._close = close
        self._heartbeat = heartbeat
        self._resumable = resumable
        self.init_headers(HEADERS)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        tasks = [asyncio.ensure_future(self._stream(send)), asyncio.ensure_future(wait_for_disconnect(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            failures = [task.exception() for task in tasks if not task.cancelled()]
        if failures[0] is not None:
            raise failures[0]

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        first = b"retry: %d\n\n" % RETRY_MS if self._resumable else b""
        await send({"type": "http.response.body", "body": first, "more_body": True})
        now = asyncio.get_running_loop().time
        next_heartbeat = now() + self._heartbeat
        last = b""
        try:
            while (data := await self._more(max(0.0, next_heartbeat - now()))) is not None:
                if data or now() >= next_heartbeat:
                    await send({"type": "http.response.body", "body": data or b":\n\n", "more_body": True})
                    next_heartbeat = now() + self._heartbeat
        except StoreError as error:
            log.error("an event stream ends early: %s", error_text(error))
            last = b": the events cannot be read now, reconnect later\n\n"
        await send({"type": "http.response.body", "body": last, "more_body": False})


def event_stream(reader: EventReader, heartbeat: float) -> SseResponse:
    """Return the events of a run as a stream. The id of each event is its number, so that clients can resume."""

    async def more(timeout: float) -> bytes | None:
        found = await reader.more(timeout)
        return None if found is None else encode_events(found)

    return SseResponse(more, reader.close, heartbeat=heartbeat)


def feed_stream(reader: FeedReader, heartbeat: float) -> SseResponse:
    """Return the events of many runs as a stream. The id of each event says where another stream can continue."""

    async def more(timeout: float) -> bytes | None:
        found = await reader.more(timeout)
        if found is None:
            return None
        return escape_line_breaks(
            b"".join(
                b'id: %.6f\nevent: %b\ndata: {"run":%b,"event":%b}\n\n'
                % (reader.last, each.type.encode(), msgspec.json.encode(each.run_id), each.data)
                for each in found
            )
        )

    return SseResponse(more, reader.close, heartbeat=heartbeat)


def encode_events(events: Iterable[StoredEvent]) -> bytes:
    """Convert events to the wire format."""
    return escape_line_breaks(
        b"".join(b"id: %d\nevent: %b\ndata: %b\n\n" % (each.seq, each.type.encode(), each.data) for each in events)
    )


def escape_line_breaks(data: bytes) -> bytes:
    """Escape Unicode line breaks in JSON: some clients end a line there, though the standard does not."""
    for raw, escaped in _LINE_BREAKS:
        data = data.replace(raw, escaped)
    return data


def preferred_media(accept: str | None, *offered: str) -> str:
    """Return the offered media type that an ``Accept`` header prefers, or ``""`` if it accepts none.

    A type that is named exactly beats one that matches a wildcard. Of equals, the first one is returned.
    """
    if not accept or not accept.strip():
        return offered[0]
    best, found = (0.0, 0), ""
    for media in offered:
        preference = max((_preference(part, media) for part in accept.split(",")), key=lambda each: each[1])
        if preference[0] > 0 and preference > best:
            best, found = preference, media
    return found


def _preference(part: str, media: str) -> tuple[float, int]:
    """Return the weight that one part of an ``Accept`` header gives a type, and how exactly it names the type."""
    name, *settings = (each.strip().lower() for each in part.split(";"))
    exactness = {media: 3, f"{media.partition('/')[0]}/*": 2, "*/*": 1}.get(name, 0)
    weight = next((value for key, _, value in (each.partition("=") for each in settings) if key.strip() == "q"), "1")
    try:
        return (min(max(float(weight), 0.0), 1.0) if exactness else 0.0), exactness
    except ValueError:
        return 0.0, exactness
