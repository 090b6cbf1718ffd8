"""Post replies to the callback URL of a webhook channel."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from ..._kernel.errors import RegistrationError
from ..._net.egress import Egress, EgressError, post
from ..._net.http_client import FetchError
from ..._net.signatures import HEADER, sign
from ..._net.urls import UrlError, parse_url
from ..protocol import ChannelError, UndeliverableError

MAX_RETRY_AFTER = 3600.0
"""Longest ``Retry-After`` that is respected, in seconds."""

_RETRYABLE = frozenset((408, 409, 425, 429))


class Callback:
    """Post signed replies to a URL.

    Args:
        url: the complete URL.
        secret: signs the requests.
        private: whether the host name may resolve to a private address. A literal private address is always allowed.
        seconds: how long a request may take.

    Raises:
        ChannelError: the URL is invalid or not allowed.
    """

    def __init__(self, url: str, secret: str, private: bool, seconds: float) -> None:
        try:
            parsed = parse_url(url)
            self._egress = Egress([parsed.origin], private=private)
        except (UrlError, RegistrationError, TypeError) as error:
            raise ChannelError(f"the callback {url!r:.200} cannot be used: {error}") from None
        problem = self._egress.check(url)
        if problem is not None:
            raise ChannelError(f"the callback {problem}")
        self._url = url
        self._host = parsed.host
        self._secret = secret
        self._seconds = seconds
        self.problem: str | None = None

    async def post(self, reply: Mapping[str, Any], key: str) -> None:
        """Post a reply with the idempotency key ``key``.

        Raises:
            ChannelError: the request failed and may be repeated.
            UndeliverableError: the server rejected the reply.
        """
        try:
            await self._post(msgspec.json.encode(reply), key)
        except UndeliverableError:
            self.problem = None  # the server works
            raise
        except ChannelError as error:
            self.problem = str(error)
            raise
        self.problem = None

    async def _post(self, body: bytes, key: str) -> None:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "User-Agent": "hookline",
            HEADER: sign(self._secret, body),
        }
        try:
            response = await post(self._egress, self._url, body, headers=headers, seconds=self._seconds)
        except (EgressError, FetchError) as error:
            raise ChannelError(f"the callback cannot be reached: {error}") from error
        if 200 <= response.status < 300:
            return
        problem = f"the callback at {self._host} responded {response.status} {response.reason:.60}".rstrip()
        if 400 <= response.status < 500 and response.status not in _RETRYABLE:
            raise UndeliverableError(problem)
        if 300 <= response.status < 400:
            problem += ": redirects are not followed, so set the callback to the new URL"
        raise ChannelError(problem, retry_after=_retry_after(response.headers.get("retry-after")))


def _retry_after(text: str | None) -> float | None:
    """Parse a ``Retry-After`` header into seconds."""
    if text is None:
        return None
    try:
        seconds = float(text) if text.strip().isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
