"""The format of an audit log: records as JSON, lines chained by hashes, and the names of its files."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from math import floor
from pathlib import Path
from typing import Any

import msgspec

from ..._base.frozen import scrub
from ..._kernel.values import Ids
from .records import AuditRecord, LostRecord, OpenRecord, PruneRecord

VERSION = 1
START = "0" * 64
"""Value of ``prev`` in the first line, which has no line before it."""
MAX_LINE = 16 << 20
"""Maximum length of a line in bytes. Hookline never writes a longer line."""
MAX_NAME = 256
"""Maximum length of a name or an id. A model may call a tool by a name of several megabytes."""
MAX_ITEMS = 1000
"""Maximum number of list items in a record."""

_SIG = b',"sig":"'
_SIGNATURE = re.compile(rb',"sig":"([A-Za-z0-9+/]{86}==)"\}\Z')
_TAIL = 1 << 16
_SHORT = 1024
_LONGEST = MAX_LINE // 2
_BREAKS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}  # some readers split lines here too

_encoder = msgspec.json.Encoder()
_second: tuple[int, bytes] = (0, b"1970-01-01T00:00:00")


# Encoding records.


def timestamp(at: float) -> bytes:
    """Format a Unix time as ISO 8601. A time outside the calendar becomes the nearest one inside it."""
    global _second
    try:
        second = floor(at)
        known, text = _second
        if second != known:
            text = datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[:19].encode()
            _second = second, text
        return b"%b.%03dZ" % (text, (at - second) * 1000)
    except (ValueError, OverflowError, OSError, TypeError):
        return b"9999-12-31T23:59:59.999Z" if at > 0 else b"0001-01-01T00:00:00.000Z"


def encode_fields(value: Any) -> bytes:
    """Encode an object as JSON without the outer braces, and without any character that ends a line."""
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError:
        data = _encoder.encode(scrub(msgspec.to_builtins(value)))
    if not data.isascii():
        for mark, escape in _BREAKS.items():
            data = data.replace(mark.encode(), escape)
    return data[1:-1]


def encode_ids(ids: Ids) -> bytes:
    """Encode the ids of a run, which all of its records contain."""
    return encode_fields({name: truncate(str(getattr(ids, name))) for name in Ids.__struct_fields__})


def encode_type(type: str, ids: bytes = b"") -> bytes:
    """Encode the fields that all records of a type have in common in one run: the type and the ids."""
    return f'"type":"{type}",'.encode() + ids if ids else f'"type":"{type}"'.encode()


def encode_record(at: float, kind: bytes, fields: AuditRecord | dict[str, Any]) -> bytes:
    """Encode a record without its number and its link to the line before.

    Args:
        at: Unix time.
        kind: result of :func:`encode_type`.
        fields: the other fields.
    """
    body = encode_fields(fields)
    if len(body) > _SHORT:
        body = encode_fields(_truncate_fields(fields))
        if len(body) > _LONGEST:
            body = b'"too_long":%d' % len(body)
    return b'"time":"%b",%b,%b' % (timestamp(at), kind, body) if body else b'"time":"%b",%b' % (timestamp(at), kind)


def truncate(text: str, size: int = MAX_NAME) -> str:
    """Shorten a text to ``size`` characters, followed by the number of omitted characters."""
    return text if len(text) <= size else f"{text[:size]}…(+{len(text) - size})"


def _truncate_fields(fields: AuditRecord | dict[str, Any]) -> dict[str, Any]:
    """Shorten all fields except texts, which have a separate limit."""
    texts = fields.texts if isinstance(fields, AuditRecord) else ()
    given = fields if isinstance(fields, dict) else msgspec.structs.asdict(fields)
    return {
        name: value if name in texts else _truncate_value(value)
        for name, value in given.items()
        if value is not msgspec.UNSET
    }


def _truncate_value(value: Any) -> Any:
    if isinstance(value, str):
        return truncate(value)
    return [_truncate_value(item) for item in value[:MAX_ITEMS]] if isinstance(value, list) else value


# Lines.


class Envelope(msgspec.Struct):
    """Fields that every line has."""

    v: int
    seq: int
    time: str
    type: str
    prev: str


class AuditHead(msgspec.Struct, frozen=True):
    """Number and hash of the last record at some time. A copy kept elsewhere reveals that records were cut off."""

    seq: int
    hash: str
    time: str
    key: str = ""
    sig: str = ""

    @property
    def signed(self) -> bytes:
        """The bytes that ``sig`` signs."""
        return msgspec.json.encode(["head", self.seq, self.hash, self.time, self.key])


_envelope_decoder = msgspec.json.Decoder(Envelope)
_open_decoder = msgspec.json.Decoder(OpenRecord)
_lost_decoder = msgspec.json.Decoder(LostRecord)
_prune_decoder = msgspec.json.Decoder(PruneRecord)
_head_decoder = msgspec.json.Decoder(AuditHead)
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a line that is not JSON, or not of the right form, raises."""


