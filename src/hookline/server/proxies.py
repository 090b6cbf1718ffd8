"""Find the client's address and scheme behind trusted reverse proxies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from .._web.middleware import Scope

Address = IPv4Address | IPv6Address

MAX_HOPS = 32
"""Maximum number of proxies in a chain that are checked."""

_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;"\s]*))', re.IGNORECASE)
_PORT = re.compile(r":[0-9]{1,5}\Z")


class Proxies:
    """Trusted reverse proxies, whose ``Forwarded`` and ``X-Forwarded-*`` headers are used.

    Args:
        trusted: their addresses or networks. Forwarding headers from any other peer are ignored.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted: list[IPv4Network | IPv6Network] = [ip_network(each, strict=False) for each in trusted]

    def client_address(self, scope: Scope) -> str:
        """Return the client's address: the nearest address in the forwarding chain that is not a trusted proxy."""
        peer = parse_address(str((scope.get("client") or ("",))[0]))
        if peer is None:
            return ""
        if not self._trusts(peer):
            return str(peer)
        for named in reversed(_forwarded_for(scope)[-MAX_HOPS:]):
            address = parse_address(named)
            if address is None:  # an obfuscated identifier: the proxy that wrote it is the last known address
                break
            peer = address
            if not self._trusts(peer):
                break
        return str(peer)

    def scheme(self, scope: Scope) -> str:
        """Return the scheme that the client used: ``http`` or ``https``."""
        if self.is_peer(scope):
            named = [each.strip().lower() for each in _values(scope, b"x-forwarded-proto")]
            if named and named[-1] in ("http", "https"):
                return named[-1]
        return str(scope.get("scheme", "http"))

    def is_peer(self, scope: Scope) -> bool:
        """Whether the connection itself comes from a trusted proxy."""
        peer = parse_address(str((scope.get("client") or ("",))[0]))
        return peer is not None and self._trusts(peer)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


@lru_cache(maxsize=1024)
def parse_address(text: str) -> Address | None:
    """Parse an IP address, with or without brackets and a port. An IPv4-mapped IPv6 address becomes IPv4.

    Returns ``None`` for any other text.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = _PORT.sub("", text)
    if "%" in text:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def network_of(address: str) -> str:
    """Return the key for rate limits: an IPv4 address itself, or the /64 network of an IPv6 address (one owner)."""
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, 64), strict=False))
    return address


def _forwarded_for(scope: Scope) -> list[str]:
    """Return the addresses in the forwarding headers, the nearest last."""
    named = _values(scope, b"x-forwarded-for")
    if named:
        return named
    found = (_FOR.search(part) for part in _values(scope, b"forwarded"))
    return [(match[1] if match[1] is not None else match[2]) if match else "" for match in found]


def _values(scope: Scope, name: bytes) -> list[str]:
    return [part for key, value in scope["headers"] if key == name for part in value.decode("latin-1").split(",")]
