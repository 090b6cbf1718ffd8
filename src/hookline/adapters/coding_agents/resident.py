"""The process that keeps the hooks of ``hookline agent-hook`` in memory, and answers its calls."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..._base.tasks import wait_at_most
from ..._base.text import error_text
from ..._kernel.errors import HooklineError
from .events import CommandOutput
from .last_call import save_last_call
from .options import MAX_INPUT, STALE, NoAnswerError, Options, decode_event, encode_answer
from .refusal import refusal

if TYPE_CHECKING:
    from .judge import Judge

log = logging.getLogger("hookline")

MAX_LOG = 1_000_000
"""A larger log is emptied: hooks may print, and the folder of the socket is often in memory."""
_MAX_MESSAGE = MAX_INPUT + 1_000_000
"""Bytes that are read of a message: an event, and a few variables of the environment."""
_CHECK = 2.0
"""Seconds between two checks whether the socket is still there."""
_MARGIN = 0.8
"""The part of the time that hooks get; the rest is for what surrounds them."""


def load_judge(options: Options, read_file: str = "") -> Judge:
    """Load the rules. ``read_file`` says which sessions have read untrusted text.

    Raises:
        NoAnswerError: that is not possible; the message says why.
    """
    from .codecs import codec_of
    from .judge import Judge
    from .rules import Rules
    from .sessions import ReadBefore

    try:
        os.chdir(options.folder)
        return Judge(
            Rules.load(options.rules),
            codec_of(options.agent),
            options.tools,
            sandboxed=options.sandboxed,
            allow_rewritten=options.allow_rewritten,
            read_before=ReadBefore(read_file),
        )
    except (HooklineError, OSError) as error:
        raise NoAnswerError(f"the rules cannot be loaded ({error_text(error)})") from error


def answer_once(options: Options, variables: str, data: bytes) -> CommandOutput:
    """Load the rules and answer one event in this process.

    What rules print or log must not be taken for a part of the answer: agents read stdout and stderr. Only a person at
    a terminal sees it.
    """
    kept = os.dup(1), os.dup(2)
    if not os.isatty(2):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
    os.dup2(2, 1)
    try:
        judge = load_judge(options)
        answer = asyncio.run(_answer_once(judge, variables, data, options.seconds * _MARGIN))
        _save_last_call(judge, options)
        return answer
    finally:
        for number, file in zip((1, 2), kept, strict=True):
            os.dup2(file, number)
            os.close(file)


async def _answer_once(judge: Judge, variables: str, data: bytes, seconds: float) -> CommandOutput:
    answer = await judge.answer(variables, data, seconds)
    await judge.close()
    return answer


def _save_last_call(judge: Judge, options: Options) -> None:
    if judge.last_call is not None:
        save_last_call(options.agent, judge.last_call)
        judge.last_call = None


def serve(options: Options, address: str, ready: int) -> None:
    """Answer calls until there are none for a while, or the rules change. This is the whole life of the process.

    Args:
        options: the options of the call that started it.
        address: the path of the socket and the log, without a suffix.
        ready: a file descriptor for the word ``ready``, or for what is wrong.
    """
    _detach(f"{address}.log", ready)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        judge = load_judge(options, f"{address}.read")
    except NoAnswerError as error:
        os.write(ready, str(error).encode()[:4000])
        return
    except Exception as error:
        log.exception("the rules cannot be loaded")
        os.write(ready, f"the rules cannot be loaded ({type(error).__name__}): see {address}.log".encode())
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(_Resident(judge, options, f"{address}.sock").run(ready))


def _detach(log_file: str, keep: int) -> None:
    """Let go of the files of the call that started this process: the agent waits until they are closed."""
    for name, flags, target in (
        (os.devnull, os.O_RDONLY, 0),
        (log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 1),
        (log_file, os.O_WRONLY | os.O_APPEND, 2),
    ):
        file = os.open(name, flags, 0o600)
        os.dup2(file, target)
        if file not in (target, keep):
            os.close(file)
    for number in range(3, 256):
        if number != keep:
            with suppress(OSError):
                os.close(number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the life of the process


class _Resident:
    """The server on the socket."""

    def __init__(self, judge: Judge, options: Options, address: str) -> None:
        self.judge, self.options, self.address = judge, options, address
        self._last = time.monotonic()
        self._open = 0
        self._ended = asyncio.Event()
        self._inode = 0

    async def run(self, ready: int) -> None:
        """Listen until the process is no longer needed."""
        with suppress(FileNotFoundError):
            os.unlink(self.address)  # of a process that was killed; the caller holds the lock
        before = os.umask(0o177)
        server = await asyncio.start_unix_server(self._call, self.address, backlog=512, limit=1 << 20)
        os.umask(before)
        self._inode = os.stat(self.address).st_ino
        os.write(ready, b"ready")
        os.close(ready)
        while not self._ended.is_set() and self._is_reachable():
            left = self._last + self.options.idle - time.monotonic()
            if left <= 0 and not self._open:
                break
            await wait_at_most(self._ended, min(max(left, 0.1), _CHECK))
        self._remove_socket()
        server.close()
        while self._open:
            await asyncio.sleep(0.01)
        await self.judge.close()

    def _is_reachable(self) -> bool:
        """Return whether the socket is still there, and that of this process, and whether the project is."""
        try:
            return os.stat(self.address).st_ino == self._inode and os.path.isdir(self.options.folder)
        except OSError:
            return False

    def _remove_socket(self) -> None:
        """Remove the socket, unless another process has already taken its place."""
        with suppress(OSError):
            if os.stat(self.address).st_ino == self._inode:
                os.unlink(self.address)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self._last = time.monotonic()
        try:
            message = await self._read(reader)
            if not message:
                return  # another call only wanted to know whether this process listens
            answer = await self._answer(*decode_event(message))
            writer.write(encode_answer(*answer))
            await writer.drain()
            _save_last_call(self.judge, self.options)
        except OSError as error:  # the caller is gone
            log.warning("a call could not be answered: %s", error)
        finally:
            self._open -= 1
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        pieces, size = [], 0
        while piece := await reader.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_MESSAGE:
                break
        return b"".join(pieces)

    async def _answer(self, variables: str, data: bytes) -> CommandOutput:
        if os.fstat(2).st_size > MAX_LOG:
            os.ftruncate(2, 0)
        if self.judge.rules.changed():
            self._remove_socket()
            self._ended.set()
            return CommandOutput(code=STALE)
        if len(data) > MAX_INPUT:
            return refusal(self.options.agent, variables, data, "the event is too large")
        return await self.judge.answer(variables, data, self.options.seconds * _MARGIN)
