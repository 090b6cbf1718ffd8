"""The door of a web chat: who knows the token gets a cookie, and needs it once."""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from ..validation import checked_secrets

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

DAYS = 30
"""How long a browser need not show the token again."""
MOST_WRONG = 10
"""How many wrong tokens are looked at in a minute, from all together."""


class _Token(msgspec.Struct):
    token: str


class Door:
    """Lets in who knows the token. Cookies are made of it: they hold after a restart, and end with the token.

    Args:
        name: of the channel.
        path: of the page; the cookie goes nowhere else.
        token: ``None`` for no door at all.

    Raises:
        ChannelError: the token can be guessed.
    """

    def __init__(self, name: str, path: str, token: str | None) -> None:
        self._token = None if token is None else checked_secrets(token, "token")[0]
        self._name, self._path, self._cookie = name, path, f"hookline_{name}"
        self._wrong: deque[float] = deque(maxlen=MOST_WRONG)

    @property
    def locked(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    def knows(self, cookies: Mapping[str, str]) -> bool:
        """Whether who has these cookies was let in."""
        if self._token is None:
            return True
        until, _, _ = cookies.get(self._cookie, "").partition(".")
        if not (until.isdecimal() and until.isascii() and len(until) <= 12 and int(until) > time.time()):
            return False
        return hmac.compare_digest(self._pass(until).encode(), cookies[self._cookie].encode())

    async def look(self, request: Request) -> Response:
        """Whether this browser was let in."""
        return _answer(200 if self.knows(request.cookies) else 401)

    async def open(self, request: Request) -> Response:
        """Let a browser in that has the token."""
        if self._token is None:
            return _answer(204)
        now = time.monotonic()
        if len(self._wrong) == MOST_WRONG and now - self._wrong[0] < 60:
            return _answer(429, "Too many wrong tokens: wait a minute.", **{"Retry-After": "60"})
        try:
            given = msgspec.json.decode(await request.body(), type=_Token).token
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return _answer(400, 'Send {"token": "..."}.')
        if not hmac.compare_digest(self._token.encode(), given.encode("utf-8", "replace")):
            self._wrong.append(now)
            return _answer(401, "That is not the token.")
        answer = _answer(204)
        answer.set_cookie(
            self._cookie, self._pass(str(int(time.time()) + DAYS * 86_400)), max_age=DAYS * 86_400, path=self._path,
            httponly=True, samesite="strict", secure=request.headers.get("origin", "").startswith("https:"),
        )  # fmt: skip
        return answer

    def _pass(self, until: str) -> str:
        assert self._token is not None
        key = self._token.encode()
        return f"{until}.{hmac.new(key, f'hookline {self._name} {until}'.encode(), sha256).hexdigest()}"


def _answer(status: int, message: str = "", **headers: str) -> Response:
    from starlette.responses import JSONResponse, Response

    return JSONResponse({"error": message}, status, headers) if message else Response(None, status, headers)
