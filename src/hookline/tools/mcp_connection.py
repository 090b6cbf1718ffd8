"""One connection to an MCP server, from start to end, in its own thread and event loop."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import msgspec

from .._base.errors import HooklineError, NotInstalledError
from .._base.text import describe, printable
from ._mcp_questions import DECLINED, MAX_QUESTIONS, ServerAnswer, ServerQuestion, is_web_address

Progress = Callable[[float, float | None, str | None], Awaitable[None]]


class Asker(msgspec.Struct, frozen=True, eq=False):
    """Asks a person, in the tool call that an open call belongs to."""

    run_id: str
    ask: Callable[[ServerQuestion], Awaitable[ServerAnswer]]


_ASKER: ContextVar[Asker | None] = ContextVar("hookline_mcp_asker", default=None)
"""The asker of the current call. A server before version 2026-07-28 does not say to which call its question belongs."""

SILENCE = 300.0
"""Seconds without data after which an HTTP server counts as dead, at least. Calls with a long time limit extend it."""
_CLOSING = 6.0  # a server gets 2 s each to exit by itself, after SIGTERM, and after SIGKILL
_MAX_TAIL, _MAX_LINES = 600, 6
_ENDING = "the connection is closing"
_URL_REQUIRED = -32042

log = logging.getLogger("hookline")


class McpError(HooklineError):
    """An MCP server cannot be used, or one of its tools failed."""


class ConnectionLostError(McpError):
    """The connection was lost."""


class Target(msgspec.Struct, frozen=True):
    """The address of a server: a command to run, or a URL."""

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
        """Seconds without data after which an HTTP server counts as dead. It is longer than any call may take."""
        return None if self.call_timeout is None else max(SILENCE, 2 * self.call_timeout)


class McpConnection:
    """An open session with a server. It starts, runs and ends in one thread.

    Raises:
        McpError: the server cannot be started or reached, or is not an MCP server.
        NotInstalledError: the package ``mcp`` is missing.
    """

    def __init__(self, target: Target) -> None:
        _load()
        self.target, self.alive = target, False
        self._pid = os.getpid()
        self._gate = threading.Lock()  # no call starts after ``alive`` has become false
        self._opened: concurrent.futures.Future[Sequence[Any]] = concurrent.futures.Future()
        self._calls: set[asyncio.Task[Any]] = set()
        self._askers: list[Asker] = []
        self._client: Any = None
        self._end: Callable[[], None] = lambda: None
        self._http_error = ""
        self._closing = False
        self._declines = 0
        self._over = asyncio.Event()
        self._why = ""
        self._thread = threading.Thread(target=self._run, name=f"hookline-mcp {target.name}", daemon=True)
        _open.add(self)
        self._thread.start()
        self.listing = self._opened.result()

    @property
    def usable(self) -> bool:
        """Whether calls are possible; a forked process needs its own connection."""
        return self.alive and self._pid == os.getpid()

    def close(self) -> None:
        """End the session and the server's process, and wait for them."""
        self._closing = True
        if self._pid == os.getpid() and self._thread.is_alive():
            self._end()
            self._thread.join(2 * _CLOSING)

    async def call(
        self, name: str, arguments: dict[str, Any], progress: Progress | None, asker: Asker | None = None
    ) -> Any:
        """Call a tool from any event loop. Cancelling also cancels the call on the server.

        The questions that the server asks meanwhile go to ``asker``; without one they are declined.

        Raises:
            McpError: the server rejected the call, or its answer is invalid.
            ConnectionLostError: the server died or ended the session.
        """
        with self._gate:
            if not self.alive:
                raise ConnectionLostError(self._why or _ENDING)
            future = asyncio.run_coroutine_threadsafe(self._call(name, arguments, progress, asker), self._loop)
        return await asyncio.wrap_future(future)

    async def _call(self, name: str, arguments: dict[str, Any], progress: Progress | None, asker: Asker | None) -> Any:
        from mcp import MCPError

        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        _ASKER.set(asker)
        if asker is not None:
            self._askers.append(asker)
            task.add_done_callback(lambda _: self._askers.remove(asker))
        try:
            return await self._client.call_tool(name, arguments, progress_callback=progress)
        except MCPError as error:
            closed = error.message.startswith(("Connection closed", "SSE stream"))
            if self.alive and not closed and not self._http_error:
                raise McpError(_with_addresses(error)) from None
        except Exception as error:
            if self.alive:
                raise McpError(f"the answer is invalid: {_line(error)}") from error
        self._end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._over.wait()
        raise ConnectionLostError(self._why or _ENDING)

    async def _elicit(self, context: Any, params: Any) -> Any:
        """Answer a question of the server: with that of a person, or decline it."""
        from mcp_types import ElicitResult

        asker = _ASKER.get()
        if asker is None and len({each.run_id for each in self._askers}) == 1:
            asker = self._askers[-1]
        if asker is None:
            self._declined("it belongs to no single run")
            return ElicitResult(action="decline")
        schema = getattr(params, "requested_schema", None) or {}
        url = str(getattr(params, "url", "") or "")
        question = ServerQuestion(self.target.name, params.message, {} if url else dict(schema), url)
        try:
            answer = await asker.ask(question)
        except Exception as error:  # noqa: BLE001 - the call goes on, and the server says what it does without
            self._declined(describe(error))
            answer = DECLINED
        content = None if answer.values is None else dict(answer.values)
        return ElicitResult(action="accept" if answer.accepted else "decline", content=content)

    def _declined(self, why: str) -> None:
        """Log that a question is declined, unless the server has caused many such entries already."""
        self._declines += 1
        if self._declines <= MAX_QUESTIONS:
            log.warning("a question of the MCP server %s is declined: %s", self.target.name, printable(why, keep=""))

    def _run(self) -> None:
        try:
            asyncio.run(self._session())
        except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
            self._why = self._why or describe(error)
        finally:
            _open.discard(self)
            if not self._opened.done():
                self._opened.set_exception(McpError(self._why))

    async def _session(self) -> None:
        """Open the session, keep it until it ends, and close it, all in one task."""
        import anyio
        from mcp import Client

        self._loop = asyncio.get_running_loop()
        stop, tail = asyncio.Event(), _StderrTail()
        scope = anyio.CancelScope(deadline=self._loop.time() + self.target.timeout)

        def end() -> None:
            stop.set()
            if self._client is None:
                scope.cancel()
            else:  # it may close cleanly, but not take forever
                scope.deadline = self._loop.time() + _CLOSING

        def stream_ended() -> None:
            if self._client is not None:  # otherwise opening the session fails
                end()

        self._end = lambda: _in_loop(self._loop, end)
        if self._closing:  # close() was called before this task started
            end()
        cause: BaseException | None = None
        try:
            with scope:
                async with (
                    self._transport(tail, stream_ended) as transport,
                    Client(
                        transport,
                        cache=None,
                        elicitation_callback=self._elicit,
                        input_required_max_rounds=MAX_QUESTIONS + 1,
                    ) as client,
                ):
                    listing = await _listing(client)
                    scope.deadline = float("inf")
                    tail.release()
                    self._client, self.alive, self._http_error = client, True, ""
                    self._opened.set_result(listing)
                    try:
                        await stop.wait()
                    finally:
                        with self._gate:
                            self.alive = False
        except BaseException as error:  # noqa: BLE001 - the reason is reported to callers
            cause = error
        self._why = self._reason(cause, await tail.last_lines())
        self._over.set()
        for _ in range(3):
            await asyncio.sleep(0)  # let calls start that were accepted at the last moment
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSING)

    @asynccontextmanager
    async def _transport(
        self, tail: _StderrTail, end: Callable[[], None]
    ) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
        from mcp import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if not self.target.url:
            command, *args = self.target.command
            env = None if self.target.env is None else dict(self.target.env)
            server = StdioServerParameters(command=command, args=args, env=env, cwd=self.target.cwd)
            yield _wrapped(stdio_client(server, tail.errlog), end)
            return
        import httpx2

        async def note(response: httpx2.Response) -> None:
            request = response.request
            if response.status_code == 404 and request.method == "POST" and "mcp-session-id" in request.headers:
                self._http_error = "the server no longer knows the session"
            elif response.status_code >= 400 and not self._opened.done():
                self._http_error = f"the server answered with HTTP status {response.status_code}"

        timeout = httpx2.Timeout(self.target.timeout, read=self.target.silence)
        headers = dict(self.target.headers or {})
        async with httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [note]}) as http:
            yield _wrapped(streamable_http_client(self.target.url, http_client=http), lambda: None)

    def _reason(self, cause: BaseException | None, error_output: str) -> str:
        """Return why the connection ended or could not be opened, and what to do."""
        from mcp import MCPError

        opened = self._opened.done()
        causes = sorted(_leaves(cause), key=lambda leaf: isinstance(leaf, MCPError))
        found = causes[0] if causes else None
        if self._closing:
            why = "the connection was closed"
        elif self._http_error:
            why = self._http_error
        elif isinstance(found, OSError) and self.target.command and not opened:
            why = (
                f"the server cannot be started ({found.strerror or found}); check the command, its path and the folder"
            )
        elif type(found).__name__ == "ReadTimeout" and opened:
            why = f"the server sent nothing for {self.target.silence:g} s"
        elif self.target.url and found is not None and not isinstance(found, MCPError):
            why = f"the server cannot be reached ({_line(found)}); check the address and that it is running"
        elif opened:
            why = "the server ended" if self.target.command else "the server closed the connection"
        elif found is None:
            why = f"no answer within {self.target.timeout:g} s; is it an MCP server? (timeout= allows more time)"
        else:
            why = f"the answer is not that of an MCP server ({_line(found)}); check the command or address"
        return f"{why}. Its error output: {error_output}" if error_output else why


