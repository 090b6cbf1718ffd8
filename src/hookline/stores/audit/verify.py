"""Verify that an audit log is unchanged since it was written. Nothing is written here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import msgspec

from ..._base.frozen import Frozen
from ..._base.text import counted
from ..errors import StoreError
from .format import (
    MAX_LINE,
    START,
    VERSION,
    AuditHead,
    Envelope,
    archive_paths,
    checkpoint_path,
    find_end,
    is_archive,
    is_json,
    line_hash,
    parse_envelope,
    parse_head,
    parse_lost,
    parse_open,
    parse_prune,
    split_signature,
)
from .keys import Verifier, load_verifier
from .records import OpenRecord

if TYPE_CHECKING:
    from .index import AuditIndex, IndexedLog

MAX_FINDINGS = 1000
"""Maximum number of findings in a report; further ones are only counted."""
MAX_AFTER = 100_000
"""Maximum number of records after the head that are remembered."""
CHECKPOINT_SECONDS = 2.5
"""Seconds to wait for the checkpoint of a log that is being written: its program updates it each second."""
CLOCK_TOLERANCE = 5.0
"""Seconds by which times may decrease without a warning, because threads and processes write in turn."""


class AuditFinding(Frozen, frozen=True):
    """A problem in the lines ``line`` to ``last`` of a file."""

    kind: str
    file: str
    line: int
    last: int
    text: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.file).name

    @property
    def where(self) -> str:
        """The name of the file and its lines, such as ``audit.jsonl:3-5``."""
        lines = f"{self.line}" if self.line == self.last else f"{self.line}-{self.last}"
        return f"{self.name}:{lines}" if self.line else self.name


class AuditReport(Frozen, frozen=True):
    """The result of :func:`verify_audit`. Findings mean that the log was changed; warnings do not.

    ``end_proven`` is false if lines may have been removed or added at the end without a trace: there is no checkpoint
    and no given head, or there was none when a program continued the log, or lines without a checked signature follow
    after the last head.
    """

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
    end_proven: bool = True

    @property
    def unchanged(self) -> bool:
        """Whether there are no findings: the lines that are there are those that were written."""
        return not self.findings

    @property
    def ok(self) -> bool:
        """Whether the log is unchanged, and its end is proven."""
        return self.unchanged and self.end_proven

    @property
    def summary(self) -> str:
        """The result in words, such as ``1,204 records in 2 files, unchanged``."""
        extent = f"{counted(self.records, 'record')} in {counted(len(self.files), 'file')}"
        if not self.unchanged:
            return f"{extent}, {counted(len(self.findings) + self.more, 'finding')}"
        doubt = "" if self.end_proven else ", but nothing proves its end"
        return f"{extent}, unchanged{doubt}"

    @property
    def signatures(self) -> str:
        """Whether the records are signed, and whether that was checked, in words."""
        return "not signed" if not self.signed else f"signed, {'checked' if self.checked else 'not checked'}"


def log_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files of a log, oldest first: the given files, or for a single path also its archives.

    Raises:
        StoreError: no file exists at a path.
    """
    given = [Path(path).expanduser() for path in paths]
    if len(given) == 1:
        older = [path for _, path in archive_paths(given[0])]
        given = [*older, *(given if given[0].exists() or not older else [])]
    for path in given:
        if not path.is_file():
            raise StoreError(f"there is no audit log at {str(path)!r}: give the path of its file")
    return given


