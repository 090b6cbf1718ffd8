"""The format of an audit log: its records as JSON, its chained lines, and its files."""

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
from .records import Fields

VERSION = 1
START = "0" * 64
"""What stands for the hash of a line before the first."""
MAX_LINE = 16 << 20
"""Bytes; a longer line is none that was written by us."""

_SIG = b',"sig":"'
_SIGNATURE = re.compile(rb',"sig":"([A-Za-z0-9+/]{86}==)"\}\Z')
_TAIL = 1 << 16


class Seal(msgspec.Struct):
    """What every record has."""

    v: int
    seq: int
    time: str
    type: str
    prev: str


class Opening(msgspec.Struct):
    """What the log says when a program begins to write."""

    file: int = 1
    key: str = ""
    torn: int = 0


class Loss(msgspec.Struct):
    """What the log says of records that could not be written."""

    count: int = 0
    why: str = ""


class AuditHead(msgspec.Struct, frozen=True):
    """The end of a log at some time: kept elsewhere, it shows that records were cut off."""

    seq: int
    hash: str
    time: str
    key: str = ""
    sig: str = ""

    @property
    def signed(self) -> bytes:
        """The bytes that its signature is over."""
        return msgspec.json.encode(["head", self.seq, self.hash, self.time, self.key])


_seal, _opening = msgspec.json.Decoder(Seal), msgspec.json.Decoder(Opening)
_loss, _head = msgspec.json.Decoder(Loss), msgspec.json.Decoder(AuditHead)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def seal_of(line: bytes) -> Seal | None:
    """The seal of a line, if it is a record."""
    try:
        seal = _seal.decode(line)
    except _UNREADABLE:
        return None
    return seal if seal.seq > 0 else None


def opening_of(line: bytes) -> Opening:
    """What an ``open`` record says."""
    try:
        return _opening.decode(line)
    except _UNREADABLE:
        return Opening()


def loss_of(line: bytes) -> Loss:
    """What a ``lost`` record says."""
    try:
        return _loss.decode(line)
    except _UNREADABLE:
        return Loss()


def head_of(data: bytes) -> AuditHead | None:
    """The head in a checkpoint file, if there is a readable one."""
    try:
        head = _head.decode(data)
    except _UNREADABLE:
        return None
    return head if 0 < head.seq < 1 << 53 and re.fullmatch("[0-9a-f]{64}", head.hash) else None


def line_hash(line: bytes) -> str:
    """The SHA-256 of a line without its end, as the next line has it in ``prev``."""
    return sha256(line).hexdigest()


def with_signature(line: bytes, signature: bytes) -> bytes:
    """A line without its last brace, closed by a signature over it."""
    return b'%b%b%b"}' % (line, _SIG, b64encode(signature))


def signed_part(line: bytes) -> tuple[bytes, bytes | None]:
    """The bytes of a line that are signed, and its signature in Base64; ``None`` if it has none."""
    found = _SIGNATURE.search(line, max(0, len(line) - 128))
    return (line[: found.start()], found[1]) if found else (line, None)


def archive(path: Path, number: int) -> Path:
    """What the file at ``path`` is called when it is full and the ``number``-th one."""
    return path.with_name(f"{path.stem}-{number:06d}{path.suffix}")


def archives(path: Path) -> list[tuple[int, Path]]:
    """The full files of the log at ``path``, with their numbers, oldest first."""
    name = re.compile(rf"{re.escape(path.stem)}-(\d{{6,12}}){re.escape(path.suffix)}")
    try:
        with os.scandir(path.parent) as entries:
            found = [
                (int(match[1]), Path(e.path)) for e in entries if (match := name.fullmatch(e.name)) and e.is_file()
            ]
    except OSError:
        return []
    return sorted(found)


def head_path(path: Path) -> Path:
    """Where the head of the log at ``path`` is kept if nothing else is said."""
    return path.with_name(f"{path.name}.head")


