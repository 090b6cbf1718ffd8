"""Back up stores while programs use them: SQLite files with the backup API of SQLite, PostgreSQL with ``pg_dump``."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import quote, unquote, urlsplit

import msgspec

from .errors import StoreError

_PAGES = 1000
"""Pages that are copied at a time. Writers of the file wait meanwhile if it is not in WAL mode."""
_BUSY_SECONDS = 5.0
_ALL = 2**31 - 1
"""The largest number of problems that SQLite reports."""


def back_up_files(sources: Sequence[str], folder: str) -> list[tuple[str, str]]:
    """Copy SQLite files and folders into a new folder, and return the path and the copy of each.

    Each SQLite file is copied as it is at one moment, while programs may write it. The files of a folder, such as that
    of sessions, are copied one after another; each of them is whole, because it is replaced and not rewritten.

    Raises:
        StoreError: a file cannot be read, two have the same name, or the folder has files already.
    """
    names = [os.path.basename(os.path.normpath(source)) for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise StoreError(f"two of the files are called {name}: back them up into different folders")
    new_folder(folder)
    copied = []
    for source, name in zip(sources, names, strict=True):
        copy = os.path.join(folder, name)
        try:
            if os.path.isdir(source):
                shutil.copytree(source, copy)
            else:
                _copy_file(source, copy)
        except (OSError, sqlite3.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)  # a part of a backup must not be taken for one
            raise StoreError(f"{source} cannot be copied to {copy}: {error}") from error
        copied.append((source, copy))
    return copied


def new_folder(folder: str) -> None:
    """Create the folder of a backup, for this user only.

    Raises:
        StoreError: it has files already, or cannot be created.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.listdir(folder):
            raise StoreError(f"{folder} has files already: give a new folder, so that no earlier backup is overwritten")
    except OSError as error:
        raise StoreError(f"{folder} cannot be created ({error}): give a folder that you can write to") from error


def _copy_file(source: str, copy: str) -> None:
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    where = f"file:{quote(os.path.abspath(source))}?mode=ro"
    with (
        closing(sqlite3.connect(where, uri=True, timeout=_BUSY_SECONDS)) as read,
        closing(sqlite3.connect(copy)) as made,
    ):
        read.execute("BEGIN")  # of a file in WAL mode, all pages are those of this moment
        read.execute("SELECT count(*) FROM sqlite_master").fetchone()
        read.backup(made, pages=_PAGES)
        for (state,) in made.execute(f"PRAGMA quick_check({_ALL})"):
            # Some versions of SQLite report values that are not there, in tables without a rowid.
            if state != "ok" and not state.startswith("NULL value in "):
                raise sqlite3.DatabaseError(f"the copy is damaged: {state}")


class Dump(msgspec.Struct, frozen=True):
    """How to run ``pg_dump`` for the schemas of an installation. Its text is the command, without the password."""

    command: tuple[str, ...]
    target: str
    password: str
    restore: str

    def __str__(self) -> str:
        return shlex.join(self.command)

    @property
    def is_installed(self) -> bool:
        """Whether the program is there."""
        return shutil.which(self.command[0]) is not None


def dump_command(url: str, target: str) -> Dump:
    """Return the command that dumps all tables of the installation at an address, as they are at one moment.

    Raises:
        StoreError: the address is not valid, or the library for PostgreSQL is missing.
    """
    from .postgres import parse_url

    conninfo, prefix = parse_url(url)
    parts = urlsplit(conninfo)
    user, at, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    shown = conninfo.replace(parts.netloc, f"{name}{at}{host}", 1) if password else conninfo
    command = "pg_dump", "--format=custom", f"--schema={prefix}_*", f"--file={target}", f"--dbname={shown}"
    restore = shlex.join(("pg_restore", "--exit-on-error", f"--dbname={shown}", target))
    return Dump(command, target, unquote(password), restore)


def run_dump(dump: Dump) -> None:
    """Run ``pg_dump``. The password is given to it in its environment, which other users cannot see.

    Raises:
        StoreError: it failed.
    """
    env = {**os.environ, **({"PGPASSWORD": dump.password} if dump.password else {})}
    done = subprocess.run(dump.command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise StoreError(f"pg_dump failed ({lines[0] if lines else done.returncode}): {dump}")
    os.chmod(dump.target, 0o600)
