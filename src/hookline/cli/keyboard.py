"""Read the keyboard while a reply is shown, so that keys neither appear in it nor answer a question."""

from __future__ import annotations

import codecs
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from .terminal import Terminal, single_keys

ESCAPE = b"\x1b"
_SEQUENCE_SECONDS = 0.05
"""Time within which the rest of an escape sequence, such as that of an arrow key, follows the Esc."""


class Keyboard:
    """The keyboard of a conversation. Keys are not echoed; Ctrl-C still is a signal.

    Keys typed while a reply is shown are neither shown nor lost: they are in ``typed``, for the next prompt.
    On Windows, the keyboard is left alone.

    Args:
        fd: the terminal.

    Example::

        with Keyboard(0) as keyboard:
            with keyboard.listening(lambda: run.cancel("Esc")):
                run.wait()
            print(keyboard.typed)
    """

    def __init__(self, fd: int) -> None:
        self.typed = ""
        self._fd = fd
        self._modes = ExitStack()
        self._on_escape: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._wake = (-1, -1)

    def __enter__(self) -> Self:
        self._modes.enter_context(single_keys(self._fd))
        return self

    def __exit__(self, *_: object) -> None:
        self._modes.close()

    @contextmanager
    def listening(self, on_escape: Callable[[], object]) -> Iterator[None]:
        """Take the keys, and call ``on_escape`` in another thread when Esc is pressed."""
        self.typed, self._on_escape = "", on_escape
        self._start()
        try:
            yield
        finally:
            self._stop()
            self._on_escape = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the keyboard to a question."""
        self._stop()
        self._modes.close()
        try:
            yield
        finally:
            self._modes.enter_context(single_keys(self._fd))
            self._start()

    def _start(self) -> None:
        if sys.platform != "win32" and self._on_escape is not None:
            self._wake = os.pipe()
            self._thread = threading.Thread(target=self._read, name="hookline-keyboard", daemon=True)
            self._thread.start()

    def _stop(self) -> None:
        if self._thread is not None:
            os.close(self._wake[1])
            self._thread.join()
            self._thread = None
            os.close(self._wake[0])

    def _read(self) -> None:
        from prompt_toolkit.input.vt100_parser import Vt100Parser

        decoder, parser = codecs.getincrementaldecoder("utf-8")("replace"), Vt100Parser(self._take)
        while self._wake[0] not in select.select([self._fd, self._wake[0]], [], [])[0]:
            try:
                data = os.read(self._fd, 1 << 12)
            except OSError:
                return
            if not data:
                return
            Terminal.last_key_at = time.monotonic()
            escape = data.endswith(ESCAPE) and not select.select([self._fd], [], [], _SEQUENCE_SECONDS)[0]
            parser.feed(decoder.decode(data[:-1] if escape else data))
            if escape and self._on_escape is not None:
                self._on_escape()

    def _take(self, pressed: Any) -> None:
        from prompt_toolkit.keys import Keys

        key = pressed.key
        if key in (Keys.ControlM, Keys.ControlJ):
            self.typed += "\n"
        elif key in (Keys.ControlH, Keys.Backspace):
            self.typed = self.typed[:-1]
        elif key == Keys.ControlU:
            self.typed = ""
        elif key == Keys.BracketedPaste:
            self.typed += pressed.data.replace("\r\n", "\n").replace("\r", "\n")
        elif not isinstance(key, Keys):
            self.typed += key
