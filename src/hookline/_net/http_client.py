"""One HTTP request to an address that was chosen before: no lookup, no proxy, and limits on everything."""

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
"""How many bytes the headers of a reply may have."""
_PIECE = 65_536

T = TypeVar("T")


class FetchError(HooklineError):
    """What could not be fetched, and why: no such host, no answer, too slow, not text."""


class Reply(msgspec.Struct, frozen=True):
    """What a server said; ``cut`` if the body goes on."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    cut: bool


class Cutoff:
    """Ends a request from outside, when its time is over or nobody waits for it any more; a context manager.

    Args:
        seconds: how long everything together may take.
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
        """Close the connection, also in the middle of a read in another thread."""
        with self._lock:
            self.why = self.why or why
            if self._socket is not None:
                with suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # the TLS layer is not safe from here

    def watch(self, sock: socket.socket | None) -> None:
        """Close this socket when it is time; ``None`` when it is the owner's again.

        Raises:
            FetchError: it is too late already.
        """
        with self._lock:
            self._socket = sock
        if sock is not None and self.why is not None:
            raise FetchError(self.why)

    @property
    def left(self) -> float:
        """How many seconds are left, a little more than none."""
        return max(self._end - time.monotonic(), 0.001)

    def bounded(self, fn: Callable[..., T], *args: Any) -> T:
        """What ``fn`` gives, if it does so in time; else it is left behind in its thread.

        Raises:
            FetchError: it does not.
        """
        box: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def work() -> None:
            try:
                box.put((fn(*args), None))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
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
    """A reply's headers, read line by line, and not too many of them."""

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
                if self.fp is head:  # else it was closed, and is None
                    self.fp = file

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:  # would mean: read all there is
            raise HTTPException("a part of it has a negative size")
        return size


class PinnedConnection(HTTPConnection):
    """An ``http.client`` connection to addresses that were judged before, whatever the host's name means by now.

    The name is used for TLS and the ``Host`` header alone. Proxies of the environment are not used.

    Args:
        url: where to.
        addresses: tried in order.
        tls: how certificates are checked; needed for ``https``.
        timeout: seconds that each step may take.
        watch: told each socket as soon as it exists.
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
            OSError: none does, or its certificate is not good.
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
        raise problem or OSError("there is no address")


def ask(
    url: Url,
    addresses: Sequence[Address],
    *,
    headers: Mapping[str, str],
    cutoff: Cutoff,
    tls: ssl.SSLContext | None,
    max_bytes: int,
    wanted: Callable[[HTTPResponse], bool],
    send: bytes | None = None,
) -> Reply:
    """Get a URL, or post what there is to ``send``; the body is read, and unpacked, if it is ``wanted``.

    Raises:
        FetchError: that did not work.
    """
    connection = PinnedConnection(url, addresses, tls, cutoff.left + 1, cutoff.watch)
    try:
        connection.request("GET" if send is None else "POST", url.target, body=send, headers=dict(headers))
        response = connection.getresponse()
        body, cut = _body(response, max_bytes) if wanted(response) else (b"", False)
        if cutoff.why is not None:  # a connection that was cut looks like one that has ended
            raise FetchError(cutoff.why)
        named = {name.lower(): value for name, value in reversed(response.headers.items())}
        return Reply(response.status, response.reason, named, body, cut)
    except ssl.SSLCertVerificationError as error:
        raise FetchError(f"the certificate of {url.host} is not good: {error.verify_message}") from error
    except (OSError, HTTPException, zlib.error, ValueError) as error:
        raise FetchError(cutoff.why or _in_words(error, url)) from error
    finally:
        cutoff.watch(None)
        connection.close()


def _body(response: HTTPResponse, limit: int) -> tuple[bytes, bool]:
    """The body, unpacked, up to a limit on what comes in and on what comes out; and whether there was more."""
    packing = ", ".join(response.headers.get_all("Content-Encoding", ())).strip().lower()
    if packing not in ("", "identity", "gzip", "x-gzip"):
        raise HTTPException(f"it is packed as {packing!r:.40}, which was not asked for")
    unpack = zlib.decompressobj(31) if "gzip" in packing else None
    data, taken = bytearray(), 0
    while len(data) <= limit and taken <= limit:
        piece = response.read(_PIECE)
        taken += len(piece)
        data += piece if unpack is None else unpack.decompress(piece, limit + 1 - len(data))
        if not piece or (unpack is not None and unpack.eof):
            break
    cut = len(data) > limit or taken > limit
    if not cut and (response.length if unpack is None else taken and not unpack.eof):
        raise HTTPException("the server closed the connection before the end")
    return bytes(data[:limit]), cut


def _in_words(error: Exception, url: Url) -> str:
    if isinstance(error, TimeoutError):
        return f"{url.host} did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return f"{url.host} does not take connections at port {url.port}"
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{url.host} did not answer properly: {said or type(error).__name__:.200}"
