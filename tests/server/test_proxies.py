"""Forwarding headers of trusted proxies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.server.proxies import Proxies, network_of, parse_address


def scope(peer, **headers):
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"client": (peer, 1) if peer else None, "headers": pairs, "scheme": "http"}


PROXIES = Proxies(["10.0.0.0/8", "::1", "192.0.2.1"])


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("203.0.113.5", {}, "203.0.113.5"),
        ("203.0.113.5", {"x_forwarded_for": "198.51.100.1"}, "203.0.113.5"),
        ("203.0.113.5", {"forwarded": "for=198.51.100.1"}, "203.0.113.5"),
        ("10.0.0.1", {}, "10.0.0.1"),
        ("10.0.0.1", {"x_forwarded_for": "198.51.100.1"}, "198.51.100.1"),
        ("10.0.0.1", {"x_forwarded_for": "127.0.0.1, 198.51.100.1, 10.0.0.7"}, "198.51.100.1"),
        ("10.0.0.1", {"x_forwarded_for": "10.9.9.9,10.0.0.7"}, "10.9.9.9"),
        ("10.0.0.1", {"x_forwarded_for": "198.51.100.1:8080"}, "198.51.100.1"),
        ("10.0.0.1", {"x_forwarded_for": "[2001:db8::1]:443"}, "2001:db8::1"),
        ("10.0.0.1", {"x_forwarded_for": "2001:db8::1"}, "2001:db8::1"),
        ("10.0.0.1", {"x_forwarded_for": "198.51.100.1, evil"}, "10.0.0.1"),
        ("10.0.0.1", {"x_forwarded_for": ""}, "10.0.0.1"),
        ("10.0.0.1", {"forwarded": 'for="[2001:db8::2]:1";proto=https'}, "2001:db8::2"),
        ("10.0.0.1", {"forwarded": "proto=http;FOR=198.51.100.4, for=10.0.0.3"}, "198.51.100.4"),
        ("10.0.0.1", {"forwarded": "for=_hidden"}, "10.0.0.1"),
        ("10.0.0.1", {"forwarded": "by=198.51.100.4"}, "10.0.0.1"),
        ("::ffff:10.0.0.1", {"x_forwarded_for": "198.51.100.1"}, "198.51.100.1"),
        ("::1", {"x_forwarded_for": "198.51.100.1"}, "198.51.100.1"),
        ("", {"x_forwarded_for": "198.51.100.1"}, ""),
        ("not an address", {"x_forwarded_for": "198.51.100.1"}, ""),
    ],
)
def test_the_client_is_the_rightmost_address_that_is_not_a_trusted_proxy(peer, headers, client):
    assert PROXIES.client_address(scope(peer, **headers)) == client


def test_repeated_forwarding_headers_are_one_list():
    two = scope("10.0.0.1", x_forwarded_for="198.51.100.1")
    two["headers"].append((b"x-forwarded-for", b"198.51.100.2"))
    assert PROXIES.client_address(two) == "198.51.100.2"


@pytest.mark.parametrize(
    ("peer", "given", "scheme"),
    [
        ("10.0.0.1", "https", "https"),
        ("10.0.0.1", "http, HTTPS", "https"),
        ("10.0.0.1", "javascript", "http"),
        ("203.0.113.5", "https", "http"),
        ("", "https", "http"),
    ],
)
def test_only_a_trusted_proxy_can_set_the_scheme(peer, given, scheme):
    assert PROXIES.scheme(scope(peer, x_forwarded_proto=given)) == scheme


def test_no_proxy_is_trusted_by_default():
    assert Proxies().client_address(scope("127.0.0.1", x_forwarded_for="198.51.100.1")) == "127.0.0.1"


@given(st.text(st.characters(max_codepoint=255)), st.text(st.characters(max_codepoint=255)))
def test_any_forwarding_header_yields_an_address(forwarded_for, forwarded):
    for headers in ({"x_forwarded_for": forwarded_for}, {"forwarded": forwarded}):
        assert parse_address(PROXIES.client_address(scope("10.0.0.1", **headers))) is not None


def test_requests_from_one_ipv6_network_are_counted_together():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("") == ""
