"""Run the command of a hook: JSON on stdin, limits on time and output, and nothing left behind.

The ``Job`` of the shell tool is not used, because it has neither an input nor a separate stderr.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ..._toolbox.processes import MARK, has_ended, kill_all

MAX_OUTPUT = 10_000_000
"""A script that prints more bytes than this is killed."""
MAX_ERRORS = 100_000
"""How many bytes of stderr are kept."""
_PIECE = 65_536
_POLL = 0.05
_ENV_SECONDS = 30.0
_OF_THE_SHELL = frozenset(("_", "OLDPWD", "PWD", "SHLVL", MARK))
"""Variables that a shell sets itself."""
_DECIDING = frozenset(("continue", "decision", "hookSpecificOutput"))
_MAX_LIMIT = 1e10
"""The longest time in the background, in milliseconds: about four months."""


class Ran(msgspec.Struct, frozen=True):
    """How a script ended: its exit code (negative for a signal) and output, or why there is no valid one."""

    code: int = 0
    stdout: str = ""
    stderr: str = ""
    problem: str = ""
    went_async: bool = False
    """Whether the script continues in the background, as its first line asked for."""


class Script:
    """One run of a script. ``start`` and ``follow`` block a worker thread; ``stop`` may be called from any thread.

    Args:
        argv: the program and its arguments.
        data: the input.
        folder: the working folder.
        env: the environment variables.
        seconds: time limit.
    """

    def __init__(self, argv: Sequence[str], data: bytes, folder: str, env: Mapping[str, str], seconds: float) -> None:
        self._argv, self._data, self._folder, self._env = list(argv), data, folder, env
        self._mark = os.urandom(12).hex()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._out, self._err = bytearray(), bytearray()
        self._read, self._may_detach = 0, True
        self.set_limit(seconds)

    def set_limit(self, seconds: float) -> None:
        """Set the time limit, from now on."""
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def run(self) -> Ran:
        """Start the script and follow it to its end."""
        problem = self.start()
        return self.follow() if problem is None else Ran(problem=problem)

    def stop(self) -> None:
        """Kill the script and everything that it started."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.returncode is None:
                kill_all({self._process.pid}, self._mark)

    def start(self) -> str | None:
        """Start the script; return why it cannot be started."""
        with self._lock:
            if self._stopped:
                return "it was stopped"
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=self._folder,
                    env={**self._env, MARK: self._mark},
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                missing = self._argv[0] if os.path.isdir(self._folder) else self._folder
                return f"it cannot be started: {missing}: {reason}"
        self._selector = selectors.DefaultSelector()
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        for pipe, name in zip(pipes, ("in", "out", "err"), strict=True):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_WRITE if name == "in" else selectors.EVENT_READ, name)
        return None

    def follow(self) -> Ran:
        """Exchange data with the started script until it ends, the time is up, or it goes to the background."""
        process = self._process
        assert process is not None
        problem, detached = "", False
        try:
            while not problem:
                moved = self._exchange(min(max(self._end - time.monotonic(), 0), _POLL))
                if self._may_detach and b"\n" in self._out:
                    self._may_detach = False
                    if (seconds := _asked_for_background(bytes(self._out.partition(b"\n")[0]))) is not None:
                        del self._out[: self._out.index(b"\n") + 1]
                        self.set_limit(seconds or self._seconds)
                        detached = True
                        return Ran(went_async=True)
                if not moved and has_ended(process):
                    break
                if self._read > MAX_OUTPUT:
                    problem = f"it printed more than {MAX_OUTPUT} bytes"
                elif self._stopped:
                    problem = "it was stopped"
                elif time.monotonic() >= self._end:
                    problem = f"it took longer than {self._seconds:g} s"
        finally:
            if not detached:
                self._finish(process, everything=not has_ended(process))
        out, err = (bytes(data).decode(errors="replace") for data in (self._out, self._err))
        return Ran(process.returncode, out, err, problem)

    def _exchange(self, seconds: float) -> bool:
        """Read and write what is possible; return whether anything was."""
        if not self._selector.get_map():
            time.sleep(min(seconds, _POLL / 10))
            return False
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.data == "in":
                self._write(key)
            else:
                self._read_from(key)
        return bool(ready)

    def _write(self, key: selectors.SelectorKey) -> None:
        try:
            self._data = self._data[os.write(key.fd, self._data[:_PIECE]) :]
        except BlockingIOError:
            return
        except OSError:  # the script does not read its input, which is allowed
            self._data = b""
        if not self._data:
            self._close(key.fileobj)

    def _read_from(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._close(key.fileobj)
            return
        self._read += len(data)
        buffer, limit = (self._out, MAX_OUTPUT) if key.data == "out" else (self._err, MAX_ERRORS)
        buffer += data[: max(limit - len(buffer), 0)]

    def _close(self, pipe: Any) -> None:
        self._selector.unregister(pipe)
        with suppress(OSError):  # closing a pipe flushes it
            pipe.close()

    def _finish(self, process: subprocess.Popen[bytes], *, everything: bool) -> None:
        """End the script. What it left running in its process group is killed; a program that has left it goes on."""
        with self._lock:
            if everything:
                kill_all({process.pid}, self._mark)
            else:  # the leader is not reaped yet, so no other group can have its id
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for key in list(self._selector.get_map().values()):
            self._close(key.fileobj)
        self._selector.close()


def _asked_for_background(line: bytes) -> float | None:
    """Return the time limit in seconds if a script's first line is ``{"async": true}``; 0 if it names none.

    A line that decides too is an answer, for which the run must wait.
    """
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("async") is not True or not _DECIDING.isdisjoint(found):
        return None
    limit = found.get("asyncTimeout")
    return limit / 1000 if isinstance(limit, (int, float)) and 0 < limit < _MAX_LIMIT else 0.0


def shell_argv(command: str, shell: str) -> list[str]:
    """Return the arguments that run a command line."""
    if shell == "powershell":
        return [shutil.which("pwsh") or "powershell", "-NoProfile", "-NonInteractive", "-Command", command]
    return [shutil.which("bash") or "/bin/sh", "-c", command]


def read_variables(file: str, folder: str) -> dict[str, str] | str:
    """Return the environment variables that a file of shell commands sets, or why they cannot be read.

    Args:
        file: what ``SessionStart`` hooks wrote to ``CLAUDE_ENV_FILE``, such as ``export NODE_ENV=production``.
        folder: the working folder.
    """
    argv = shell_argv('set -a; . "$CLAUDE_ENV_FILE" > /dev/null; exec env -0', "bash")
    before = {**os.environ, "CLAUDE_ENV_FILE": file}
    ran = Script(argv, b"", folder, before, _ENV_SECONDS).run()
    if ran.problem or ran.code:
        return ran.problem or f"exit code {ran.code}: {ran.stderr.strip()[-300:]}"
    found = dict(entry.split("=", 1) for entry in ran.stdout.split("\0") if "=" in entry)
    return {
        name: value
        for name, value in found.items()
        if before.get(name) != value and name not in _OF_THE_SHELL and not name.startswith("BASH_FUNC_")
    }
