"""Posting replies to the URL of whoever asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from ..._kernel.errors import RegistrationError
from ..._net.egress import Egress, EgressError, post
from ..._net.http_client import FetchError
from ..._net.urls import UrlError, parse_url
from ..protocol import ChannelError, UndeliverableError
from .signatures import HEADER, sign

LONGEST_PAUSE = 3600.0
"""Seconds that a server may ask us to wait."""

_LATER = frozenset((408, 409, 425, 429))


class Callback:
    """Where replies are posted to, signed.

    Args:
        url: the whole URL.
        secret: signs what is posted.
        private: whether the host's name may lead into a network of our own; a listed address may anyway.
        seconds: how long a post may take.

    Raises:
        ChannelError: this is no URL to post to.
    """

    def __init__(self, url: str, secret: str, private: bool, seconds: float) -> None:
        try:
            where = parse_url(url)
            self._egress = Egress([where.origin], private=private)
        except (UrlError, RegistrationError, TypeError) as error:
            raise ChannelError(f"the callback {url!r:.200} cannot be used: {error}") from None
        problem = self._egress.check(url)
        if problem is not None:
            raise ChannelError(f"the callback {problem}")
        self._url, self._host, self._secret, self._seconds = url, where.host, secret, seconds
        self.problem: str | None = None

    async def post(self, reply: Mapping[str, Any], key: str) -> None:
        """Post a reply.

        Raises:
            ChannelError: it was not taken; ``UndeliverableError``: it never will be.
        """
        try:
            await self._post(msgspec.json.encode(reply), key)
        except UndeliverableError:
            self.problem = None  # it answers
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
            answer = await post(self._egress, self._url, body, headers=headers, seconds=self._seconds)
        except (EgressError, FetchError) as error:
            raise ChannelError(f"the callback cannot be reached: {error}") from error
        if 200 <= answer.status < 300:
            return
        said = f"the callback at {self._host} answered {answer.status} {answer.reason:.60}".rstrip()
        if 400 <= answer.status < 500 and answer.status not in _LATER:
            raise UndeliverableError(said)
        if 300 <= answer.status < 400:
            said += ": redirects are not followed, set the callback to where it leads"
        raise ChannelError(said, retry_after=_pause(answer.headers.get("retry-after")))


def _pause(text: str | None) -> float | None:
    """What a ``Retry-After`` header says, in seconds."""
    if text is None:
        return None
    try:
        seconds = float(text) if text.strip().isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return None
    return min(max(seconds, 0.0), LONGEST_PAUSE)