def parse_envelope(line: bytes) -> Envelope | None:
    """Parse the common fields of a line; ``None`` if the line is not a record."""
    try:
        envelope = _envelope_decoder.decode(line)
    except UNREADABLE:
        return None
    return envelope if envelope.seq > 0 else None


def is_json(line: bytes) -> bool:
    """Whether a line is complete. One that a process could not write to its end is not JSON."""
    try:
        msgspec.json.decode(line)
    except UNREADABLE:
        return False
    return True


def parse_open(line: bytes) -> OpenRecord:
    """Parse an ``open`` record; the default values if it is not readable."""
    try:
        return _open_decoder.decode(line)
    except UNREADABLE:
        return OpenRecord()


def parse_lost(line: bytes) -> LostRecord:
    """Parse a ``lost`` record; the default values if it is not readable."""
    try:
        return _lost_decoder.decode(line)
    except UNREADABLE:
        return LostRecord()


def parse_prune(line: bytes) -> PruneRecord:
    """Parse a ``prune`` record; the default values if it is not readable."""
    try:
        return _prune_decoder.decode(line)
    except UNREADABLE:
        return PruneRecord()


def parse_head(data: bytes) -> AuditHead | None:
    """Parse a checkpoint file; ``None`` if it is not readable."""
    try:
        head = _head_decoder.decode(data)
    except UNREADABLE:
        return None
    return head if 0 < head.seq < 1 << 53 and re.fullmatch("[0-9a-f]{64}", head.hash) else None


def line_hash(line: bytes) -> str:
    """Return SHA-256 of a line without its line end. The next line contains it as ``prev``."""
    return sha256(line).hexdigest()


def append_signature(line: bytes, signature: bytes) -> bytes:
    """Complete a line that lacks its closing brace with a signature of the line so far."""
    return b'%b%b%b"}' % (line, _SIG, b64encode(signature))


def split_signature(line: bytes) -> tuple[bytes, bytes | None]:
    """Split a line into its signed bytes and the signature in Base64, or ``None`` if the line is not signed."""
    found = _SIGNATURE.search(line, max(0, len(line) - 128))
    return (line[: found.start()], found[1]) if found else (line, None)


# Files.


def archive_path(path: Path, number: int) -> Path:
    """Return path of the ``number``-th full file of the log at ``path``."""
    return path.with_name(f"{path.stem}-{number:06d}{path.suffix}")


def archive_paths(path: Path) -> list[tuple[int, Path]]:
    """Return numbers and paths of the full files of the log at ``path``, oldest first."""
    name = re.compile(rf"{re.escape(path.stem)}-(\d{{6,12}}){re.escape(path.suffix)}")
    try:
        with os.scandir(path.parent) as entries:
            found = [
                (int(match[1]), Path(e.path)) for e in entries if (match := name.fullmatch(e.name)) and e.is_file()
            ]
    except OSError:
        return []
    return sorted(found)


def is_archive(path: Path) -> bool:
    """Return whether a path has the name of a full file of a log."""
    return re.search(r"-\d{6,12}\Z", path.stem) is not None


def checkpoint_path(path: Path) -> Path:
    """Return default path of the checkpoint of the log at ``path``."""
    return path.with_name(f"{path.name}.head")


class FileEnd(msgspec.Struct):
    """Number and hash of the last complete record of a file, and the size of an incomplete line after it.

    ``unended`` is true if the last line lacks its line end.
    """

    seq: int = 0
    hash: str = START
    torn: int = 0
    unended: bool = False


def find_end(file: int, size: int) -> FileEnd:
    """Find the last complete record of an open file by reading backwards.

    A record that lacks only its line end is complete, because a truncated line is never valid JSON.
    """
    step, rest, unended = _TAIL, 0, False
    while size:
        at = max(0, size - step)
        lines = _read(file, size - at, at).split(b"\n")
        unended = bool(lines[-1])
        if not unended:
            lines.pop()
        rest = -1  # bytes after the current line, without the end of that line
        for line in reversed(lines if at == 0 else lines[1:]):
            if (envelope := parse_envelope(line)) is not None:
                return FileEnd(envelope.seq, line_hash(line), max(0, rest), unended)
            rest += len(line) + 1
        if at == 0 or step > MAX_LINE:
            break
        step *= 4
    return FileEnd(0, START, max(0, rest), unended)


def read_first_line(file: int) -> bytes:
    """Read the first line of an open file."""
    return _read(file, _TAIL, 0).partition(b"\n")[0]


def _read(file: int, size: int, at: int) -> bytes:
    os.lseek(file, at, os.SEEK_SET)
    data = b""
    while len(data) < size and (piece := os.read(file, size - len(data))):
        data += piece
    return data
