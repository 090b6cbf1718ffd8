"""A shell for the commands of a page, in a folder and with a home of its own."""

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import time

SECONDS = 60
READY = re.compile(r"listening (at|on) ")


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


class Shell:
    """Bash, command by command. What a command writes is kept, and what it leaves running is ended with the shell."""

    def __init__(self, folder, programs, **env):
        self.folder = folder / "work"
        self._kept = folder / "kept"
        home = folder / "home"
        for place in (self.folder, self._kept, home):
            place.mkdir(exist_ok=True)
        (home / ".curlrc").write_text("fail-with-body\nno-progress-meter\nmax-time = 50\n")
        (home / ".gitconfig").write_text("[user]\nname = Ann\nemail = ann@example.com\n")
        ours = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "COLUMNS": "120",
            "HOOKLINE_TRUST": "1",  # readers have a terminal: they are asked once, and say yes
        }
        if "PYTHONPATH" in os.environ:
            ours["PYTHONPATH"] = os.environ["PYTHONPATH"]
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=self.folder,
            env=ours | env,
            start_new_session=True,
        )
        self._count = 0
        self.run("set -o pipefail")

    def run(self, command, *, typed=None):
        """Run a command to its end; its exit status and all it wrote. With `typed` it has a terminal."""
        if typed is not None:
            (self._kept / "typed").write_text(typed)
            command = f"script -qec {shlex.quote(command)} /dev/null < {self._kept / 'typed'}"
        file = self._next()
        given = "" if typed is not None else "</dev/null"
        status = self._say(f"{{ {command}\n}} {given} >{file} 2>&1; echo $?")
        return int(status), file.read_text(errors="replace").replace("\r", "")

    def start(self, command, ready):
        """Start a command that stays, and wait for what it says when it is ready."""
        file = self._next()
        file.touch()
        pid = self._say(f"{command} </dev/null >{file} 2>&1 & echo $!")
        while not re.search(ready, file.read_text(errors="replace")):
            assert self._say(f"kill -0 {pid} 2>/dev/null; echo $?") == "0", f"{command} is over: {file.read_text()}"
            time.sleep(0.05)
        return file

    def close(self):
        """End all that still runs, also what went into the background, and leave."""
        os.killpg(self._bash.pid, signal.SIGTERM)
        os.killpg(self._bash.pid, signal.SIGKILL)  # whoever is left tells its program once more: that ends at once
        self._bash.stdin.close()
        self._bash.stdout.close()
        self._bash.wait(10)

    def _next(self):
        self._count += 1
        return self._kept / f"{self._count}.out"

    def _say(self, line):
        """Have bash do something and answer with a line."""
        self._bash.stdin.write(line + "\n")
        if not select.select([self._bash.stdout], [], [], SECONDS)[0]:
            os.killpg(self._bash.pid, signal.SIGKILL)
            raise TimeoutError(f"still running after {SECONDS} s: {line}")
        return self._bash.stdout.readline().strip()
