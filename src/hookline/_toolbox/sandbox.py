"""A sandbox for commands, enforced by the kernel: Landlock, seccomp and, where installed, bubblewrap.

A guard can only predict what a command will do. The sandbox decides what its processes can do, whatever the command
is. There are two levels:

- ``bubblewrap``: the command gets its own view of the file system, its own processes and its own network, made by the
  program ``bwrap``. Inside, Landlock and seccomp confine it a second time.
- ``landlock``: Landlock decides which files may be read and written, and seccomp denies sockets. It needs no program,
  but cannot hide that a file exists.

Both are set up by ``_sandbox_launcher.py``, which then starts the command.
"""

from __future__ import annotations

import atexit
import logging
import marshal
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from .._base.files import is_below
from .._base.own_files import OwnFile, own_files
from .._kernel.errors import RegistrationError
from .._net.egress import Egress
from .processes import ProcessSpec, search_path
from .repositories import Mount, Repositories, Snapshot, outermost

Level = Literal["bubblewrap", "landlock"]
log = logging.getLogger("hookline")
LEVELS: tuple[Level, ...] = get_args(Level)

_HOOKLINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LAUNCHER = os.path.join(os.path.dirname(__file__), "_sandbox_launcher.py")
_LAUNCHER_INSIDE = "/run/hookline/launcher.py"
_PROXY_INSIDE, _PROXY_PORT = "/run/hookline/proxy", 3128
_LANDLOCK_VERSION = 6
_ANSWER = "the sandbox works"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
# Programs need these to find libraries, users, time zones, certificates and each other. The rest of /etc may be secret.
_ETC = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "bash.bashrc", "ca-certificates", "debian_version", "fonts", "gitconfig", "group", "hosts"),
        *("inputrc", "java", "localtime", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "mime.types"),
        *("nsswitch.conf", "os-release", "passwd", "pki", "profile", "protocols", "python3", "resolv.conf", "services"),
        *("ssl", "terminfo", "timezone"),
    )
)
_DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")]
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_LOCAL = re.compile(r"localhost|127\.|::1")


class Sandbox:
    """Limits for the commands of a :func:`shell_tool`. The kernel enforces them, whatever the commands are.

    Inside, commands can read the system's programs, the Python environment and the tool's folder. They can write to
    that folder and to a private home and temporary folder. They have no network, cannot signal or inspect processes
    outside, and start no more processes and use no more memory than allowed. Everything else on the machine is
    invisible (level ``bubblewrap``) or cannot be opened (level ``landlock``).

    The files that Hookline itself uses (code, configuration, stores) are read-only inside the folder at the level
    ``bubblewrap``. Where that is not possible, the tool is refused with an error that says what to move.

    Args:
        level: ``bubblewrap``, ``landlock``, or ``auto`` for the first of them that works on this machine.
        write: whether commands may write to the tool's folder.
        writable: further folders that commands may write to.
        readable: further files and folders that commands may read.
        hosts: hosts that commands may reach, as for :class:`Egress`, through a proxy for HTTP and HTTPS. This needs the
            level ``bubblewrap``.
        memory: bytes of memory that the processes of a command may use together, and that one may allocate.
        processes: number of processes that a command may have at a time.
        file_size: bytes that a file may grow to.

    Raises:
        RegistrationError: an argument is invalid.

    Example::

        sandbox = Sandbox(readable=["~/.cargo"], hosts=["crates.io", "*.crates.io"], memory=4_000_000_000)
        agent = Agent("bob", llm="local", tools=[shell_tool("work", sandbox=sandbox)])
    """

    def __init__(
        self,
        level: Literal["auto", "bubblewrap", "landlock"] = "auto",
        *,
        write: bool = True,
        writable: Iterable[str | os.PathLike[str]] = (),
        readable: Iterable[str | os.PathLike[str]] = (),
        hosts: Iterable[str] = (),
        memory: int = 8_000_000_000,
        processes: int = 256,
        file_size: int = 2_000_000_000,
    ) -> None:
        if level not in ("auto", *LEVELS):
            raise RegistrationError(f"level= must be 'auto', 'bubblewrap' or 'landlock', not {level!r:.80}")
        if not isinstance(write, bool):
            raise RegistrationError(f"write= must be True or False, not {write!r:.80}")
        limits = {"memory": (memory, 10_000_000), "processes": (processes, 1), "file_size": (file_size, 0)}
        for name, (value, least) in limits.items():
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
                raise RegistrationError(f"{name}= must be an integer, at least {least}, not {value!r:.80}")
        self.level, self.write = level, write
        self.writable = _existing(writable, "writable")
        self.readable = _existing(readable, "readable")
        self.memory, self.processes, self.file_size = memory, processes, file_size
        self.egress = Egress(hosts)

    def __repr__(self) -> str:
        return f"Sandbox({self.level!r})"


