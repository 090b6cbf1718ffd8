"""Run the real program in its own process, with pipes or at a terminal."""

import fcntl
import json
import math
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from hookline.cli.app import run_app
from hookline.cli.errors import report_error

from .forks import CLIENT

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "hookline"]


def clean():
    """Return an environment without the settings and keys of the developer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOOKLINE_", "XDG_", "OPENAI_"))}
    for name in ("NO_COLOR", "ANTHROPIC_API_KEY", "COLUMNS"):
        kept.pop(name, None)
    kept["PROMPT_TOOLKIT_NO_CPR"] = "1"  # no terminal here answers where its cursor is
    return kept | {"PYTHONPATH": str(ROOT / "src"), "TERM": "dumb", "HOOKLINE_TRUST": "1"}


@pytest.fixture
def env(tmp_path):
    """The environment of the program, with a home of its own."""
    home = tmp_path / "home"
    home.mkdir()
    return clean() | {"HOME": str(home), "XDG_DATA_HOME": ""}


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """The command that runs the program in a fork; a test of how it starts up takes COMMAND."""
    folder = tmp_path_factory.mktemp("forks")
    (folder / "client.py").write_text(CLIENT)
    command = [sys.executable, Path(__file__).with_name("forks.py"), folder / "socket"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean()) as server:
        assert server.stdout.readline() == b"ready\n"
        yield [sys.executable, "-IS", folder / "client.py", folder / "socket"]
        server.stdin.close()


@pytest.fixture
def folder(tmp_path):
    """The working folder of the program."""
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def script(folder):
    """Write a scripted model's turns; the model's name."""

    def write(*turns, delay=0.0, name="turns.json"):
        (folder / name).write_text(json.dumps({"turns": turns, "delay": delay}))
        return f"scripted:{name}"

    return write


@pytest.fixture
def hookline(env, folder, forked):
    """Run the program to its end, without a terminal."""

    def run(*args, input=None, cwd=folder, **more):
        stdin = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [*forked, *args],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=env | more,
            check=False,
            start_new_session=True,
            **stdin,
        )

    return run


@pytest.fixture
def start(env, folder):
    """Start the program and leave it running."""
    begun = []

    def begin(*args, stdin=subprocess.DEVNULL):
        process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=env,
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


class Terminal:
    """The program at a pseudo-terminal 100 columns wide."""

    def __init__(self, args, folder, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(sys.executable, [*COMMAND, *args], env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.text, self.seen = "", 0

    def wait_for(self, words, seconds=math.inf):
        """Read until these words come, after what was waited for before. Pytest's own timeout is the usual limit."""
        end = time.monotonic() + seconds
        try:
            while words not in self.text[self.seen :]:
                if time.monotonic() > end or not self._read(0.2):
                    raise TimeoutError
        except BaseException as error:
            error.add_note(f"{words!r} did not come; the screen:\n{self.text}")
            raise
        self.seen = self.text.index(words, self.seen) + len(words)

    def send(self, text):
        os.write(self.fd, text.encode())

    def interrupt(self, words):
        """Press Ctrl-C, again if it came in the moment in which input() does not notice, until these words come."""
        for _ in range(10):
            os.kill(self.pid, signal.SIGINT)
            try:
                return self.wait_for(words, seconds=3)
            except TimeoutError:
                pass
        raise AssertionError(f"{words!r} did not come; the screen:\n{self.text}")

    def end(self):
        """Read to the end; the exit code."""
        while self._read(30):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            return False
        self.text += piece.decode(errors="replace")
        return bool(piece)


@pytest.fixture
def terminal(env, folder):
    """Start the program at a terminal."""
    begun = []

    def begin(*args, **more):
        begun.append(Terminal(args, folder, env | more))
        return begun[-1]

    yield begin
    for one in begun:
        try:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it has ended
        os.close(one.fd)


@pytest.fixture
def in_process(capsys):
    """Run a command in this process; its exit code, and what it wrote to stdout and stderr."""

    def run(*args):
        try:
            code = run_app(args)
        except Exception as error:
            code = report_error(error, args)
        return code, *capsys.readouterr()

    return run
