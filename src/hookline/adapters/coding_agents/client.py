"""The command ``hookline agent-hook``, as a coding agent calls it: pass the event on, and print the answer.

The agent starts this program for every tool call, and importing Hookline with its hooks takes longer than a person
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

from .options import BLOCKED, MAX_INPUT, STALE, NoAnswerError, Options, encode_answer, encode_event, environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .events import CommandOutput

MAX_ADDRESS = 100
"""Unix sockets have addresses of at most about 104 bytes."""


def run(options: Options) -> int:
    """Answer the event on stdin. Return the exit code."""
    data = b""
    try:
        data = sys.stdin.buffer.read(MAX_INPUT + 1)
        answer = _answer(options, data)
    except BaseException as error:  # noqa: BLE001 - whatever is broken, the call must not run because of it
        answer = _refuse(options.agent, data, error)
    stdout, stderr, code = answer
    try:
        _write(1, stdout)
    except OSError:  # nobody reads the answer, which may have been a denial
        stderr, code = stderr or b"Hookline: the answer cannot be written, so this is not allowed.\n", BLOCKED
    try:
        _write(2, stderr)
    except OSError:
        code = BLOCKED
    return code


def _refuse(agent: str, data: bytes, error: BaseException) -> tuple[bytes, bytes, int] | CommandOutput:
    """Return the answer to an event that could not be judged."""
    try:
        from .refusal import refusal

        return refusal(agent, environment(), data, _describe(error))
    except BaseException as broken:  # noqa: BLE001 - with another exit code than 2, most agents run the call
        return b"", f"Hookline: the event could not be judged: {type(broken).__name__}.\n".encode(), BLOCKED


def _write(file: int, text: bytes) -> None:
    while text:
        text = text[os.write(file, text) :]


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, NoAnswerError) else f"{type(error).__name__}: {text}"


def _answer(options: Options, data: bytes) -> tuple[bytes, bytes, int] | CommandOutput:
    if not data.strip():
        raise NoAnswerError("there is no event on stdin: this command is for the hooks of a coding agent")
    if len(data) > MAX_INPUT:
        raise NoAnswerError(f"the event is larger than {MAX_INPUT // 1_000_000} MB")
    if not options.folder:
        raise NoAnswerError("the working folder does not exist any more")
    deadline = time.monotonic() + options.seconds
    if options.once:
        return _answer_once(options, data, deadline)
    address = os.path.join(_runtime_folder(), f"agent-{_digest(options.identity())}")
    message = encode_event(environment(), data)
    answer = _ask(f"{address}.sock", message, deadline)
    if answer is None:
        _start(options, address, deadline)
        answer = _ask(f"{address}.sock", message, deadline)
    if answer is None:
        raise NoAnswerError(f"the process with the hooks has ended: its log is {address}.log")
    return answer


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
            theirs.sendall(encode_answer(*_refuse(options.agent, data, error)))
        finally:
            os._exit(0)
    theirs.close()
    try:
        with ours:
            answer = _receive(ours, deadline)
    except TimeoutError:
        raise NoAnswerError("the hooks did not answer in time") from None
    finally:
        import signal

        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if answer is None:
        raise NoAnswerError("the process with the hooks ended without an answer")
    return answer


def _receive(connection: socket.socket, deadline: float) -> tuple[bytes, bytes, int] | None:
    """Return an answer that :func:`encode_answer` made; ``None`` if the other process ended before it was complete."""
    answer = b""
    while True:
        connection.settimeout(_left(deadline))
        piece = connection.recv(1 << 16)
        if not piece:
            break
        answer += piece
        if time.monotonic() > deadline:
            raise TimeoutError
    head, newline, rest = answer.partition(b"\n")
    if not newline:
        return None
    code, out, err = map(int, head.split())
    return (rest[:out], rest[out:], code) if len(rest) == out + err else None


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


def _ask(address: str, message: bytes, deadline: float) -> tuple[bytes, bytes, int] | None:
    """Ask the resident process; return ``None`` if there is none, or if it is about to end."""
    process = 0
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.settimeout(_left(deadline))
            connection.connect(address)
            process = _process_behind(connection)
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            answer = _receive(connection, deadline)
        except TimeoutError:
            if process > 1:  # it hangs in a hook: the next call gets another one
                import signal

                os.kill(process, signal.SIGKILL)
            raise NoAnswerError("the hooks did not answer in time") from None
        except OSError:
            return None
    return None if answer is None or answer[2] == STALE else answer


def _process_behind(connection: socket.socket) -> int:
    """Return the id of the process that listens, which must be one of this user; 0 if the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    import struct

    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise NoAnswerError("another user's program answers in place of the hooks")
    return int(process)


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
