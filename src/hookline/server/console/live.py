"""Keep open pages up to date: one stream for each page, and one look at the stores for all of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec
from starlette.requests import Request

from ..._base.text import error_text
from ..._base.workers import in_thread
from ...stores.callers import Caller
from ...stores.errors import StoreError
from ..halts import HaltService
from ..routing import Endpoint, caller_of
from ..sse import SseResponse
from .login import page_endpoint
from .render import BANNER, NOTICES, WAITING, Frame, base_of, fragment, set_frame
from .sections import Sections, draw

log = logging.getLogger("hookline")

INTERVAL = 0.5
"""Seconds between two looks at the stores, while a page is open."""
BEAT_SECONDS, BEAT = 1.0, b"event: beat\ndata:\n\n"
"""How often an open page hears from its stream at least: without a beat, it says within three seconds that it is not up
to date. A comment would not do, because browsers do not show them to scripts."""
REST = 3.0
"""After rendering, pause for this many times as long as it took, so that open pages never take most of the time."""
RETRY_SECONDS = 2.0
"""Seconds after which a page that could not be rendered is rendered again."""
UNREADABLE = "This page is not up to date: the server cannot read its files now. It tries again."
NOT_RENDERED = "This page is not up to date: the server could not render it. It tries again, and its log says why."
KEPT_SECONDS = 10.0
"""Seconds for which the sections of a page are kept for its stream: a browser opens it after it has read the page."""
MAX_KEPT = 50

FRAME = "/console/live/frame"
Render = Callable[[], Awaitable[Sections]]
Version = Callable[[], Awaitable[object]]


class _View:
    """What one or several open pages show: pages with the same content share it, so it is rendered once."""

    def __init__(self, render: Render, version: Version | None, delay: float) -> None:
        self.render = render
        self.version = version
        self.delay = delay
        self.seen: object = None
        """The pulse and the version of the last look."""
        self.due: float | None = None
        """When it is rendered again, on the monotonic clock; ``None`` if it shows what was seen."""
        self.made = time.monotonic()
        self.sections: Sections = {}
        self.problem = ""
        """Why the sections are not up to date, for people; empty if they are."""
        self.readers: set[_OpenPage] = set()


class _OpenPage:
    """One open page. It gets the sections that differ from those that it has."""

    def __init__(self, view: _View, seen: Sections) -> None:
        self.view = view
        self._seen = dict(seen)
        self._problem = ""
        self._changed = asyncio.Event()
        self._ended = False

    def wake(self) -> None:
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def more(self, timeout: float) -> bytes | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timeout, BEAT_SECONDS)):
                await self._changed.wait()
        if self._ended:
            return None
        self._changed.clear()
        now = self.view.sections
        changed = {id: html for id, html in now.items() if self._seen.get(id) != html}
        changed |= {id: "" for id in self._seen if id not in now}
        self._seen = dict(now)
        data = b"data: " + msgspec.json.encode(changed) + b"\n\n" if changed else b""
        if self.view.problem != self._problem:
            self._problem = self.view.problem
            data += b"event: problem\ndata: " + msgspec.json.encode(self._problem) + b"\n\n"
        return data or BEAT


class LiveViews:
    """Renders open pages again when something has changed.

    The stores are looked at only while a page is open, and once for all pages, so that runs do not notice how many
    people watch them. It is also how pages learn of runs in other processes.

    Args:
        pulse: returns a value that differs after every change of runs, approvals and halts.
        halts: the stop switch. While it is on, every page says so.
        waiting: returns the number of calls of an owner, or of all, that wait for a person. Every page shows it;
            ``None`` if they do not.
        has_tickets: whether there is a ticket board to link to.
    """

    def __init__(
        self,
        pulse: Callable[[], Awaitable[object]],
        halts: HaltService,
        waiting: Callable[[str | None], int] | None = None,
        *,
        has_tickets: bool = False,
    ) -> None:
        self._pulse = pulse
        self._halts = halts
        self._waiting = waiting
        self._has_tickets = has_tickets
        self._views: dict[object, _View] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def show(
        self, request: Request, key: object, render: Render, version: Version | None = None, *, delay: float = 0.0
    ) -> Sections:
        """Return the sections of a page now. Its stream, which opens soon, does not render them again.

        The arguments are those of :meth:`stream`.

        Raises:
            StoreError: a file cannot be used.
        """
        key, render = self._framed(request, key, render)
        view = await self._made(render, version, delay)
        self._forget()
        known = self._views.get(key)
        if known is None or not known.readers:
            self._views[key] = view
        self._set_frame(request, view.sections)
        return {id: html for id, html in view.sections.items() if id not in (BANNER, WAITING)}

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoint of the stream of pages that do not change: what is around them does."""
        return [page_endpoint("GET", FRAME, self._stream_frame, ("read",), "console_frame")]

    async def _stream_frame(self, request: Request) -> SseResponse:
        async def nothing() -> Sections:
            return {}

        return await self.stream(request, ("frame", caller_of(request).id), nothing)

    async def add_frame(self, request: Request) -> None:
        """Add what is around all pages to a page that does not change."""
        self._set_frame(request, await self._frame(caller_of(request), base_of(request)))

    def _set_frame(self, request: Request, sections: Sections) -> None:
        found = {id: str(sections[id]) for id in (BANNER, WAITING) if id in sections}
        waiting = found.get(WAITING, "").partition('data-count="')[2].partition('"')[0]
        set_frame(request, Frame(found, int(waiting or 0), self._has_tickets))

    def _framed(self, request: Request, key: object, render: Render) -> tuple[object, Render]:
        """Add what is around all pages to the sections of a page: the banner of a halt, and how many calls wait."""
        caller, base = caller_of(request), base_of(request)

        async def render_all() -> Sections:
            return {**await self._frame(caller, base), **await render()}

        return (key, caller.owner, base), render_all

    async def framed(self, request: Request, render: Render) -> Sections:
        """Return sections with the banner, after the halt was switched on or off: an empty text removes the banner."""
        _, render_all = self._framed(request, None, render)
        return {BANNER: "", **await render_all()}

    async def _frame(self, caller: Caller, base: str) -> Sections:
        halt, is_admin = await self._halts.current(), caller.may("admin")
        made: dict[str, str] = {}
        if halt is not None:
            banner = partial(fragment, "halt_banner.html", base, halt=halt, is_admin=is_admin)
            made[BANNER] = draw(BANNER, banner, tag="aside", into=NOTICES)
        if self._waiting is not None:
            count: int = await in_thread(self._waiting, caller.owner)
            made[WAITING] = fragment("waiting.html", base, count=count)
        return made

    async def stream(
        self,
        request: Request,
        key: object,
        render: Render,
        version: Version | None = None,
        *,
        delay: float = 0.0,
    ) -> SseResponse:
        """Return a stream with the changing sections of a page: all of them first, then those that change.

        Args:
            request: the request of the page.
            key: pages with the same key show the same.
            render: renders the sections now.
            version: returns a value that differs after a change of something else that the page shows.
            delay: seconds between a change and its rendering, for sections that are expensive to render.

        Raises:
            StoreError: a file cannot be used.
        """
        key, render = self._framed(request, key, render)
        view = self._views.get(key)
        if view is None:
            made = await self._made(render, version, delay)
            view = self._views.setdefault(key, made)  # another page may have come first meanwhile
        reader = _OpenPage(view, {})
        view.readers.add(reader)
        reader.wake()
        if self._closed:
            reader.end()
        elif self._task is None:
            self._task = asyncio.create_task(self._watch(), name="hookline-console")

        def close() -> None:
            view.readers.discard(reader)
            if not view.readers and self._views.get(key) is view:
                del self._views[key]

        return SseResponse(reader.more, close, heartbeat=BEAT_SECONDS)

    async def close(self) -> None:
        """End all streams, so that the server can stop: open pages connect again when it is back."""
        self._closed = True
        for view in self._views.values():
            for reader in view.readers:
                reader.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _made(self, render: Render, version: Version | None, delay: float) -> _View:
        view = _View(render, version, delay)
        view.seen = await self._look(view, await self._pulse())  # before: a change in between is rendered again
        view.sections = await render()
        return view

    @staticmethod
    async def _look(view: _View, pulse: object) -> object:
        return pulse, None if view.version is None else await view.version()

    def _forget(self) -> None:
        """Drop the sections of pages that did not open a stream, because they are old or there are too many."""
        kept = [key for key, view in self._views.items() if not view.readers]
        old = time.monotonic() - KEPT_SECONDS
        for key in kept[: -MAX_KEPT + 1] + [key for key in kept[-MAX_KEPT + 1 :] if self._views[key].made < old]:
            del self._views[key]

    async def _watch(self) -> None:
        try:
            while any(view.readers for view in self._views.values()):
                began = time.monotonic()
                pulse, error = None, None
                try:
                    pulse = await self._pulse()
                except Exception as failure:  # noqa: BLE001 - every page says so
                    error = failure
                for view in list(self._views.values()):
                    if error is None:
                        await self._update(view, pulse)
                    else:
                        self._fail(view, error)
                await asyncio.sleep(max(INTERVAL, REST * (time.monotonic() - began)))
        finally:
            self._task = None

    async def _update(self, view: _View, pulse: object) -> None:
        """Render a view again if somebody reads it and it does not show the present state."""
        if not view.readers:
            return
        try:
            seen, now = await self._look(view, pulse), time.monotonic()
            if seen != view.seen:
                view.seen = seen
                view.due = now + view.delay if view.due is None else view.due
            if view.due is None or view.due > now:
                return
            view.sections = await view.render()
            view.due, view.problem = None, ""
        except Exception as error:  # noqa: BLE001 - one page must not stop the others, and says so
            self._fail(view, error)
            return
        for reader in view.readers:
            reader.wake()

    @staticmethod
    def _fail(view: _View, error: Exception) -> None:
        """Tell the open pages of a view that they are not up to date, and why. They are rendered again soon."""
        if not view.readers:
            return
        view.due = time.monotonic() + RETRY_SECONDS
        problem = UNREADABLE if isinstance(error, StoreError) else NOT_RENDERED
        if problem == view.problem:
            return  # it was logged
        view.problem = problem
        if isinstance(error, StoreError):
            log.warning("a page of the console is not up to date: %s", error_text(error))
        else:
            log.error("a page of the console could not be rendered", exc_info=error)
        for reader in view.readers:
            reader.wake()
