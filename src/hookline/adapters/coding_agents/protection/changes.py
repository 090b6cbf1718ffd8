"""Plan and write changes of settings files, and undo them.

What was written is remembered in ``protect.json`` in the user's data folder: where the inserted texts are, and digests
of the file before and after. So an unchanged file gets back its old bytes. From a file that was changed since, the
entries of Hookline are removed, and nothing else.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...._base.files import replace_file, user_folder
from ...._base.text import error_text
from ...._kernel.errors import HooklineError
from ..last_call import last_call_file
from .hosts import Host
from .json_edit import JsonText, JsonTextError, laid_out, without
from .settings import PLUGIN_MARK, Entry, add_entries, has_all, own_entries, remove_entries

_SPACE = "\ufeff \t\r\n"


class ProtectError(HooklineError):
    """Settings cannot be read or written. Nothing was changed."""


class Written(msgspec.Struct, frozen=True):
    """What was written to a file of settings.

    Args:
        agent: the name of the coding agent.
        project: whether the file belongs to a project.
        created: whether there was no such file.
        folders: the folders that were created for it.
        spans: where the inserted texts are.
        before: the digest of the file before.
        after: the digest of the file.
    """

    agent: str
    project: bool
    created: bool
    folders: list[str]
    spans: list[tuple[int, int]]
    before: str
    after: str


class WrittenRules(msgspec.Struct, frozen=True):
    """A file of rules that Hookline has created: its digest, and the folders that were created for it."""

    digest: str
    folders: list[str]


class _Document(msgspec.Struct):
    files: dict[str, Written] = {}
    rules: dict[str, WrittenRules] = {}
    version: int = 1


class Memory:
    """What Hookline has written to settings, and the files of rules that it has created."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = user_folder("data") / "protect.json" if path is None else path
        try:
            self._document = msgspec.json.decode(self.path.read_bytes(), type=_Document)
        except FileNotFoundError:
            self._document = _Document()
        except (OSError, msgspec.DecodeError) as error:
            raise ProtectError(f"{self.path} cannot be read: {error_text(error)}. Remove it, and try again") from error

    @property
    def files(self) -> Mapping[str, Written]:
        """What was written, by the paths of the files."""
        return self._document.files

    @property
    def rules(self) -> Mapping[str, WrittenRules]:
        """The files of rules that were created, by their paths."""
        return self._document.rules

    def put(self, path: Path, written: Written | None) -> None:
        """Remember what was written to a file, or forget it."""
        self._put(self._document.files, path, written)

    def put_rules(self, path: Path, written: WrittenRules | None) -> None:
        """Remember a file of rules that was created, or forget it."""
        self._put(self._document.rules, path, written)

    def _put(self, table: dict[str, Any], path: Path, value: Any) -> None:
        if value is None:
            table.pop(str(path), None)
        else:
            table[str(path)] = value
        if not self._document.files and not self._document.rules:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.parent.rmdir()
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(self._document)), 0o600)


class Change(NamedTuple):
    """A change of one file of settings.

    Args:
        host: the agent.
        path: the file.
        before: its content; ``None`` if it does not exist.
        after: its new content; ``None`` to delete it.
        written: what is remembered of it.
    """

    host: Host
    path: Path
    before: bytes | None
    after: bytes | None
    written: Written | None

    @property
    def is_needed(self) -> bool:
        """Whether anything changes."""
        return self.before != self.after


def plan_protection(host: Host, path: Path, wanted: str, memory: Memory, *, project: bool) -> Change:
    """Return the change that puts the wanted settings into a file.

    Args:
        host: the agent.
        path: the file of settings.
        wanted: the settings as the codec of the agent writes them.
        memory: what was written before.
        project: whether the file belongs to a project.

    Raises:
        ProtectError: the file cannot be read, or has a form that is not known.
    """
    before = _read(path)
    known = memory.files.get(str(path))
    created, folders = before is None, [str(folder) for folder in _missing_folders(path)]
    if known is not None:
        created, folders = created or known.created, [*folders, *known.folders]
    text = "" if before is None else _decode(path, before)
    base = ""
    if host.is_plugin:
        if before is not None and not text.startswith(PLUGIN_MARK):
            raise ProtectError(f"{path} is not the plugin of Hookline: rename it, and try again")
    elif not text.strip(_SPACE):
        base = text
    else:
        if has_all(found := _parse(host, path, text), json.loads(wanted), host.name):
            return Change(host, path, before, before, known)
        restored = _restored(text, known)
        if restored is None:
            remove_entries(found, host.name)
            restored = found.text
        base = "" if created and _is_empty(host, path, restored) else restored
    if base.strip(_SPACE):
        changed = _parse(host, path, base)
        try:
            add_entries(changed, json.loads(wanted))
        except JsonTextError as error:
            raise ProtectError(f"{path}: {error}. Correct it, and try again") from None
        after, spans = changed.text, changed.spans
    else:
        new = wanted if host.is_plugin else f"{laid_out(json.loads(wanted), 3)}\n"
        after, spans = base + new, [(len(base), len(base + new))]
    data = after.encode()
    written = Written(host.name, project, created, folders, spans, _digest(base.encode()), _digest(data))
    return Change(host, path, before, data, written)


