"""Confine this process, then run a program: ``python -I -S _sandbox_launcher.py SPEC PROGRAM ARGUMENTS...``.

It runs as its own program, between Hookline and the confined command, because a process can only confine itself, and
because Python code between ``fork`` and ``exec`` (``preexec_fn``) may hang in a program with threads. It imports only
the standard library, and runs without site packages.

Landlock and seccomp are called through ``ctypes``: the bindings for Python need a compiler or ``libseccomp`` on the
user's machine, and this file needs six system calls.

SPEC is a dictionary, written by ``marshal`` in hexadecimal digits, because importing ``json`` takes too long:

- ``read``, ``write``: folders and files that may be read, or read and written; ``devices``: device files.
- ``list``: folders in which the names of files may be listed.
- ``landlock``: whether to use Landlock.
- ``sockets``: families of sockets that may be created; an empty list also denies TCP in Landlock.
- ``memory``, ``file_size``, ``processes``, ``seconds``: limits of each process (``processes`` counts all of the user).
- ``proxy``, ``port``: a unix socket, to which connections to ``127.0.0.1:port`` are forwarded.
- ``supervise``: whether to wait for the program and to kill the processes that it leaves behind; ``parent``: the
  process with which they must end.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # signal imports enum, which takes long
import ctypes
import marshal
import os
import resource
import sys

TYPE_CHECKING = False  # this program starts with every command, so it does not import typing
if TYPE_CHECKING:
    import socket
    from typing import Any, NoReturn

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on x86_64 and aarch64
_NO_NEW_PRIVS, _SET_SECCOMP, _DROP_BOUND, _SET_DEATH_SIGNAL, _SUBREAPER = 38, 22, 24, 1, 36

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# Everything that makes, links and removes files, except devices.
_WRITE = _READ | _WRITE_FILE | _TRUNCATE | sum(1 << bit for bit in (4, 5, 7, 8, 9, 10, 12, 13))
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

# The denied system calls, with their numbers on x86_64 and aarch64. They reach around the sandbox (io_uring opens
# sockets), outlive it (keyrings), change its view (mounts, namespaces), use memory that cannot be counted from outside,
# or are a large and rarely needed part of the kernel.
_DENIED = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "memfd_secret": (447, 447),
    "msgget": (68, 186),
}
# Without a namespace of its own, the sandbox shares these with the other programs of the user.
_DENIED_SHARED = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
# Calls that set the mode of a file, and which argument it is. A file of root that runs with root's rights would outlive
# the sandbox. The mode of open() and openat() counts only if they create a file.
_MODES = {
    "chmod": ((90, None), 1),
    "fchmod": ((91, 52), 1),
    "fchmodat": ((268, 53), 2),
    "fchmodat2": ((452, 452), 2),
    "creat": ((85, None), 1),
    "mknod": ((133, None), 1),
    "mknodat": ((259, 33), 2),
}
_OPENINGS = {"open": ((2, None), 1), "openat": ((257, 56), 2)}
_OPENAT2 = (437, 437)
_SHMGET, _MOST_SHARED = (29, 194), 4096  # memory that cannot be counted either; PostgreSQL needs a few bytes
_CREATES, _OWNER_RIGHTS = 0o100 | 0o20000000, 0o6000
# Calls that set the priority and the processors of a process, whose number is the first argument, 0 for the caller.
_SCHEDULING = {
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
# The number is the second argument, and the first one says of what: this value stands for all processes of a user.
_PRIORITIES = {"setpriority": ((141, 140), 2), "ioprio_set": ((251, 30), 3)}
_SOCKET, _SOCKETPAIR, _PRLIMIT, _CLONE, _CLONE3 = (41, 198), (53, 199), (302, 261), (56, 220), (435, 435)
_NAMESPACES = 0x7E020000  # the flags of clone() that create a namespace
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Return the version of Landlock in this kernel; 0 if it is missing or switched off."""
    version: int = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(version, 0)


def architecture() -> tuple[int, int] | None:
    """Return the column of the tables of system calls, and the number of the architecture, if it is supported."""
    return _ARCHITECTURES.get(os.uname().machine) if sys.maxsize > 2**32 else None


def main() -> None:
    """Read the spec, confine this process, and run the program."""
    spec, program = marshal.loads(bytes.fromhex(sys.argv[1])), sys.argv[2:]
    if spec["supervise"] or spec["proxy"]:
        _supervise(spec, program)
    _run(spec, program)


