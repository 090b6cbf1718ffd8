"""Server-sent events: a stream that goes on wherever its reader stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from starlette.responses import Response

from .._base.text import error_text
from .._web.middleware import Receive, Scope, Send
from ..stores.errors import StoreError
from ..stores.runs import StoredEvent
from .leaving import until_gone
from .reading import Reader

log = logging.getLogger("hookline")

MEDIA = "text/event-stream"
RETRY = 2000
"""Milliseconds after which a client that lost the connection comes back."""
HEADERS = {"content-type": f"{MEDIA}; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
"""Nobody in between may keep what passes, or hold it back."""

_BREAKS = [(mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\u0085\u2028\u2029"]

More = Callable[[float], Awaitable[bytes | None]]
"""Waits at most so many seconds for more of a stream: nothing if time ran out, ``None`` at its end."""


class SseResponse(Response):
    """A stream of server-sent events. It is pulled as fast as the client reads, and let go of as soon as that leaves.

    Args:
        more: gives what is to be sent next.
        close: called once when nobody reads any more.
        heartbeat: after how many silent seconds a comment shows that the stream is alive.
        resumes: whether a client may come back for the rest, which it is told then.
    """

    def __init__(self, more: More, close: Callable[[], object], *, heartbeat: float, resumes: bool = True) -> None:
        self.status_code, self.background, self.body = 200, None, b""
        self._more, self._close, self._heartbeat, self._resumes = more, close, heartbeat, resumes
        self.init_headers(HEADERS)
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, as ASGI has it."""
        tasks = [asyncio.ensure_future(self._stream(send)), asyncio.ensure_future(until_gone(receive))]
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
        first = b"retry: %d\n\n" % RETRY if self._resumes else b""
        await send({"type": "http.response.body", "body": first, "more_body": True})
        now = asyncio.get_running_loop().time
        beat = now() + self._heartbeat
        last = b""
        try:
            while (data := await self._more(max(0.0, beat - now()))) is not None:
                if data or now() >= beat:
                    await send({"type": "http.response.body", "body": data or b":\n\n", "more_body": True})
                    beat = now() + self._heartbeat
        except StoreError as error:
            log.error("a stream of events ends early: %s", error_text(error))
            last = b": the events cannot be read now, come back later\n\n"
        await send({"type": "http.response.body", "body": last, "more_body": False})


def events_of(reader: Reader, heartbeat: float) -> SseResponse:
    """The events of a run as a stream, each with its number as the id that a reader may come back with."""

    async def more(timeout: float) -> bytes | None:
        found = await reader.more(timeout)
        return None if found is None else rendered(found)

    return SseResponse(more, reader.close, heartbeat=heartbeat)


def rendered(events: Iterable[StoredEvent]) -> bytes:
    """Events as they are sent."""
    return in_lines(
        b"".join(b"id: %d\nevent: %b\ndata: %b\n\n" % (each.seq, each.type.encode(), each.data) for each in events)
    )


def in_lines(data: bytes) -> bytes:
    """JSON in which no client finds a line break: some take more characters for one than the standard has."""
    for raw, escaped in _BREAKS:
        data = data.replace(raw, escaped)
    return data


def preferred(accept: str | None, *offered: str) -> str:
    """Which of the offered media types an ``Accept`` header likes best, the first if it likes several; ``""`` if none.

    What is called by its name is liked better than what a star stands for.
    """
    if not accept or not accept.strip():
        return offered[0]
    best, found = (0.0, 0), ""
    for media in offered:
        liking = max((_liking(part, media) for part in accept.split(",")), key=lambda each: each[1])
        if liking[0] > 0 and liking > best:
            best, found = liking, media
    return found


def _liking(part: str, media: str) -> tuple[float, int]:
    """How much one part of an ``Accept`` header wants a type, and how exactly it names it."""
    name, *settings = (each.strip().lower() for each in part.split(";"))
    exact = {media: 3, f"{media.partition('/')[0]}/*": 2, "*/*": 1}.get(name, 0)
    weight = next((value for key, _, value in (each.partition("=") for each in settings) if key.strip() == "q"), "1")
    try:
        return (min(max(float(weight), 0.0), 1.0) if exact else 0.0), exact
    except ValueError:
        return 0.0, exact
