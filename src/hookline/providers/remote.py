"""Base class for models behind an HTTP API."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from weakref import finalize

import msgspec

from .._base.frozen import json_text
from .._base.text import is_number
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest
from .._kernel.values import Message, ModelResponse, Usage
from ..models.attachments import check_attachments, with_usable_attachments
from ..models.errors import AuthError, NotInstalledError
from .apis.common import ModelApi, ParsedReply, ToolNames
from .apis.compatible import choice_errors
from .error_mapping import (
    Endpoint,
    error_in_reply,
    incomplete_reply,
    map_errors,
    require_valid_reply,
    retry_after,
    unreachable_error,
)
from .prices import Price, cost_of, load_prices

NO_KEY = "no-key-needed"
"""The key for servers that need none, because the vendors' clients always send one."""

MAX_RETRY_WAIT = 60.0
"""If a vendor asks to wait for more seconds than this, the client does not retry, and the caller of the run decides."""

MAX_REPLY_BYTES = 200_000_000
"""Longest reply, as it is sent. A streamed one is many times as long as its text."""

_END = object()
_JSON = {"headers": {"Content-Type": "application/json"}}


class RemoteModel(ABC):
    """A model behind an HTTP API, called with the vendor's official client.

    Args:
        name: the model's name.
        endpoint: the server.
        api: the API.
        connect: makes the vendor's client, given the HTTP client to use.
        organization: the organization that is billed, if the server does not report it.
        organization_header: the response header that reports it, if there is one.
        attachments: the media types that the model takes; by default those of the API.
        price: the price of the model; from the price list if omitted.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        api: ModelApi,
        connect: Callable[[Any], Any],
        *,
        organization: str = "",
        organization_header: str = "",
        attachments: Iterable[str] | None = None,
        price: Price | None = None,
    ) -> None:
        self.name, self._endpoint, self._api = name, endpoint, api
        self._organization, self._organization_header = organization, organization_header
        self._price = price
        self.attachment_types = checked_types(attachments, api.attachment_types)
        self.attachment_url_types = api.url_types
        self._clients = LoopClients(lambda: _make_client(connect, endpoint))

    @property
    def provider(self) -> str:
        """The name of the vendor, or of the vendor whose API the server at ``base_url`` has."""
        return self._endpoint.provider

    @property
    def base_url(self) -> str:
        """The base URL of the API."""
        return self._endpoint.url

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole reply.

        Raises:
            ProviderError: the call failed; see the subclasses.
        """
        request = self._prepared(request)
        asked, names = request.model or self.name, ToolNames.from_request(request)
        with map_errors(self._endpoint, asked):
            client = await self._clients.get()
            body = self._api.body(request, asked, names)
            from httpx2 import Response  # the client has imported it by now

            answer = await client.post(
                self._api.path, cast_to=Response, content=json_text(body).encode(), options=_JSON
            )
            return self._response(_decode(answer.content, self._endpoint), answer.headers, request, asked, names)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Yield pieces of text as they arrive, then the whole reply. Closing the generator closes the connection.

        Raises:
            ProviderError: the call failed or the reply is incomplete; see the subclasses.
        """
        request = self._prepared(request)
        asked, names = request.model or self.name, ToolNames.from_request(request)
        with map_errors(self._endpoint, asked):
            client = await self._clients.get()
            body = self._api.streamed(self._api.body(request, asked, names))
            events = await client.post(
                self._api.path,
                cast_to=object,
                content=json_text(body).encode(),
                options=_JSON,
                stream=True,
                stream_cls=import_module(self._endpoint.client_package).AsyncStream[object],
            )
            reply = self._api.stream()
            try:
                if events.response.headers.get("content-type", "").startswith("text/html"):
                    raise unreachable_error(self._endpoint, "the server sent a web page")
                while True:
                    with require_valid_reply(self._endpoint, asked):
                        event = await anext(events, _END)
                        piece = reply.add(event) if isinstance(event, dict) else ""
                    if event is _END:
                        break
                    if piece:
                        yield piece
            finally:
                await events.close()
            with require_valid_reply(self._endpoint, asked):
                data = reply.whole()
            if data is None:
                raise incomplete_reply(self._endpoint, asked)
            response = self._response(data, events.response.headers, request, asked, names)
        yield response

    def _prepared(self, request: ModelRequest) -> ModelRequest:
        """Return the request as it can be sent, before anything is sent.

        Raises:
            BadRequestError: the model does not take an attachment.
        """
        check_attachments(self, request.messages)
        return with_usable_attachments(self, request)

    def price(self, usage: Usage) -> float | None:
        """Return the price of these tokens in USD; ``None`` if it is unknown."""
        return self._cost(usage, self.name)

    def _cost(self, usage: Usage, asked: str, reply: ParsedReply | None = None) -> float | None:
        if self._price is not None and asked == self.name:
            return self._price.of(usage)
        if reply is None:
            return cost_of(usage, asked, url=self._endpoint.url)
        if reply.cost is not None:
            return reply.cost
        names = filter(None, (reply.model, asked))
        return cost_of(usage, *names, url=self._endpoint.url, cache_writes=reply.cache_writes)

    @abstractmethod
    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return the number of tokens of a text or of messages."""

    def _response(self, data: Any, headers: Any, request: ModelRequest, asked: str, names: ToolNames) -> ModelResponse:
        for error in filter(None, (data.get("error"), *choice_errors(data))):
            raise error_in_reply(error, self._endpoint, asked)
        with require_valid_reply(self._endpoint, asked):
            reply = self._api.read(data)
        if reply is None:
            raise incomplete_reply(self._endpoint, asked)
        usage = self._usage(request, reply)
        response_id = data.get("id")
        return ModelResponse(
            reply.content,
            tuple(call.replace(name=names.decode(call.name)) for call in reply.tool_calls),
            usage,
            reply.finish_reason,
            self._cost(usage, asked, reply),
            reply.model or asked,
            self.provider,
            (self._organization_header and headers.get(self._organization_header)) or self._organization,
            response_id if isinstance(response_id, str) else "",
        )

    def _usage(self, request: ModelRequest, reply: ParsedReply) -> Usage:
        """Return the usage. What the server does not report, or reports as 0, is estimated: every call counts."""
        found = reply.usage or Usage()
        read, written = found.input_tokens, found.output_tokens
        if read <= 0:
            read = self.count_tokens(request.messages)
        if written <= 0 and (reply.content or reply.tool_calls or reply.usage is None):
            written = self.count_tokens((Message("assistant", reply.content, tuple(reply.tool_calls)),))
        return Usage(read, written, found.cached_tokens)


