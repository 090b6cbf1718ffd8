"""The command ``hookline claude-hook RULES``, as Claude Code calls it: pass the event on, and print the answer.

Claude Code starts this program for every tool call, and importing Hookline with its hooks takes longer than a person
wants to wait each time. So the hooks live in a resident process, which this one starts if there is none, and asks over
a Unix socket. The process also keeps the state of the hooks between the calls of a session. Its socket is in a folder
that only the user can enter. The process ends when it has had nothing to do for a while.

Importing this module must stay cheap: only what every call needs is imported at the top.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import time

from .options import MAX_INPUT, STALE, NoAnswerError, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .refusal import Answer

MAX_ADDRESS = 100
"""Unix sockets have addresses of at most about 104 bytes."""


def run(options: Options) -> int:
    """Answer the event on stdin. Return the exit code."""
    data = b""
    try:
        data = sys.stdin.buffer.read(MAX_INPUT + 1)
        answer = _answer(options, data)
    except Exception as error:  # noqa: BLE001 - whatever is broken, the call must not run because of it
        from .refusal import refusal

        answer = refusal(data, _describe(error))
    for stream, text in ((sys.stdout, answer[0]), (sys.stderr, answer[1])):
        stream.buffer.write(text)
        stream.buffer.flush()
    return answer[2]


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, NoAnswerError) else f"{type(error).__name__}: {text}"


def _answer(options: Options, data: bytes) -> tuple[bytes, bytes, int] | Answer:
    if not data.strip():
        raise NoAnswerError("there is no event on stdin: this command is for the hooks in Claude Code's settings")
    if len(data) > MAX_INPUT:
        raise NoAnswerError(f"the event is larger than {MAX_INPUT // 1_000_000} MB")
    if options.once:
        from .resident import answer_once

        return answer_once(options, data)
    deadline = time.monotonic() + options.seconds
    address = os.path.join(_runtime_folder(), f"claude-{_digest(options.identity())}")
    answer = _ask(f"{address}.sock", data, deadline)
    if answer is None:
        _start(options, address, deadline)
        answer = _ask(f"{address}.sock", data, deadline)
    if answer is None:
        raise NoAnswerError(f"the process with the hooks has ended: its log is {address}.log")
    return answer


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def _runtime_folder() -> str:
    """Return the folder for sockets, which only this user can enter."""
    place = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isdir(place) and len(os.fsencode(place)) <= MAX_ADDRESS - 50:
        folder = os.path.join(place, "hookline")
    else:
        folder = f"/tmp/hookline-{os.getuid()}"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    state = os.lstat(folder)
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise NoAnswerError(f"{folder} must be a folder of this user that nobody else can enter: remove it")
    return folder


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _ask(address: str, data: bytes, deadline: float) -> tuple[bytes, bytes, int] | None:
    """Ask the resident process; return ``None`` if there is none, or if it is about to end."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.settimeout(_left(deadline))
            connection.connect(address)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while True:
                connection.settimeout(_left(deadline))
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                answer += piece
        except TimeoutError:
            _end(connection)
            raise NoAnswerError("the hooks did not answer in time") from None
        except OSError:
            return None
    head, newline, rest = answer.partition(b"\n")
    if not newline:
        return None  # it was ended before it could answer
    code, length = map(int, head.split())
    return None if code == STALE else (rest[:length], rest[length:], code)


def _end(connection: socket.socket) -> None:
    """End a resident process that hangs in a hook, so that the next call gets another one."""
    if hasattr(socket, "SO_PEERCRED"):
        import signal
        import struct

        pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid > 1 and user == os.getuid():
            os.kill(pid, signal.SIGKILL)


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
        if not _listens(f"{address}.sock"):
            _fork(options, address, deadline)
    finally:
        try:
            os.close(lock)
        except OSError:  # the resident process has closed it
            pass


def _listens(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError:
            return False
    return True


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
            os.write(write, _describe(NoAnswerError(f"the hooks cannot be started ({error!r:.500})")).encode())
            os._exit(1)
        sys.exit(0)
    os.close(write)
    os.waitpid(child, 0)
    problem = b""
    try:
        while True:
            if not select.select([read], [], [], _left(deadline))[0]:
                raise NoAnswerError("the rules did not load in time")
            piece = os.read(read, 1 << 16)
            if not piece:
                break
            problem += piece
    finally:
        os.close(read)
    if problem != b"ready":
        raise NoAnswerError(problem.decode(errors="replace") or f"the hooks cannot be started: see {address}.log")
