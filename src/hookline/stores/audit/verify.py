"""Whether an audit log is as it was written. Nothing is written here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..._base.frozen import Frozen
from ..errors import StoreError
from .format import (
    MAX_LINE,
    START,
    VERSION,
    AuditHead,
    Seal,
    archives,
    head_of,
    head_path,
    line_hash,
    loss_of,
    opening_of,
    seal_of,
    signed_part,
)
from .keys import Checker, load_checker

MOST = 1000
"""Findings that are told one by one."""
BACKWARDS = 5.0
"""Seconds that times may go back without a word: threads and programs write in turns."""


class AuditFinding(Frozen, frozen=True):
    """Something that is not as it was written, in these lines of a file."""

    kind: str
    file: str
    line: int
    last: int
    text: str


class AuditReport(Frozen, frozen=True):
    """What was found in an audit log. It is ``ok`` without findings; warnings are worth knowing."""

    files: tuple[str, ...] = ()
    records: int = 0
    first: int = 0
    last: int = 0
    head: str = START
    signed: int = 0
    checked: bool = False
    findings: tuple[AuditFinding, ...] = ()
    warnings: tuple[AuditFinding, ...] = ()
    more: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def files_of(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files of a log, oldest first: those given, or all that belong to the one given.

    Raises:
        StoreError: one is not there, or is no file.
    """
    given = [Path(path).expanduser() for path in paths]
    if len(given) == 1:
        older = [path for _, path in archives(given[0])]
        given = [*older, *(given if given[0].exists() or not older else [])]
    for path in given:
        if not path.is_file():
            raise StoreError(f"there is no audit log {str(path)!r}: give the path of its file")
    return given


def verify_audit(
    *paths: str | os.PathLike[str],
    key: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    head: str | None = None,
    partial: bool = False,
    progress: Callable[[int], object] | None = None,
) -> AuditReport:
    """Read an audit log from its first line to its last, and tell everything that is not as it was written.

    Edits, missing, added, doubled and moved lines show in the chain. The last line, and lines cut off behind it, show
    only against a checkpoint or a head that was kept; a log written anew as a whole, only by its signatures.

    Args:
        paths: the log; its older files are found beside it. Or several files, oldest first.
        key: the public key (PEM): every line must be signed with it.
        checkpoint: the file with the head; the one beside the log if left out.
        head: the hash, or ``NUMBER:HASH``, of a line that must be there.
        partial: whether older files may be missing.
        progress: gets the number of bytes read so far, now and then.

    Raises:
        StoreError: a file, the key or the head cannot be read.
        NotInstalledError: ``key`` needs the package ``cryptography``.
    """
    if not paths:
        raise StoreError("which audit log? Give the path of its file")
    files = files_of(paths)
    walk = _Walk(None if key is None else load_checker(key), partial, progress)
    walk.expect(_kept(checkpoint, files[-1], walk, Path(paths[-1])))
    if head is not None:
        walk.demand(head)
    for path in files:
        walk.file(path, last=path is files[-1])
    return walk.report(files)


def _kept(checkpoint: Any, last: Path, walk: _Walk, given: Path) -> tuple[AuditHead | None, Path]:
    path = head_path(given) if checkpoint is None else Path(checkpoint)
    try:
        head = head_of(path.read_bytes())
    except OSError as error:
        if checkpoint is not None:
            raise StoreError(f"the checkpoint {str(path)!r} cannot be read ({error.strerror})") from None
        walk.warn("checkpoint", str(last), 0, "no checkpoint is beside it: lines cut off at the end would not show")
        return None, path
    if head is None:
        walk.find("checkpoint", str(path), 0, "the checkpoint is not readable")
    return head, path