_open: set[McpConnection] = set()


@atexit.register
def _close_all() -> None:
    for connection in list(_open):
        connection.close()


def _load() -> None:
    """Import the package in the caller's thread, and silence its log unless it is configured."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise NotInstalledError("mcp", "mcp") from error
    log = logging.getLogger("mcp")
    if not log.handlers:
        log.addHandler(logging.NullHandler())


def _in_loop(loop: asyncio.AbstractEventLoop, fn: Callable[[], None]) -> None:
    """Call ``fn`` in a loop, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(fn)


async def _listing(client: Any) -> list[Any]:
    """Return all tools of a server, page by page."""
    page = await client.list_tools()
    tools, seen = list(page.tools), set[str]()
    while page.next_cursor and page.next_cursor not in seen:  # stop if a server repeats a page
        seen.add(page.next_cursor)
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


@asynccontextmanager
async def _wrapped(transport: AbstractAsyncContextManager[Any], end: Callable[[], None]) -> AsyncIterator[Any]:
    """Wrap a transport: complete its results, and call ``end`` as soon as no more messages can arrive."""
    async with transport as (incoming, outgoing):
        yield _Incoming(incoming, end), outgoing


class _Incoming:
    """The messages of a server. A result without ``resultType``, which the SDK refuses, counts as complete."""

    def __init__(self, stream: Any, end: Callable[[], None]) -> None:
        self._stream, self._end = stream, end

    async def __aenter__(self) -> _Incoming:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._end()
        await self._stream.__aexit__(*exc)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for item in self._stream:
            result = getattr(getattr(item, "message", None), "result", None)
            if isinstance(result, dict):
                result.setdefault("resultType", "complete")
            yield item


