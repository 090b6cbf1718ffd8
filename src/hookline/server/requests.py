"""Requests as values, and values as answers; what cannot be read is an error that says what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._base.frozen import EMPTY
from .._base.text import did_you_mean
from .endpoints import ApiError

T = TypeVar("T")

_AT = re.compile(r"^(.*?)(?: - at `(?:key in )?(\$[^`]*)`)?$", re.DOTALL)
_NOT_YOURS = {
    "metadata": "metadata cannot be set here, because guards judge by it: it comes with your key "
    "(hookline keys add NAME --metadata KEY=VALUE)"
}


def answer(value: Any, status: int = 200, headers: Mapping[str, str] = EMPTY) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, {**headers, "content-type": "application/json"})


async def body_of(request: Request, kind: type[T], *, optional: bool = False) -> T:
    """The body of a request.

    Args:
        request: whose.
        kind: what it must be, for msgspec.
        optional: whether there may be none.

    Raises:
        ApiError: it is not sent as JSON (415), is none (400), or not what it must be (422).
    """
    data = await request.body()
    if optional and not data:
        return kind()
    media, _, options = request.headers.get("content-type", "").lower().partition(";")
    if media.strip() != "application/json":
        raise ApiError(415, "not_json", "send the body as JSON, with the header Content-Type: application/json")
    charset = options.replace('"', "").replace(" ", "").partition("charset=")[2]
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise ApiError(415, "not_utf8", "send the body in UTF-8")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _bad(error, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"no JSON: {error}" if data.strip() else "empty: send a JSON object"
        raise ApiError(400, "bad_json", f"the body is {why}") from None


def query_of(request: Request, kind: type[T]) -> T:
    """What a request says after the question mark.

    Raises:
        ApiError: it is not what it must be (422).
    """
    given = request.query_params.multi_items()
    found = dict(given)
    if len(found) < len(given):
        twice = next(name for name, times in Counter(name for name, _ in given).items() if times > 1)
        raise ApiError(422, "bad_field", f"{twice:.80} is given twice")
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _bad(error, kind) from None


def _bad(error: msgspec.ValidationError, kind: Any) -> ApiError:
    found = _AT.match(str(error))
    what, path = (str(error), None) if found is None else found.groups()
    where = (path or "").removeprefix("$").removeprefix(".")
    unknown = re.match(r"Object contains unknown field `(.*)`", what, re.DOTALL)
    missing = re.match(r"Object missing required field `(.*)`", what)
    if unknown is not None:
        name = unknown[1]
        said = _NOT_YOURS.get(name) if not where else None
        said = said or f"there is no field {_under(where, name):.160}.{did_you_mean(name, _fields(kind))}"
    elif missing is not None:
        said = f"the field {_under(where, missing[1])} is missing"
    else:
        said = f"{where or 'the body'}: {what[:1].lower()}{what[1:]}{_choices(what, kind, where)}"
        said = said.replace("invalid enum value", "invalid value", 1)
    return ApiError(422, "bad_field", said)


def _choices(what: str, kind: Any, field: str) -> str:
    """What a field may be, if it can be listed."""
    given = re.match(r"Invalid (?:enum )?value '(.*)'$", what, re.DOTALL)
    known = [value for each in getattr(kind, "__args__", (kind,)) for value in _values(each, field)]
    return f".{did_you_mean(given[1], known)} It is one of: {', '.join(known)}" if given and known else ""


def _values(kind: Any, field: str) -> list[str]:
    config = getattr(kind, "__struct_config__", None)
    if config is None or field == config.tag_field:
        return [] if config is None else [str(config.tag)]
    about: Any = msgspec.inspect.type_info(kind)
    return [value for each in about.fields if each.encode_name == field for value in _listed(each.type)]


def _listed(kind: Any) -> list[str]:
    if isinstance(kind, msgspec.inspect.UnionType):
        return [value for each in kind.types for value in _listed(each)]
    return [str(value) for value in kind.values if value] if isinstance(kind, msgspec.inspect.LiteralType) else []


def _under(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _fields(kind: Any) -> Iterable[str]:
    kinds = getattr(kind, "__args__", (kind,))
    return {name for each in kinds for name in getattr(each, "__struct_encode_fields__", ())}
