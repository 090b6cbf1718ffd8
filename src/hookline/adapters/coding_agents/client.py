"""One call of ``hookline agent-hook``: pass the event to the resident process, and print its answer.

A coding agent makes a call for each of its tool calls, and starting Python with the packages of an installation takes
longer than a person wants to wait each time. So the settings of the agent start ``entry.py``, in a Python without them:
all that this module imports is part of Python, and loads fast. If no process answers, the full command takes over
(``command``), which uses the same functions. Whatever else goes wrong denies.
"""

import sys
import time

from .options import (
    BLOCKED,
    MAX_INPUT,
    STALE,
    NoAnswerError,
    Options,
    decode_answer,
    encode_event,
    environment,
    parse,
    variable,
)

if sys.platform == "win32" and "nt" in sys.builtin_module_names:
    import nt as system
else:
    import _socket
    import posix as system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .events import CommandOutput

DEADLINE = "HOOKLINE_AGENT_HOOK_DEADLINE"
"""The variable that tells the full command until when it must answer."""
_MAX_FOLDER = 50
"""Unix sockets have addresses of at most about 104 bytes, and names in the folder need about half of them."""
_KIND, _FOLDER = 0o170000, 0o040000
"""The bits of a mode that say what a file is, and their value for a folder."""


def main(words: list[str]) -> "NoReturn":
    """Answer the event on stdin, and exit.

    Args:
        words: what follows ``agent-hook``.
    """
    options: Options | None = None
    data = bytearray()
    try:
        options = parse(words)
        if options is None or options.once:
            _run_full_command(words)
        deadline = time.monotonic() + options.seconds
        require_folder(options)
        address = address_of(options)
        answer = None
        if (connection := connect(address, deadline)) is not None:
            read_event(data)
            answer = ask(connection, bytes(data), deadline)
        if answer is None:
            if data:
                _put_back(data, address)
            _run_full_command(words, deadline)
    except BaseException as error:  # noqa: BLE001 - whatever is broken, the call must not run because of it
        answer = refuse("" if options is None else options.agent, data, error)
    system._exit(write(answer))


def read_event(data: bytearray) -> None:
    """Read the event on stdin. What is read before an interrupt is in ``data`` too.

    Raises:
        NoAnswerError: there is none, or it is too large.
    """
    _read_input(data)
    if not data.strip():
        raise NoAnswerError("there is no event on stdin: this command is for the hooks of a coding agent")
    if len(data) > MAX_INPUT:
        raise NoAnswerError(f"the event is larger than {MAX_INPUT // 1_000_000} MB")


def _read_input(data: bytearray) -> None:
    while len(data) <= MAX_INPUT and (piece := system.read(0, 1 << 20)):
        data += piece


def write(answer: "CommandOutput | tuple[bytes, bytes, int]") -> int:
    """Print an answer. Return the exit code."""
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


def _write(file: int, text: bytes) -> None:
    while text:
        text = text[system.write(file, text) :]


def refuse(agent: str, data: bytearray, error: BaseException) -> "CommandOutput | tuple[bytes, bytes, int]":
    """Return the answer to an event that could not be judged.

    Args:
        agent: the coding agent; empty if it is not known.
        data: the event; empty if it was not read yet.
        error: why the event was not judged.
    """
    problem = describe(error)
    try:
        from .refusal import refusal

        if not data and isinstance(error, Exception):  # who interrupts a call may keep its stdin open
            _read_input(data)
        return refusal(agent, environment(), data, problem)
    except BaseException:  # noqa: BLE001 - with another exit code than 2, most agents run the call
        text = f"Hookline: {problem}, so this is not allowed.\n"
        return b"", text.encode(errors="backslashreplace"), BLOCKED


