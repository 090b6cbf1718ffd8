"""Ask questions at the terminal, even where stdin and stdout are pipes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from .text import indent_overflow


def can_move_cursor(terminal: bool) -> bool:
    """Return whether live views work here: the stream is a terminal, and ``TERM`` is not ``dumb``."""
    return terminal and os.environ.get("TERM", "dumb") != "dumb"


_changed: list[tuple[int, list[Any]]] = []
"""Terminals whose modes were changed, with the modes from before."""


@contextmanager
def single_keys(fd: int) -> Iterator[None]:
    """Get each key at once, and do not show it. Ctrl-C still is a signal. Does nothing on Windows."""
    if sys.platform == "win32":
        yield
        return
    import termios
    import tty

    with suppress(termios.error):  # the terminal was closed
        _changed.append((fd, termios.tcgetattr(fd)))
        tty.setcbreak(fd, termios.TCSADRAIN)
    try:
        yield
    finally:
        if _changed:
            _restore(*_changed.pop())


def restore_modes() -> None:
    """Restore the modes of the terminal before the process is ended at once."""
    for changed in reversed(_changed):
        _restore(*changed)


def _restore(fd: int, modes: list[Any]) -> None:
    if sys.platform != "win32":
        import termios

        with suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSANOW, modes)


PAUSE_SECONDS = 0.5
"""Time without a key before a question that one key answers."""


class Terminal:
    """A terminal with a person at it.

    Answers are read with the event loop, not in a thread: a cancelled question then takes no input from the next one.
    """

    last_key_at: ClassVar[float] = float("-inf")
    """When a key was pressed while no question was open, in monotonic time."""

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
        """Write text to the terminal. The rest of a long line does not begin in the first column."""
        sys.stderr.write(indent_overflow(text, sys.stderr))
        sys.stderr.flush()

    def _discard_input(self) -> None:
        import termios

        with suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    async def ask(self, question: str) -> str | None:
        """Return one line of answer, ``None`` at the end of input. Input typed before the question is discarded."""
        line = await self._read(question)
        if line and not line.endswith(b"\n"):
            self.show("\n")  # the person has not pressed Enter
        return line.decode(errors="replace").strip() if line else None

    async def ask_key(self, question: str) -> str | None:
        """Return the key that is pressed, without waiting for Enter: empty for Enter, ``None`` for Ctrl-D.

        Text that comes at once, such as a pasted word, is returned whole. Esc counts as Ctrl-C. Keys pressed before
        the question are discarded, and the question waits for a pause: the next letter of a word must not answer it.
        """
        with single_keys(self._fd):
            await self._wait_for_pause()
            while True:
                keys = await self._read(question)
                text = keys.decode(errors="replace").strip()
                if keys == b"\x1b":
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                if not text.startswith("\x1b"):
                    if keys:
                        self.show(f"{text if text.isprintable() else ''}\n")
                    return None if keys in (b"", b"\x04") else text
                question = ""  # an arrow or a function key, or Esc: the signal takes the question away

    async def _wait_for_pause(self) -> None:
        while select.select([self._fd], [], [], 0)[0] or time.monotonic() - self.last_key_at < PAUSE_SECONDS:
            self._discard_input()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read(self, question: str) -> bytes:
        """Show a question and return the next input; empty if the terminal was closed."""
        if question:
            self._discard_input()
            self.show(question)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()

        def take() -> None:
            loop.remove_reader(self._fd)
            try:
                answer.set_result(os.read(self._fd, 1 << 16))
            except OSError:
                answer.set_result(b"")

        loop.add_reader(self._fd, take)
        answered = False
        try:
            line = await answer
            answered = bool(line)
            return line
        finally:
            loop.remove_reader(self._fd)
            if not answered:
                self._discard_input()  # the next question must not get an answer to this one
                self.show("\n")
