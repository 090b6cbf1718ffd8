"""Where programs may connect to: a list of hosts, judged strictly, and a way to fetch that keeps to it."""

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
from .http_client import Cutoff, FetchError, PinnedConnection, Reply, ask
from .pages import FetchedPage, is_page, page_of, sends_on
from .urls import PORTS, Url, UrlError, address_of, parse_host, parse_url

SECONDS = 20.0
"""How long a fetch may take in all."""
MAX_BYTES = 1_000_000
"""How much of a page is read."""
MAX_REDIRECTS = 5
"""How often a server may send us on."""

_HEADERS = {"User-Agent": "hookline", "Accept": "text/*, application/json, */*;q=0.1", "Accept-Encoding": "gzip"}
_OURS = frozenset(("host", "connection", "content-length", "transfer-encoding", "accept-encoding", "upgrade", "te"))
_NARROW = 16  # a listed network that is wider does not mean the special addresses in it
_LOCALHOST = re.compile(r"(?:.*\.)?localhost")
_AT_HOME = re.compile(r"[^.]*|(?:.*\.)?(?:localhost|local|internal|intranet|lan|home|corp|private|home\.arpa)")


class EgressError(HooklineError, PermissionError):
    """A URL or an address that may not be reached, and why."""


class _Entry(msgspec.Struct, frozen=True):
    """One item of the list of hosts."""

    scheme: str | None
    name: str
    port: int | None
    network: Network | None = None

    def names(self, host: str) -> bool:
        """Whether it means this host."""
        if self.name in ("*", host):
            return True
        if self.name.startswith("*."):
            return host.endswith(self.name[1:])
        address = address_of(host)
        return address is not None and self.holds(address)

    def holds(self, address: Address) -> bool:
        """Whether it lists this address."""
        network = self.network
        return network is not None and address.version == network.version and address in network