def _run(spec: dict[str, Any], program: list[str]) -> NoReturn:
    _set_limits(spec)
    _drop_capabilities()
    _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    if spec["landlock"]:
        _restrict(spec)
    _filter(spec["sockets"], bool(spec["supervise"]))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python; programs expect the default
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execv(program[0], program)
    except OSError as error:
        _fail(f"{program[0]}: {error.strerror}", 126)


def _supervise(spec: dict[str, Any], program: list[str]) -> NoReturn:
    """Run the program in a child, kill the processes that it leaves behind, and exit with its status.

    If the parent dies, the program and these processes are killed too.
    """
    signal.signal(signal.SIGTERM, _end_without_parent)
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != spec["parent"] and spec["supervise"]:
        os._exit(125)  # it died before
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    listening = _listen(spec["port"]) if spec["proxy"] else None
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if listening is not None:
            listening.close()
        _run(spec, program)
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the output ends when the program closes it
        os.dup2(empty, descriptor)
    if listening is not None:
        _forward(listening, spec["proxy"])
    status = _wait(child)
    _kill_children()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _end_without_parent(*signal_and_frame: object) -> NoReturn:
    _kill_children()
    os._exit(125)


def _kill_children() -> None:
    """Kill all processes below this one. Those whose parent has ended become children of this process."""
    while left := _children():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # the code that a signal interrupted has reaped it
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            continue


