"""Login of the web chat: a browser that sends the token gets a cookie."""

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

COOKIE_DAYS = 30
"""Days that a browser stays logged in."""
MAX_WRONG = 10
"""Maximum number of login attempts with a wrong token per minute, from all browsers together."""


class _Credentials(msgspec.Struct):
    token: str


class Login:
    """Check the token of a web chat, and log browsers in with a cookie.

    The cookie is derived from the token: it stays valid after a restart, and becomes invalid when the token changes.

    Args:
        name: the name of the channel.
        path: the path of the page, to which the cookie is restricted.
        token: the token; ``None`` if no login is required.

    Raises:
        ChannelError: the token is too short.
    """

    def __init__(self, name: str, path: str, token: str | None) -> None:
        self._token = None if token is None else checked_secrets(token, "token")[0]
        self._name = name
        self._path = path
        self._cookie = f"hookline_{name}"
        self._wrong: deque[float] = deque(maxlen=MAX_WRONG)

    @property
    def is_required(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    def is_logged_in(self, cookies: Mapping[str, str]) -> bool:
        """Whether these cookies belong to a browser that is logged in, or no login is required."""
        if self._token is None:
            return True
        until, _, _ = cookies.get(self._cookie, "").partition(".")
        if not (until.isdecimal() and until.isascii() and len(until) <= 12 and int(until) > time.time()):
            return False
        return hmac.compare_digest(self._cookie_value(until).encode(), cookies[self._cookie].encode())

    async def get(self, request: Request) -> Response:
        """Respond with 200 if the browser is logged in, else with 401."""
        return _response(200 if self.is_logged_in(request.cookies) else 401)

    async def post(self, request: Request) -> Response:
        """Log a browser in."""
        if self._token is None:
            return _response(204)
        body = await request.body()
        now = time.monotonic()  # after the body: requests that send theirs together would all be admitted before
        if len(self._wrong) == MAX_WRONG and now - self._wrong[0] < 60:
            return _response(429, "Too many wrong tokens: wait a minute.", **{"Retry-After": "60"})
        try:
            token = msgspec.json.decode(body, type=_Credentials).token
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return _response(400, 'Send {"token": "..."}.')
        if not hmac.compare_digest(self._token.encode(), token.encode("utf-8", "replace")):
            self._wrong.append(now)
            return _response(401, "This token is wrong.")
        response = _response(204)
        max_age = COOKIE_DAYS * 86_400
        response.set_cookie(
            self._cookie,
            self._cookie_value(str(int(time.time()) + max_age)),
            max_age=max_age,
            path=self._path,
            httponly=True,
            samesite="strict",
            secure=request.headers.get("origin", "").startswith("https:"),
        )
        return response

    def _cookie_value(self, until: str) -> str:
        assert self._token is not None
        key = self._token.encode()
        return f"{until}.{hmac.new(key, f'hookline {self._name} {until}'.encode(), sha256).hexdigest()}"


def _response(status: int, message: str = "", **headers: str) -> Response:
    from starlette.responses import JSONResponse, Response

    return JSONResponse({"error": message}, status, headers) if message else Response(None, status, headers)
