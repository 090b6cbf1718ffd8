"""Strict parsing of URLs: anything that two programs might read differently is rejected."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

PORTS = {"https": 443, "http": 80}
"""The supported schemes with their default ports."""

MAX_URL = 8_000
"""Maximum length of a URL in characters."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(#.*)?", re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_UNPRINTED = re.compile(r"[\x00-\x20\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ud800-\udfff]")
_PLAIN = "!#$%&'()*+,/:;=?@[]~"  # not percent-encoded in a path or query, like letters and digits


class UrlError(ValueError):
    """A text that is not a URL, or is ambiguous. The message says why."""


class Url(msgspec.Struct, frozen=True):
    """The parts of a URL. The same parts are checked and connected to.

    ``host`` is a name in lower case or an address without brackets; ``target`` is the path and the query.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The host if it is an address, else ``None``."""
        return address_of(self.host)

    @property
    def origin(self) -> str:
        """Scheme, host and port. The default port is left out."""
        port = "" if self.port == PORTS.get(self.scheme) else f":{self.port}"
        return f"{self.scheme}://{bracketed(self.host)}{port}"

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


def parse_url(text: str) -> Url:
    """Parse a full ``http`` or ``https`` URL.

    Raises:
        UrlError: the text is not a URL, or is ambiguous. The message says why.
    """
    if len(text) > MAX_URL:
        raise UrlError(f"it is longer than {MAX_URL} characters")
    if _UNPRINTED.search(text):
        raise UrlError("it contains spaces or unprintable characters; write %20 for a space")
    if "\\" in text:
        raise UrlError("it contains a backslash; write /")
    match = _URL.fullmatch(text)
    if match is None:
        scheme = _SCHEME.match(text)
        if scheme is not None and scheme[1].lower() not in PORTS:
            raise UrlError(f"{scheme[1].lower()!r:.40} is not http or https")
        raise UrlError("it does not begin with https:// and a host")
    scheme_, authority, target = match[1].lower(), match[2], match[3]
    if scheme_ not in PORTS:
        raise UrlError(f"{scheme_!r:.40} is not http or https")
    if "@" in authority:
        raise UrlError("it contains a user name or password before the host; leave that out")
    if not target.startswith("/") and "@" in text:
        raise UrlError("it contains an @ but no / after the host; add the /")
    host, port = parse_host(authority)
    return Url(scheme_, host, port or PORTS[scheme_], _encoded(target if target.startswith("/") else f"/{target}"))


def parse_host(text: str) -> tuple[str, int | None]:
    """Parse a host with or without a port. Return the name or address, and the port.

    Raises:
        UrlError: the text is not a host. The message says why.
    """
    match = _AUTHORITY.fullmatch(text)
    if match is None or not match[1]:
        raise UrlError("it has no host" if not text or text.startswith(":") else f"{text!r:.80} is not a host")
    if match[2] is not None and not (_PORT.fullmatch(match[2]) and int(match[2]) <= 65535):
        raise UrlError(f"{match[2]!r:.20} is not a port")
    return _host(match[1]), int(match[2]) if match[2] else None


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address if a host is one; ``None`` if it is a name."""
    if host.isascii() and "%" not in host and (":" in host or host.rpartition(".")[2].isdigit()):
        try:
            return ip_address(host)
        except ValueError:
            pass
    return None


def bracketed(host: str) -> str:
    """Return a host as it is written in a URL, with brackets around an IPv6 address."""
    return f"[{host}]" if ":" in host else host


def _host(text: str) -> str:
    if not text.isascii():
        raise UrlError(f"the host {text!r:.80} is not ASCII; write it in its xn-- form")
    text = text.lower()
    if text.startswith("["):
        address = address_of(text[1:-1])
        if not isinstance(address, IPv6Address):
            raise UrlError(f"{text!r:.80} is not an IPv6 address; zones are not allowed")
        return str(address)
    labels = text.split(".")
    if labels[-1] == "":
        raise UrlError(f"the host {text!r:.80} ends with a dot; leave it out")
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlError(f"{text!r:.80} is not a host name")
    if _NUMBER.fullmatch(labels[-1]) and address_of(text) is None:
        raise UrlError(f"{text!r:.80} is not an address; write four numbers, such as 192.0.2.1")
    return text


def _encoded(target: str) -> str:
    """Return path and query percent-encoded to ASCII."""
    from urllib.parse import quote

    return quote(target, safe=_PLAIN)