def _existing(paths: Any, name: str) -> tuple[str, ...]:
    if isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Iterable):
        raise RegistrationError(f"{name}= must be a list of paths, not {paths!r:.80}")
    found = []
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise RegistrationError(f"{name}=: {path!r:.80} is not a path")
        place = os.path.realpath(os.path.expanduser(path))
        if not (os.path.isdir(place) if name == "writable" else os.path.exists(place)):
            raise RegistrationError(f"{name}=: {os.fspath(path)!r} does not exist")
        found.append(place)
    return tuple(found)


class ConfinedFolder:
    """A folder in which commands run in a sandbox.

    Args:
        sandbox: what the commands can do.
        folder: the folder, with links resolved.

    Raises:
        RegistrationError: the level does not work here, or commands could write files that Hookline uses.
    """

    def __init__(self, sandbox: Sandbox, folder: str) -> None:
        self.sandbox, self.folder = sandbox, folder
        self.level = _chosen_level(sandbox)
        self._setup(folder)
        self.protected()

    def _setup(self, folder: str) -> None:
        # A folder inside another one adds nothing, and a command could put a link to somewhere else in its place.
        self._writable = outermost([*([folder] if self.sandbox.write else []), *self.sandbox.writable])
        if "/" in self._writable:
            raise RegistrationError("'/' cannot be a writable folder of a sandbox: use a subfolder")
        readable = (folder, *self.sandbox.readable, *_programs())
        self._readable = [path for path in readable if not self._is_writable(path)]
        self._private = ""
        self._lock = threading.Lock()
        self._repositories: Repositories | None = None

    def _is_writable(self, path: str) -> bool:
        return any(is_below(path, root) for root in self._writable)

    def protected(self) -> list[str]:
        """Return the paths inside writable folders that must be read-only, because Hookline uses them.

        Raises:
            RegistrationError: one of them cannot be made read-only.
        """
        found: dict[str, None] = {}
        for file in own_files():
            for root in self._writable:
                if is_below(file.path, root):
                    found[self._protection(file, root)] = None
        return list(found)

    def _protection(self, file: OwnFile, root: str) -> str:
        """Return the file or folder that must be read-only, so that commands cannot change or replace ``file``."""
        if self.level != "bubblewrap":
            raise RegistrationError(
                f"{file.path} is {file.description}, and commands could change it, because it is inside {root}. The "
                "level 'landlock' cannot make an exception for it: put the work into another folder, move this file "
                "out of it, install bubblewrap, or let commands only read with Sandbox(write=False)"
            )
        if os.path.isfile(file.path) and os.lstat(file.path).st_nlink > 1:
            raise RegistrationError(
                f"{file.path} is {file.description}, and has a second name (a hard link), by which commands could "
                "change it: replace it by a copy of itself"
            )
        whole_folder = file.beside or not os.path.exists(file.path)
        place = os.path.dirname(file.path) if whole_folder and not file.is_folder else file.path
        if place == root or not is_below(place, root):
            moved = "your code" if file.is_folder else "this file"
            raise RegistrationError(
                f"{file.path} is {file.description}, and commands could change it, because they may write to {root}. "
                f"Put the work into a subfolder, move {moved} into a subfolder or out of the folder, or let commands "
                "only read with Sandbox(write=False)"
            )
        if whole_folder:
            os.makedirs(place, mode=0o700, exist_ok=True)
        return place

    @property
    def search_path(self) -> str:
        """The folders of programs: first those of this Python environment, so that ``python`` and ``pytest`` work."""
        return os.pathsep.join((os.path.join(sys.prefix, "bin"), search_path()))

    @contextmanager
    def process(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        seconds: float,
        report: Callable[[str], object] = lambda note: None,
    ) -> Iterator[ProcessSpec]:
        """Describe the process that runs a program in the sandbox. The process must end before the block does.

        Args:
            argv: the program's path and its arguments.
            env: the environment variables; the sandbox adds its own ``HOME`` and ``TMPDIR``.
            seconds: the time limit; no process gets more processor time.
            report: called at the end with what the user must know about git repositories. It is also logged.

        Raises:
            RegistrationError: Hookline uses new files that commands could change.
            OSError: the private folder cannot be created.
        """
        repositories = self._private_folder()[1]
        snapshot = repositories.before()
        try:
            with self._start(argv, env, seconds, snapshot) as start:
                yield start
        finally:
            for note in repositories.after(snapshot):
                log.warning("%s", note)
                report(note)

    @contextmanager
    def _start(
        self, argv: Sequence[str], env: Mapping[str, str], seconds: float, snapshot: Snapshot
    ) -> Iterator[ProcessSpec]:
        private, _ = self._private_folder()
        home, tmp = os.path.join(private, "home"), os.path.join(private, "tmp")
        env = {"HOME": home, "TMPDIR": tmp if self.level == "landlock" else "/tmp", **env}
        spec: dict[str, Any] = {
            "read": [*_ETC, *_SYSTEM, *self._readable, "/proc"],
            "write": [*self._writable, home],
            "devices": _DEVICES,
            "list": [os.path.dirname(_HOOKLINE)],  # Python lists a folder to find a package in it
            "landlock": True,
            "sockets": [],
            "memory": self.sandbox.memory,
            "file_size": self.sandbox.file_size,
            "processes": _process_limit(self.sandbox.processes),
            "seconds": math.ceil(seconds) + 5,
            "proxy": "",
            "port": _PROXY_PORT,
            "supervise": True,
            "parent": os.getpid(),
        }
        protected = self.protected()
        if self.level == "landlock":
            spec["write"].append(tmp)
            yield self._launch([], spec, argv, env)
            return
        spec["read"] = ["/"]  # only what bubblewrap shows
        spec["write"] += ["/tmp", "/dev/shm"]
        spec["devices"] = ["/dev"]
        spec["list"] = []
        spec["landlock"] = _landlock_version() > 0
        spec["sockets"] = [_UNIX, _INET, _INET6, _NETLINK]
        spec["supervise"] = False
        wrapper = self._bubblewrap(protected, snapshot.mounts.values(), home, tmp)
        if not self.sandbox.egress.hosts:
            yield self._launch(wrapper, spec, argv, env)
            return
        from .sandbox_proxy import serve_proxy

        with serve_proxy(self.sandbox.egress, private) as proxy:
            wrapper += ["--ro-bind", proxy, _PROXY_INSIDE]
            spec["proxy"] = _PROXY_INSIDE
            url = f"http://127.0.0.1:{_PROXY_PORT}"
            names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")
            env |= dict.fromkeys(names, url)
            if not any(_LOCAL.search(host) for host in self.sandbox.egress.hosts):
                env |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
            yield self._launch(wrapper, spec, argv, env)

    def _launch(
        self,
        wrapper: list[str],
        spec: Mapping[str, Any],
        argv: Sequence[str],
        env: Mapping[str, str],
    ) -> ProcessSpec:
        launcher = _LAUNCHER
        if wrapper:
            wrapper = [*wrapper, "--ro-bind", _LAUNCHER, _LAUNCHER_INSIDE]
            wrapper += ["--remount-ro", "/", "--chdir", self.folder, "--"]
            launcher = _LAUNCHER_INSIDE
        python = (os.path.realpath(sys.executable), "-I", "-S", launcher)
        words = (*wrapper, *python, marshal.dumps(dict(spec)).hex(), *argv)
        return ProcessSpec(words[0], words, self.folder, env)

    def _bubblewrap(self, protected: Iterable[str], git: Iterable[Mount], home: str, tmp: str) -> list[str]:
        """Return the beginning of the command line of bubblewrap: the program and its mounts."""
        words = [_bubblewrap_program(), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        for path in _SYSTEM:
            if os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                words += ["--ro-bind", path, path]
        for path in _ETC:
            if os.path.exists(path):
                words += ["--ro-bind", os.path.realpath(path), path]
        words += ["--dev", "/dev", *self._limited_memory(), "--proc", "/proc", "--bind", tmp, "/tmp"]
        mounts = {path: Mount(path, path, False) for path in self._readable}
        mounts |= {path: Mount(path, path, True) for path in [*self._writable, home]}
        read_only = outermost(protected)
        inner = [mount for mount in git if not any(is_below(mount.path, path) for path in read_only)]
        inner += [Mount(path, path, False) for path in read_only]
        mounts |= {mount.path: mount for mount in inner}
        for mount in inner:
            # A command could rename a folder that contains a mount, and create another in its place. It cannot rename
            # a mount, so each folder above becomes one.
            for parent in map(str, Path(mount.path).parents):
                if self._is_writable(parent):
                    mounts.setdefault(parent, Mount(parent, parent, True))
        for path in sorted(mounts):  # a folder before its contents
            is_there = any(is_below(path, system) for system in _SYSTEM)
            if not is_there or self._is_writable(path):
                words += ["--bind" if mounts[path].writable else "--ro-bind", mounts[path].source, path]
        return words

    def _limited_memory(self) -> list[str]:
        """Return the words that limit the size of files in memory."""
        return ["--size", str(self.sandbox.memory), "--tmpfs", "/dev/shm"] if _can_limit_size() else []

    def _private_folder(self) -> tuple[str, Repositories]:
        """Return the folder with the home and the temporary files of the commands, and create it when first used.

        Copies of repositories are in it too.
        """
        with self._lock:
            if self._repositories is None:
                made = os.path.realpath(tempfile.mkdtemp(prefix="hookline-"))
                _private_folders[made] = os.getpid()
                weakref.finalize(self, _remove, made).atexit = False
                for name in ("home", "tmp"):
                    os.mkdir(os.path.join(made, name), 0o700)
                with open(os.path.join(made, "home", ".gitconfig"), "w", encoding="utf-8") as file:
                    file.write(_GIT_SETTINGS)
                self._private = made
                copies = os.path.join(made, "git") if self.level == "bubblewrap" else ""
                self._repositories = Repositories(self._writable, copies)
            return self._private, self._repositories

    def watch(self, pids: Collection[int]) -> str | None:
        """Return which limit these processes exceed; ``None`` if they exceed none."""
        if len(pids) > self.sandbox.processes + _OVERHEAD:
            return f"started more than {self.sandbox.processes} processes"
        pages, files = 0, dict[tuple[int, int], int]()
        for pid in pids:
            try:
                pages += _pages(pid)[1]
                files |= _memory_files(pid)
            except PermissionError:
                with suppress(OSError):  # the files of a process that ends cannot be read either
                    if _pages(pid)[0] and not (self.level == "bubblewrap" and _is_bubblewrap(pid, pids)):
                        return "hid the files that it has open (PR_SET_DUMPABLE), so its memory cannot be counted"
            except OSError:
                continue  # it has ended
        if pages * os.sysconf("SC_PAGE_SIZE") + sum(files.values()) > self.sandbox.memory:
            return f"used more than {self.sandbox.memory / 1e6:.0f} MB of memory"
        return None


_OVERHEAD = 3
"""Processes of the sandbox itself: bubblewrap, its first process, and the launcher."""
_GIT_SETTINGS = (
    "[user]\n\tname = Hookline\n\temail = hookline@localhost\n[init]\n\tdefaultBranch = main\n"
    "[gc]\n\tauto = 0\n\tpackRefs = false\n"  # packed references would be missing outside until the command ends
)


def _is_bubblewrap(pid: int, pids: Collection[int]) -> bool:
    """Return whether a process is that of bubblewrap, or its child, the first process inside.

    Where bubblewrap has the rights of root (setuid), their files cannot be read.
    """
    parent = _parent(pid)
    return parent not in pids or _parent(parent) not in pids


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def _pages(pid: int) -> tuple[int, int]:
    """Return how many pages of memory a process has, and how many of them are in use; none at its end."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        size, used, *_ = file.read().split()
    return int(size), int(used)


def _memory_files(pid: int) -> dict[tuple[int, int], int]:
    """Return the bytes that a process holds in files in memory: those that it has open, and all in ``/dev/shm``."""
    found: dict[tuple[int, int], int] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with suppress(OSError):
            if os.readlink(path).startswith("/memfd:"):
                state = os.stat(path)
                found[state.st_dev, state.st_ino] = state.st_blocks * 512
    with suppress(OSError):
        root = f"/proc/{pid}/root"  # what the process sees as /
        shared = f"{root}/dev/shm"
        if (device := os.stat(shared).st_dev) != os.stat("/dev/shm").st_dev:
            used = os.statvfs(shared)
            found[device, 0] = (used.f_blocks - used.f_bfree) * used.f_frsize
    return found


class LevelState(NamedTuple):
    """Whether a level of the sandbox works on this machine; otherwise ``problem`` says why not and what to do."""

    level: Level
    problem: str = ""


@lru_cache(None)
def level_state(level: Level) -> LevelState:
    """Check once whether a level works here, by running a program in it."""
    return LevelState(level, _requirement(level) or _failure(level))


def _requirement(level: Level) -> str:
    """Return what is missing for a level."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    from ._sandbox_launcher import architecture

    if architecture() is None:
        return "it supports x86_64 and aarch64 only"
    if not sys.executable or not os.path.isfile(sys.executable):
        return "the Python interpreter is unknown (sys.executable), so the launcher cannot be started"
    if level == "bubblewrap":
        found = _bubblewrap_program()
        return (
            "" if found else "the program bwrap is missing: install it (apt install bubblewrap, dnf install bubblewrap)"
        )
    version = _landlock_version()
    if version == 0:
        return (
            "this kernel has no Landlock, or it is not in the boot option lsm=: use Linux 6.12 or later, or bubblewrap"
        )
    if version < _LANDLOCK_VERSION:
        return f"this kernel has version {version} of Landlock, and 6 is needed: use Linux 6.12 or later, or bubblewrap"
    return ""


def _failure(level: Level) -> str:
    """Run a program in the sandbox and return why that failed."""
    with tempfile.TemporaryDirectory(prefix="hookline-", ignore_cleanup_errors=True) as folder:
        confined = _Probe(level, os.path.realpath(folder))
        try:
            with confined.process(["/bin/sh", "-c", f"echo {_ANSWER}"], {"PATH": search_path()}, 20) as start:
                done = subprocess.run(
                    start.argv,
                    cwd=start.folder,
                    env=dict(start.env),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=20,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it does not start: {error}"
    if done.stdout.strip() == _ANSWER:
        return ""
    said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    advice = "the system may forbid user namespaces: set the sysctl kernel.unprivileged_userns_clone=1, on Ubuntu "
    advice += "kernel.apparmor_restrict_unprivileged_userns=0, or in Docker --security-opt seccomp=unconfined"
    return (
        f"it does not work here ({said:.200}); {advice}"
        if level == "bubblewrap"
        else f"it does not work here ({said:.200})"
    )


class _Probe(ConfinedFolder):
    """A sandbox for the check whether a level works. It chooses no level and protects no files."""

    def __init__(self, level: Level, folder: str) -> None:
        self.sandbox, self.folder, self.level = Sandbox(level), folder, level
        self._setup(folder)

    def protected(self) -> list[str]:
        return []


def _chosen_level(sandbox: Sandbox) -> Level:
    wanted = LEVELS if sandbox.level == "auto" else (sandbox.level,)
    if sandbox.egress.hosts:
        if wanted == ("landlock",):
            raise RegistrationError(
                "hosts= needs the level 'bubblewrap', because Landlock cannot tell hosts apart: install bubblewrap, or "
                "leave hosts= out"
            )
        wanted = ("bubblewrap",)
    states = [level_state(level) for level in wanted]
    for state in states:
        if not state.problem:
            return state.level
    problems = "; ".join(f"{state.level}: {state.problem}" for state in states)
    raise RegistrationError(
        f"commands cannot be confined on this machine. {problems}. 'hookline doctor' shows details. To run commands "
        "with all your rights, write sandbox='off', or on the command line --sandbox level=off"
    )


@lru_cache(None)
def _landlock_version() -> int:
    from ._sandbox_launcher import landlock_version

    return landlock_version()


@lru_cache(None)
def _can_limit_size() -> bool:
    """Return whether this bubblewrap can limit the size of a file system in memory (since 0.8)."""
    done = subprocess.run([_bubblewrap_program(), "--help"], capture_output=True, text=True, check=False)
    return "--size" in done.stdout + done.stderr


@lru_cache(None)
def _bubblewrap_program() -> str:
    return shutil.which("bwrap", path=search_path()) or ""


def _programs() -> list[str]:
    """Return the folders of programs on the search path, of the Python environment, and of Hookline itself.

    If Hookline is installed from its sources (``pip install -e``), it is outside the environment. Without it pytest
    does not start, because the environment names Hookline's plugin for pytest.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    folders = [*search_path().split(os.pathsep), sys.prefix, sys.base_prefix, sys.exec_prefix, _HOOKLINE]
    places = dict.fromkeys(os.path.realpath(folder) for folder in folders if os.path.isdir(folder))
    # A folder that contains the home folder contains more than programs.
    return [place for place in places if not is_below(home, place)]


def _process_limit(processes: int) -> int | None:
    """Return the kernel's limit for this user: the running processes and threads, and those of the sandbox.

    The kernel counts all processes and threads of a user. So this limit is generous, and only stops growth that is too
    fast for :meth:`ConfinedFolder.watch`. It does not apply to root.
    """
    user = os.getuid()
    if user == 0:
        return None
    running = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == user:
                running += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended
    return running + 16 * processes


_private_folders: dict[str, int] = {}
"""The existing private folders, with the process that created each: a forked child must not remove them."""


def _remove(folder: str) -> None:
    if _private_folders.get(folder) == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
        _private_folders.pop(folder, None)


@atexit.register
def _remove_all() -> None:
    """Remove the folders of tools that still exist, and folders that a worker thread has begun to remove."""
    for folder in list(_private_folders):
        _remove(folder)
