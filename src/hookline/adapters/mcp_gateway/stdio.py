"""The gateway between a client on stdin and stdout, and a server that it starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from ..._base.errors import HooklineError
from ..._base.text import error_text
from .catalog import Catalog
from .gateway import Gateway
from .guards import Guards
from .pins import PinStore
from .run import SessionRun

MAX_MESSAGE = 64 * 2**20
"""Maximum size of a message in bytes. A server or client that exceeds it is cut off."""
CLOSING = 2.0
"""Seconds that a server gets to end, each after its stdin is closed, after SIGTERM and after SIGKILL."""
_TURN = 64
_BUFFER = 2**20


class Server:
    """A running server: a process that reads and writes messages, one in each line.

    Raises:
        HooklineError: it cannot be started.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        self._stdin = process.stdin
        self._stdin.transport.set_write_buffer_limits(_BUFFER)
        self.why = "The MCP server has ended."

    @classmethod
    async def start(cls, command: Sequence[str], *, max_message: int = MAX_MESSAGE, **options: Any) -> Server:
        """Start a server. Its stderr is that of this process."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=max_message,
                start_new_session=True,  # so that everything it starts ends with it
                **options,
            )
        except OSError as error:
            raise HooklineError(f"the MCP server cannot be started: {command[0]}: {error_text(error)}") from error
        return cls(process)

    async def send(self, line: bytes) -> None:
        """Send a message."""
        self._stdin.write(line.rstrip(b"\r\n") + b"\n")
        await self._stdin.drain()

    async def receive(self, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass on what the server sends, until it ends."""
        assert self._process.stdout is not None
        try:
            async for line in lines_of(self._process.stdout):
                await take(line)
        except asyncio.LimitOverrunError:
            self.why = "The MCP server sent a message that is too large, and was ended."

    async def exit_code(self) -> int:
        """Wait until the server has ended by itself, and return its exit code."""
        return await self._process.wait()

    async def close(self) -> None:
        """End the server with all that it has started."""
        with suppress(OSError, RuntimeError):
            self._stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self._process.wait()
                break
            self._signal(number)
        self._signal(signal.SIGKILL)  # what it started may have stayed
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING):
                await self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def lines_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. Many lines at once do not keep other tasks waiting.

    Raises:
        LimitOverrunError: a line is too long.
    """
    number = 0
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            if end.partial.strip():
                yield end.partial
            return
        if line.strip():
            yield line
        number += 1
        if not number % _TURN:
            await asyncio.sleep(0)


class _Output(asyncio.BaseProtocol):
    """What a write pipe reports: whether it is full, and its end."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost = asyncio.Event()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        self.writable.set()


class Client:
    """The client on the stdin and stdout of this process. Whatever else writes to stdout writes to stderr instead."""

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        self._reader = asyncio.StreamReader(limit=max_message)
        self._out = os.dup(1)
        os.dup2(2, 1)  # a hook that prints must not write into the protocol
        self._pipe: tuple[asyncio.WriteTransport, _Output] | None = None

    async def open(self) -> None:
        """Connect the streams."""
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), sys.stdin.buffer)
        with suppress(ValueError):  # a file is written to directly
            self._pipe = await loop.connect_write_pipe(_Output, os.fdopen(self._out, "wb", buffering=0))
            self._pipe[0].set_write_buffer_limits(_BUFFER)

    async def send(self, line: bytes) -> None:
        """Send a message."""
        line = line.rstrip(b"\r\n") + b"\n"
        if self._pipe is None:
            os.write(self._out, line)
            return
        transport, output = self._pipe
        transport.write(line)
        if not output.writable.is_set():
            await output.writable.wait()

    async def receive(self, take: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass on what the client sends, until it closes its end."""
        with suppress(asyncio.LimitOverrunError):
            async for line in lines_of(self._reader):
                await take(line)

    async def flush(self) -> None:
        """Wait until everything is sent."""
        if self._pipe is not None:
            transport, output = self._pipe
            transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await output.lost.wait()


async def serve(
    command: Sequence[str], name: str, guards: Guards, *, ask_first: bool = False, max_message: int = MAX_MESSAGE
) -> int:
    """Start a server and guard it for the client on stdin, until one of them ends. Return the exit code.

    Raises:
        HooklineError: the server cannot be started.
    """
    catalog = Catalog(PinStore(command, name), name, ask_first=ask_first)
    run = SessionRun(guards.adapter)
    client = Client(max_message)
    server = await Server.start(command, max_message=max_message)
    gateway = Gateway(name, catalog, run, guards.calls, client.send, server.send, guards.stack)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    await client.open()
    listening = loop.create_task(client.receive(gateway.from_client))
    serving = loop.create_task(server.receive(gateway.from_server))
    stopping = loop.create_task(stopped.wait())
    code = 0
    try:
        await asyncio.wait((listening, serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and not listening.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    code = await server.exit_code()
            await gateway.server_ended(server.why)
            code = abs(code) or 1
    finally:
        for task in (listening, stopping):
            task.cancel()
        await gateway.close()
        await asyncio.gather(run.end(), server.close())
        serving.cancel()
        await asyncio.wait((listening, serving, stopping), timeout=CLOSING)
        await client.flush()
    return code
