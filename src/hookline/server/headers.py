"""What the headers of a request say: its key, and the id that ties together what it brings about."""

from __future__ import annotations

import re
import uuid

from .._web.middleware import Scope

CORRELATION = "X-Correlation-ID"
"""The header with the id that ties together all that a request brings about."""

_CORRELATION = re.compile(r"(?!.*hl_\w{16})[!-~]{1,128}")  # an id is written down: a key in its place must not be


def is_correlation_id(text: str) -> bool:
    """Whether a text of a caller's can be a correlation id: plain, and no key."""
    return _CORRELATION.fullmatch(text) is not None


def correlation_id(scope: Scope) -> str:
    """The id that a request brings, if it is plain, or a fresh one."""
    for name in (b"x-correlation-id", b"x-request-id"):
        given: list[str] = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
        if len(given) == 1 and is_correlation_id(given[0]):
            return given[0]
    return uuid.uuid4().hex


def secret_of(scope: Scope) -> tuple[str | None, str]:
    """The key that a request brings; ``None``, and why, if it brings none."""
    found = set()
    for key, value in scope["headers"]:
        if key == b"authorization":
            scheme, _, rest = value.decode("latin-1").strip().partition(" ")
            if scheme.lower() == "bearer":
                found.add(rest.strip())
        elif key == b"x-api-key":
            found.add(value.decode("latin-1").strip())
    if len(found) > 1:
        return None, "two keys were given"
    return (found.pop(), "") if found else (None, "no key was given")
