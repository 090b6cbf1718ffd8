"""The full command ``hookline agent-hook``: what :mod:`.client` does, and what must happen if no process answers.

The hooks live in a resident process, which is asked over a Unix socket, because loading them takes too long for each
call, and because hooks have state. This module starts the process if there is none. Its socket is in a folder that only
the user can enter. The process ends when it has had nothing to do for a while.

Importing this module must stay cheap: only what every call needs is imported at the top.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from .client import (
    DEADLINE,
    address_of,
    ask,
    connect,
    describe,
    read_event,
    receive,
    refuse,
    require_folder,
    runtime_folder,
    write,
)
from .options import NoAnswerError, Options, encode_answer, environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .events import CommandOutput


def run(options: Options) -> int:
    """Answer the event on stdin. Return the exit code."""
    data = bytearray()
    try:
        deadline = min(time.monotonic() + options.seconds, float(os.environ.pop(DEADLINE, "inf")))
        read_event(data)
        require_folder(options)
        answer = _answer(options, bytes(data), deadline)
    except BaseException as error:  # noqa: BLE001 - whatever is broken, the call must not run because of it
        answer = refuse(options.agent, data, error)
    return write(answer)


def _answer(options: Options, data: bytes, deadline: float) -> tuple[bytes, bytes, int] | CommandOutput:
    if options.once:
        return _answer_once(options, data, deadline)
    try:
        os.mkdir(runtime_folder(), 0o700)
    except FileExistsError:
        pass
    address = address_of(options)
    answer = _ask(address, data, deadline)
    if answer is None:
        _start(options, address, deadline)
        answer = _ask(address, data, deadline)
    if answer is None:
        raise NoAnswerError(f"the process with the hooks has ended: its log is {address}.log")
    return answer


def _ask(address: str, data: bytes, deadline: float) -> tuple[bytes, bytes, int] | None:
    connection = connect(address, deadline)
    return None if connection is None else ask(connection, data, deadline)


def _answer_once(options: Options, data: bytes, deadline: float) -> tuple[bytes, bytes, int] | CommandOutput:
    """Load the rules and answer, in a process of its own: rules may hang, or end the process that loads them."""
    from .resident import answer_once

    if not hasattr(os, "fork"):
        return answer_once(options, environment(), data)
    ours, theirs = socket.socketpair()
    if (child := os.fork()) == 0:
        try:
            ours.close()
            theirs.sendall(encode_answer(*answer_once(options, environment(), data)))
        except BaseException as error:  # noqa: BLE001 - the parent must know
            theirs.sendall(encode_answer(*refuse(options.agent, bytearray(data), error)))
        finally:
            os._exit(0)
    theirs.close()
    try:
        with ours:
            answer = receive(ours, deadline)
    except TimeoutError:
        raise NoAnswerError("the hooks did not answer in time") from None
    finally:
        import signal

        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if answer is None:
        raise NoAnswerError("the process with the hooks ended without an answer")
    return answer


def _start(options: Options, address: str, deadline: float) -> None:
    """Start the resident process, unless another call has just done so."""
    import fcntl

    lock = os.open(f"{address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NoAnswerError("the rules did not load in time") from None
                time.sleep(0.02)
        if not _listens(address, deadline):
            _fork(options, address, deadline)
    finally:
        try:
            os.close(lock)
        except OSError:  # the resident process has closed it
            pass


def _listens(address: str, deadline: float) -> bool:
    connection = connect(address, deadline)
    if connection is not None:
        connection.close()
    return connection is not None


def _fork(options: Options, address: str, deadline: float) -> None:
    """Start the resident process, and wait until it listens.

    It is a fork of this process, which has imported next to nothing and has no threads. A second fork makes it nobody's
    child, so that nobody waits for it.
    """
    import select

    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.close(read)
        try:
            from .resident import serve

            serve(options, address, write)
        except BaseException as error:  # noqa: BLE001 - the caller must know
            os.write(write, describe(NoAnswerError(f"the hooks cannot be started ({error!r:.500})")).encode())
            os._exit(1)
        sys.exit(0)
    os.close(write)
    os.waitpid(child, 0)
    problem = b""
    try:
        while True:
            if not select.select([read], [], [], max(deadline - time.monotonic(), 0.001))[0]:
                raise NoAnswerError("the rules did not load in time")
            piece = os.read(read, 1 << 16)
            if not piece:
                break
            problem += piece
    finally:
        os.close(read)
    if problem != b"ready":
        raise NoAnswerError(problem.decode(errors="replace") or f"the hooks cannot be started: see {address}.log")