class End(msgspec.Struct):
    """Where a file ends: its last whole record, and how many bytes that are none come after it.

    ``unended``: the last line lacks its end.
    """

    seq: int = 0
    hash: str = START
    torn: int = 0
    unended: bool = False


def end_of(file: int, size: int) -> End:
    """The end of an open file, read from behind.

    A line that was cut is never whole JSON: so a whole record whose line end alone is missing counts.
    """
    step, rest, unended = _TAIL, 0, False
    while size:
        at = max(0, size - step)
        lines = _read(file, size - at, at).split(b"\n")
        unended = bool(lines[-1])
        if not unended:
            lines.pop()
        rest = -1  # bytes after the line that is looked at, but for the end of that line
        for line in reversed(lines if at == 0 else lines[1:]):
            if (seal := seal_of(line)) is not None:
                return End(seal.seq, line_hash(line), max(0, rest), unended)
            rest += len(line) + 1
        if at == 0 or step > MAX_LINE:
            break
        step *= 4
    return End(0, START, max(0, rest), unended)


def _read(file: int, size: int, at: int) -> bytes:
    os.lseek(file, at, os.SEEK_SET)
    data = b""
    while len(data) < size and (piece := os.read(file, size - len(data))):
        data += piece
    return data


def first_line(file: int) -> bytes:
    """The first line of an open file."""
    return _read(file, _TAIL, 0).partition(b"\n")[0]


NAME = 256
"""Characters of a name or an id that are written: a model may call a tool by a name of megabytes."""
MOST = 1000
"""Items of a list that are written."""

_SHORT = 1024
_LONGEST = MAX_LINE // 2
_BREAKS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}  # lines end here too, say some readers

_encoder = msgspec.json.Encoder()
_second: tuple[int, bytes] = (0, b"1970-01-01T00:00:00")


def stamp(at: float) -> bytes:
    """A Unix time as the log has it; one that no calendar knows becomes the nearest that one does."""
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


def json_fields(value: Any) -> bytes:
    """A JSON object as it stands inside another: without braces, on one line whoever reads it."""
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError:
        data = _encoder.encode(scrub(msgspec.to_builtins(value)))
    if not data.isascii():
        for mark, escape in _BREAKS.items():
            data = data.replace(mark.encode(), escape)
    return data[1:-1]


def ids_of(ids: Ids) -> bytes:
    """The ids of a run, as all of its records have them."""
    return json_fields({name: cut(str(getattr(ids, name))) for name in Ids.__struct_fields__})


def kind_of(type: str, ids: bytes = b"") -> bytes:
    """The part of a record that all of that type have in a run: its type, which is a name, and the ids."""
    return f'"type":"{type}",'.encode() + ids if ids else f'"type":"{type}"'.encode()


def record_of(at: float, kind: bytes, fields: Fields | dict[str, Any]) -> bytes:
    """A record without its number and link; ``kind`` is made by :func:`kind_of`."""
    body = json_fields(fields)
    if len(body) > _SHORT:
        body = json_fields(_capped(fields))
        if len(body) > _LONGEST:
            body = b'"too_long":%d' % len(body)
    return b'"time":"%b",%b,%b' % (stamp(at), kind, body) if body else b'"time":"%b",%b' % (stamp(at), kind)


def cut(text: str, size: int = NAME) -> str:
    """A text of at most so many characters, and how many there were more."""
    return text if len(text) <= size else f"{text[:size]}…(+{len(text) - size})"


def _capped(fields: Fields | dict[str, Any]) -> dict[str, Any]:
    """Fields whose names and ids are not too long."""
    texts = fields.texts if isinstance(fields, Fields) else ()
    given = fields if isinstance(fields, dict) else msgspec.structs.asdict(fields)
    return {
        name: value if name in texts else _cap(value) for name, value in given.items() if value is not msgspec.UNSET
    }


def _cap(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value)
    return [_cap(item) for item in value[:MOST]] if isinstance(value, list) else value
