"""How the records of an audit log are written down."""

from __future__ import annotations

from datetime import UTC, datetime
from math import floor
from typing import Any

import msgspec

from ..._base.frozen import scrub
from ..._kernel.values import Ids
from .lines import MAX_LINE
from .records import Fields

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