class _Walk:
    """One reading, line by line."""

    def __init__(self, checker: Checker | None, partial: bool, progress: Callable[[int], object] | None) -> None:
        self.checker, self.partial, self.progress = checker, partial, progress
        self.found: dict[bool, list[AuditFinding]] = {True: [], False: []}
        self.more = self.records = self.signed = self.first = self.read = 0
        self.seq, self.hash = 0, START
        self.sure = True  # whether the hash is that of the record before
        self.bad: list[tuple[str, int, int]] = []
        self.must_sign = checker is not None
        self.latest = ""
        self.heads: dict[int, list[tuple[str, str]]] = {}
        self.hashes: dict[str, str] = {}

    # What is expected.

    def expect(self, kept: tuple[AuditHead | None, Path]) -> None:
        """A head that was kept."""
        head, path = kept
        if head is None:
            return
        self.heads[head.seq] = [(head.hash, str(path))]
        if self.checker is not None and not self.checker.good(head.sig.encode("utf-8", "replace"), head.signed):
            self.find("signature", str(path), 0, "the checkpoint is not signed with this key")

    def demand(self, head: str) -> None:
        """A head that somebody wrote down."""
        number, _, value = head.strip().lower().rpartition(":")
        if not re.fullmatch("[0-9a-f]{64}", value) or (number and not (number.isdecimal() and number.isascii())):
            raise StoreError(f"a head is a hash of 64 characters, or NUMBER:HASH, not {head!r:.100}")
        if number:
            self.heads.setdefault(int(number[:18]), []).append((value, "the head that was given"))
        else:
            self.hashes[value] = "the head that was given"

    # What is found.

    def find(self, kind: str, file: str, line: int, text: str, *, serious: bool = True) -> None:
        """Tell something; the same thing about the next line makes it longer."""
        told = self.found[serious]
        if (
            told
            and (last := told[-1]).kind == kind
            and last.file == file
            and last.text == text
            and line == last.last + 1
        ):
            told[-1] = msgspec.structs.replace(last, last=line)
        elif len(told) < MOST:
            told.append(AuditFinding(kind, file, line, line, text))
        else:
            self.more += serious

    def warn(self, kind: str, file: str, line: int, text: str) -> None:
        """Tell something that need not be wrong."""
        self.find(kind, file, line, text, serious=False)

    # The lines.

    def file(self, path: Path, *, last: bool) -> None:
        """Read one file. Only the last one may end in half a line: a file that is put aside ends with a record."""
        name, ended = str(path), True
        for number, line, whole in self._lines(path):
            ended = whole
            seal = seal_of(line) if len(line) <= MAX_LINE else None
            if seal is None:
                self.bad.append((name, number, len(line)))
            else:
                self._take(name, number, line, seal)
        if last and self.bad and not ended:
            first = self.bad[0][1]
            text = f"half a line of {self._forgive():,} bytes is at the end: writing was cut short there"
            self.warn("torn", name, first, text)
        self._blame()

    def _lines(self, path: Path) -> Iterator[tuple[int, bytes, bool]]:
        """The lines with their numbers, and whether they have an end; the rest of one that is too long is dropped."""
        try:
            with open(path, "rb") as file:
                number = 0
                while line := file.readline(MAX_LINE + 1):
                    number += 1
                    self.read += len(line)
                    rest = line
                    while len(rest) > MAX_LINE and not rest.endswith(b"\n"):
                        rest = file.readline(MAX_LINE + 1)
                        self.read += len(rest)
                    if self.progress is not None and not number % 4096:
                        self.progress(self.read)
                    whole = rest.endswith(b"\n")
                    yield number, line[:-1] if line.endswith(b"\n") else line, whole
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror or error})") from None
        if self.progress is not None:
            self.progress(self.read)

    def _forgive(self) -> int:
        size = sum(size + 1 for _, _, size in self.bad) - 1
        self.bad.clear()
        return size

    def _blame(self) -> None:
        for name, number, _ in self.bad:
            self.find("no record", name, number, "this is no record: it was changed, or put in")
            self.sure = False
        self.bad.clear()

    def _take(self, name: str, number: int, line: bytes, seal: Seal) -> None:
        opening = opening_of(line) if seal.type == "open" else None
        if self.bad:
            if opening is not None and opening.torn and opening.torn == sum(size + 1 for _, _, size in self.bad) - 1:
                first = self.bad[0][1]
                torn = self._forgive()
                text = f"half a line of {torn:,} bytes: a program was cut short there, and the log went on"
                self.warn("torn", name, first, text)
            else:
                self._blame()
        digest = line_hash(line)
        self._chain(name, number, seal, digest)
        self._signature(name, number, line, opening)
        self._heads(name, number, seal, digest)
        self._rest(name, number, line, seal)
        self.records += 1
        self.seq, self.hash, self.sure = seal.seq, digest, True

    def _chain(self, name: str, number: int, seal: Seal, digest: str) -> None:
        """Number and link against those of the line before."""
        due = self.seq + 1
        if not self.records and self.seq == 0:
            self.first = seal.seq
            if seal.seq > 1:
                text = f"it begins with record {seal.seq:,}: the records before are not here"
                self.find("missing", name, number, text, serious=not self.partial)
            elif seal.prev != START:
                self.find("changed", name, number, "the first record names a line before it")
            return
        if seal.seq == due:
            if self.sure and seal.prev != self.hash:
                text = "the line before it is not the one that it was written after: one of the two was changed"
                self.find("changed", name, number, text)
        elif seal.seq > due:
            if self.sure or seal.seq > due + 1:
                which = f"record {due:,}" if seal.seq == due + 1 else f"records {due:,} to {seal.seq - 1:,}"
                self.find("missing", name, number, f"{which} should come before it")
        elif digest == self.hash:
            self.find("doubled", name, number, f"record {seal.seq:,} is there twice")
        else:
            text = f"record {seal.seq:,} comes after record {self.seq:,}: it was moved, put in or doubled"
            self.find("order", name, number, text)

    def _signature(self, name: str, number: int, line: bytes, opening: Any) -> None:
        if opening is not None and opening.key:
            self.must_sign = True
            if self.checker is not None and opening.key != self.checker.key:
                text = f"the log was signed with the key {opening.key:.40}, and this one is {self.checker.key}"
                self.find("key", name, number, text)
        data, signature = signed_part(line)
        self.signed += signature is not None
        if signature is None:
            if self.must_sign:
                self.find("unsigned", name, number, "the signature is missing")
        elif self.checker is not None and not self.checker.good(signature, data):
            self.find("signature", name, number, "the signature is wrong: another key, or the line was changed")

    def _heads(self, name: str, number: int, seal: Seal, digest: str) -> None:
        for value, source in self.heads.pop(seal.seq, ()):
            if value != digest:
                self.find("head", name, number, f"record {seal.seq:,} is not the one that {source} knows")
        self.hashes.pop(digest, None)

    def _rest(self, name: str, number: int, line: bytes, seal: Seal) -> None:
        if seal.v != VERSION:
            self.find("version", name, number, f"it is of format {seal.v}: verify it with a newer Hookline")
        if seal.type == "lost":
            lost = loss_of(line)
            self.warn("lost", name, number, f"{lost.count:,} records could not be written here: {lost.why:.200}")
        if seal.time < self.latest:
            back = _seconds(seal.time, self.latest)
            if back is None or back > BACKWARDS:
                self.warn("time", name, number, "its time is before that of a line above")
                self.latest = seal.time
        else:
            self.latest = seal.time

    def report(self, files: Sequence[Path]) -> AuditReport:
        """What was found in all."""
        last = str(files[-1])
        for seq, source in [(seq, source) for seq, kept in self.heads.items() for _, source in kept]:
            if seq > self.seq:
                text = f"it ends with record {self.seq:,}, but {source} knows record {seq:,}: the end was cut off"
                self.find("cut", last, 0, text)
            elif seq < self.first:
                self.warn("head", last, 0, f"{source} is of record {seq:,}, which is before these files")
            else:
                self.find("head", last, 0, f"record {seq:,}, which {source} knows, is missing")
        for source in self.hashes.values():
            self.find("head", last, 0, f"the line of {source} is missing: it was changed or cut off")
        if not self.records:
            self.find("empty", last, 0, "there is no record in it")
        if self.signed and self.checker is None:
            self.warn("signature", last, 0, "signatures were not checked: give the public key with --key")
        return AuditReport(
            tuple(str(path) for path in files), self.records, self.first, self.seq, self.hash, self.signed,
            self.checker is not None, tuple(self.found[True]), tuple(self.found[False]), self.more,
        )  # fmt: skip


def _seconds(earlier: str, later: str) -> float | None:
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return None