def _wait(child: int) -> int:
    """Wait for a child, and reap others that end meanwhile."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return status


def _children() -> list[int]:
    """Return the processes whose parent is this one."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        pass  # the kernel was built without this file
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = file.read().rpartition(b")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == os.getpid():
            found.append(int(name))
    return found


def _listen(port: int) -> socket.socket:
    import socket

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(64)
    return listening


def _forward(listening: socket.socket, path: str) -> None:
    """Forward connections to this port to the proxy outside, in threads that end with the process."""
    import socket
    import threading

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # one connection is broken, so close both
            for connection in (source, target):
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def accept() -> None:
        while True:
            inner, _ = listening.accept()
            outer = socket.socket(socket.AF_UNIX)
            try:
                outer.connect(path)
            except OSError:
                inner.close()
                continue
            threading.Thread(target=copy, args=(inner, outer), daemon=True).start()
            threading.Thread(target=copy, args=(outer, inner), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _set_limits(spec: dict[str, Any]) -> None:
    kinds = {
        # Not RLIMIT_AS: JavaScript, Java and Go reserve far more addresses than they use.
        resource.RLIMIT_DATA: spec["memory"],
        resource.RLIMIT_FSIZE: spec["file_size"],
        resource.RLIMIT_NPROC: spec["processes"],
        resource.RLIMIT_CPU: spec["seconds"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in kinds.items():
        if most is None:
            continue
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


def _drop_capabilities() -> None:
    """Drop the capabilities of root, which override file permissions. For other users this changes nothing."""
    for number in range(64):
        if _libc.prctl(_DROP_BOUND, number, 0, 0, 0) != 0:
            break  # not root, or the last capability
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _restrict(spec: dict[str, Any]) -> None:
    version = landlock_version()
    handled = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    network = 3 if version >= 4 and not spec["sockets"] else 0
    attributes = (ctypes.c_uint64 * 3)(handled, network, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    _checked(ruleset, "Landlock")
    devices = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
    for key, rights in (("read", _READ), ("write", _WRITE), ("devices", devices), ("list", _READ_DIR)):
        for path in spec[key]:
            _allow(ruleset, path, rights & handled)
    _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # what _pack_ always meant; Python 3.14 wants it to be said
    _fields_ = [("rights", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no permission
    if not os.path.isdir(path):
        rights &= _OF_FILES
    rule = _PathBeneath(rights, opened)
    _checked(_libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0), f"Landlock: {path}")
    os.close(opened)


def _filter(families: list[int], shared: bool) -> None:
    """Install a seccomp filter that denies system calls, and sockets of other families.

    ``shared`` says that the sandbox shares System V memory and message queues with other programs, so that these are
    denied too.
    """
    found = architecture()
    if found is None:
        _fail(f"this architecture is not supported: {os.uname().machine}", 125)
    column, number = found
    load, equal, above, any_bit, mask, give = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
    allow, kill = 0x7FFF0000, 0x80000000
    no = {name: 0x00050000 | code for name, code in (("EPERM", 1), ("EACCES", 13), ("ENOSYS", 38))}
    code = [(load, 0, 0, 4), (equal, 1, 0, number), (give, 0, 0, kill), (load, 0, 0, 0)]
    if column == 0:  # the x32 calls of x86_64
        code += [(above, 0, 1, 0x40000000), (give, 0, 0, no["EPERM"])]
    for numbers in (*_DENIED.values(), *(_DENIED_SHARED.values() if shared else ())):
        code += [(equal, 0, 1, numbers[column]), (give, 0, 0, no["EPERM"])]
    code += [(equal, 0, 6, _SHMGET[column]), (load, 0, 0, 28), (equal, 0, 2, 0), (load, 0, 0, 24)]
    code += [(above, 0, 1, _MOST_SHARED + 1), (give, 0, 0, no["EPERM"]), (give, 0, 0, allow)]
    # The flags of clone3() and openat2() are in memory, where a filter cannot read them. Without these, programs use
    # clone() and openat().
    for newer in (_CLONE3, _OPENAT2):
        code += [(equal, 0, 1, newer[column]), (give, 0, 0, no["ENOSYS"])]
    refuse_rights = [(any_bit, 0, 1, _OWNER_RIGHTS), (give, 0, 0, no["EPERM"]), (give, 0, 0, allow)]
    for calls, argument in _MODES.values():
        if (call := calls[column]) is not None:
            code += [(equal, 0, 4, call), (load, 0, 0, 16 + 8 * argument), *refuse_rights]
    for calls, argument in _OPENINGS.values():
        if (call := calls[column]) is not None:
            code += [(equal, 0, 7, call), (load, 0, 0, 16 + 8 * argument), (any_bit, 1, 0, _CREATES)]
            code += [(give, 0, 0, allow), (load, 0, 0, 24 + 8 * argument), *refuse_rights]
    code += [(equal, 0, 4, _CLONE[column]), (load, 0, 0, 16), (any_bit, 0, 1, _NAMESPACES)]
    code += [(give, 0, 0, no["EPERM"]), (give, 0, 0, allow)]
    code += [(equal, 0, len(families) + 3, _SOCKET[column]), (load, 0, 0, 16)]
    code += [(equal, len(families) - at, 0, family) for at, family in enumerate(families)]
    code += [(give, 0, 0, no["EACCES"]), (give, 0, 0, allow)]
    if shared:
        # A datagram socket of a pair can send to any path. Stream (1) and packet (5) sockets can only reach their peer.
        code += [(equal, 0, 6, _SOCKETPAIR[column]), (load, 0, 0, 24), (mask, 0, 0, 0xF)]
        code += [(equal, 2, 0, 1), (equal, 1, 0, 5), (give, 0, 0, no["EACCES"]), (give, 0, 0, allow)]
        # A process may set its own limits (process 0), but not those of Hookline, which could then not write its log.
        for numbers in (_PRLIMIT, *_SCHEDULING.values()):
            code += [(equal, 0, 4, numbers[column]), (load, 0, 0, 16)]
            code += [(equal, 1, 0, 0), (give, 0, 0, no["EPERM"]), (give, 0, 0, allow)]
        for numbers, of_user in _PRIORITIES.values():
            code += [(equal, 0, 6, numbers[column]), (load, 0, 0, 24), (equal, 0, 2, 0), (load, 0, 0, 16)]
            code += [(equal, 0, 1, of_user), (give, 0, 0, no["EPERM"]), (give, 0, 0, allow)]
    code += [(give, 0, 0, allow)]
    packed = b"".join(
        operation.to_bytes(2, "little") + bytes((yes, other)) + value.to_bytes(4, "little")
        for operation, yes, other, value in code
    )
    buffer = ctypes.create_string_buffer(packed, len(packed))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    program = Program(len(code), ctypes.cast(buffer, ctypes.c_void_p))
    _checked(_libc.prctl(_SET_SECCOMP, 2, ctypes.byref(program), 0, 0), "seccomp")


def _checked(result: int, what: str) -> None:
    if result < 0:
        _fail(f"{what}: {os.strerror(ctypes.get_errno())}", 125)


def _fail(text: str, code: int) -> NoReturn:
    os.write(2, f"sandbox: {text}\n".encode(errors="replace"))
    os._exit(code)


if __name__ == "__main__":
    main()
