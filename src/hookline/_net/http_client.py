"""Send one HTTP request to a given address, without a DNS lookup or a proxy, and with limits on time and size.

The standard library's client is used because it lets the caller choose the address and close the socket from another
thread.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from .._base.errors import HooklineError
from .addresses import Address
from .urls import PORTS, Url

MAX_HEAD = 64_000
"""Maximum size of a response's headers in bytes."""
_PIECE = 65_536

T = TypeVar("T")


class FetchError(HooklineError):
    """A page could not be fetched: unknown host, no answer, too slow, or not text. The message says which."""


class HttpResponse(msgspec.Struct, frozen=True):
    """A response. ``cut`` says that the body is longer."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    cut: bool


class Cutoff:
    """A context manager that can end a request from outside, on a timeout or a cancellation.

    Args:
        seconds: time limit for the whole request.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self.cut, [f"it took longer than {seconds:g} s"])
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.why: str | None = None

    def __enter__(self) -> Cutoff:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()

    def cut(self, why: str) -> None:
        """Close the connection, even while another thread reads from it."""
        with self._lock:
            self.why = self.why or why
            if self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not thread-safe with TLS

    def watch(self, sock: socket.socket | None) -> None:
        """Close this socket when the time is up; ``None`` stops that.

        Raises:
            FetchError: the time is up already.
        """
        with self._lock:
            self._socket = sock
        if sock is not None and self.why is not None:
            raise FetchError(self.why)

    @property
    def left(self) -> float:
        """Seconds left, always a little more than 0."""
        return max(self._end - time.monotonic(), 0.001)

    def bounded(self, fn: Callable[..., T], *args: Any) -> T:
        """Call ``fn`` in a thread and return its result. If the time runs out, the thread is abandoned.

        Raises:
            FetchError: the time ran out.
        """
        box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                box.put((fn(*args), None))
            except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
                box.put((None, error))

        threading.Thread(target=work, name="hookline-lookup", daemon=True).start()
        try:
            value, error = box.get(timeout=self.left)
        except queue.Empty:
            raise FetchError(self.why or "it took too long to look up the host") from None
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]


class _Head:
    """Reads the headers of a response line by line, up to a limit."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MAX_HEAD

    def readline(self, limit: int = -1) -> bytes:
        line: bytes = self._file.readline(limit)
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException(f"its headers are longer than {MAX_HEAD} bytes")
        return line

    def close(self) -> None:
        self._file.close()


class _Response(HTTPResponse):
    def begin(self) -> None:
        if self.headers is None:
            file = self.fp
            head: Any = _Head(file)
            self.fp = head
            try:
                super().begin()
            finally:
                if self.fp is head:  # it is None if it was closed
                    self.fp = file

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:  # http.client would read to the end of the stream
            raise HTTPException("a chunk has a negative size")
        return size


class PinnedConnection(HTTPConnection):
    """An ``http.client`` connection to addresses that were checked before, even if DNS has changed since.

    The host name is used only for TLS and the ``Host`` header. Proxies from the environment are ignored.

    Args:
        url: the URL.
        addresses: the addresses, tried in order.
        tls: how certificates are verified; required for ``https``.
        timeout: seconds that each step may take.
        watch: called with each socket as soon as it exists.
    """

    response_class = _Response

    def __init__(
        self,
        url: Url,
        addresses: Sequence[Address],
        tls: ssl.SSLContext | None,
        timeout: float,
        watch: Callable[[socket.socket], None] = lambda sock: None,
    ) -> None:
        super().__init__(url.host, url.port, timeout=timeout)
        self.default_port = PORTS[url.scheme]
        self._addresses, self._tls, self._watch = addresses, tls if url.scheme == "https" else None, watch

    def connect(self) -> None:
        """Connect to the first address that answers.

        Raises:
            OSError: no address answers, or the certificate is invalid.
        """
        sock = self._connected()
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_hostname=self.host, do_handshake_on_connect=False)
            self.sock = sock
            self._watch(sock)
            sock.do_handshake()

    def _connected(self) -> socket.socket:
        problem: OSError | None = None
        for address in self._addresses:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            try:
                self.sock = sock = socket.socket(family, socket.SOCK_STREAM)
                sock.settimeout(self.timeout)
                self._watch(sock)
                sock.connect((str(address), self.port))
                return sock
            except OSError as error:
                problem = error
                self.close()
        raise problem or OSError("the host has no address")


def send_request(
    url: Url,
    addresses: Sequence[Address],
    *,
    headers: Mapping[str, str],
    cutoff: Cutoff,
    tls: ssl.SSLContext | None,
    max_bytes: int,
    reads_body: Callable[[HTTPResponse], bool],
    data: bytes | None = None,
) -> HttpResponse:
    """Send a GET request, or a POST request if there is ``data``.

    The body of the response is read if ``reads_body(response)`` is true.

    Raises:
        FetchError: the request failed.
    """
    connection = PinnedConnection(url, addresses, tls, cutoff.left + 1, cutoff.watch)
    try:
        connection.request("GET" if data is None else "POST", url.target, body=data, headers=dict(headers))
        response = connection.getresponse()
        body, cut = _body(response, max_bytes) if reads_body(response) else (b"", False)
        if cutoff.why is not None:  # a closed connection looks like the end of the body
            raise FetchError(cutoff.why)
        named = {name.lower(): value for name, value in reversed(response.headers.items())}
        return HttpResponse(response.status, response.reason, named, body, cut)
    except ssl.SSLCertVerificationError as error:
        raise FetchError(f"the certificate of {url.host} is invalid: {error.verify_message}") from error
    except (OSError, HTTPException, zlib.error, ValueError) as error:
        raise FetchError(cutoff.why or _describe(error, url)) from error
    finally:
        cutoff.watch(None)
        connection.close()


def _body(response: HTTPResponse, limit: int) -> tuple[bytes, bool]:
    """Return the decompressed body, up to a limit on compressed and decompressed size, and whether it is longer."""
    encoding = ", ".join(response.headers.get_all("Content-Encoding", ())).strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise HTTPException(f"its content encoding is {encoding!r:.40}, which was not requested")
    decoder = zlib.decompressobj(31) if "gzip" in encoding else None
    data, taken = bytearray(), 0
    while len(data) <= limit and taken <= limit:
        piece = response.read(_PIECE)
        taken += len(piece)
        data += piece if decoder is None else decoder.decompress(piece, limit + 1 - len(data))
        if not piece or (decoder is not None and decoder.eof):
            break
    cut = len(data) > limit or taken > limit
    if not cut and (response.length if decoder is None else taken and not decoder.eof):
        raise HTTPException("the server closed the connection before the end")
    return bytes(data[:limit]), cut


def _describe(error: Exception, url: Url) -> str:
    if isinstance(error, TimeoutError):
        return f"{url.host} did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return f"{url.host} refused the connection at port {url.port}"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{url.host} did not answer properly: {reason or type(error).__name__:.200}"
