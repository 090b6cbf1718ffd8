"""The terminal, for questions: also where stdin and stdout are pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress


def is_capable(terminal: bool) -> bool:
    """Whether a terminal lets the cursor be moved; whether it wants colours is up to ``NO_COLOR``."""
    return terminal and os.environ.get("TERM", "dumb") != "dumb"


class Terminal:
    """A terminal that a person sits at.

    Questions are read without a thread, so that a cancelled one takes no input from those after it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def find(cls) -> Terminal | None:
        """The terminal of this process, if somebody could read and answer a question there."""
        if not sys.stderr.isatty() or sys.platform == "win32":
            return None
        if sys.stdin is not None and sys.stdin.isatty():
            return cls(sys.stdin.fileno())
        try:
            return cls(os.open("/dev/tty", os.O_RDWR))
        except OSError:
            return None

    def show(self, text: str) -> None:
        """Write to it."""
        sys.stderr.write(text)
        sys.stderr.flush()

    def _forget(self) -> None:
        import termios

        with suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    async def ask(self, question: str) -> str | None:
        """One line of answer, ``None`` at the end of input. What was typed before the question does not count."""
        self._forget()
        self.show(question)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def take() -> None:
            loop.remove_reader(self._fd)
            try:
                answer.set_result(os.read(self._fd, 1 << 16))
            except OSError:
                answer.set_result(b"")  # the terminal is gone

        loop.add_reader(self._fd, take)
        line = b""
        try:
            line = await answer
        finally:
            loop.remove_reader(self._fd)
            if not line:
                self._forget()  # an answer to a question that is withdrawn answers nothing else
            if not line.endswith(b"\n"):
                self.show("\n")  # nobody pressed Enter
        return line.decode(errors="replace").strip() if line else None
