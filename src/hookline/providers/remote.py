"""A model behind an HTTP API: what the vendors' models have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .._base.frozen import json_text
from .._base.text import is_number
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse, Usage
from ..models.errors import AuthError, NotInstalledError
from .clients import LoopClients
from .failures import Source, broken_off, in_our_words, readable, refused, retry_after, unreachable
from .prices import cost_of, load_prices
from .wire import Dialect, Reply, ToolNames

NO_KEY = "no-key-needed"
"""Sent to servers of one's own that want no key: the clients insist on sending one."""

LONGEST_WAIT = 60.0
"""A provider that asks to wait longer than so many seconds is not asked again: whoever runs the agent decides."""

_END = object()
_JSON = {"headers": {"Content-Type": "application/json"}}


class RemoteModel(ABC):
    """A model that is asked over HTTP with a vendor's official client.

    Args:
        name: the model's name.
        source: whom it is asked at.
        dialect: the API.
        connect: makes a client, given the HTTP client it is to use.
        organization: whose requests these are, where the provider does not say.
        organization_header: the header in which it says so.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        dialect: Dialect,
        connect: Callable[[Any], Any],
        *,
        organization: str = "",
        organization_header: str,
    ) -> None:
        self.name, self._source, self._dialect = name, source, dialect
        self._organization, self._organization_header = organization, organization_header
        self._clients = LoopClients(lambda: _connected(connect, source))

    @property
    def provider(self) -> str:
        """The vendor whose API this is, whoever serves it."""
        return self._source.provider

    @property
    def base_url(self) -> str:
        """Where the API is."""
        return self._source.url

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole reply at once.

        Raises:
            ProviderError: one of its kinds, whatever goes wrong.
        """
        asked, names = request.model or self.name, ToolNames.of(request)
        with in_our_words(self._source, asked):
            client = await self._clients.get()
            body = self._dialect.body(request, asked, names)
            from httpx2 import Response  # the client has loaded it by now

            answer = await client.post(
                self._dialect.path, cast_to=Response, content=json_text(body).encode(), options=_JSON
            )
            return self._response(_decode(answer.content, self._source), answer.headers, request, asked, names)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Pieces of text as they come, then the whole reply. Closing this closes the connection.

        Raises:
            ProviderError: one of its kinds, whatever goes wrong; also where the reply breaks off.
        """
        asked, names = request.model or self.name, ToolNames.of(request)
        with in_our_words(self._source, asked):
            client = await self._clients.get()
            body = self._dialect.streamed(self._dialect.body(request, asked, names))
            events = await client.post(
                self._dialect.path, cast_to=object, content=json_text(body).encode(), options=_JSON, stream=True,
                stream_cls=import_module(self.provider).AsyncStream[object],
            )  # fmt: skip
            reply = self._dialect.stream()
            try:
                while True:
                    with readable(self._source, asked):
                        event = await anext(events, _END)
                        piece = reply.add(event) if isinstance(event, dict) else ""
                    if event is _END:
                        break
                    if piece:
                        yield piece
            finally:
                await events.close()
            with readable(self._source, asked):
                data = reply.whole()
            if data is None:
                raise broken_off(self._source, asked)
            response = self._response(data, events.response.headers, request, asked, names)
        yield response

    def price(self, usage: Usage) -> float | None:
        """What so many tokens cost in USD; ``None`` if it is not known."""
        return cost_of(usage, self.name, url=self._source.url)

    @abstractmethod
    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens a text or some messages take."""

    def _response(self, data: Any, headers: Any, request: ModelRequest, asked: str, names: ToolNames) -> ModelResponse:
        if data.get("error"):
            raise refused(data["error"], self._source, asked)
        with readable(self._source, asked):
            reply = self._dialect.read(data)
        if reply is None:
            raise broken_off(self._source, asked)
        usage = reply.usage if reply.usage is not None else self._guessed(request, reply)
        return ModelResponse(
            reply.content,
            tuple(call.replace(name=names.back(call.name)) for call in reply.tool_calls),
            usage,
            reply.finish_reason,
            cost_of(usage, *filter(None, (reply.model, asked)), url=self._source.url, written=reply.written),
            reply.model or asked,
            self.provider,
            headers.get(self._organization_header) or self._organization,
        )

    def _guessed(self, request: ModelRequest, reply: Reply) -> Usage:
        """The usage of a server that does not count: no call may go uncounted in a budget."""
        answer = Message("assistant", reply.content, tuple(reply.tool_calls))
        return Usage(self.count_tokens(request.messages), self.count_tokens((answer,)))


def check(package: str, name: str, base_url: str | None, timeout: float | None, max_retries: int) -> None:
    """What can be checked before anybody is asked.

    Raises:
        RegistrationError: there is no name, the base URL is none, or a number makes no sense.
        NotInstalledError: the vendor's package is missing.
    """
    if not name:
        raise RegistrationError(f"a model of {package} needs a name: {package}:NAME")
    if base_url is not None and not _is_url(base_url):
        raise RegistrationError(f"base_url {base_url!r} is not a URL such as http://localhost:8080/v1")
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise RegistrationError(f"timeout {timeout!r} is not a number of seconds above 0, or None for no limit")
    if not (isinstance(max_retries, int) and max_retries >= 0):
        raise RegistrationError(f"max_retries {max_retries!r} is not a whole number from 0 on")
    if find_spec(package) is None:
        raise NotInstalledError(package, package)


def key_for(package: str, given: str | None, base_url: str | None, *variables: str) -> str:
    """The key: as given, from the environment, or a stand-in for a server that may need none.

    Raises:
        AuthError: there is none, and the vendor's own server needs one; or what there is cannot be one.
    """
    for found in (given, *map(os.environ.get, variables)):
        key = (found or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise AuthError(f"the key for {package} has characters in it that no key has: copy it once more")
        if key:
            return key
    if base_url is None:
        raise AuthError(f"no key for {package}: set {variables[0]}, or give base_url= of a server that needs no key")
    return NO_KEY


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        return False


def _connected(connect: Callable[[Any], Any], source: Source) -> Any:
    load_prices()  # here, in a worker thread, and not at the first reply
    http = import_module(source.provider).DefaultAsyncHttpxClient
    return connect(http(event_hooks={"response": [_leave_long_waits]}, timeout=timeouts(source)))


def timeouts(source: Source) -> Any:
    """The timeout for a client: a connection is there soon, or not at all."""
    sdk, seconds = import_module(source.provider), source.timeout
    return sdk.Timeout(seconds, connect=10.0 if seconds is None else min(seconds, 10.0))


async def _leave_long_waits(response: Any) -> None:
    if (retry_after(response.headers) or 0.0) > LONGEST_WAIT:
        response.headers["x-should-retry"] = "false"


def _decode(content: bytes, source: Source) -> Any:
    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise unreachable(source, "what answers there does not speak this API")
    return data
