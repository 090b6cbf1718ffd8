"""The outside of a JSON-RPC request, checked before the protocol's own code sees it."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

MAX_ID = 256
"""Characters of a request's id."""
MAX_DEPTH = 60
"""How deep a request may be nested."""
MAX_VALUES = 5_000
"""How many values a request may have in it: the protocol's own code takes its time for each, and all wait for it."""
MAX_SAFE = 2**53

PARSE, INVALID, BAD = -32700, -32600, -32602


class Refused(Exception):
    """A request that is no proper JSON-RPC; ``answer`` is what to say to it."""

    def __init__(self, code: int, message: str, id: str | int | None = None) -> None:
        super().__init__(message)
        self.answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


def check(body: bytes) -> None:
    """Look at the outside of a request.

    Raises:
        Refused: it is not a single JSON-RPC 2.0 request.
    """
    try:
        request = json.loads(body, parse_constant=_no_number, parse_float=_number)
        json.dumps(request, ensure_ascii=False).encode()  # half a character could not be sent back
    except RecursionError:
        raise Refused(INVALID, "the request is nested too deep") from None
    except ValueError as error:
        raise Refused(PARSE, f"the body is no JSON: {error!s:.200}") from None
    if isinstance(request, list):
        raise Refused(INVALID, "batches are not taken: send one request at a time")
    if not isinstance(request, dict):
        raise Refused(INVALID, "a request is a JSON object")
    id = request.get("id")
    if isinstance(id, bool) or not (id is None or isinstance(id, (str, int))):
        raise Refused(INVALID, "id is a text or a whole number")
    if len(id) > MAX_ID if isinstance(id, str) else abs(id or 0) > MAX_SAFE:
        raise Refused(INVALID, f"id is too long: at most {MAX_ID} characters, or a number up to {MAX_SAFE}")
    if request.get("jsonrpc") != "2.0":
        raise Refused(INVALID, 'jsonrpc must be "2.0"', id)
    method = request.get("method")
    if not isinstance(method, str) or not method:
        raise Refused(INVALID, "method is missing: a text such as SendMessage", id)
    params = request.get("params", {})
    if not isinstance(params, dict):
        raise Refused(BAD, "params is a JSON object", id)
    for each in (params, params.get("configuration")):
        wanted = each.get("historyLength") if isinstance(each, dict) else None
        if isinstance(wanted, int) and abs(wanted) >= 2**31:  # the older form of the protocol does not look
            raise Refused(BAD, "historyLength is too large", id)
    if problem := _too_much(request):
        raise Refused(INVALID, problem, id)


class Quiet(logging.Filter):
    """Keeps requests, with the secrets in them, and what callers got wrong out of the log: callers are told."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this is logged."""
        return not record.msg.startswith(("Failed to ", "Request ", "Version mismatch"))


_QUIET = Quiet()


def keep_quiet() -> None:
    """Have the protocol's own code log its own problems alone."""
    for name in ("server.routes.jsonrpc_dispatcher", "compat.v0_3.jsonrpc_adapter", "utils.version_validator"):
        logging.getLogger(f"a2a.{name}").addFilter(_QUIET)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _too_much(request: Any) -> str:
    """What there is too much of; nothing if all is well."""
    level, deep, many = [request], 0, 0
    while level:
        deep, many = deep + 1, many + len(level)
        if deep > MAX_DEPTH:
            return f"the request is nested deeper than {MAX_DEPTH} levels"
        if many > MAX_VALUES:
            return f"the request has more than {MAX_VALUES} values in it: send large data as text"
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [part for each in inner for part in each]
    return ""