def describe(error: BaseException) -> str:
    """Return the reason of a denial."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NoAnswerError) else f"{type(error).__name__}: {text}"


def require_folder(options: Options) -> None:
    """Check that there is a project.

    Raises:
        NoAnswerError: the working folder was deleted, or cannot be read.
    """
    if not options.folder:
        raise NoAnswerError("the working folder does not exist any more")


def runtime_folder() -> str:
    """Return the folder for sockets, which need not exist."""
    place = variable("XDG_RUNTIME_DIR")
    try:
        is_folder = system.stat(place).st_mode & _KIND == _FOLDER
    except OSError:
        is_folder = False
    if is_folder and len(place.encode(sys.getfilesystemencoding(), "surrogateescape")) <= _MAX_FOLDER:
        return f"{place}/hookline"
    return f"/tmp/hookline-{system.getuid()}"


def address_of(options: Options) -> str:
    """Return the path of the socket, the lock and the log of the process for these options, without a suffix.

    Raises:
        NoAnswerError: others can enter the folder.
    """
    from _blake2 import blake2b

    folder = runtime_folder()
    try:
        state = system.lstat(folder)
    except FileNotFoundError:
        pass
    else:
        if state.st_mode & _KIND != _FOLDER or state.st_uid != system.getuid() or state.st_mode & 0o077:
            raise NoAnswerError(f"{folder} must be a folder of this user that nobody else can enter: remove it")
    return f"{folder}/agent-{blake2b(options.identity(), digest_size=12).hexdigest()}"


def connect(address: str, deadline: float) -> "_socket.socket | None":
    """Return a connection to the resident process; ``None`` if there is none.

    Raises:
        NoAnswerError: it does not accept calls, or belongs to another user.
    """
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    accepted = False
    try:
        connection.settimeout(_left(deadline))
        connection.connect(f"{address}.sock")
        if _peer(connection)[1] != system.getuid():
            raise NoAnswerError("another user's program answers in place of the hooks")
        if connection.fileno() < 3:  # the answer of the hooks would go there, or the event come from there
            raise NoAnswerError("stdin, stdout or stderr is closed")
        accepted = True
    except TimeoutError:
        raise NoAnswerError("the hooks did not answer in time") from None
    except OSError:
        return None
    finally:
        if not accepted:
            connection.close()
    return connection


def ask(connection: "_socket.socket", data: bytes, deadline: float) -> tuple[bytes, bytes, int] | None:
    """Return the answer of the resident process to an event; ``None`` if it ends without one."""
    try:
        connection.settimeout(_left(deadline))
        connection.sendall(encode_event(environment(), data))
        connection.shutdown(_socket.SHUT_WR)
        answer = receive(connection, deadline)
    except TimeoutError:
        if (process := _peer(connection)[0]) > 1:  # it hangs in a hook: the next call gets another one
            system.kill(process, 9)
        raise NoAnswerError("the hooks did not answer in time") from None
    except OSError:
        return None
    finally:
        connection.close()
    return None if answer is None or answer[2] == STALE else answer


def receive(connection: "_socket.socket", deadline: float) -> tuple[bytes, bytes, int] | None:
    """Return the answer that another process sends; ``None`` if it ended before the answer was complete."""
    pieces: list[bytes] = []
    while True:
        connection.settimeout(_left(deadline))
        piece = connection.recv(1 << 16)
        if not piece:
            return decode_answer(b"".join(pieces))
        pieces.append(piece)
        if time.monotonic() > deadline:
            raise TimeoutError


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _peer(connection: "_socket.socket") -> tuple[int, int]:
    """Return the ids of the process that listens and of its user, as far as the system tells: else 0 and this user."""
    if sys.platform == "linux":
        found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    elif sys.platform == "darwin":
        found = connection.getsockopt(0, 1, 76)  # LOCAL_PEERCRED
        process = connection.getsockopt(0, 2)  # LOCAL_PEERPID
        return process, int.from_bytes(found[4:8], sys.byteorder)
    else:
        return 0, system.getuid()
    return int.from_bytes(found[:4], sys.byteorder), int.from_bytes(found[4:8], sys.byteorder)


def _put_back(data: bytearray, address: str) -> None:
    """Let this event be what is read from stdin."""
    name = f"{address}.{system.getpid()}"
    file = system.open(name, system.O_RDWR | system.O_CREAT | system.O_EXCL, 0o600)
    system.unlink(name)
    _write(file, bytes(data))
    system.lseek(file, 0, 0)
    system.dup2(file, 0)


def _run_full_command(words: list[str], deadline: float | None = None) -> "NoReturn":
    """Continue as the full command, which starts a resident process if that is the reason, or explains a mistake."""
    environ = dict(system.environ)
    if deadline is not None:
        environ[DEADLINE.encode()] = str(deadline).encode()
    entry = __file__.rpartition("/")[0] + "/entry.py"
    system.execve(sys.executable, [sys.executable, "-P", entry, "agent-hook", *words], environ)
