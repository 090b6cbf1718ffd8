"""Bot API client based on ``python-telegram-bot``. Only the HTTP transport sees the token."""

from __future__ import annotations

import json
import ssl
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx
from telegram import Bot
from telegram.error import TelegramError
from telegram.request import HTTPXRequest

_PLACEHOLDER = "TOKEN"
_TIMEOUT = 10.0


class TooManyRequestsError(TelegramError):
    """Telegram asks to wait ``seconds`` before the next request."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many requests: Telegram asks to wait {seconds:g} s")
        self.seconds = seconds


class TokenRequest(HTTPXRequest):
    """HTTP requests. The transport inserts the token, so that it appears in no log, error or traceback."""

    def __init__(self, token: str, proxy: str | None, verify: ssl.SSLContext | bool, connections: int) -> None:
        transport = _TokenTransport(token, proxy, verify, connections)
        super().__init__(
            connections,
            _TIMEOUT,
            _TIMEOUT,
            _TIMEOUT,
            _TIMEOUT,
            httpx_kwargs={"transport": transport, "trust_env": False},
        )
        self.body = b""
        """Body of the last response."""

    async def do_request(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        """Make a request.

        Raises:
            TooManyRequestsError: Telegram asks to wait.
            TelegramError: there was no response.
        """
        status, self.body = await super().do_request(*args, **options)
        if status == httpx.codes.TOO_MANY_REQUESTS:
            raise TooManyRequestsError(_retry_after(self.body))
        return status, self.body


class _TokenTransport(httpx.AsyncBaseTransport):
    def __init__(self, token: str, proxy: str | None, verify: ssl.SSLContext | bool, connections: int) -> None:
        limits = httpx.Limits(max_connections=connections)
        self._token = token
        self._transport = httpx.AsyncHTTPTransport(verify=verify, proxy=proxy, limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.replace(f"/bot{_PLACEHOLDER}/".encode(), f"/bot{self._token}/".encode(), 1)
        real = httpx.Request(
            request.method,
            request.url.copy_with(raw_path=path),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return await self._transport.handle_async_request(real)

    async def aclose(self) -> None:
        await self._transport.aclose()


def _retry_after(body: bytes) -> float:
    try:
        return float(json.loads(body)["parameters"]["retry_after"])
    except (ValueError, KeyError, TypeError):
        return 1.0


class BotClient:
    """A bot with its connections: several for requests, and one for long polling."""

    def __init__(self, token: str, base_url: str, proxy: str | None) -> None:
        url = httpx.URL(base_url)
        if proxy is None and not proxy_bypass(url.host):
            found = getproxies()
            proxy = found.get(url.scheme) or found.get("all")
        verify = httpx.create_ssl_context() if url.scheme == "https" else False  # slow to create, so shared
        self._requests = TokenRequest(token, proxy, verify, 64)
        self.updates = TokenRequest(token, proxy, verify, 1)
        self.bot = Bot(
            _PLACEHOLDER,
            base_url=f"{base_url}/bot",
            base_file_url=f"{base_url}/file/bot",
            request=self._requests,
            get_updates_request=self.updates,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._requests.shutdown()
        await self.updates.shutdown()
