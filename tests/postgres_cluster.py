"""A PostgreSQL server for tests: a cluster in a temporary folder, reached through a Unix socket only."""

import glob
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec

BIN = max(glob.glob("/usr/lib/postgresql/*/bin"), default=os.path.dirname(shutil.which("initdb") or ""))
OPTIONS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "autovacuum": "off"}

MISSING = (
    "PostgreSQL is not installed: apt install postgresql"
    if not BIN
    else "psycopg is not installed: pip install 'hookline[postgres]'"
    if find_spec("psycopg") is None
    else ""
)
"""What to install, or empty."""


class Cluster:
    """Start a server; as root, it runs as the user ``postgres``, because PostgreSQL refuses to run as root.

    The keyword arguments are settings of the server, which replace those of ``OPTIONS``.
    """

    def __init__(self, **options: str) -> None:
        self.options = OPTIONS | options
        self.folder = tempfile.mkdtemp(prefix="hookline-pg-")  # a short path: that of a socket has at most 107 bytes
        self._as = []
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
            self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        self._command("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        self.start()

    def url(self, schema: str = "hookline") -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}&schema={schema}"

    def start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in self.options.items())
        where = f"-c listen_addresses= -c unix_socket_directories={self.folder} {options}"
        self._command("pg_ctl", "start", "-w", "-o", where, "-l", f"{self.folder}/log")

    def stop(self, how: str = "immediate") -> None:
        self._command("pg_ctl", "stop", "-w", "-m", how)

    def restart(self) -> None:
        self.stop("fast")
        self.start()

    def cut_connections(self) -> None:
        """End all connections of clients, as a network or an administrator does."""
        import psycopg

        cut = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = %s"
        )
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True) as connection:
            connection.execute(cut, ("client backend",))

    @property
    def pid(self) -> int:
        with open(f"{self.folder}/data/postmaster.pid") as file:
            return int(file.readline())

    def remove(self) -> None:
        try:
            self.stop()
        except RuntimeError:
            pass  # a test stopped it
        shutil.rmtree(self.folder)

    def _command(self, program: str, *arguments: str) -> None:
        command = [*self._as, f"{BIN}/{program}", "-D", f"{self.folder}/data", *arguments]
        # The server inherits the standard output, so it must not be a pipe that somebody reads to the end.
        with tempfile.TemporaryFile("w+") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            done = subprocess.run(command, check=False, cwd="/", **streams)
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program} failed: {output.read()}")
