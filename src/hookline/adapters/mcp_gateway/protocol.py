"""JSON-RPC messages of MCP, read so strictly that no other parser can read something else in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..._base.errors import HooklineError
from ..._base.text import error_text

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, REFUSED = -32700, -32600, -32601, -32602, -32000
VERSION = "io.modelcontextprotocol/protocolVersion"
"""The key in ``_meta`` of each request of a client that uses the stateless protocol."""
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"

_ENVELOPE = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_PARAMS = frozenset({"name", "arguments", "uri", "_meta", "inputResponses", "requestState", "task"})

Message = dict[str, Any]


class MessageError(HooklineError):
    """A message that does not pass."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def decode(line: bytes) -> Message:
    """Read one message.

    Keys must be unique, also without regard to case (parsers differ in which of two they take, and some ignore case),
    numbers finite and texts valid Unicode, so that a server reads what was judged.

    Raises:
        MessageError: it is not JSON, or another parser might read it differently.
    """
    try:
        text = line.decode()
        message = json.loads(text, object_pairs_hook=_object, parse_constant=_not_finite)
        if "\\u" in text:
            encode(message)  # a lone surrogate is no text
    except MessageError:
        raise
    except (ValueError, RecursionError) as error:
        raise MessageError(PARSE_ERROR, f"this is not JSON: {error_text(error):.200}") from None
    if not isinstance(message, dict):
        batch = isinstance(message, list)
        raise MessageError(INVALID_REQUEST, "batches are not supported" if batch else "this is not a JSON-RPC message")
    check_keys(message, _ENVELOPE)
    if "id" in message and not is_id(message["id"]) and not (message["id"] is None and "error" in message):
        raise MessageError(INVALID_REQUEST, "the id must be a text or an integer")
    return message


def encode(message: Mapping[str, Any]) -> bytes:
    """Write one message, without a line break."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def check_keys(found: Mapping[str, Any], known: frozenset[str] = _PARAMS) -> None:
    """Check that no key differs from a known one only by case.

    Raises:
        MessageError: there is one.
    """
    for key in found:
        if key not in known and key.casefold() in _FOLDED[known]:
            raise MessageError(INVALID_REQUEST, f"the key {key!r:.80} is ambiguous")


_FOLDED = {known: frozenset(key.casefold() for key in known) for known in (_ENVELOPE, _PARAMS)}


def is_id(value: object) -> bool:
    """Whether a value may be the id of a request."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def id_key(ident: object) -> tuple[type, object]:
    """Return an id as a key: 1 and "1" are different ids."""
    return type(ident), ident


def error_of(ident: object, code: int, message: str) -> Message:
    """Return the error response to a request."""
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": message}}


def result_of(ident: object, result: Mapping[str, Any], *, modern: bool = False) -> Message:
    """Return the response to a request. ``modern`` is the stateless protocol, whose results say their type."""
    return {"jsonrpc": "2.0", "id": ident, "result": {"resultType": "complete", **result} if modern else dict(result)}


def meta_of(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ``_meta`` of a request."""
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageError(INVALID_REQUEST, "a key occurs twice in one object")
    return found


def _not_finite(name: str) -> Any:
    raise MessageError(PARSE_ERROR, f"{name} is not JSON")
