"""One connection to an MCP server, from its start to its end, in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import msgspec

from .._base.errors import HooklineError, NotInstalledError
from .._base.text import describe

Progress = Callable[[float, float | None, str | None], Awaitable[None]]

SILENCE = 300.0
"""Seconds after which an HTTP server that sends nothing counts as dead, if calls have a limit that is no longer."""
_CLOSING = 6.0  # an ending server gets 2 s for each of: end by itself, end when told, end when killed
_MAX_TAIL, _MAX_LINES = 600, 6
_ENDING = "it is ending"


class McpError(HooklineError):
    """An MCP server cannot be used, or one of its tools failed."""


class Lost(McpError):
    """The connection is gone."""


class Target(msgspec.Struct, frozen=True):
    """Where a server is: a command to run, or a URL."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    headers: Mapping[str, str] | None = None
    timeout: float = 30.0
    call_timeout: float | None = None

    @property
    def silence(self) -> float | None:
        """Seconds after which an HTTP server that sends nothing counts as dead: later than any call is given up."""
        return None if self.call_timeout is None else max(SILENCE, 2 * self.call_timeout)


class Connection:
    """An open session with a server. Everything of it lives and ends in one thread.

    Raises:
        McpError: the server cannot be started or reached, or is no MCP server.
        NotInstalledError: the package ``mcp`` is missing.
    """

    def __init__(self, target: Target) -> None:
        _load()
        self.target, self.alive = target, False
        self._pid = os.getpid()
        self._gate = threading.Lock()  # no call gets in after ``alive`` has become false
        self._opened: concurrent.futures.Future[Sequence[Any]] = concurrent.futures.Future()
        self._calls: set[asyncio.Task[Any]] = set()
        self._client: Any = None
        self._end: Callable[[], None] = lambda: None
        self._refusal = ""  # what HTTP said
        self._closing = False
        self._over = asyncio.Event()
        self._why = ""
        self._thread = threading.Thread(target=self._run, name=f"hookline-mcp {target.name}", daemon=True)
        _open.add(self)
        self._thread.start()
        self.listing = self._opened.result()

    @property
    def usable(self) -> bool:
        """Whether calls can be made; a forked process has to make a connection of its own."""
        return self.alive and self._pid == os.getpid()

    def close(self) -> None:
        """End the session and the server's process, and wait for that."""
        self._closing = True
        if self._pid == os.getpid() and self._thread.is_alive():
            self._end()
            self._thread.join(2 * _CLOSING)

    async def call(self, name: str, arguments: dict[str, Any], progress: Progress | None) -> Any:
        """Call a tool, from any event loop; cancelling tells the server.

        Raises:
            McpError: the server refused, or its answer is no good.
            Lost: the server died, or has ended the session.
        """
        with self._gate:
            if not self.alive:
                raise Lost(self._why or _ENDING)
            future = asyncio.run_coroutine_threadsafe(self._call(name, arguments, progress), self._loop)
        return await asyncio.wrap_future(future)

    async def _call(self, name: str, arguments: dict[str, Any], progress: Progress | None) -> Any:
        from mcp import MCPError

        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await self._client.call_tool(name, arguments, progress_callback=progress)
        except MCPError as error:
            closed = error.message.startswith(("Connection closed", "SSE stream"))
            if self.alive and not closed and not self._refusal:
                raise McpError(error.message) from None
        except Exception as error:
            if self.alive:
                raise McpError(f"the answer is not usable: {_line(error)}") from error
        self._end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._over.wait()
        raise Lost(self._why or _ENDING)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self._why = self._why or describe(error)
        finally:
            _open.discard(self)
            if not self._opened.done():
                self._opened.set_exception(McpError(self._why))

    async def _live(self) -> None:
        """Open the session, keep it until it is to end, and close it, all in this one task."""
        import anyio
        from mcp import Client

        self._loop = asyncio.get_running_loop()
        stop, tail = asyncio.Event(), _Tail()
        scope = anyio.CancelScope(deadline=self._loop.time() + self.target.timeout)

        def end() -> None:
            stop.set()
            if self._client is None:
                scope.cancel()
            else:  # it may say goodbye, but not for ever
                scope.deadline = self._loop.time() + _CLOSING

        def noticed() -> None:
            if self._client is not None:  # before that, opening it fails by itself
                end()

        self._end = lambda: _in_loop(self._loop, end)
        if self._closing:  # before it could have been told
            end()
        cause: BaseException | None = None
        try:
            with scope:
                async with self._transport(tail, noticed) as transport, Client(transport, cache=None) as client:
                    listing = await _listing(client)
                    scope.deadline = float("inf")
                    tail.release()
                    self._client, self.alive, self._refusal = client, True, ""
                    self._opened.set_result(listing)
                    try:
                        await stop.wait()
                    finally:
                        with self._gate:
                            self.alive = False
        except BaseException as error:  # noqa: BLE001 - every end has a reason
            cause = error
        self._why = self._reason(cause, await tail.words())
        self._over.set()
        for _ in range(3):
            await asyncio.sleep(0)  # calls that were let in at the last moment begin
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSING)

    @asynccontextmanager
    async def _transport(self, tail: _Tail, end: Callable[[], None]) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
        from mcp import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if not self.target.url:
            command, *args = self.target.command
            env = None if self.target.env is None else dict(self.target.env)
            server = StdioServerParameters(command=command, args=args, env=env, cwd=self.target.cwd)
            yield _noticing(stdio_client(server, tail.errlog), end)
            return
        import httpx2

        async def note(response: httpx2.Response) -> None:
            request = response.request
            if response.status_code == 404 and request.method == "POST" and "mcp-session-id" in request.headers:
                self._refusal = "it does not know the session any more"
            elif response.status_code >= 400 and not self._opened.done():
                self._refusal = f"it answered with HTTP status {response.status_code}"

        timeout = httpx2.Timeout(self.target.timeout, read=self.target.silence)
        headers = dict(self.target.headers or {})
        async with httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [note]}) as http:
            yield streamable_http_client(self.target.url, http_client=http)

    def _reason(self, cause: BaseException | None, last_words: str) -> str:
        """Why the connection ended or did not come about, and what can be done."""
        from mcp import MCPError

        opened = self._opened.done()
        causes = sorted(_leaves(cause), key=lambda leaf: isinstance(leaf, MCPError))
        found = causes[0] if causes else None
        if self._closing:
            why = "it was closed"
        elif self._refusal:
            why = self._refusal
        elif isinstance(found, OSError) and self.target.command and not opened:
            why = f"it cannot be started ({found.strerror or found}); check the command, its path and the folder"
        elif type(found).__name__ == "ReadTimeout" and opened:
            why = f"it sent nothing for {self.target.silence:g} s"
        elif self.target.url and found is not None and not isinstance(found, MCPError):
            why = f"it cannot be reached ({_line(found)}); check the address and that it runs"
        elif opened:
            why = "it ended" if self.target.command else "it ended the connection"
        elif found is None:
            why = f"it did not answer within {self.target.timeout:g} s; is it an MCP server? (timeout= gives it longer)"
        else:
            why = f"it does not answer as an MCP server ({_line(found)}); check the command or address"
        return f"{why}. It said: {last_words}" if last_words else why


