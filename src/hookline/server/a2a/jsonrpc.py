"""Check JSON-RPC requests before the A2A SDK parses them, and keep their content out of the log."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import msgspec

MAX_ID = 256
"""Maximum length of the id of a request, in characters."""
MAX_DEPTH = 60
"""Maximum depth of nesting in a request."""
MAX_VALUES = 5_000
"""Maximum number of values in a request: the SDK converts them slowly, and blocks the event loop while it does."""
MAX_INTEGER = 2**53
LARGE_BODY = 50_000
"""Size of a request in bytes from which its number of values is checked first."""

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602


class InvalidJsonRpcError(Exception):
    """The body is not a valid JSON-RPC request. ``response`` is the JSON-RPC error response."""

    def __init__(self, code: int, message: str, id: str | int | None = None) -> None:
        super().__init__(message)
        self.response = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


def check_request(body: bytes) -> dict[str, Any]:
    """Check the envelope of a request, and return the request.

    Raises:
        InvalidJsonRpcError: the body is not a single JSON-RPC 2.0 request.
    """
    if len(body) > LARGE_BODY:
        _check_size(body)
    try:
        request = json.loads(body, parse_constant=_reject_constant, parse_float=_parse_float)
        json.dumps(request, ensure_ascii=False).encode()  # a lone surrogate could not be sent back
    except RecursionError:
        raise InvalidJsonRpcError(INVALID_REQUEST, "the request is nested too deep") from None
    except ValueError as error:
        raise InvalidJsonRpcError(PARSE_ERROR, f"the body is not valid JSON: {error!s:.200}") from None
    if isinstance(request, list):
        raise InvalidJsonRpcError(INVALID_REQUEST, "batches are not supported: send one request at a time")
    if not isinstance(request, dict):
        raise InvalidJsonRpcError(INVALID_REQUEST, "a request must be a JSON object")
    id = request.get("id")
    if isinstance(id, bool) or not (id is None or isinstance(id, (str, int))):
        raise InvalidJsonRpcError(INVALID_REQUEST, "id must be a string or an integer")
    if len(id) > MAX_ID if isinstance(id, str) else abs(id or 0) > MAX_INTEGER:
        raise InvalidJsonRpcError(
            INVALID_REQUEST, f"id is too long: at most {MAX_ID} characters, or a number up to {MAX_INTEGER}"
        )
    if request.get("jsonrpc") != "2.0":
        raise InvalidJsonRpcError(INVALID_REQUEST, 'jsonrpc must be "2.0"', id)
    method = request.get("method")
    if not isinstance(method, str) or not method:
        raise InvalidJsonRpcError(INVALID_REQUEST, "method is missing: it must be a string such as SendMessage", id)
    params = request.get("params", {})
    if not isinstance(params, dict):
        raise InvalidJsonRpcError(INVALID_PARAMS, "params must be a JSON object", id)
    for each in (params, params.get("configuration")):
        wanted = each.get("historyLength") if isinstance(each, dict) else None
        if isinstance(wanted, int) and abs(wanted) >= 2**31:  # the SDK does not check this for version 0.3
            raise InvalidJsonRpcError(INVALID_PARAMS, "historyLength is too large", id)
    if problem := _size_problem(request):
        raise InvalidJsonRpcError(INVALID_REQUEST, problem, id)
    return request


class _CallerErrorFilter(logging.Filter):
    """Drop records about requests, which may contain secrets, and about mistakes of callers, who get a response."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        return not record.msg.startswith(("Failed to ", "Request ", "Version mismatch"))


_FILTER = _CallerErrorFilter()


def silence_sdk_logs() -> None:
    """Let the SDK log its own problems only."""
    for name in ("server.routes.jsonrpc_dispatcher", "compat.v0_3.jsonrpc_adapter", "utils.version_validator"):
        logging.getLogger(f"a2a.{name}").addFilter(_FILTER)


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _check_size(body: bytes) -> None:
    """Check the size of a large request with a faster parser: the other one would block the event loop."""
    try:
        request = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidJsonRpcError(INVALID_REQUEST, "the request is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJsonRpcError(PARSE_ERROR, f"the body is not valid JSON: {error!s:.200}") from None
    if problem := _size_problem(request):
        raise InvalidJsonRpcError(INVALID_REQUEST, problem)


def _size_problem(request: Any) -> str:
    """Return why a request is too large; empty if its size is allowed."""
    level, depth, values = [request], 0, 0
    while level:
        depth, values = depth + 1, values + len(level)
        if depth > MAX_DEPTH:
            return f"the request is nested deeper than {MAX_DEPTH} levels"
        if values > MAX_VALUES:
            return f"the request has more than {MAX_VALUES} values: send large data as text"
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [part for each in inner for part in each]
    return ""
