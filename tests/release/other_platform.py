"""Run a program as on Windows or macOS, as far as possible: ``python other_platform.py win32 program.py ...``.

It takes away the modules, functions and constants that the other system does not have, and then names that system in
``sys.platform``. The standard library and the libraries that Hookline uses are imported before: they have their own
branches for each system, which cannot run here.
"""

import asyncio
import fcntl
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import types

LIBRARIES = """
asyncio.unix_events concurrent.futures.thread ctypes.util doctest email.mime.text getpass http.server
importlib.metadata logging.handlers multiprocessing.pool platform readline selectors shutil sqlite3 ssl tarfile
tempfile urllib.request uuid webbrowser zipfile a2a.types aiohttp anthropic anyio._backends._asyncio
docstring_parser httpx jinja2 markdown_it mcp.client.stdio msgspec openai prometheus_client
opentelemetry.sdk.trace procrastinate prompt_toolkit.input.vt100 prompt_toolkit.output.vt100
prompt_toolkit.shortcuts pydantic rich.console rich.live rich.markdown rich.progress rich.prompt rich.syntax
rich.table starlette.applications starlette.templating slack_bolt starlette.testclient starlette.websockets
telegram tomlkit typer typer.testing uvicorn.main websockets
"""
MODULES = {"curses", "_curses", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
NAMES = {
    "win32": {
        os: """
            fork forkpty getuid geteuid getgid getegid getgroups getpgid getsid setsid setpgid killpg chown fchown
            lchown fchmod mkfifo mknod uname O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NONBLOCK O_PATH wait3 wait4 waitid
            posix_spawn nice sched_getaffinity getloadavg sysconf pread pwrite preadv sendfile openpty chroot statvfs
            register_at_fork memfd_create fstatvfs WNOHANG confstr pidfd_open posix_fallocate ttyname tcgetpgrp lockf
            fdatasync sync""",
        signal: """
            SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE SIGTSTP SIGCONT SIGSTOP SIGWINCH SIGQUIT SIGTTOU
            SIGTTIN setitimer alarm pthread_kill pthread_sigmask pause sigwait siginterrupt""",
        socket: "AF_UNIX SO_PEERCRED SCM_RIGHTS",
        time: "tzset clock_gettime CLOCK_BOOTTIME CLOCK_MONOTONIC",
    },
    "darwin": {
        os: """
            memfd_create pidfd_open sched_getaffinity sched_setaffinity O_PATH getrandom eventfd copy_file_range
            posix_fadvise setns unshare listxattr getxattr setxattr removexattr""",
        signal: "sigtimedwait SIGPWR SIGSTKFLT",
        socket: "SO_PEERCRED AF_NETLINK",
        time: "CLOCK_BOOTTIME",
    },
}


class Missing:
    """Finds no module that the other system does not have."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def without_posix():
    """Take the modules of POSIX away, and let what Windows does differently be different."""
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Missing())
    pair, unix = socket.socketpair, socket.AF_UNIX  # event loops of this system need them
    socket.socketpair = lambda *args: pair(unix)
    os.supports_dir_fd = os.supports_fd = os.supports_follow_symlinks = set()
    asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = unsupported
    subprocess.Popen.kill = lambda self: self.send_signal(9)
    seek = os.lseek
    os.lseek = lambda file, at, how: seek(file, min(at, 1 << 40), how)  # file systems here have shorter files
    sys.modules["msvcrt"] = msvcrt = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.LK_UNLCK = 2, 0
    flags = {msvcrt.LK_NBLCK: fcntl.LOCK_EX | fcntl.LOCK_NB, msvcrt.LK_UNLCK: fcntl.LOCK_UN}
    msvcrt.locking = lambda file, how, count: fcntl.flock(file, flags[how])


def unsupported(*args):
    raise NotImplementedError


def become(platform):
    for name in LIBRARIES.split():
        importlib.import_module(name)
    if platform == "win32":
        without_posix()
    for module, names in NAMES[platform].items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = platform


if __name__ == "__main__":
    become(sys.argv[1])
    del sys.argv[:2]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
