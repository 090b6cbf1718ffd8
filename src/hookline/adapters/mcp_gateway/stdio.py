"""The gateway between a client on stdin and stdout, and a server that it starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from .catalog import Catalog
from .gateway import Gateway
from .guards import Guards
from .hub import Hub, ServerSettings
from .pins import PinStore
from .process import BUFFER, CLOSING, MAX_MESSAGE, Server, enlarge, lines_of
from .run import SessionRun


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

    def connection_lost(self, exc: Exception | None) -> None:
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
        for file in (sys.stdin, self._out):
            enlarge(file)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), sys.stdin.buffer)
        with suppress(ValueError):  # a file is written to directly
            self._pipe = await loop.connect_write_pipe(_Output, os.fdopen(self._out, "wb", buffering=0))
            self._pipe[0].set_write_buffer_limits(BUFFER)

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


async def serve_several(
    servers: Sequence[ServerSettings], guards: Guards, *, ask_first: bool = False, max_message: int = MAX_MESSAGE
) -> int:
    """Guard several servers for the client on stdin, until it closes its end. Return the exit code."""
    client = Client(max_message)
    hub = Hub(servers, guards, client.send, ask_first=ask_first, max_message=max_message)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    await client.open()
    tasks = loop.create_task(client.receive(hub.take)), loop.create_task(stopped.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await hub.close()
        await asyncio.wait(tasks, timeout=CLOSING)
        await client.flush()
    return 0
