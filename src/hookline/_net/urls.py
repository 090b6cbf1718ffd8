"""URLs, read strictly: what two programs might read in two ways is refused."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

PORTS = {"https": 443, "http": 80}
"""The schemes that are understood, with the port that each one means."""

MAX_URL = 8_000
"""How many characters a URL may have."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(#.*)?", re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_UNPRINTED = re.compile(r"[\x00-\x20\x7f-\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ud800-\udfff]")
_PLAIN = "!#$%&'()*+,/:;=?@[]~"  # stays as it is in a path or query; letters and digits do so anyway


class UrlError(ValueError):
    """A text that is no URL, or not one that everybody reads in the same way."""


class Url(msgspec.Struct, frozen=True):
    """A URL in its parts: what is judged is also what is connected to.

    ``host`` is a name in small letters or an address without brackets; ``target`` is the path and the query.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The host, if it is an address."""
        return address_of(self.host)

    @property
    def origin(self) -> str:
        """Scheme, host and port; the port is left out if it is the usual one."""
        port = "" if self.port == PORTS.get(self.scheme) else f":{self.port}"
        return f"{self.scheme}://{bracketed(self.host)}{port}"

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


def parse_url(text: str) -> Url:
    """The parts of a full ``http`` or ``https`` URL.

    Raises:
        UrlError: it is none, or could be read in more than one way; says why.
    """
    if len(text) > MAX_URL:
        raise UrlError(f"it is longer than {MAX_URL} characters")
    if _UNPRINTED.search(text):
        raise UrlError("it has spaces or characters that do not print; write %20 for a space")
    if "\\" in text:
        raise UrlError("it has a backslash; write /")
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
        raise UrlError("it has a user name or password before the host; leave that out")
    if not target.startswith("/") and "@" in text:
        raise UrlError("it has an @ but no / after the host; write that /")
    host, port = parse_host(authority)
    return Url(scheme_, host, port or PORTS[scheme_], _encoded(target if target.startswith("/") else f"/{target}"))


def parse_host(text: str) -> tuple[str, int | None]:
    """A host with or without a port: the name or address, and the port.

    Raises:
        UrlError: it is no host; says why.
    """
    match = _AUTHORITY.fullmatch(text)
    if match is None or not match[1]:
        raise UrlError("there is no host in it" if not text or text.startswith(":") else f"{text!r:.80} is no host")
    if match[2] is not None and not (_PORT.fullmatch(match[2]) and int(match[2]) <= 65535):
        raise UrlError(f"{match[2]!r:.20} is no port")
    return _host(match[1]), int(match[2]) if match[2] else None


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is, if it is one and not a name."""
    if host.isascii() and "%" not in host and (":" in host or host.rpartition(".")[2].isdigit()):
        try:
            return ip_address(host)
        except ValueError:
            pass
    return None


def bracketed(host: str) -> str:
    """A host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host


def _host(text: str) -> str:
    if not text.isascii():
        raise UrlError(f"the host {text!r:.80} is not ASCII; write a name with other letters in its xn-- form")
    text = text.lower()
    if text.startswith("["):
        address = address_of(text[1:-1])
        if not isinstance(address, IPv6Address):
            raise UrlError(f"{text!r:.80} is no IPv6 address; zones are not allowed")
        return str(address)
    labels = text.split(".")
    if labels[-1] == "":
        raise UrlError(f"the host {text!r:.80} ends with a dot; leave it out")
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlError(f"{text!r:.80} is no host name")
    if _NUMBER.fullmatch(labels[-1]) and address_of(text) is None:
        raise UrlError(f"{text!r:.80} is no address; write four numbers, such as 192.0.2.1")
    return text


def _encoded(target: str) -> str:
    """Path and query in ASCII."""
    from urllib.parse import quote

    return quote(target, safe=_PLAIN)
