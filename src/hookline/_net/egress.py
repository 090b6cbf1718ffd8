"""An allowlist of hosts, and HTTP requests that obey it."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from functools import cached_property
from http.client import HTTPConnection
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec

from .._base.errors import HooklineError
from .._base.text import is_number
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .addresses import Address, Network, reach
from .http_client import Cutoff, FetchError, HttpResponse, PinnedConnection, send_request
from .pages import FetchedPage, is_page, is_redirect, page_of
from .urls import PORTS, Url, UrlError, address_of, parse_host, parse_url

SECONDS = 20.0
"""Time limit for a whole fetch, in seconds."""
MAX_BYTES = 1_000_000
"""Maximum size of a page, in bytes."""
MAX_REDIRECTS = 5
"""Maximum number of redirects."""

_HEADERS = {"User-Agent": "hookline", "Accept": "text/*, application/json, */*;q=0.1", "Accept-Encoding": "gzip"}
_RESERVED_HEADERS = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "accept-encoding", "upgrade", "te")
)
_NARROW = 16  # a listed network with a shorter prefix does not allow the special addresses in it
_LOCALHOST = re.compile(r"(?:.*\.)?localhost")
_INTERNAL_NAME = re.compile(r"[^.]*|(?:.*\.)?(?:localhost|local|internal|intranet|lan|home|corp|private|home\.arpa)")


class EgressError(HooklineError, PermissionError):
    """A URL or an address that may not be reached. The message says why."""


class _AllowedHost(msgspec.Struct, frozen=True):
    """One item of the list of hosts."""

    scheme: str | None
    name: str
    port: int | None
    network: Network | None = None

    def matches(self, host: str) -> bool:
        """Return whether the item matches this host."""
        if self.name in ("*", host):
            return True
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        address = address_of(host)
        return address is not None and self.contains(address)

    def contains(self, address: Address) -> bool:
        """Return whether the item lists this address."""
        network = self.network
        return network is not None and address.version == network.version and address in network


class Egress:
    """A list of hosts that may be reached; no other host may be.

    URLs are parsed strictly: anything that two programs might read differently (user names, backslashes, unusual
    spellings of addresses, non-ASCII characters in a host) is rejected. A name must resolve to public addresses only;
    a name that resolves to a private address is rejected, unless that address is listed too. ``fetch`` connects to the
    address that was checked, so that DNS cannot change it in between, and checks each redirect like the first URL.

    Args:
        hosts: ``"example.com"`` (only that name), ``"*.example.com"`` (all subdomains, but not the name itself), an
            address, a network such as ``"10.1.0.0/16"``, or ``"*"`` for every public host. Each may have a scheme and
            a port: ``"http://localhost:8000"``. An empty list allows nothing.
        schemes: the schemes of hosts without one.
        ports: the ports of hosts without one; if omitted, the default ports of the schemes.
        private: whether names may resolve to private addresses. Link-local addresses, where clouds keep credentials,
            must still be listed.
        tls: how certificates are verified; Python's defaults if omitted.

    Raises:
        RegistrationError: a host, scheme or port is invalid.

    Example::

        egress = Egress(["api.example.com", "*.wikipedia.org"])
        print(egress.check("https://evil.example/"))  # says why it is not allowed
        page = egress.fetch("https://en.wikipedia.org/wiki/Hook")
    """

    def __init__(
        self,
        hosts: Iterable[str],
        *,
        schemes: Iterable[str] = ("https",),
        ports: Iterable[int] | None = None,
        private: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if isinstance(hosts, (str, Mapping)) or not isinstance(hosts, Iterable):
            raise RegistrationError(f"hosts= must be a list such as ['example.com'], not {hosts!r:.80}")
        self.schemes = (schemes,) if isinstance(schemes, str) else tuple(schemes)
        if not self.schemes or not all(scheme in PORTS for scheme in self.schemes):
            raise RegistrationError(f"schemes= must be a list of 'https' and 'http', not {schemes!r:.80}")
        self.ports = None if ports is None else tuple(ports)
        if not all(type(port) is int and 0 < port < 65536 for port in self.ports or ()) or self.ports == ():
            raise RegistrationError(f"ports= must be a list of port numbers such as [443], not {ports!r:.80}")
        if not isinstance(private, bool):
            raise RegistrationError(f"private= must be True or False, not {private!r:.80}")
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise RegistrationError(f"tls= must be an ssl.SSLContext, not {tls!r:.80}")
        self.hosts, self.private, self._given_tls = tuple(hosts), private, tls
        self._entries = tuple(map(_allowed_host, self.hosts))

    def __repr__(self) -> str:
        return f"Egress({list(self.hosts)!r})"

    def check(self, url: str) -> str | None:
        """Return why a URL may not be reached; ``None`` if it may, as far as this is known without a DNS lookup."""
        try:
            self.judge(url)
        except EgressError as error:
            return str(error)
        return None

    def judge(self, url: str, *, bare: bool = False) -> Url:
        """Check a URL without a DNS lookup and return its parts.

        Args:
            url: the whole URL.
            bare: whether a host without a scheme is accepted, with or without a port and a path.

        Raises:
            EgressError: the URL is invalid or may not be reached.
        """
        try:
            found = self._bare(url) if bare and "://" not in url else parse_url(url)
        except UrlError as error:
            raise EgressError(f"{url!r:.200} is not allowed: {error}") from None
        problem = self._reason_against(found)
        if problem is not None:
            raise EgressError(f"{url!r:.200} is not allowed: {problem}")
        return found

    def resolve(self, url: str | Url) -> tuple[Address, ...]:
        """Look up the addresses of a URL's host and check each of them. This blocks.

        Raises:
            EgressError: the URL or one of the addresses may not be reached.
            FetchError: the host does not exist.
        """
        if not isinstance(url, Url):
            url = self.judge(url)
        literal = url.address
        addresses = (literal,) if literal is not None else _look_up(url.host, url.port)
        for address in addresses:
            problem = self._reason_against_address(address, url)
            if problem is not None:
                raise EgressError(f"{str(url)!r:.200} is not allowed: {problem}")
        return addresses

    def connect(self, url: str, *, seconds: float = SECONDS) -> HTTPConnection:
        """Open a connection to a checked address of the URL's host. This blocks.

        Use it for requests that ``fetch`` cannot make. The result is an ``http.client.HTTPConnection``: use its
        ``request`` and ``getresponse``, and close it. It does not follow redirects; call ``connect`` for the next URL
        instead.

        Raises:
            EgressError: the URL may not be reached.
            FetchError: the host does not exist.
        """
        where = self.judge(url)
        return PinnedConnection(where, self.resolve(where), self.tls, _positive(seconds, "seconds"))

    def fetch(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> FetchedPage:
        """Fetch a page of text. This blocks; in async code use :meth:`afetch`.

        Args:
            url: the whole URL.
            headers: additional headers. A redirect to another server does not get them. A redirect from ``https`` to
                ``http`` is followed only if the host is listed with ``http://``.
            seconds: time limit for the whole fetch.
            max_bytes: maximum size of the page, both compressed and decompressed.

        Raises:
            EgressError: the URL, a redirect or an address may not be reached.
            FetchError: the server does not answer or is too slow, the page is not text, or there are too many
                redirects.
        """
        return self._fetch(url, _checked(headers), int(_positive(max_bytes, "max_bytes")), _cutoff(seconds))

    async def afetch(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        max_bytes: int = MAX_BYTES,
    ) -> FetchedPage:
        """Fetch a page of text in async code; see :meth:`fetch`. Cancelling closes the connection."""
        cutoff = _cutoff(seconds)
        try:
            page: FetchedPage = await in_thread(
                self._fetch, url, _checked(headers), int(_positive(max_bytes, "max_bytes")), cutoff
            )
            return page
        finally:
            cutoff.cut("the request was cancelled")

    def _fetch(self, url: str, headers: Mapping[str, str], max_bytes: int, cutoff: Cutoff) -> FetchedPage:
        with cutoff:
            where = self.judge(url)
            for _ in range(MAX_REDIRECTS + 1):
                addresses = self.resolve(where) if where.address else cutoff.bounded(self.resolve, where)
                response = send_request(
                    where,
                    addresses,
                    headers={**_HEADERS, **headers},
                    cutoff=cutoff,
                    tls=self.tls,
                    max_bytes=max_bytes,
                    reads_body=is_page,
                )
                if not is_redirect(response.status, response.headers.get("location")):
                    return page_of(where, response)
                following = self._redirect_target(where, response.headers["location"])
                headers = headers if following.origin == where.origin else {}
                where = following
        raise FetchError(f"the server redirected more than {MAX_REDIRECTS} times")

    def _redirect_target(self, where: Url, location: str) -> Url:
        from urllib.parse import quote, urljoin

        plain = quote(location.encode("latin-1", "replace"), safe="".join(map(chr, range(33, 127))))
        try:
            following = self.judge(urljoin(str(where), plain))
        except (EgressError, ValueError) as error:
            raise EgressError(f"{str(where)!r:.200} redirects, but {error}") from None
        http_allowed = any(entry.scheme == "http" and entry.matches(following.host) for entry in self._entries)
        if where.scheme == "https" and following.scheme == "http" and not http_allowed:
            raise EgressError(f"{str(where)!r:.200} redirects from https to http, which is not safe")
        return following

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The TLS settings for verifying certificates."""
        return self._given_tls or ssl.create_default_context()

    def _bare(self, text: str) -> Url:
        """Make a URL for a host without a scheme, with the scheme and port of its item in the list, if any."""
        parts = re.fullmatch(r"([^/?#]*)(.*)", text, re.DOTALL)
        assert parts is not None
        if "@" in text or "\\" in text:
            raise UrlError("it contains an @ or a backslash, but no scheme; write the whole URL")
        host, port = parse_host(parts[1])
        known = (entry for entry in self._entries if entry.matches(host))
        entry = next((entry for entry in known if port is None or port in self._ports(entry)), None)
        scheme = entry.scheme if entry is not None and entry.scheme is not None else self.schemes[0]
        usual = PORTS[scheme] if entry is None else self._ports(entry)[0]
        return Url(scheme, host, port or usual, "/")

    def _ports(self, entry: _AllowedHost) -> tuple[int, ...]:
        if entry.port is not None:
            return (entry.port,)
        return self.ports or tuple(PORTS[scheme] for scheme in self._schemes(entry))

    def _schemes(self, entry: _AllowedHost) -> tuple[str, ...]:
        return self.schemes if entry.scheme is None else (entry.scheme,)

    def _fits(self, entry: _AllowedHost, url: Url) -> bool:
        """Return whether the scheme and port of a URL match an item."""
        if url.scheme not in self._schemes(entry):
            return False
        if entry.port is not None or self.ports is not None:
            return url.port in self._ports(entry)
        return url.port == PORTS[url.scheme]

    def _reason_against(self, url: Url) -> str | None:
        named = [entry for entry in self._entries if entry.matches(url.host)]
        if not named:
            return f"{url.host} is not one of the allowed hosts ({self._shown()})"
        fitting = [entry for entry in named if self._fits(entry, url)]
        if not fitting:
            if not any(url.scheme in self._schemes(entry) for entry in named):
                return f"use {named[0].scheme or self.schemes[0]}, not {url.scheme}"
            ports = ", ".join(str(port) for entry in named for port in self._ports(entry))
            return f"port {url.port} is not allowed for this host, only {ports}"
        if url.address is not None:
            return self._reason_against_address(url.address, url)
        if not self.private and _INTERNAL_NAME.fullmatch(url.host) and all("*" in entry.name for entry in fitting):
            return f"{url.host} is a name in a private network"
        return None

    def _reason_against_address(self, address: Address, url: Url) -> str | None:
        kind = reach(address)
        for entry in self._entries:
            if self._fits(entry, url):
                is_listed = entry.network is not None and (kind != "never" or entry.network.prefixlen >= _NARROW)
                is_localhost = entry.name == url.host and _LOCALHOST.fullmatch(url.host) and address.is_loopback
                if is_localhost or (is_listed and entry.contains(address)):
                    return None
        if kind == "public" or (kind == "private" and self.private):
            return None
        what = "its address " if url.address is None else ""
        return f"{what}{address} is {'in a private network' if kind == 'private' else 'a special address'}"

    def _shown(self) -> str:
        shown = ", ".join(self.hosts[:10]) + (", ..." if len(self.hosts) > 10 else "")
        return shown or "the list is empty"