def verify_audit(
    *paths: str | os.PathLike[str],
    key: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    head: str | None = None,
    index: AuditIndex | None = None,
    partial: bool = False,
    progress: Callable[[int], object] | None = None,
) -> AuditReport:
    """Read an audit log from its first to its last line and report every sign of a change.

    The chain reveals lines that were edited, removed, added, duplicated or moved. A change of the last line, and lines
    that were removed or added at the end, are revealed only by a checkpoint, a head that was kept, or an index: without
    one, ``end_proven`` is false, and the report is not ``ok``. A log that was rewritten completely is revealed by its
    signatures or the index, one that was deleted by the index. The checkpoint of a log that is being written is behind
    it by up to a second, so the function may wait that long.

    Args:
        paths: the log, whose archives are found beside it, or several files, oldest first.
        key: public key (PEM) that every line must be signed with.
        checkpoint: file with the head; by default the one beside the log.
        head: hash, or ``NUMBER:HASH``, of a line that must exist.
        index: the index of the log. The last record that it has of the log at this path of this machine must exist,
            and that of every log whose records are in the file.
        partial: allow that older files are missing.
        progress: called from time to time with the number of bytes read so far.

    Raises:
        StoreError: a file, the key or the head cannot be read.
        NotInstalledError: ``key`` needs the package ``cryptography``.

    Example::

        report = verify_audit("audit.jsonl")
        if report.unchanged and not report.end_proven:
            print("nothing proves where the log ends")
        for finding in report.findings:
            print(finding.file, finding.line, finding.text)
    """
    if not paths:
        raise StoreError("no audit log given: give the path of its file")
    log = Path(paths[-1]).expanduser()
    indexed = [] if index is None else index.logs(host=gethostname(), file=str(log.absolute()))
    try:
        files = log_files(paths)
    except StoreError:
        if len(paths) > 1 or not indexed:
            raise
        return _missing_report(log, indexed)
    if is_archive(log):
        indexed = []  # the log goes on after this file
    elif index is not None:
        indexed += [each for each in index.logs_with(*_end_of(files[-1])) if each not in indexed]
    verification = _Verification(None if key is None else load_verifier(key), partial, progress)
    verification.read_checkpoint(checkpoint, Path(paths[-1]), files[-1])
    verification.expect_indexed(indexed)
    if head is not None:
        verification.expect_head(head)
    for path in files:
        verification.read_file(path, last=path is files[-1])
    if verification.follows_head:
        verification.read_on(files[-1], checkpoint_path(log) if checkpoint is None else Path(checkpoint))
    return verification.report(files, log)


def _end_of(path: Path) -> tuple[int, str]:
    """Return number and hash of the last record in a file."""
    try:
        with open(path, "rb") as file:
            end = find_end(file.fileno(), os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror or error})") from None
    return end.seq, end.hash


def _missing_report(log: Path, indexed: Sequence[IndexedLog]) -> AuditReport:
    """Report that a log has no files, although the index has records of it."""
    texts = [f"the log is missing, but the index has records up to {each.seq:,} ({each.time})" for each in indexed]
    return AuditReport(
        files=(str(log),), findings=tuple(AuditFinding("deleted", str(log), 0, 0, text) for text in texts)
    )


