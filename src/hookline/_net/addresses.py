"""Classify IP addresses: public, private, or never to be connected to."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Literal

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Reach = Literal["public", "private", "never"]

_UNICAST = IPv6Network("2000::/3")
_LOCAL = IPv6Network("fc00::/7")
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")
_NEVER: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/3",
        "192.88.99.0/24",
        # Metadata services of clouds, which hold credentials.
        "168.63.129.16/32",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "fd00:ec2::/32",
        # Other special networks.
        "2001::/32",
        "3fff::/20",
    )
)


def reach(address: Address) -> Reach:
    """Classify an address. An IPv6 address that embeds an IPv4 address gets the more restrictive class of the two."""
    found = {_own_reach(address), *map(_own_reach, _embedded(address))}
    return "never" if "never" in found else "private" if "private" in found else "public"


def _own_reach(address: Address) -> Reach:
    if any(address.version == network.version and address in network for network in _NEVER):
        return "never"
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        return "never"
    if address.is_loopback:
        return "private"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return "public"  # the embedded address decides
        if address not in _UNICAST:
            return "private" if address in _LOCAL else "never"
        if address.sixtofour is not None:
            return "public"
    return "public" if address.is_global and not address.is_reserved else "private"


def _embedded(address: Address) -> Iterator[Address]:
    """Yield the IPv4 addresses embedded in an IPv6 address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address in _NAT64 or (address in _COMPATIBLE and not address.is_loopback):
            yield IPv4Address(int(address) & 0xFFFF_FFFF)