_open: set[Connection] = set()


@atexit.register
def _close_all() -> None:
    for connection in list(_open):
        connection.close()


def _load() -> None:
    """Import the package here, in the caller's thread, and keep its log quiet unless somebody wants it."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise NotInstalledError("mcp", "mcp") from error
    log = logging.getLogger("mcp")
    if not log.handlers:
        log.addHandler(logging.NullHandler())


def _in_loop(loop: asyncio.AbstractEventLoop, fn: Callable[[], None]) -> None:
    """Call ``fn`` in a loop, unless that is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(fn)


async def _listing(client: Any) -> list[Any]:
    """All tools of a server, page by page."""
    page = await client.list_tools()
    tools, seen = list(page.tools), set[str]()
    while page.next_cursor and page.next_cursor not in seen:  # a server that gives the same page for ever
        seen.add(page.next_cursor)
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


@asynccontextmanager
async def _noticing(transport: AbstractAsyncContextManager[Any], end: Callable[[], None]) -> AsyncIterator[Any]:
    """A transport that calls ``end`` as soon as nothing can come in any more."""
    async with transport as (incoming, outgoing):
        yield _Incoming(incoming, end), outgoing


class _Incoming:
    def __init__(self, stream: Any, end: Callable[[], None]) -> None:
        self._stream, self._end = stream, end

    async def __aenter__(self) -> _Incoming:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._end()
        await self._stream.__aexit__(*exc)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._stream.__aiter__()  # type: ignore[no-any-return]


class _Tail:
    """The last words that a server writes to its standard error."""

    def __init__(self) -> None:
        incoming, outgoing = os.pipe()
        self.errlog = os.fdopen(outgoing, "w")
        self._last = b""
        self._done = threading.Event()
        threading.Thread(target=self._listen, args=(incoming,), name="hookline-mcp-stderr", daemon=True).start()

    def _listen(self, incoming: int) -> None:
        with os.fdopen(incoming, "rb", buffering=0) as pipe:
            while chunk := pipe.read(4096):
                self._last = (self._last + chunk)[-4 * _MAX_TAIL :]
        self._done.set()

    def release(self) -> None:
        """The server has its end of the pipe; ours may close."""
        self.errlog.close()

    async def words(self) -> str:
        """What was said last; a moment is given to say it."""
        self.release()
        for _ in range(50):
            if self._done.is_set():
                break
            await asyncio.sleep(0.01)
        lines = self._last.decode(errors="replace").strip()[-_MAX_TAIL:].splitlines()
        return "\n".join(lines[-_MAX_LINES:])


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    """The errors in a group, but for cancellations, which say nothing."""
    if isinstance(error, BaseExceptionGroup):
        for item in error.exceptions:
            yield from _leaves(item)
    elif error is not None and not isinstance(error, asyncio.CancelledError):
        yield error


def _line(error: BaseException) -> str:
    """An error in one short line."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    return first[:200]
