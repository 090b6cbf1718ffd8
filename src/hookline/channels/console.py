"""A channel of lines: what is typed is a message, what is printed is a reply."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from ..stores.messages import InboundMessage, OutboundMessage
from .protocol import Address, Asked, Capabilities, ChannelError, Deliver, Health
from .receiving import Handover

PROMPT, WORKING = "> ", "... "
_CLEAR = "\r\x1b[K"


class ConsoleChannel:
    """Reads lines from a file and writes replies to another; when there are no more lines, it has ended.

    At a terminal it shows a prompt, and in its place a sign while something is being answered.

    Args:
        name: of the channel.
        reads: where lines come from; stdin if left out.
        writes: where replies go; stdout if left out.
        sender: who is talking.
    """

    def __init__(
        self, name: str = "console", *, reads: TextIO | None = None, writes: TextIO | None = None, sender: str = "you"
    ) -> None:
        self.name, self.ended = name, False
        self.capabilities = Capabilities()
        self._reads, self._writes, self._sender = reads or sys.stdin, writes or sys.stdout, sender
        self._stopping, self._trouble = asyncio.Event(), ""
        self._sign = ""
        self._terminal = _is_terminal(self._reads) and _is_terminal(self._writes)
        self._reading: asyncio.Task[None] | None = None

    async def start(self, deliver: Deliver) -> None:
        """Read from now on."""
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:  # a thread of its own: nothing else can wait for a terminal, a pipe or a file alike
            line = "\n"
            while line and not self._stopping.is_set():
                line = self._line()
                with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                    loop.call_soon_threadsafe(lines.put_nowait, line)

        threading.Thread(target=read, name="hookline-console", daemon=True).start()
        handover = Handover(deliver, self._stopping, lambda detail: setattr(self, "_trouble", detail))
        self._reading = asyncio.create_task(self._take(lines, handover))
        self._sign = self._sign or PROMPT
        self._draw()

    async def stop(self) -> None:
        """Read no more."""
        self._stopping.set()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._sign = ""
        self._draw()

    def at_work(self, address: Address, message_id: str, waiting: int) -> None:
        """Show whether something is being answered."""
        sign = WORKING if message_id or waiting else "" if self.ended or self._stopping.is_set() else PROMPT
        if sign != self._sign:
            self._sign = sign
            self._draw()

    def asked(self, address: Address, questions: Sequence[Asked]) -> None:
        """Show that an answer is waited for, while a call waits for approval."""
        self._sign = WORKING if not questions else "" if self.ended or self._stopping.is_set() else PROMPT
        self._draw()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make room for something else that is written to the terminal, without the prompt in between."""
        self._draw("")
        try:
            yield
        finally:
            self._draw()

    def _draw(self, sign: str | None = None) -> None:
        """Write the sign where the old one was."""
        if self._terminal:
            with suppress(OSError, ValueError):
                self._writes.write(f"{_CLEAR}{self._sign if sign is None else sign}")
                self._writes.flush()

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Print the reply."""
        try:
            self._writes.write(f"{_CLEAR if self._terminal else ''}{message.text}\n")
            self._writes.flush()
        except (OSError, ValueError) as error:
            raise ChannelError(f"the reply cannot be written: {error}") from error
        self._draw()
        return key

    def health(self) -> Health:
        """Well, until there are no more lines."""
        if self.ended:
            return Health(False, "there are no more lines")
        return Health(not self._trouble, self._trouble)

    def _line(self) -> str:
        """The next line; empty when there is none. What is no text in it is replaced: it may not end all the rest."""
        try:
            raw = getattr(self._reads, "buffer", None)
            if raw is None:
                return self._reads.readline()
            line: bytes = raw.readline()
            return line.decode(self._reads.encoding or "utf-8", "replace")
        except (OSError, ValueError):
            return ""

    async def _take(self, lines: asyncio.Queue[str], handover: Handover) -> None:
        while line := await lines.get():
            if line.strip():
                text = line.rstrip("\r\n")
                await handover.take([InboundMessage(text, self.name, "console", self._sender, uuid.uuid4().hex)])
            self._draw()
        self.ended = True
        if self._sign == PROMPT:
            self._sign = ""
            self._draw()


def _is_terminal(file: TextIO) -> bool:
    """Whether somebody sits there, who sees what is drawn."""
    try:
        return file.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # it is closed
        return False