def check(
    vendor: str,
    name: str,
    base_url: str | None,
    timeout: float | None,
    max_retries: int,
    *,
    package: str = "",
    extra: str = "",
) -> None:
    """Check the options of a model before the first request.

    ``package`` is the package with the client, whose name is that of the vendor if empty; ``extra`` installs it.

    Raises:
        RegistrationError: the name is missing, or the base URL or a number is invalid.
        NotInstalledError: the vendor's package is missing.
    """
    if not name:
        raise RegistrationError(f"a model of {vendor} needs a name: write {vendor}:NAME")
    if base_url is not None and not _is_url(base_url):
        raise RegistrationError(f"base_url= must be a URL such as http://localhost:8080/v1, not {base_url!r}")
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise RegistrationError(f"timeout= must be a positive number of seconds, or None for no limit, not {timeout!r}")
    if not (isinstance(max_retries, int) and max_retries >= 0):
        raise RegistrationError(f"max_retries= must be an integer of at least 0, not {max_retries!r}")
    package = package or vendor
    if find_spec(package) is None:
        raise NotInstalledError(package, extra or package)


def checked_types(given: Iterable[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the media types that a model takes: the given ones, or those that its API knows.

    Raises:
        RegistrationError: the API does not know a type.
    """
    if given is None:
        return known
    if isinstance(given, str):
        raise RegistrationError(f"attachments= must be a list such as ['image/png'], not {given!r:.80}")
    types = tuple(given)
    for each in types:
        family = str(each).removesuffix("*")
        if not any(kind == each or kind.startswith(family) for kind in known):
            takes = ", ".join(known)
            raise RegistrationError(f"attachments= has {each!r:.80}, which this API does not take. It takes {takes}")
    return types


def find_api_key(vendor: str, given: str | None, base_url: str | None, *variables: str) -> str:
    """Return the key: the given one, one from the environment, or a placeholder if there is a base URL.

    Raises:
        AuthError: the vendor's own server needs a key and there is none, or the key has invalid characters.
    """
    for found in (given, *map(os.environ.get, variables)):
        key = (found or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise AuthError(f"the key for {vendor} contains invalid characters: copy it again")
        if key:
            return key
    if base_url is None:
        raise AuthError(f"no key for {vendor}: set {variables[0]}, or pass base_url= of a server that needs no key")
    return NO_KEY


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def _make_client(connect: Callable[[Any], Any], endpoint: Endpoint) -> Any:
    load_prices()  # this is slow, so it runs here, in a worker thread
    http = import_module(endpoint.client_package).DefaultAsyncHttpxClient
    hooks = {"request": [_require_origin(endpoint)], "response": [_disable_long_retries, _limit_length]}
    tls = _tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return connect(http(event_hooks=hooks, timeout=client_timeout(endpoint), verify=tls))


@lru_cache(maxsize=1)
def _tls(file: str | None, folder: str | None) -> Any:
    """Return the settings for TLS that all clients share, because loading the certificates takes 20 ms.

    Args:
        file: the variable ``SSL_CERT_FILE``, which httpx reads itself; with other values it loads other certificates.
        folder: the variable ``SSL_CERT_DIR``, likewise.
    """
    from httpx2 import create_ssl_context

    return create_ssl_context()


def _require_origin(endpoint: Endpoint) -> Callable[[Any], Any]:
    """Return a hook that stops a request to another server after a redirect: it contains the key and the task."""

    async def check_origin(request: Any) -> None:
        from httpx2 import URL, RequestError

        wanted, url = URL(endpoint.url), request.url
        if (url.scheme, url.host, url.port) != (wanted.scheme, wanted.host, wanted.port):
            raise RequestError(
                f"it redirects to another server, {url.scheme}://{url.host}:{url.port or ''}".rstrip(":")
            )

    return check_origin


def client_timeout(endpoint: Endpoint) -> Any:
    """Return the timeout for a vendor's client, with at most 10 seconds to connect."""
    sdk, seconds = import_module(endpoint.client_package), endpoint.timeout
    return sdk.Timeout(seconds, connect=10.0 if seconds is None else min(seconds, 10.0))


async def _disable_long_retries(response: Any) -> None:
    if (retry_after(response.headers) or 0.0) > MAX_RETRY_WAIT:
        response.headers["x-should-retry"] = "false"


async def _limit_length(response: Any) -> None:
    """Stop reading a reply that does not end: it would fill the memory."""
    from httpx2 import AsyncByteStream, ReadError

    received = response.stream

    class LimitedStream(AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for piece in received:
                length += len(piece)
                if length > MAX_REPLY_BYTES:
                    raise ReadError(f"its reply is longer than {MAX_REPLY_BYTES:,} bytes")
                yield piece

        async def aclose(self) -> None:
            await received.aclose()

    response.stream = LimitedStream()


def _decode(content: bytes, endpoint: Endpoint) -> Any:
    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise unreachable_error(endpoint, "the server does not offer this API")
    return data


Closer = AsyncGenerator[None, None]
Clients = dict[asyncio.AbstractEventLoop, tuple[Any, Closer]]

_closing: set[asyncio.Task[None]] = set()


class LoopClients:
    """The clients of one model, one per event loop, because connections belong to the loop that opened them.

    A client is made when a loop first needs one, and closed when that loop ends or the model is garbage-collected.

    Args:
        make: makes a client with ``is_closed()`` and ``await close()``. It runs in a worker thread because it imports
            the vendor's package.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._clients_by_loop: Clients = {}
        finalize(self, _close_soon, self._clients_by_loop).atexit = False

    async def get(self) -> Any:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        client = self._open_in(loop)
        if client is not None:
            return client
        made = await in_thread(self._make)
        closer = _close_with_loop(made)
        await anext(closer)
        with self._lock:
            client = self._open_in(loop)
            if client is None:
                for old in [old for old in self._clients_by_loop if old.is_closed()]:
                    del self._clients_by_loop[old]
                self._clients_by_loop[loop] = made, closer
                return made
            await closer.aclose()  # another task of this loop made a client first
        return client

    def _open_in(self, loop: asyncio.AbstractEventLoop) -> Any:
        client, _ = self._clients_by_loop.get(loop, (None, None))
        return client if client is not None and not client.is_closed() else None


async def _close_with_loop(client: Any) -> Closer:
    """Close a client when its loop ends: a loop closes its open async generators before it ends."""
    try:
        yield
    finally:
        await client.close()


def _close_soon(kept: Clients) -> None:
    """Close unused clients, each in its loop."""
    for loop, (_, closer) in kept.items():
        with suppress(RuntimeError):  # the loop is closed, and so is the client
            loop.call_soon_threadsafe(_start, loop, closer)


def _start(loop: asyncio.AbstractEventLoop, closer: Closer) -> None:
    task = loop.create_task(_close(closer))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close(closer: Closer) -> None:
    await closer.aclose()
