"""Requests to Telegram, on ``python-telegram-bot``: nothing above the wire ever sees the token."""

from __future__ import annotations

import json
import ssl
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx
from telegram import Bot
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

_STAND_IN = "TOKEN"
_SECONDS = 10.0


class Flooded(TelegramError):
    """Telegram wants us to wait."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Telegram wants us to wait {seconds:g} s")
        self.seconds = seconds


class Requests(HTTPXRequest):
    """Requests of one kind. The token is put in by the transport, so it is in no log, error or traceback."""

    def __init__(self, token: str, proxy: str | None, trust: ssl.SSLContext | bool, connections: int) -> None:
        wire = _Wire(token, proxy, trust, connections)
        super().__init__(
            connections, _SECONDS, _SECONDS, _SECONDS, _SECONDS, httpx_kwargs={"transport": wire, "trust_env": False}
        )
        self.body = b""
        """What the last answer was."""

    async def do_request(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        """Make a request.

        Raises:
            Flooded: there were too many.
            TelegramError: there was no answer.
        """
        status, self.body = await super().do_request(*args, **options)
        if status == httpx.codes.TOO_MANY_REQUESTS:
            raise Flooded(_wait(self.body))
        return status, self.body


class _Wire(httpx.AsyncBaseTransport):
    def __init__(self, token: str, proxy: str | None, trust: ssl.SSLContext | bool, connections: int) -> None:
        limits = httpx.Limits(max_connections=connections)
        self._token, self._wire = token, httpx.AsyncHTTPTransport(verify=trust, proxy=proxy, limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.replace(f"/bot{_STAND_IN}/".encode(), f"/bot{self._token}/".encode(), 1)
        real = httpx.Request(
            request.method,
            request.url.copy_with(raw_path=path),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._wire.handle_async_request(real)

    async def aclose(self) -> None:
        await self._wire.aclose()


def _wait(body: bytes) -> float:
    try:
        return float(json.loads(body)["parameters"]["retry_after"])
    except (ValueError, KeyError, TypeError):
        return 1.0


class Line:
    """A bot and its connections: some for what it says, one for what it hears."""

    def __init__(self, token: str, base_url: str, proxy: str | None) -> None:
        url = httpx.URL(base_url)
        if proxy is None and not proxy_bypass(url.host):
            found = getproxies()
            proxy = found.get(url.scheme) or found.get("all")
        trust = httpx.create_ssl_context() if url.scheme == "https" else False  # slow to make, so one for all
        self._saying, self.hearing = Requests(token, proxy, trust, 64), Requests(token, proxy, trust, 1)
        self.bot = Bot(_STAND_IN, base_url=f"{base_url}/bot", request=self._saying, get_updates_request=self.hearing)

    async def close(self) -> None:
        """Close the connections."""
        await self._saying.shutdown()
        await self.hearing.shutdown()
