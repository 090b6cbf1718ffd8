"""Files that agents create, stored under names in one folder or in a database."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote

from .._base.files import file_name_for, replace_file
from .._base.frozen import Frozen
from .._base.own_files import OwnFile, register_own_file
from ..tools._tool import Tool
from .database import open_database
from .errors import StoreError
from .paths import SQLITE, checked_path, folder_advice, is_database_url
from .sql import Schema, upsert

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

_MAX_NAME = 200
_MAX_READ = 16_000
_MAX_LISTED = 200
_PREFIX = "artifact-"
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Artifact(Frozen, frozen=True):
    """A stored file. ``media_type`` is guessed from the name; ``saved_at`` is a Unix time."""

    name: str
    size: int
    sha256: str
    saved_at: float
    media_type: str = "application/octet-stream"


class ArtifactStore:
    """Store texts and bytes as files in one folder.

    It is also a toolset with the tools ``save_artifact``, ``read_artifact`` and ``list_artifacts``. A name may be any
    text that is not too long: file names are derived from it, so that they stay in the folder and differ on every file
    system. Files are replaced atomically. Symbolic links in the folder are not followed.

    Args:
        folder: the folder, created when the first artifact is saved.

    Raises:
        TypeError: ``folder`` is not a path.

    Example::

        artifacts = ArtifactStore("artifacts")
        artifacts.save("report.md", "# All is well")
        assert artifacts.text("report.md") == "# All is well"
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "ArtifactStore takes a folder")).expanduser().absolute()
        # Otherwise a command could put a link in its place, and this program would write to the link's target.
        register_own_file(self, OwnFile(str(self.folder), "Hookline's folder of artifacts", is_folder=True))
        self._digests: dict[str, tuple[tuple[int, int, int], str]] = {}

    def __repr__(self) -> str:
        return f"ArtifactStore({str(self.folder)!r})"

    def save(self, name: str, data: str | bytes) -> Artifact:
        """Store data under a name, replacing earlier data. Text is encoded as UTF-8.

        Raises:
            TypeError: the data is neither text nor bytes.
            StoreError: the name is not valid, or the file cannot be written.
        """
        path, content = self._path(name), _content(data)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, content, 0o600)
            saved_at = path.lstat().st_mtime
        except OSError as error:
            advice = folder_advice(self.folder, error)
            raise StoreError(f"cannot save the artifact {name!r} as {path}: {error}{advice}") from error
        return _describe(name, content, saved_at)

    def load(self, name: str) -> bytes:
        """Return the data stored under a name.

        Raises:
            StoreError: the artifact does not exist or cannot be read, or the name is not valid.
        """
        try:
            with self._reading(name) as file:
                return file.read()
        except FileNotFoundError:
            raise StoreError(f"there is no artifact {name!r:.200}: list() returns all artifacts") from None

    def text(self, name: str) -> str:
        """Return the text stored under a name.

        Raises:
            StoreError: as for :meth:`load`, or the data is not text.
        """
        try:
            return self.load(name).decode()
        except UnicodeDecodeError as error:
            raise StoreError(f"the artifact {name!r} is not UTF-8 text ({error}): use load()") from None

    def list(self) -> Sequence[Artifact]:
        """Return all artifacts, sorted by name.

        Raises:
            StoreError: the folder or a file cannot be read.
        """
        try:
            with os.scandir(self.folder) as entries:
                files = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            advice = folder_advice(self.folder, error, "read")
            raise StoreError(f"the artifacts in {self.folder} cannot be listed: {error}{advice}") from error
        names = [name for file in files if (name := artifact_name(file)) is not None]
        found = []
        for name in sorted(names):
            with suppress(FileNotFoundError):  # the file was deleted meanwhile
                found.append(self._artifact(name))
        return found

    def delete(self, name: str) -> bool:
        """Delete an artifact; return whether it existed.

        Raises:
            StoreError: the file cannot be deleted, or the name is not valid.
        """
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(
                f"cannot delete the artifact {name!r}: {error}{folder_advice(self.folder, error)}"
            ) from error
        return True

    def tools(self) -> Sequence[Tool]:
        """Return the tools ``save_artifact``, ``read_artifact`` and ``list_artifacts`` for a model."""
        return self._tools

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        def save_artifact(name: str, content: str) -> str:
            """Save a text as an artifact. It replaces an artifact with the same name.

            Args:
                name: such as report.md
                content: the whole text
            """
            saved = self.save(name, content)
            return f"Saved {name!r}: {saved.size} bytes."

        def read_artifact(name: str, offset: int = 0, length: int = 4000) -> str:
            """Read an artifact, or a part of a long one.

            Args:
                name: its name, as list_artifacts shows it
                offset: the byte to begin at
                length: how many bytes to read
            """
            try:
                return self._page(name, max(offset, 0), min(max(length, 4), _MAX_READ))
            except FileNotFoundError:
                raise ValueError(
                    f"there is no artifact {name!r:.200}; use list_artifacts to see all artifacts"
                ) from None

        def list_artifacts() -> str:
            """List the artifacts."""
            found = self.list()
            lines = [f"{item.name!r}: {item.media_type}, {item.size} bytes" for item in found[:_MAX_LISTED]]
            more = [f"({len(found) - _MAX_LISTED} more)"] if len(found) > _MAX_LISTED else []
            return "\n".join([*lines, *more]) or "There are no artifacts."

        return Tool(save_artifact, effects=[]), Tool(read_artifact, effects=[]), Tool(list_artifacts, effects=[])

    def _page(self, name: str, offset: int, length: int) -> str:
        data, size = self._part(name, offset, length)
        if size and offset >= size:
            raise ValueError(f"{name!r} has only {size} bytes; use a smaller offset")
        if b"\0" in data:
            raise ValueError(f"{name!r} is not text ({_media_type(name)}, {size} bytes)")
        end = offset + len(data)
        if end < size:
            data = _whole_characters(data)
            end = offset + len(data)
        text = data.decode(errors="replace")
        if offset == 0 and end == size:
            return text or "The artifact is empty."
        rest = f"; continue with offset={end}" if end < size else ""
        return f"{text}\n\n[bytes {offset} to {end} of {size}{rest}]"

    def _part(self, name: str, offset: int, length: int) -> tuple[bytes, int]:
        """Return a part of an artifact, and the size of the whole.

        Raises:
            FileNotFoundError: the artifact does not exist.
        """
        with self._reading(name) as file:
            file.seek(offset)
            return file.read(length), os.fstat(file.fileno()).st_size

    def _path(self, name: str) -> Path:
        return self.folder / f"{_PREFIX}{_file_name(name)}"

    @contextmanager
    def _reading(self, name: str) -> Iterator[BufferedReader]:
        path = self._path(name)
        try:
            with open(path, "rb", opener=lambda file, _: os.open(file, _FLAGS)) as file:
                if path.is_symlink() or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError("it is not a regular file")
                yield file
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"the artifact {name!r} cannot be read from {path}: {error}") from error

    def _artifact(self, name: str) -> Artifact:
        from hashlib import file_digest

        with self._reading(name) as file:
            about = os.fstat(file.fileno())
            seen = about.st_ino, about.st_mtime_ns, about.st_size
            known, digest = self._digests.get(name, (None, ""))
            if known != seen:
                digest = file_digest(file, "sha256").hexdigest()
                self._digests[name] = seen, digest
        return Artifact(name, about.st_size, digest, about.st_mtime, _media_type(name))


