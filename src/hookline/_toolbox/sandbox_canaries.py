"""Prove a sandbox: try forbidden actions inside it, and check from outside whether they had an effect."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Literal, NamedTuple

from .shell import shell_tool


class CanaryResult(NamedTuple):
    """The result of an attempt: whether it went as it must, and the last line of the output."""

    attempt: str
    passed: bool
    output: str


def run_canaries(level: Literal["bubblewrap", "landlock", "off"]) -> Iterator[CanaryResult]:
    """Make all attempts at a level of the sandbox. With ``off`` all of them succeed, which proves that they can.

    The first attempt must succeed: in a sandbox in which nothing runs, all others would fail.

    Raises:
        RegistrationError: the level is not available.
    """
    with tempfile.TemporaryDirectory(prefix="hookline-check-") as made, ExitStack() as stack:
        place = os.path.realpath(made)
        outside, work = os.path.join(place, "outside"), os.path.join(place, "work")
        os.mkdir(outside)
        os.mkdir(work)
        canaries = _Canaries(outside, stack)
        tool = shell_tool(work, sandbox=level, shell=True, timeout=30)

        def run(command: str) -> tuple[str, str]:
            output: str = asyncio.run(tool(command))
            lines = [line for line in output.splitlines() if line]
            return output, lines[-2] if len(lines) > 1 else lines[-1]

        _, last_line = run(_python("open('file', 'w').close()"))
        yield CanaryResult("write a file in its own folder", os.path.exists(os.path.join(work, "file")), last_line)
        for attempt, command, had_effect in canaries.all():
            output, last_line = run(command)
            yield CanaryResult(attempt, not had_effect(output), last_line)


class _Canaries:
    def __init__(self, outside: str, stack: ExitStack) -> None:
        self._outside = outside
        self._token = secrets.token_hex(16)
        self._tcp = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        self._udp = stack.enter_context(closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
        self._udp.bind(("127.0.0.1", 0))
        self._unix = self._listener(os.path.join(outside, "socket"), stack)
        self._abstract_name = f"hookline-{self._token}"
        self._abstract = self._listener(f"\0{self._abstract_name}", stack)
        self._process = subprocess.Popen(
            [os.path.realpath(sys.executable), "-I", "-S", "-c", "import time; time.sleep(300)"],
            env={"HOOKLINE_CANARY": self._token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(self._process.wait)
        stack.callback(self._process.kill)

    def _listener(self, address: str, stack: ExitStack) -> socket.socket:
        made = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
        made.bind(address)
        made.listen()
        return made

    def all(self) -> Iterator[tuple[str, str, Callable[[str], bool]]]:
        """Yield the attempts: a description, the command, and a function that says whether it had an effect."""
        new, secret = os.path.join(self._outside, "new"), os.path.join(self._outside, "secret")
        with open(secret, "w", encoding="utf-8") as file:
            file.write(self._token)
        yield "write a file outside", f"echo x > {shlex.quote(new)}", lambda output: os.path.exists(new)
        yield "change a file outside", f"echo x >> {shlex.quote(secret)}", lambda output: os.path.getsize(secret) > 32
        yield "read a secret outside", f"cat {shlex.quote(secret)}", self._contains_token
        link = f"ln -s {shlex.quote(secret)} link && cat link"
        yield "read a secret through a link", link, self._contains_token
        tcp, udp = self._tcp.getsockname()[1], self._udp.getsockname()[1]
        yield (
            "connect by TCP",
            _python(f"s = socket.create_connection(('127.0.0.1', {tcp}), 5)"),
            _was_reached(self._tcp),
        )
        send = f"socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))"
        yield "send by UDP", _python(send), _was_reached(self._udp)
        unix = "socket.socket(socket.AF_UNIX).connect({!r})"
        path = os.path.join(self._outside, "socket")
        yield "connect to a unix socket", _python(unix.format(path)), _was_reached(self._unix)
        abstract = unix.format(f"\0{self._abstract_name}")
        yield "connect to an abstract unix socket", _python(abstract), _was_reached(self._abstract)
        # Only the canary's own variable: on a busy machine the output of everything would be cut off before it.
        command = "grep -aohs 'HOOKLINE_CANARY=[0-9a-f]*' /proc/[0-9]*/environ"
        yield "read the environment of a process", command, self._contains_token
        yield "end a process", f"kill -9 {self._process.pid}", self._has_ended

    def _contains_token(self, output: str) -> bool:
        return self._token in output

    def _has_ended(self, output: str) -> bool:
        for _ in range(20):  # a signal that was delivered takes effect soon
            if self._process.poll() is not None:
                return True
            time.sleep(0.01)
        return False


def _python(code: str) -> str:
    return f"{shlex.quote(os.path.realpath(sys.executable))} -I -S -c {shlex.quote(f'import socket; {code}')}"


def _was_reached(listening: socket.socket) -> Callable[[str], bool]:
    return lambda output: bool(select.select([listening], [], [], 0.1)[0])
