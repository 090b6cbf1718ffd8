"""Ask questions at the terminal, even where stdin and stdout are pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress


def can_move_cursor(terminal: bool) -> bool:
    """Return whether live views work here: the stream is a terminal, and ``TERM`` is not ``dumb``."""
    return terminal and os.environ.get("TERM", "dumb") != "dumb"


class Terminal:
    """A terminal with a person at it.

    Answers are read with the event loop, not in a thread: a cancelled question then takes no input from the next one.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def find(cls) -> Terminal | None:
        """Return the terminal of this process; ``None`` if nobody could read and answer a question there."""
        if not sys.stderr.isatty() or sys.platform == "win32":
            return None
        if sys.stdin is not None and sys.stdin.isatty():
            return cls(sys.stdin.fileno())
        try:
            return cls(os.open("/dev/tty", os.O_RDWR))
        except OSError:
            return None

    def show(self, text: str) -> None:
        """Write text to the terminal."""
        sys.stderr.write(text)
        sys.stderr.flush()

    def _discard_input(self) -> None:
        import termios

        with suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    async def ask(self, question: str) -> str | None:
        """Return one line of answer, ``None`` at the end of input. Input typed before the question is discarded."""
        self._discard_input()
        self.show(question)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def take() -> None:
            loop.remove_reader(self._fd)
            try:
                answer.set_result(os.read(self._fd, 1 << 16))
            except OSError:
                answer.set_result(b"")  # the terminal was closed

        loop.add_reader(self._fd, take)
        line = b""
        try:
            line = await answer
        finally:
            loop.remove_reader(self._fd)
            if not line:
                self._discard_input()  # the next question must not get an answer to this one
            if not line.endswith(b"\n"):
                self.show("\n")  # the person has not pressed Enter
        return line.decode(errors="replace").strip() if line else None
