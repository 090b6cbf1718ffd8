"""A PostgreSQL server for tests, which is reached through a Unix socket only and ends with the process that uses it."""

import fcntl
import glob
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from tests.run_folder import RunFolder

BIN = max(glob.glob("/usr/lib/postgresql/*/bin"), default=os.path.dirname(shutil.which("initdb") or ""))
OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "autovacuum": "off",
    "jit": "off",  # it takes longer to compile a query than to run it on the tables of tests
    "max_wal_size": "4GB",  # no checkpoints
    "dynamic_shared_memory_type": "mmap",  # in the folder of the server, which is removed
}

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

    Args:
        folder: folder of a test run, whose processes share one server; the first of them starts it. Without it, the
            server belongs to this process.
        options: settings of the server, which replace those of ``OPTIONS``.
    """

    def __init__(self, folder: str = "", **options: str) -> None:
        self.options = OPTIONS | options
        self._own = None if folder else RunFolder()
        self.folder = f"{self._own.path if self._own else folder}/postgres"
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        with open(f"{os.path.dirname(self.folder)}/postgres.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(f"{self.folder}/data/postmaster.pid"):
                self._create()

    def url(self, schema: str = "hookline") -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}&schema={schema}"

    def start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in self.options.items())
        where = f"-c listen_addresses= -c unix_socket_directories={self.folder} {options}"
        self._command("pg_ctl", "start", "-w", "-o", where, "-l", f"{self.folder}/log")

    def stop(self, how: str = "immediate") -> None:
        if self._own is None:
            raise RuntimeError("other tests use this server: stop one that you started with Cluster()")
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

    @contextmanager
    def full(self, how: str, table: str) -> Iterator[None]:
        """Let writes fail inside the block, as on a full disk.

        With ``file size``, no file can grow beyond the size of the largest one, and that of the table has this size.
        With ``read-only``, the server refuses all changes, as managed servers do when their disk is almost full.
        """
        import psycopg

        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True) as connection:
            if how == "read-only":
                connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                connection.execute("SELECT pg_reload_conf()")
                yield
                connection.execute("SET default_transaction_read_only = off")
                connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
                connection.execute("SELECT pg_reload_conf()")
                return
            (largest,) = connection.execute("SELECT max(pg_relation_size(oid)) FROM pg_class").fetchone()
            self._limit_files(
                connection, str(max(largest, 2**24) + 2**20)
            )  # the log of transactions has files of 2**24
            for size in (1500, 500, 10):  # until no page has room for an entry
                with pytest.raises(psycopg.Error, match="could not extend file"):
                    for n in itertools.count():
                        rows = f"SELECT 'junk {size}', n, repeat('x', {size})::bytea"
                        numbers = f"generate_series({n * 100}, {n * 100 + 99}) n"
                        connection.execute(f"INSERT INTO {table} {rows} FROM {numbers}")
            yield
            self._limit_files(connection, "unlimited")
            connection.execute(f"DELETE FROM {table} WHERE run_id LIKE 'junk%'")
            connection.execute(f"VACUUM {table}")

    def _limit_files(self, connection: Any, size: str) -> None:
        """Limit the size of files for all processes of the server, and so for those that it starts."""
        pids = [self.pid, *(pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity").fetchall())]
        limit = f'prlimit --pid "$1" --fsize={size}:'
        script = f"{limit} && shift && while test $# -gt 0; do {limit} 2>/dev/null; shift; done"  # some have just ended
        subprocess.run([*self._as, "sh", "-c", script, "sh", *map(str, pids)], check=True)

    @property
    def pid(self) -> int:
        with open(f"{self.folder}/data/postmaster.pid") as file:
            return int(file.readline())

    def remove(self) -> None:
        """Stop the server and remove its data, unless other tests use it."""
        if self._own is not None:
            self._own.remove()

    def _create(self) -> None:
        os.makedirs(self.folder)
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
        self._command("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        self.start()

    def _command(self, program: str, *arguments: str) -> None:
        command = [*self._as, f"{BIN}/{program}", "-D", f"{self.folder}/data", *arguments]
        # The server inherits the standard output, so it must not be a pipe that somebody reads to the end.
        with tempfile.TemporaryFile("w+") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            done = subprocess.run(command, check=False, cwd="/", **streams)
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program} failed: {output.read()}")
