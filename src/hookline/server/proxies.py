"""Who is at the other end: the peer, or whom a proxy that is trusted names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from .._web.middleware import Scope

Address = IPv4Address | IPv6Address

MAX_HOPS = 32
"""Of how many proxies the names are looked at."""

_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;"\s]*))', re.IGNORECASE)
_PORT = re.compile(r":[0-9]{1,5}\Z")


class Proxies:
    """Proxies whose word is taken for who calls, and by which scheme.

    Args:
        trusted: their addresses or networks. What others say of whom they speak for is ignored.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted: list[IPv4Network | IPv6Network] = [ip_network(each, strict=False) for each in trusted]

    def client(self, scope: Scope) -> str:
        """The address that a request comes from: of those named from right to left, the first that is not trusted."""
        peer = parse_address(str((scope.get("client") or ("",))[0]))
        if peer is None:
            return ""
        if not self._trusts(peer):
            return str(peer)
        for named in reversed(_named(scope)[-MAX_HOPS:]):
            address = parse_address(named)
            if address is None:  # a name that hides somebody: it is one of whom the proxy before speaks for
                break
            peer = address
            if not self._trusts(peer):
                break
        return str(peer)

    def scheme(self, scope: Scope) -> str:
        """``http`` or ``https``, as the caller used it."""
        peer = parse_address(str((scope.get("client") or ("",))[0]))
        if peer is not None and self._trusts(peer):
            named = [each.strip().lower() for each in _values(scope, b"x-forwarded-proto")]
            if named and named[-1] in ("http", "https"):
                return named[-1]
        return str(scope.get("scheme", "http"))

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def parse_address(text: str) -> Address | None:
    """An address, with or without brackets and a port; IPv4 inside IPv6 becomes IPv4; ``None`` if it is none."""
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


def same_house(address: str) -> str:
    """What stands for an address where requests are counted: of IPv6 addresses, one owner has a whole /64."""
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, 64), strict=False))
    return address


def _named(scope: Scope) -> list[str]:
    """Those whom proxies speak for, the nearest last."""
    named = _values(scope, b"x-forwarded-for")
    if named:
        return named
    found = (_FOR.search(part) for part in _values(scope, b"forwarded"))
    return [(match[1] if match[1] is not None else match[2]) if match else "" for match in found]


def _values(scope: Scope, name: bytes) -> list[str]:
    return [part for key, value in scope["headers"] if key == name for part in value.decode("latin-1").split(",")]