def plan_removal(host: Host, path: Path, memory: Memory) -> Change:
    """Return the change that takes the entries of Hookline out of a file.

    Raises:
        ProtectError: the file cannot be read.
    """
    before = _read(path)
    known = memory.files.get(str(path))
    if before is None:
        return Change(host, path, None, None, known)
    text = _decode(path, before)
    if host.is_plugin:
        return Change(host, path, before, None if text.startswith(PLUGIN_MARK) else before, known)
    base = _restored(text, known)
    if base is None:
        if not text.strip(_SPACE):
            return Change(host, path, before, before, known)
        found = _parse(host, path, text)
        if not remove_entries(found, host.name):
            return Change(host, path, before, before, known)
        base = found.text
    own = known is not None and known.created
    own = own or path.name == "hookline.json"  # it belongs to Hookline by its name
    gone = own and (not base or _is_empty(host, path, base))
    return Change(host, path, before, None if gone else base.encode(), known)


def write_rules(path: Path, data: bytes, memory: Memory) -> None:
    """Create a file of rules.

    Raises:
        ProtectError: that is not possible.
    """
    folders = [str(folder) for folder in _missing_folders(path)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, data, 0o600)
    except OSError as error:
        raise ProtectError(f"{path} cannot be written: {error_text(error)}") from error
    memory.put_rules(path, WrittenRules(_digest(data), folders))


def unchanged_rules(memory: Memory) -> dict[Path, WrittenRules]:
    """Return the files of rules that were created and that nobody has changed."""
    found = {}
    for name, written in memory.rules.items():
        path = Path(name)
        with suppress(OSError):
            if _digest(path.read_bytes()) == written.digest:
                found[path] = written
    return found


def delete_rules(path: Path, written: WrittenRules, memory: Memory) -> list[str]:
    """Delete a file of rules. Return the folders that were removed."""
    path.unlink(missing_ok=True)
    memory.put_rules(path, None)
    return _remove_folders(written.folders)


def apply_change(change: Change, memory: Memory) -> None:
    """Write, change or delete a file, and remember what was written. A link stays a link.

    Raises:
        ProtectError: that is not possible, or the file has changed since the change was planned.
    """
    real = Path(os.path.realpath(change.path))
    if _read(change.path) != change.before:
        raise ProtectError(f"{change.path} has changed in the meantime: try again")
    try:
        if change.after is None:
            real.unlink(missing_ok=True)
            if change.path.is_symlink():
                change.path.unlink()
        elif change.is_needed:
            real.parent.mkdir(parents=True, exist_ok=True)
            mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else None
            replace_file(real, change.after, 0o644 if mode is None else mode)
            if mode is not None:
                real.chmod(mode)
    except OSError as error:
        raise ProtectError(f"{change.path} cannot be written: {error_text(error)}") from error
    memory.put(change.path, change.written)


def undo(change: Change, memory: Memory) -> list[str]:
    """Apply a removal. Return the folders that were removed: those that were created for the file and are empty."""
    apply_change(change._replace(written=None), memory)
    last = last_call_file(change.host.name)
    last.unlink(missing_ok=True)
    for folder in (last.parent, last.parent.parent):
        with suppress(OSError):
            folder.rmdir()
    return _remove_folders([] if change.written is None else change.written.folders)


def _remove_folders(folders: Iterable[str]) -> list[str]:
    removed = []
    for folder in folders:
        with suppress(OSError):
            os.rmdir(folder)
            removed.append(folder)
    return removed


def entries_in(host: Host, path: Path) -> list[Entry]:
    """Return the entries of Hookline in a file of settings; none if it does not exist.

    Raises:
        ProtectError: the file cannot be read.
    """
    before = _read(path)
    text = "" if before is None else _decode(path, before)
    if host.is_plugin or not text.strip(_SPACE):
        return []
    return own_entries(_parse(host, path, text).root.plain(), host.name)


def _restored(text: str, known: Written | None) -> str | None:
    """Return the text without what was inserted, if it is as it was written; ``None`` otherwise."""
    if known is None or _digest(text.encode()) != known.after:
        return None
    base = without(text, known.spans)
    return base if _digest(base.encode()) == known.before else None


def _is_empty(host: Host, path: Path, text: str) -> bool:
    return not text.strip(_SPACE) or not _parse(host, path, text).root.plain().keys() - {"version"}


def _read(path: Path) -> bytes | None:
    try:
        state = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise ProtectError(
                f"{path} is a link to a file that does not exist: create it, or remove the link"
            ) from None
        return None
    except OSError as error:
        raise ProtectError(f"{path} cannot be read: {error_text(error)}") from error
    if not stat.S_ISREG(state.st_mode):
        raise ProtectError(f"{path} is not a regular file")
    if hasattr(os, "geteuid") and state.st_uid != os.geteuid():
        raise ProtectError(f"{path} belongs to another user: run this command as that user")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProtectError(f"{path} cannot be read: {error_text(error)}") from error


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtectError(f"{path} is not text in UTF-8: correct it, and try again") from None


def _parse(host: Host, path: Path, text: str) -> JsonText:
    try:
        return JsonText(text, comments=host.comments)
    except JsonTextError as error:
        raise ProtectError(f"{path}, {error}. Correct it, and try again") from None


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _missing_folders(path: Path) -> list[Path]:
    """Return the folders above a file that do not exist, the innermost first."""
    missing = []
    for folder in path.parents:
        if folder.exists():
            break
        missing.append(folder)
    return missing
