"""A channel for a terminal: each line of input is a message, and replies are printed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from shutil import get_terminal_size
from textwrap import wrap
from typing import TextIO

from .._base.text import printable
from ..stores.messages import InboundMessage, OutboundMessage
from .protocol import Address, ApprovalPrompt, Capabilities, ChannelError, Deliver, Health
from .receiving import RetryingDelivery

PROMPT, WORKING = "❯ ", "... "  # noqa: RUF001 - not the sign of a quotation
_INDENT = "  "
_CLEAR = "\r\x1b[K"


class ConsoleChannel:
    """Read messages from a file, one per line, and write replies to another. The channel ends with the input file.

    A terminal shows a prompt while the channel waits for input, and ``...`` while a message is being answered.

    Args:
        name: the name of the channel.
        reads: the file to read from; stdin if left out.
        writes: the file to write to; stdout if left out.
        sender: the sender of all messages.
    """

    def __init__(
        self, name: str = "console", *, reads: TextIO | None = None, writes: TextIO | None = None, sender: str = "you"
    ) -> None:
        self.name = name
        self.ended = False
        self.capabilities = Capabilities()
        self._reads = reads or sys.stdin
        self._writes = writes or sys.stdout
        self._sender = sender
        self._stopping = asyncio.Event()
        self._problem = ""
        self._prompt = ""
        self._is_terminal = _is_terminal(self._reads) and _is_terminal(self._writes)
        """Whether it shows a prompt."""
        self._reading: asyncio.Task[None] | None = None

    async def start(self, deliver: Deliver) -> None:
        """Start to read."""
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:  # a thread, because asyncio cannot wait for all of terminals, pipes and files
            line = "\n"
            while line and not self._stopping.is_set():
                line = self._read_line()
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(lines.put_nowait, line)

        threading.Thread(target=read, name="hookline-console", daemon=True).start()
        delivery = RetryingDelivery(deliver, self._stopping, lambda detail: setattr(self, "_problem", detail))
        self._reading = asyncio.create_task(self._deliver_lines(lines, delivery))
        self._prompt = self._prompt or PROMPT
        self._draw()

    async def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._prompt = ""
        self._draw()

    def activity_changed(self, address: Address, message_id: str, waiting: int) -> None:
        """Show whether a message is being answered."""
        prompt = WORKING if message_id or waiting else self._input_prompt()
        if prompt != self._prompt:
            self._prompt = prompt
            self._draw()

    def approvals_changed(self, address: Address, prompts: Sequence[ApprovalPrompt]) -> None:
        """Show the prompt while a call waits for approval."""
        self._prompt = self._input_prompt() if prompts else WORKING
        self._draw()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the prompt while other code writes to the terminal."""
        self._draw("")
        try:
            yield
        finally:
            self._draw()

    def _input_prompt(self) -> str:
        return "" if self.ended or self._stopping.is_set() else PROMPT

    def _draw(self, prompt: str | None = None) -> None:
        """Replace the prompt on the terminal."""
        if self._is_terminal:
            with suppress(OSError, ValueError):
                self._writes.write(f"{_CLEAR}{self._prompt if prompt is None else prompt}")
                self._writes.flush()

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Print the reply."""
        try:
            text = _shown(message.text) if _is_terminal(self._writes, dumb=True) else message.text
            self._writes.write(f"{_CLEAR if self._is_terminal else ''}{text}\n")
            self._writes.flush()
        except (OSError, ValueError) as error:
            raise ChannelError(f"the reply cannot be written to the console: {error}") from error
        self._draw()
        return key

    def health(self) -> Health:
        """Report healthy until the end of the input."""
        if self.ended:
            return Health(False, "the input has ended")
        return Health(not self._problem, self._problem)

    def _read_line(self) -> str:
        """Read the next line; empty at the end. Undecodable bytes are replaced, so that they do not end the channel."""
        try:
            raw = getattr(self._reads, "buffer", None)
            if raw is None:
                return self._reads.readline()
            line: bytes = raw.readline()
            return line.decode(self._reads.encoding or "utf-8", "replace")
        except (OSError, ValueError):
            return ""

    async def _deliver_lines(self, lines: asyncio.Queue[str], delivery: RetryingDelivery) -> None:
        while line := await lines.get():
            if line.strip():
                text = line.rstrip("\r\n")
                await delivery.deliver_all([InboundMessage(text, self.name, "console", self._sender, uuid.uuid4().hex)])
            self._draw()
        self.ended = True
        if self._prompt == PROMPT:
            self._prompt = ""
            self._draw()


def _is_terminal(file: TextIO, *, dumb: bool = False) -> bool:
    """Whether a file is a terminal that understands control codes, or any terminal if ``dumb`` is set."""
    try:
        return file.isatty() and (dumb or os.environ.get("TERM") != "dumb")
    except ValueError:  # the file is closed
        return False


def _shown(text: str) -> str:
    """Return a reply without control characters and indented, so that it cannot look like the prompt."""
    width = max(20, get_terminal_size().columns - len(_INDENT) - 1)
    lines: list[str] = []
    for line in printable(text).expandtabs().split("\n"):
        lines += [line] if len(line) <= width else wrap(line, width, break_on_hyphens=False)
    return "\n".join(f"{_INDENT}{line}".rstrip() for line in lines)