async def post(
    egress: Egress, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float, max_bytes: int = 0
) -> HttpResponse:
    """Post to a URL that ``egress`` allows. Redirects are not followed.

    Args:
        egress: checks the URL and its addresses.
        url: the whole URL.
        body: the body of the request.
        headers: the headers, including the content type.
        seconds: time limit for the whole request. Cancelling closes the connection too.
        max_bytes: how much of the body of the response is read; by default, nothing.

    Raises:
        EgressError: the URL or an address may not be reached.
        FetchError: the server does not answer, or not in time.
    """
    cutoff = Cutoff(seconds)

    def work() -> HttpResponse:
        with cutoff:
            where = egress.judge(url)
            addresses = egress.resolve(where) if where.address else cutoff.bounded(egress.resolve, where)
            return send_request(
                where,
                addresses,
                headers=headers,
                cutoff=cutoff,
                tls=egress.tls,
                max_bytes=max_bytes,
                reads_body=lambda response: max_bytes > 0,
                data=body,
            )

    try:
        response: HttpResponse = await in_thread(work)
        return response
    finally:
        cutoff.cut("the request was cancelled")


def _allowed_host(text: Any) -> _AllowedHost:
    wrong = RegistrationError(
        f"hosts=: {text!r:.80} is not a host; write 'example.com', '*.example.com', an address, a network or '*', "
        "with 'http://' before it or ':8000' after it if needed"
    )
    if not isinstance(text, str):
        raise wrong
    scheme, mark, rest = text.rpartition("://")
    if (mark and scheme not in PORTS) or not rest:
        raise wrong
    named = scheme if mark else None
    try:
        network = ip_network(rest)
        return _AllowedHost(named, str(network.network_address) if network.num_addresses == 1 else "", None, network)
    except ValueError:
        pass  # it is a name, or an address with a port
    every, below = re.match(r"\*(?::|$)", rest), rest.startswith("*.")
    try:
        name, port = parse_host(f"any{rest[1:]}" if every else rest[2:] if below else rest)
    except UrlError:
        raise wrong from None
    address = address_of(name)
    if below and address is not None:
        raise wrong
    shown = "*" if every else f"*.{name}" if below else name
    return _AllowedHost(named, shown, port, None if address is None else ip_network(address))


def _look_up(host: str, port: int) -> tuple[Address, ...]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = tuple(dict.fromkeys(ip_address(str(info[4][0])) for info in found))
    except (OSError, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FetchError(f"the host {host!r} cannot be resolved: {reason}") from None
    if not addresses:
        raise FetchError(f"the host {host!r} has no address")
    return addresses


def _positive(value: Any, name: str) -> float:
    if not is_number(value) or not 0 < value < 1e12:
        raise ValueError(f"{name}= must be a positive number, not {value!r:.80}")
    return value  # type: ignore[no-any-return]


def _cutoff(seconds: float) -> Cutoff:
    return Cutoff(min(_positive(seconds, "seconds"), 86_400.0))


def _checked(headers: Mapping[str, str] | None) -> dict[str, str]:
    for name in headers or ():
        if name.lower() in _RESERVED_HEADERS:
            raise ValueError(f"the header {name!r} cannot be set: Hookline sets it itself")
    return {name.title(): value for name, value in (headers or {}).items()}
