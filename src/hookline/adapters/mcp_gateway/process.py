"""The process of an MCP server, and the lines that go to it and come from it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from ..._base.errors import HooklineError
from ..._base.text import error_text

MAX_MESSAGE = 64 * 2**20
"""Maximum size of a message in bytes. A server or client that exceeds it is cut off."""
CLOSING = 2.0
"""Seconds that a server gets to end, each after its stdin is closed, after SIGTERM and after SIGKILL."""
BUFFER = 2**20
"""Bytes that may wait to be written, before whoever writes has to wait."""
_TURN = 64


class Server:
    """A running server: a process that reads and writes messages, one in each line.

    Raises:
        HooklineError: it cannot be started.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        self._stdin = process.stdin
        self._stdin.transport.set_write_buffer_limits(BUFFER)
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
        enlarge(process._transport.get_pipe_transport(1).get_extra_info("pipe"))  # type: ignore[attr-defined]
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


def enlarge(file: Any) -> None:
    """Let a pipe hold more than 64 kB, where the system allows it: each time that it is full, both ends wait."""
    with suppress(ImportError, AttributeError, OSError, ValueError):
        import fcntl

        fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, BUFFER)


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