_TABLE = """CREATE TABLE artifacts (
    name TEXT PRIMARY KEY, size INTEGER NOT NULL, sha256 TEXT NOT NULL, saved_at REAL NOT NULL, data BLOB NOT NULL
)"""
SCHEMA = Schema("artifacts", contents="artifacts", application_id=0x486B4C46, version=1, statements=(_TABLE,))
_ROW = upsert("artifacts", ("name", "size", "sha256", "saved_at", "data"), ("name",))


class DatabaseArtifactStore(ArtifactStore):
    """Store artifacts in one SQLite file or in PostgreSQL, so that processes on several machines share them.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the address of a
            PostgreSQL database.

    Example::

        artifacts = DatabaseArtifactStore("artifacts.db")
        artifacts.save("report.md", "# All is well")
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._db = open_database(path, SCHEMA)

    def __repr__(self) -> str:
        return f"DatabaseArtifactStore({self._db.path!r})"

    def save(self, name: str, data: str | bytes) -> Artifact:
        """Store data under a name, replacing earlier data. Text is encoded as UTF-8.

        Raises:
            TypeError: the data is neither text nor bytes.
            StoreError: the name is not valid, or the database cannot be used.
        """
        _file_name(name)
        content = _content(data)
        saved = _describe(name, content, time.time())
        self.restore(saved, content)
        return saved

    def restore(self, artifact: Artifact, data: bytes) -> None:
        """Store an artifact of another store with the time at which it was saved there.

        Raises:
            StoreError: the database cannot be used.
        """
        with self._db.transaction(write=True, lock=None) as db:
            db.execute(_ROW, (artifact.name, artifact.size, artifact.sha256, artifact.saved_at, data))

    def load(self, name: str) -> bytes:
        """Return the data stored under a name.

        Raises:
            StoreError: the artifact does not exist, the name is not valid, or the database cannot be used.
        """
        _file_name(name)
        with self._db.transaction() as db:
            row = db.execute("SELECT data FROM artifacts WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise StoreError(f"there is no artifact {name!r:.200}: list() returns all artifacts")
        return bytes(row[0])

    def list(self) -> Sequence[Artifact]:
        """Return all artifacts, sorted by name.

        Raises:
            StoreError: the database cannot be used.
        """
        with self._db.transaction() as db:
            rows = db.execute("SELECT name, size, sha256, saved_at FROM artifacts ORDER BY name").fetchall()
        return [Artifact(name, size, digest, at, _media_type(name)) for name, size, digest, at in rows]

    def delete(self, name: str) -> bool:
        """Delete an artifact; return whether it existed.

        Raises:
            StoreError: the name is not valid, or the database cannot be used.
        """
        _file_name(name)
        with self._db.transaction(write=True, lock=None) as db:
            return db.execute("DELETE FROM artifacts WHERE name = ?", (name,)).rowcount > 0

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _part(self, name: str, offset: int, length: int) -> tuple[bytes, int]:
        _file_name(name)
        query = "SELECT substr(data, ?, ?), size FROM artifacts WHERE name = ?"
        with self._db.transaction() as db:
            row = db.execute(query, (min(offset, 2**31 - 2) + 1, length, name)).fetchone()
        if row is None:
            raise FileNotFoundError(name)
        return bytes(row[0] or b""), row[1]


def artifact_store_at(path: str | os.PathLike[str]) -> ArtifactStore:
    """Open an artifact store: PostgreSQL, a SQLite file if the extension says so, or a folder."""
    if is_database_url(path) or os.fspath(path).lower().endswith(SQLITE):
        return DatabaseArtifactStore(path)
    return ArtifactStore(path)


def _content(data: object) -> bytes:
    if not isinstance(data, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"an artifact must be text or bytes, not {type(data).__name__}")
    return data.encode(errors="replace") if isinstance(data, str) else bytes(data)


def _describe(name: str, content: bytes, saved_at: float) -> Artifact:
    from hashlib import sha256

    return Artifact(name, len(content), sha256(content).hexdigest(), saved_at, _media_type(name))


def _file_name(name: str) -> str:
    """Return the file name for an artifact.

    Raises:
        StoreError: the name is not valid. It is the same for folders and databases, so that artifacts can move.
    """
    if not name:
        raise StoreError("an artifact needs a name: give one")
    try:
        file = file_name_for(name)
    except UnicodeEncodeError:
        raise StoreError(f"the artifact name {name!r:.80} is not valid text: use another name") from None
    if len(file) > _MAX_NAME:
        raise StoreError(f"the artifact name {name!r:.80} is too long: use a shorter name")
    return file


def artifact_name(file: str) -> str | None:
    """Return the name of the artifact in a file; ``None`` if the file is not an artifact."""
    try:
        name = unquote(file.removeprefix(_PREFIX), errors="strict")
        return name if name and file == f"{_PREFIX}{file_name_for(name)}" else None
    except UnicodeError:
        return None


def _media_type(name: str) -> str:
    from mimetypes import guess_type

    return guess_type(f"x{os.path.splitext(name)[1]}")[0] or Artifact.__struct_defaults__[0]


def _whole_characters(data: bytes) -> bytes:
    """Remove an incomplete UTF-8 character from the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # a character begins here
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < wanted else data
        if byte < 0x80:
            break
    return data