class _Verification:
    """One pass over the lines of a log."""

    def __init__(self, verifier: Verifier | None, partial: bool, progress: Callable[[int], object] | None) -> None:
        self.verifier = verifier
        self.partial = partial
        self.progress = progress
        self.findings: list[AuditFinding] = []
        self.warnings: list[AuditFinding] = []
        self.more = self.records = self.signed = self.first = self.bytes_read = 0
        self.seq, self.hash = 0, START
        self.hash_known = True  # whether ``hash`` is that of the record before the current line
        self.unreadable: list[tuple[str, int, int]] = []  # file, number and length of lines before the current one
        self.is_torn = True  # whether these lines may be what an interrupted process has written
        self.must_sign = verifier is not None
        self.latest = ""
        self.heads: dict[int, list[tuple[str, str]]] = {}  # by number: expected hash, and its source
        self.hashes: dict[str, str] = {}  # by hash: source
        self.proven = 0  # number of the last record that a head or a checked signature proves
        self.after_proven: tuple[str, int] | None = None  # file and line of the first record after it
        self.hashes_after: dict[int, str] = {}  # by number: those of the records after it
        self.end = (0, 0)  # size and number of lines of the last file, as far as it was read
        self.end_proven = True
        self.no_checkpoint = ""  # why nothing proves the end, if there is neither a checkpoint nor a head
        self.missing_start: tuple[AuditFinding, int, str] | None = None  # with number and hash of the last record
        self.last_type = ""

    # Expectations.

    def read_checkpoint(self, given: str | os.PathLike[str] | None, log: Path, last: Path) -> None:
        """Expect the head that is in the checkpoint."""
        path = checkpoint_path(log) if given is None else Path(given)
        try:
            head = parse_head(path.read_bytes())
        except OSError as error:
            if given is not None:
                raise StoreError(f"the checkpoint {str(path)!r} cannot be read ({error.strerror})") from None
            self.no_checkpoint = f"there is no checkpoint ({path.name}) and no --head: lines may be missing at the end"
            return
        if head is None:
            self.find("checkpoint", str(path), 0, "the checkpoint is not readable")
            return
        self.heads[head.seq] = [(head.hash, str(path))]
        self._check_checkpoint_signature(head, path)

    def _check_checkpoint_signature(self, head: AuditHead, path: Path) -> None:
        if self.verifier is None:
            return
        if not self.verifier.is_valid(head.sig.encode("utf-8", "replace"), head.signed):
            self.find("signature", str(path), 0, "the checkpoint is not signed with this key")

    def expect_head(self, head: str) -> None:
        """Expect a line with this hash, or ``NUMBER:HASH``."""
        number, _, value = head.strip().lower().rpartition(":")
        if not re.fullmatch("[0-9a-f]{64}", value) or (number and not (number.isdecimal() and number.isascii())):
            raise StoreError(f"a head must be a hash of 64 hex digits, or NUMBER:HASH, not {head!r:.100}")
        self.no_checkpoint = ""
        if number:
            self.heads.setdefault(int(number[:18]), []).append((value, "the given head"))
        else:
            self.hashes[value] = "the given head"

    def expect_indexed(self, logs: Sequence[IndexedLog]) -> None:
        """Expect the last record that the index has of these logs."""
        for log in logs:
            self.no_checkpoint = ""
            source = f"the index of {log.host}" if log.host != gethostname() else "the index"
            self.heads.setdefault(log.seq, []).append((log.hash, source))

    # Findings.

    def find(self, kind: str, file: str, line: int, text: str, *, serious: bool = True) -> None:
        """Add a finding, or extend the last one if it is the same for the line before."""
        found = self.findings if serious else self.warnings
        last = found[-1] if found else None
        if last and (last.kind, last.file, last.text, last.last + 1) == (kind, file, text, line):
            found[-1] = msgspec.structs.replace(last, last=line)
        elif len(found) < MAX_FINDINGS:
            found.append(AuditFinding(kind, file, line, line, text))
        else:
            self.more += serious

    def warn(self, kind: str, file: str, line: int, text: str) -> None:
        """Add a warning."""
        self.find(kind, file, line, text, serious=False)

    # Lines.

    def read_file(self, path: Path, *, last: bool) -> None:
        """Check one file. Only the last file may end with an incomplete line: an archive ends with a record."""
        name, ended = str(path), True
        self.last_type = ""
        for number, line, complete in self._lines(path):
            ended = complete
            envelope = parse_envelope(line) if len(line) <= MAX_LINE else None
            if envelope is None:
                self.unreadable.append((name, number, len(line)))
                self.is_torn = self.is_torn and not is_json(line)
            else:
                self._check_line(name, number, line, envelope)
        if last and self.unreadable and self.is_torn and not ended:
            first = self.unreadable[0][1]
            text = f"the last line is incomplete ({self._unreadable_size():,} bytes): writing was interrupted"
            self.warn("torn", name, first, text)
            self._forget_unreadable()
        self._report_unreadable()

    @property
    def follows_head(self) -> bool:
        """Whether records follow after the last one that is proven, in a log that has a head."""
        return not self.no_checkpoint and self.seq > self.proven > 0

    def read_on(self, path: Path, checkpoint: Path) -> None:
        """Wait a moment for the checkpoint of a log that is being written, and read up to the record in it."""
        name, until = str(path), time.monotonic() + CHECKPOINT_SECONDS
        while self.follows_head and time.monotonic() < until:
            time.sleep(0.05)
            try:
                head = parse_head(checkpoint.read_bytes())
            except OSError:
                return
            if head is None or head.seq <= self.proven:
                continue
            if (known := self.hashes_after.get(head.seq)) is not None:
                if known != head.hash:
                    self.find("head", name, 0, f"record {head.seq:,} differs from {checkpoint}")
                self.proven = head.seq
            elif head.seq > self.seq:
                self.heads[head.seq] = [(head.hash, str(checkpoint))]
                self._read_until(head.seq, path, name)

    def _read_until(self, seq: int, path: Path, name: str) -> None:
        for number, line, complete in self._lines(path, *self.end):
            envelope = parse_envelope(line) if complete else None
            if envelope is None:
                return
            self._check_line(name, number, line, envelope)
            if envelope.seq >= seq:
                return

    def _lines(self, path: Path, start: int = 0, number: int = 0) -> Iterator[tuple[int, bytes, bool]]:
        """Yield number, content and completeness of each line after a position. Too long lines are truncated."""
        try:
            with open(path, "rb") as file:
                file.seek(start)
                while line := file.readline(MAX_LINE + 1):
                    number += 1
                    self.bytes_read += len(line)
                    rest = line
                    while len(rest) > MAX_LINE and not rest.endswith(b"\n"):
                        rest = file.readline(MAX_LINE + 1)
                        self.bytes_read += len(rest)
                    if self.progress is not None and not number % 4096:
                        self.progress(self.bytes_read)
                    complete = rest.endswith(b"\n")
                    if complete:
                        self.end = file.tell(), number
                    yield number, line[:-1] if line.endswith(b"\n") else line, complete
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror or error})") from None
        if self.progress is not None:
            self.progress(self.bytes_read)

    def _unreadable_size(self) -> int:
        return sum(size + 1 for _, _, size in self.unreadable) - 1

    def _report_unreadable(self) -> None:
        for name, number, _ in self.unreadable:
            self.find("no record", name, number, "the line is not a record: it was changed or inserted")
            self.hash_known = False
        self._forget_unreadable()

    def _forget_unreadable(self) -> None:
        self.unreadable.clear()
        self.is_torn = True

    def _check_line(self, name: str, number: int, line: bytes, envelope: Envelope) -> None:
        opening = parse_open(line) if envelope.type == "open" else None
        if self.unreadable:
            size = self._unreadable_size()
            if opening is not None and opening.torn == size > 0 and self.is_torn:
                first = self.unreadable[0][1]
                self.warn("torn", name, first, f"an incomplete line of {size:,} bytes: a process was interrupted here")
                self._forget_unreadable()
            else:
                self._report_unreadable()
        digest = line_hash(line)
        self._check_chain(name, number, envelope, digest)
        if opening is not None and opening.unproven:
            self.end_proven = False
            text = "the checkpoint was missing when a program continued here: lines above may have been removed"
            self.warn("unproven", name, number, text)
        self._check_signature(name, number, line, opening)
        self._check_heads(name, number, envelope, digest)
        self._check_content(name, number, line, envelope)
        self.records += 1
        self.seq, self.hash, self.hash_known = envelope.seq, digest, True

    def _check_chain(self, name: str, number: int, envelope: Envelope, digest: str) -> None:
        """Compare number and link of a line with the line before."""
        due = self.seq + 1
        if not self.records and self.seq == 0:
            self.first = envelope.seq
            if envelope.seq > 1:
                text = f"the log starts with record {envelope.seq:,}: earlier records are missing"
                first = AuditFinding("missing", name, number, number, text)
                self.missing_start = first, envelope.seq - 1, envelope.prev
            elif envelope.prev != START:
                self.find("changed", name, number, "the first record has a link to a line before it")
            return
        if envelope.seq == due:
            if self.hash_known and envelope.prev != self.hash:
                text = "the hash of the line before does not match: one of the two lines was changed"
                self.find("changed", name, number, text)
        elif envelope.seq > due:
            if self.hash_known or envelope.seq > due + 1:
                one = envelope.seq == due + 1
                missing = f"record {due:,} is" if one else f"records {due:,} to {envelope.seq - 1:,} are"
                self.find("missing", name, number, f"{missing} missing before this line")
        elif digest == self.hash:
            self.find("doubled", name, number, f"record {envelope.seq:,} is duplicated")
        else:
            text = f"record {envelope.seq:,} follows record {self.seq:,}: it was moved, inserted or duplicated"
            self.find("order", name, number, text)

    def _check_signature(self, name: str, number: int, line: bytes, opening: OpenRecord | None) -> None:
        if opening is not None and opening.key:
            self.must_sign = True
            if self.verifier is not None and opening.key != self.verifier.key:
                text = f"the log was signed with the key {opening.key:.40}, but the given key is {self.verifier.key}"
                self.find("key", name, number, text)
        data, signature = split_signature(line)
        self.signed += signature is not None
        if signature is None:
            if self.must_sign:
                self.find("unsigned", name, number, "the signature is missing")
        elif self.verifier is not None and not self.verifier.is_valid(signature, data):
            self.find(
                "signature", name, number, "the signature is wrong: the line was changed, or signed by another key"
            )

    def _check_heads(self, name: str, number: int, envelope: Envelope, digest: str) -> None:
        expected = self.heads.pop(envelope.seq, ())
        for value, source in expected:
            if value != digest:
                self.find("head", name, number, f"record {envelope.seq:,} differs from {source}")
        if expected or self.hashes.pop(digest, None) is not None or self.verifier is not None:
            self.proven, self.after_proven = envelope.seq, None
            self.hashes_after.clear()
            return
        self.after_proven = self.after_proven or (name, number)
        if len(self.hashes_after) < MAX_AFTER:
            self.hashes_after[envelope.seq] = digest

    def _check_content(self, name: str, number: int, line: bytes, envelope: Envelope) -> None:
        if envelope.v != VERSION:
            self.find("version", name, number, f"the line has format {envelope.v}: verify it with a newer Hookline")
        self.last_type = envelope.type
        if envelope.type == "prune" and self.missing_start is not None:
            pruned = parse_prune(line)
            if (pruned.last, pruned.hash) == self.missing_start[1:]:
                self.warn("pruned", name, number, f"records up to {pruned.last:,} were deleted with their old files")
                self.missing_start = None
        if envelope.type == "lost":
            lost = parse_lost(line)
            self.warn("lost", name, number, f"{lost.count:,} records could not be written here: {lost.why:.200}")
        if envelope.time < self.latest:
            back = _seconds(envelope.time, self.latest)
            if back is None or back > CLOCK_TOLERANCE:
                self.warn("time", name, number, "the time is earlier than that of a line above")
                self.latest = envelope.time
        else:
            self.latest = envelope.time

    def report(self, files: Sequence[Path], wanted: Path) -> AuditReport:
        """Check the remaining expectations and return the report. ``wanted`` is the last file that was asked for."""
        last = str(files[-1])
        if self.missing_start is not None:
            found = self.warnings if self.partial else self.findings
            found.insert(0, self.missing_start[0])
            if len(found) > MAX_FINDINGS:
                found.pop()
                self.more += not self.partial
        # The last record of a full file proves the end of that file, not that there was no other one after it.
        if self.no_checkpoint and not (self.last_type == "rotate" and wanted == files[-1] and is_archive(wanted)):
            self.end_proven = False
            self.warn("unproven", last, 0, self.no_checkpoint)
        if self.end_proven and self.follows_head and self.after_proven is not None:
            self.end_proven = False
            count = counted(self.seq - self.proven, "record")
            text = f"nothing proves that the program wrote this and what follows: {count} after the last known head"
            self.warn("unproven", *self.after_proven, text)
        for seq, source in [(seq, source) for seq, expected in self.heads.items() for _, source in expected]:
            if seq > self.seq:
                text = f"the log ends with record {self.seq:,}, but {source} has record {seq:,}: the end was cut off"
                self.find("cut", last, 0, text)
            elif seq < self.first:
                self.warn("head", last, 0, f"{source} has record {seq:,}, which is before these files")
            else:
                self.find("head", last, 0, f"record {seq:,} of {source} is missing")
        for source in self.hashes.values():
            self.find("head", last, 0, f"the line of {source} is missing: it was changed or cut off")
        if not self.records:
            self.find("empty", last, 0, "there is no record in it")
        if self.signed and self.verifier is None:
            self.warn("signature", last, 0, "signatures were not verified: give the public key with --key")
        return AuditReport(
            files=tuple(str(path) for path in files),
            records=self.records,
            first=self.first,
            last=self.seq,
            head=self.hash,
            signed=self.signed,
            checked=self.verifier is not None,
            findings=tuple(self.findings),
            warnings=tuple(self.warnings),
            more=self.more,
            end_proven=self.end_proven,
        )


def _seconds(earlier: str, later: str) -> float | None:
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return None
