"""HMAC signatures of webhook requests, over the time and the body."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Sequence
from hashlib import sha256

from .._kernel.errors import HooklineError

HEADER = "Hookline-Signature"
TOLERANCE = 300.0
"""Maximum difference in seconds between the time of a signature and our clock."""

_SIGNATURE = re.compile(r"t=([0-9]{1,12})((?:,v1=[0-9a-f]{64}){1,5})")


class SignatureError(HooklineError):
    """A signature is missing, wrong or out of date. ``code`` is a short name of the problem."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def sign(secret: str, body: bytes, *, at: float | None = None) -> str:
    """Return the header value ``t=<seconds since 1970>,v1=<hex HMAC-SHA256 of "t.body">``.

    Args:
        secret: the shared secret.
        body: the request body. For a GET request: ``GET``, a space, and the path with its query.
        at: the time of the signature; now if left out.
    """
    when = str(int(time.time() if at is None else at))
    return f"t={when},v1={_mac(secret, when, body)}"


def verify(
    secrets: Sequence[str], header: str | None, body: bytes, *, now: float | None = None, tolerance: float = TOLERANCE
) -> None:
    """Check that the body was signed with one of the secrets, within ``tolerance`` seconds.

    Raises:
        SignatureError: the signature is missing, wrong or out of date.
    """
    if not header:
        raise SignatureError("no_signature", f"there is no {HEADER} header")
    match = _SIGNATURE.fullmatch(header)
    if match is None:
        raise SignatureError(
            "bad_signature", f"the {HEADER} header is not t=SECONDS,v1=HEX with 64 lowercase hex digits"
        )
    off = (time.time() if now is None else now) - int(match[1])
    if abs(off) > tolerance:
        age = f"{off:.0f} s old" if off > 0 else f"{-off:.0f} s in the future"
        raise SignatureError(
            "bad_time", f"the signature is {age}; at most {tolerance:g} s are allowed: check the clock"
        )
    signatures = [part.removeprefix("v1=") for part in match[2].split(",")[1:]]
    matches = [hmac.compare_digest(_mac(secret, match[1], body), each) for secret in secrets for each in signatures]
    if not any(matches):
        raise SignatureError("bad_signature", "the signature does not match this body and our secret")


def _mac(secret: str, when: str, body: bytes) -> str:
    return hmac.new(secret.encode(), when.encode() + b"." + body, sha256).hexdigest()