class Egress:
    """A list of hosts that may be reached; everything else may not.

    A URL is read strictly: what two programs might read in two ways (user names, backslashes, odd spellings of
    addresses, letters beyond ASCII in a host) is refused. A name must lead to public addresses alone; one that leads
    into a network of your own is refused, unless that address is listed too. ``fetch`` connects to the very address
    that was judged, so that a name cannot change its meaning in between, and judges each redirect like the first URL.

    Args:
        hosts: ``"example.com"`` (that name alone), ``"*.example.com"`` (all names below it, but not itself), an
            address, a network such as ``"10.1.0.0/16"``, or ``"*"`` for every public host. Each may say its scheme
            and port: ``"http://localhost:8000"``. None at all: nothing may be reached.
        schemes: for hosts that do not say theirs.
        ports: for hosts that do not say theirs; the usual ones of the schemes if left out.
        private: whether names may lead into networks of your own. Link-local addresses, where clouds
            keep credentials, must be listed all the same.
        tls: how certificates are checked; as Python does if left out.

    Raises:
        RegistrationError: a host, scheme or port that makes no sense.
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
            raise RegistrationError(f"hosts is a list such as ['example.com'], not {hosts!r:.80}")
        self.schemes = (schemes,) if isinstance(schemes, str) else tuple(schemes)
        if not self.schemes or not all(scheme in PORTS for scheme in self.schemes):
            raise RegistrationError(f"schemes is a list of 'https' and 'http', not {schemes!r:.80}")
        self.ports = None if ports is None else tuple(ports)
        if not all(type(port) is int and 0 < port < 65536 for port in self.ports or ()) or self.ports == ():
            raise RegistrationError(f"ports is a list of numbers such as [443], not {ports!r:.80}")
        if not isinstance(private, bool):
            raise RegistrationError(f"private is True or False, not {private!r:.80}")
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise RegistrationError(f"tls is an ssl.SSLContext, not {tls!r:.80}")
        self.hosts, self.private, self._given_tls = tuple(hosts), private, tls
        self._entries = tuple(map(_entry, self.hosts))

    def __repr__(self) -> str:
        return f"Egress({list(self.hosts)!r})"

    def check(self, url: str) -> str | None:
        """Why a URL may not be reached, in words; ``None`` if it may, as far as can be told without a lookup."""
        try:
            self.judge(url)
        except EgressError as error:
            return str(error)
        return None

    def judge(self, url: str, *, bare: bool = False) -> Url:
        """The parts of a URL that may be reached, as far as can be told without a lookup.

        Args:
            url: the whole URL.
            bare: whether it may be a host alone, with or without a port and a path.

        Raises:
            EgressError: it may not, or is no proper URL.
        """
        try:
            found = self._bare(url) if bare and "://" not in url else parse_url(url)
        except UrlError as error:
            raise EgressError(f"{url!r:.200} is not allowed: {error}") from None
        problem = self._why_not(found)
        if problem is not None:
            raise EgressError(f"{url!r:.200} is not allowed: {problem}")
        return found

    def resolve(self, url: str | Url) -> tuple[Address, ...]:
        """The addresses that a URL's host has now, each of which may be reached. It blocks while names are looked up.

        Raises:
            EgressError: the URL or one of the addresses may not be reached.
            FetchError: there is no such host.
        """
        if not isinstance(url, Url):
            url = self.judge(url)
        literal = url.address
        addresses = (literal,) if literal is not None else _looked_up(url.host, url.port)
        for address in addresses:
            problem = self._why_not_address(address, url)
            if problem is not None:
                raise EgressError(f"{str(url)!r:.200} is not allowed: {problem}")
        return addresses

    def connect(self, url: str, *, seconds: float = SECONDS) -> HTTPConnection:
        """A connection to a judged address of the URL's host, for requests that ``fetch`` cannot make. It blocks.

        It is an ``http.client.HTTPConnection``: use its ``request`` and ``getresponse``, and close it. It follows
        no redirects; judge the next URL by connecting to it.

        Raises:
            EgressError: the URL may not be reached.
            FetchError: there is no such host.
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
        """Get a page of text. It blocks; in async code use :meth:`afetch`.

        Args:
            url: the whole URL.
            headers: further headers; a server that we are sent on to does not get them, unless it is the same one. From
                ``https`` to ``http`` we only go to a host that is listed with ``http://``.
            seconds: how long everything together may take.
            max_bytes: how much is read, as sent and as unpacked.

        Raises:
            EgressError: the URL, a redirect or an address may not be reached.
            FetchError: it does not answer, is too slow, is not text, or sends us on too often.
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
        """:meth:`fetch` for async code; cancelling it closes the connection."""
        cutoff = _cutoff(seconds)
        try:
            page: FetchedPage = await in_thread(
                self._fetch, url, _checked(headers), int(_positive(max_bytes, "max_bytes")), cutoff
            )
            return page
        finally:
            cutoff.cut("nobody waits for it any more")

    def _fetch(self, url: str, headers: Mapping[str, str], max_bytes: int, cutoff: Cutoff) -> FetchedPage:
        with cutoff:
            where = self.judge(url)
            for _ in range(MAX_REDIRECTS + 1):
                addresses = self.resolve(where) if where.address else cutoff.bounded(self.resolve, where)
                reply = ask(
                    where, addresses, headers={**_HEADERS, **headers}, cutoff=cutoff, tls=self.tls,
                    max_bytes=max_bytes, wanted=is_page,
                )  # fmt: skip
                if not sends_on(reply.status, reply.headers.get("location")):
                    return page_of(where, reply)
                following = self._following(where, reply.headers["location"])
                headers = headers if following.origin == where.origin else {}
                where = following
        raise FetchError(f"the server sent us on more than {MAX_REDIRECTS} times")

    def _following(self, where: Url, location: str) -> Url:
        from urllib.parse import quote, urljoin

        plain = quote(location.encode("latin-1", "replace"), safe="".join(map(chr, range(33, 127))))
        try:
            following = self.judge(urljoin(str(where), plain))
        except (EgressError, ValueError) as error:
            raise EgressError(f"{str(where)!r:.200} sends us on, but {error}") from None
        plainly = any(entry.scheme == "http" and entry.names(following.host) for entry in self._entries)
        if where.scheme == "https" and following.scheme == "http" and not plainly:
            raise EgressError(f"{str(where)!r:.200} sends us on from https to http, which is not safe")
        return following

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """How certificates are checked."""
        return self._given_tls or ssl.create_default_context()

    def _bare(self, text: str) -> Url:
        """A URL for a host without a scheme: as the list has it, if it is there."""
        parts = re.fullmatch(r"([^/?#]*)(.*)", text, re.DOTALL)
        assert parts is not None
        if "@" in text or "\\" in text:
            raise UrlError("it has an @ or a backslash, but no scheme; write the whole URL")
        host, port = parse_host(parts[1])
        known = (entry for entry in self._entries if entry.names(host))
        entry = next((entry for entry in known if port is None or port in self._ports(entry)), None)
        scheme = entry.scheme if entry is not None and entry.scheme is not None else self.schemes[0]
        usual = PORTS[scheme] if entry is None else self._ports(entry)[0]
        return Url(scheme, host, port or usual, "/")

    def _ports(self, entry: _Entry) -> tuple[int, ...]:
        if entry.port is not None:
            return (entry.port,)
        return self.ports or tuple(PORTS[scheme] for scheme in self._schemes(entry))

    def _schemes(self, entry: _Entry) -> tuple[str, ...]:
        return self.schemes if entry.scheme is None else (entry.scheme,)

    def _fits(self, entry: _Entry, url: Url) -> bool:
        """Whether scheme and port of a URL are those of an entry."""
        if url.scheme not in self._schemes(entry):
            return False
        if entry.port is not None or self.ports is not None:
            return url.port in self._ports(entry)
        return url.port == PORTS[url.scheme]

    def _why_not(self, url: Url) -> str | None:
        named = [entry for entry in self._entries if entry.names(url.host)]
        if not named:
            return f"{url.host} is not one of the hosts that may be reached ({self._shown()})"
        fitting = [entry for entry in named if self._fits(entry, url)]
        if not fitting:
            if not any(url.scheme in self._schemes(entry) for entry in named):
                return f"use {named[0].scheme or self.schemes[0]}, not {url.scheme}"
            ports = ", ".join(str(port) for entry in named for port in self._ports(entry))
            return f"port {url.port} may not be reached there, only {ports}"
        if url.address is not None:
            return self._why_not_address(url.address, url)
        if not self.private and _AT_HOME.fullmatch(url.host) and all("*" in entry.name for entry in fitting):
            return f"{url.host} is a name in a network of our own"
        return None

    def _why_not_address(self, address: Address, url: Url) -> str | None:
        leads = reach(address)
        for entry in self._entries:
            if self._fits(entry, url):
                meant = entry.network is not None and (leads != "never" or entry.network.prefixlen >= _NARROW)
                at_home = entry.name == url.host and _LOCALHOST.fullmatch(url.host) and address.is_loopback
                if at_home or (meant and entry.holds(address)):
                    return None
        if leads == "public" or (leads == "private" and self.private):
            return None
        what = "its address " if url.address is None else ""
        kind = "in a private network" if leads == "private" else "not one to connect to"
        return f"{what}{address} is {kind}"

    def _shown(self) -> str:
        shown = ", ".join(self.hosts[:10]) + (", ..." if len(self.hosts) > 10 else "")
        return shown or "there are none"


async def post(egress: Egress, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float) -> Reply:
    """Post and say what the server answered; redirects are not followed, and the answer's body is not read.

    Args:
        egress: judges the URL, and the addresses that it leads to.
        url: the whole URL.
        body: what to post.
        headers: with its type.
        seconds: how long everything together may take; being cancelled closes the connection too.

    Raises:
        EgressError: the URL or an address may not be reached.
        FetchError: it does not answer, or not in time.
    """
    cutoff = Cutoff(seconds)

    def work() -> Reply:
        with cutoff:
            where = egress.judge(url)
            addresses = egress.resolve(where) if where.address else cutoff.bounded(egress.resolve, where)
            return ask(
                where, addresses, headers=headers, cutoff=cutoff, tls=egress.tls, max_bytes=0,
                wanted=lambda response: False, send=body,
            )  # fmt: skip

    try:
        reply: Reply = await in_thread(work)
        return reply
    finally:
        cutoff.cut("nobody waits for it any more")


def _entry(text: Any) -> _Entry:
    wrong = RegistrationError(
        f"hosts: {text!r:.80} is no host; write 'example.com', '*.example.com', an address, a network or '*', "
        "with 'http://' before it or ':8000' after it if need be"
    )
    if not isinstance(text, str):
        raise wrong
    scheme, mark, rest = text.rpartition("://")
    if (mark and scheme not in PORTS) or not rest:
        raise wrong
    named = scheme if mark else None
    try:
        network = ip_network(rest)
        return _Entry(named, str(network.network_address) if network.num_addresses == 1 else "", None, network)
    except ValueError:
        pass  # a name, or an address with a port
    every, below = re.match(r"\*(?::|$)", rest), rest.startswith("*.")
    try:
        name, port = parse_host(f"any{rest[1:]}" if every else rest[2:] if below else rest)
    except UrlError:
        raise wrong from None
    address = address_of(name)
    if below and address is not None:
        raise wrong
    shown = "*" if every else f"*.{name}" if below else name
    return _Entry(named, shown, port, None if address is None else ip_network(address))


def _looked_up(host: str, port: int) -> tuple[Address, ...]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = tuple(dict.fromkeys(ip_address(str(info[4][0])) for info in found))
    except (OSError, UnicodeError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise FetchError(f"the host {host!r} cannot be found: {said}") from None
    if not addresses:
        raise FetchError(f"the host {host!r} has no address")
    return addresses


def _positive(value: Any, name: str) -> float:
    if not is_number(value) or not 0 < value < 1e12:
        raise ValueError(f"{name} is a number above 0, not {value!r:.80}")
    return value  # type: ignore[no-any-return]


def _cutoff(seconds: float) -> Cutoff:
    return Cutoff(min(_positive(seconds, "seconds"), 86_400.0))


def _checked(headers: Mapping[str, str] | None) -> dict[str, str]:
    for name in headers or ():
        if name.lower() in _OURS:
            raise ValueError(f"the header {name!r} is not yours to set")
    return {name.title(): value for name, value in (headers or {}).items()}
