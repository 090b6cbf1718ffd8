"""A proxy for HTTP and HTTPS that reaches only the hosts that an :class:`Egress` allows.

A sandbox with ``hosts=`` has no network of its own, only this proxy. It checks each request with the rules of the fetch
tool (host, port, scheme, private addresses), and connects to the address that was checked, so that a later DNS answer
has no effect. It is written here because proxies for Python (``proxy.py``, ``mitmproxy``) resolve names
themselves, and because it needs two things only: tunnels, and plain requests that end with the connection.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPMessage, parse_headers
from typing import Any

from .._base.text import error_text
from .._net.egress import Egress, EgressError
from .._net.http_client import FetchError
from .._net.urls import Url

_SECONDS = 20.0
_IDLE_SECONDS = 120.0
_MAX_LINE = 16_384
_MAX_CONNECTIONS = 64
_CHUNK_SIZE = 65_536
_NOT_FORWARDED = frozenset(
    ("connection", "proxy-connection", "proxy-authorization", "keep-alive", "te", "upgrade", "host")
)


@contextmanager
def serve_proxy(egress: Egress, folder: str) -> Iterator[str]:
    """Serve the proxy on a unix socket inside the block. Yield the path of the socket.

    Args:
        egress: decides what may be reached.
        folder: a private folder for the socket.

    Raises:
        OSError: the socket cannot be created, such as if the path of the folder is too long.
    """
    path = os.path.join(folder, f"{os.urandom(6).hex()}.sock")
    with _Server(path, egress) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            server.close_all()
            thread.join()
            with suppress(FileNotFoundError):
                os.unlink(path)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = True

    def __init__(self, path: str, egress: Egress) -> None:
        super().__init__(path, _Connection)
        self.egress = egress
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False

    def track(self, connection: socket.socket) -> bool:
        """Remember a connection, to close it at the end; false if there are too many."""
        with self._lock:
            if self._closed or len(self._open) >= 2 * _MAX_CONNECTIONS:
                return False
            self._open.add(connection)
            return True

    def untrack(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def close_all(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client may close its connection at any time."""


class _Connection(socketserver.StreamRequestHandler):
    """One connection from the sandbox: a request, and its answer or a tunnel."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - socketserver sets it to the server
    timeout = _SECONDS
    rbufsize = 0  # bytes after the head belong to the tunnel

    def handle(self) -> None:
        if not self.server.track(self.request):
            return self._refuse(503, "too many connections")
        try:
            line = self.rfile.readline(_MAX_LINE + 1).decode("latin-1")
            words = line.split()
            if len(words) != 3 or not line.endswith("\n"):
                return self._refuse(400, "not an HTTP request")
            headers = parse_headers(self.rfile)
            method, target, _ = words
            url = f"https://{target}/" if method == "CONNECT" else target
            try:
                where = self.server.egress.judge(url)
                upstream = self._connect(where)
            except (EgressError, FetchError) as error:
                return self._refuse(403, f"Hookline: {error_text(error)}")
            except OSError as error:
                return self._refuse(502, f"Hookline: no connection to {url:.200}: {error.strerror or error}")
            with upstream:
                if self.server.track(upstream):
                    try:
                        self._forward(method, where, headers, upstream)
                    finally:
                        self.server.untrack(upstream)
        finally:
            self.server.untrack(self.request)

    def _connect(self, where: Url) -> socket.socket:
        """Connect to the first address that answers. All of them were checked."""
        problem = OSError("no address")
        for address in self.server.egress.resolve(where):
            try:
                return socket.create_connection((str(address), where.port), _SECONDS)
            except OSError as error:
                problem = error
        raise problem

    def _forward(self, method: str, where: Url, headers: HTTPMessage, upstream: socket.socket) -> None:
        self.request.settimeout(_IDLE_SECONDS)
        upstream.settimeout(_IDLE_SECONDS)
        if method == "CONNECT":
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            response = threading.Thread(target=_copy, args=(upstream, self.request), daemon=True)
            response.start()
            _copy(self.request, upstream)
            response.join()
            return
        # Only this one request is passed on: another one on the same connection could name another host.
        size = headers.get("Content-Length", "0")
        if "Transfer-Encoding" in headers or not (size.isascii() and size.isdecimal()):
            self._refuse(411, "Hookline: send the length of the body in Content-Length")
            return
        kept = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _NOT_FORWARDED]
        host = where.origin.partition("://")[2]
        lines = [f"{method} {where.target} HTTP/1.1", f"Host: {host}", *kept, "Connection: close", "", ""]
        upstream.sendall("\r\n".join(lines).encode("latin-1"))
        left = int(size)
        while left and (data := self.rfile.read(min(left, _CHUNK_SIZE))):
            upstream.sendall(data)
            left -= len(data)
        _copy(upstream, self.request)

    def _refuse(self, status: int, why: str) -> None:
        body = f"{why}\n".encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        )
        with suppress(OSError):
            self.wfile.write(f"{head}Connection: close\r\n\r\n".encode() + body)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until the source ends. A connection that breaks ends both directions."""
    try:
        while data := source.recv(_CHUNK_SIZE):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for connection in (source, target):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