class _StderrTail:
    """The last lines that a server writes to its standard error."""

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
        """Close our end of the pipe, once the server has its own."""
        self.errlog.close()

    async def last_lines(self) -> str:
        """Return the last lines, after a short wait for them."""
        self.release()
        for _ in range(50):
            if self._done.is_set():
                break
            await asyncio.sleep(0.01)
        lines = self._last.decode(errors="replace").strip()[-_MAX_TAIL:].splitlines()
        return "\n".join(lines[-_MAX_LINES:])


def _with_addresses(error: Any) -> str:
    """Return the message of an error, with the addresses that the server wants a person to open first."""
    data = error.data if isinstance(error.data, Mapping) else {}
    given = data.get("elicitations") if error.code == _URL_REQUIRED else None
    named = [str(each.get("url")) for each in given or () if isinstance(each, Mapping)]
    urls = [url for url in named[:MAX_QUESTIONS] if is_web_address(url)]
    return f"{error.message} Open first: {', '.join(urls)}" if urls else str(error.message)


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the errors in an exception group, except for cancellations."""
    if isinstance(error, BaseExceptionGroup):
        for item in error.exceptions:
            yield from _leaves(item)
    elif error is not None and not isinstance(error, asyncio.CancelledError):
        yield error


def _line(error: BaseException) -> str:
    """Return an error as one short line."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    return first[:200]
