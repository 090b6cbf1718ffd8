"""Allowed URLs: strict parsing, the list of hosts, and the classification of addresses."""

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import RegistrationError
from hookline._net.addresses import reach
from hookline._net.urls import Url, UrlError, parse_url
from hookline.tools import Egress, EgressError, FetchError
from tests.cases import each_case
from tests.properties import examples

HOSTS = ["good.com", "*.wild.org", "api.shop.io:8443", "http://plain.net", "93.184.216.34", "[2606:2800:220:1::]:444"]

EVASIONS = [
    # other hosts
    "https://evil.com",
    "https://good.com.evil.com",
    "https://evilgood.com",
    "https://good.com-evil.com",
    "https://wild.org",
    "https://xwild.org",
    "https://evil.com/good.com",
    "https://evil.com?good.com",
    "https://evil.com#good.com",
    "https://evil.com/https://good.com",
    # ambiguous hosts
    "https://good.com@evil.com",
    "https://good.com:443@evil.com",
    "https://user:pw@good.com",
    "https://@good.com",
    "https://good.com%40evil.com",
    "https://good.com\\@evil.com",
    "https://evil.com\\.good.com",
    "https://good.com\\evil",
    "https://evil.com\\good.com/",
    "https:\\\\evil.com",
    "https:/\\evil.com",
    "https://good.com?@evil.com",
    "https://good.com#@evil.com",
    "https://good.com;@evil.com",
    "https://good.com&@evil.com",
    "https://good.com,evil.com",
    "https://good.com|evil.com",
    'https://good.com"@evil.com',
    "https://[good.com]",
    "https://good.com[evil.com]",
    "https://[good.com]evil.com",
    "https://{good.com,evil.com}",
    "https://good.com$evil.com",
    # unprintable characters
    "https://evil.com\t.good.com",
    "https://good.com\n.evil.com",
    "https://good.com\r\nHost: evil.com",
    "ht\ttps://good.com",
    " https://good.com",
    "https://good.com ",
    "https://good.com\0.evil.com",
    "https://good.com /x",
    "https://good.com\u200b",
    "https://good.com/\u2028x",
    "https://good\u00ad.com",
    "https://good.com\ud800",
    "\ufeffhttps://good.com",
    "https://good.com\x7f",
    # lookalike letters and dots
    "https://gооd.com",
    "https://good。com",
    "https://good．com",
    "https://good｡com",
    "https://ｇood.com",
    "https://evil。com",
    "https://good.com／evil",
    "https://good.com⁄@evil.com",
    "https://good.com℀.evil.com",
    "https://xn--gd-jbcb.com",
    "https://goo%64.com",
    "https://good%2ecom",
    "https://good%2Ecom",
    "https://evil%2ecom/",
    "https://good.com%00.evil.com",
    "https://good.com%2f.evil.com",
    "https://ⓖood.com",
    "https://bücher.wild.org",
    # dots, ports, no host
    "https://good.com.",
    "https://good..com",
    "https://.good.com",
    "https://.wild.org",
    "https://-.wild.org",
    "https://",
    "https:///evil.com",
    "https:///",
    "https://:443",
    "https://?",
    "https://good.com:",
    "https://good.com:0",
    "https://good.com:99999",
    "https://good.com:8080",
    "https://good.com:443:80",
    "https://good.com:0443",
    "https://good.com:-443",
    "https://good.com:+443",
    "https://good.com:４43",
    "https://good.com:80@evil.com",
    "https://good.com:443evil.com",
    "https://" + "a" * 64 + ".wild.org",
    "https://" + "a." * 130 + "wild.org",
    # other schemes, or none
    "http://good.com",
    "https://plain.net",
    "https:/good.com",
    "https:good.com",
    "//good.com",
    "good.com",
    "/good.com",
    "",
    "HTTPS//good.com",
    "file:///etc/passwd",
    "file://good.com/x",
    "ftp://good.com",
    "gopher://good.com:443/_",
    "data:text/html,x",
    "javascript://good.com/%0aalert(1)",
    "blob:https://good.com/1",
    "ws://good.com",
    "wss://good.com",
    "jar:https://good.com!/x",
    "dict://good.com",
    "ldap://good.com",
    "view-source:https://good.com",
    "git+https://good.com",
    "httpss://good.com",
    "https+x://good.com",
    "1https://good.com",
    "h\u0442tps://good.com",
    # disguised addresses
    "https://127.0.0.1",
    "https://127.1",
    "https://127.0.1",
    "https://2130706433",
    "https://0x7f000001",
    "https://0x7f.0.0.1",
    "https://0177.0.0.1",
    "https://017700000001",
    "https://127.0.0.01",
    "https://127.0.0.1.",
    "https://0",
    "https://0.0.0.0",
    "https://0x5db8d822",
    "https://1572395042",
    "https://93.184.216.034",
    "https://93.184.55330",
    "https://[::1]",
    "https://[::]",
    "https://[::ffff:127.0.0.1]",
    "https://[::ffff:93.184.216.34]",
    "https://[::ffff:7f00:1]",
    "https://[fe80::1%25eth0]",
    "https://[fe80::1%eth0]",
    "https://[2606:2800:220:1::%25eth0]:444",
    "https://::1",
    "https://2606:2800:220:1:::444",
    "https://[2606:2800:220:1::]",
    "https://[2606:2800:220:1::",
    "https://[]",
    "https://[v1.x]",
    "https://169.254.169.254",
    "https://93.184.216.34.evil.com",
    "https://93.184.216.35",
    "https://１27.0.0.1",
    "https://①②⑦.⓪.⓪.①",
    "https://localhost",
    "https://good.com/" + "x" * 9000,
]

HARMLESS = [
    "https://good.com",
    "https://good.com/",
    "https://GOOD.com/Path",
    "HTTPS://good.com",
    "https://good.com:443/x",
    "https://good.com/a/b/c.html",
    "https://good.com/?q=1",
    "https://good.com?q=1&r=2",
    "https://good.com#top",
    "https://good.com/x#frag@ment",
    "https://good.com/@user/post",
    "https://good.com/mail?to=me@home.org",
    "https://good.com/a%20b%2Fc",
    "https://good.com/wiki/Käse",
    "https://good.com/日本語?q=値",
    "https://good.com/a//b",
    "https://good.com/../x",
    "https://good.com/?next=https://evil.com/",
    "https://good.com/~me/(1)",
    "https://good.com/a;b=c",
    "https://good.com/[x]",
    "https://good.com/{id}",
    "https://good.com/a|b",
    "https://good.com/a'b",
    "https://good.com/a:b",
    "https://a.wild.org",
    "https://a.b.c.wild.org/x",
    "https://a-b.wild.org",
    "https://a_b.wild.org",
    "https://1.wild.org",
    "https://xn--bcher-kva.wild.org",
    "https://api.shop.io:8443/v1",
    "http://plain.net/x",
    "http://plain.net:80",
    "https://93.184.216.34/",
    "https://[2606:2800:220:1::]:444/x",
    "https://[2606:2800:0220:0001:0:0:0:0]:444/",
    "https://0x7f.wild.org",
    "https://127.0.0.1.wild.org",
]


def test_the_tables_are_as_long_as_they_should_be():
    assert len(set(EVASIONS)) >= 60
    assert len(set(HARMLESS)) >= 30


@each_case("url", EVASIONS)
def test_an_evasive_url_is_rejected_with_the_reason(url):
    reason = Egress(HOSTS).check(url)
    assert reason is not None
    assert "is not allowed: " in reason
    with pytest.raises(EgressError):
        Egress(HOSTS).resolve(url)


@each_case("url", HARMLESS)
def test_a_harmless_url_is_allowed(url):
    assert Egress(HOSTS).check(url) is None


def test_an_empty_list_allows_nothing():
    assert "the list is empty" in Egress([]).check("https://good.com")


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost",
        "https://printer",
        "https://a.localhost",
        "https://metadata.google.internal",
        "https://nas.local",
        "https://10.0.0.1",
        "https://[fd00::1]",
        "https://[::1]",
        "https://192.168.1.1",
        "https://169.254.169.254",
    ],
)
def test_a_star_allows_only_public_hosts(url):
    assert Egress(["*"]).check(url) is not None
    assert Egress(["*"]).check("https://any.where.com") is None
    assert Egress(["*"]).check("https://1.1.1.1") is None


def test_default_schemes_and_ports_apply_to_hosts_without_their_own():
    egress = Egress(["a.com", "http://b.com", "c.com:1", "*:99"], schemes=["http", "https"], ports=[80, 8080])
    allowed = ["http://a.com", "https://a.com:8080", "http://b.com:8080", "https://c.com:1", "https://z.com:99"]
    refused = ["https://a.com", "https://b.com:80", "http://c.com", "https://z.com"]
    assert [egress.check(url) for url in allowed] == [None] * 5
    assert None not in [egress.check(url) for url in refused]


@each_case(
    ("address", "leads"),
    [
        *(
            (address, "public")
            for address in (
                "1.1.1.1",
                "93.184.216.34",
                "2606:4700::1",
                "::ffff:1.1.1.1",
                "64:ff9b::101:101",
                "2002:101:101::1",
            )
        ),
        *(
            (address, "private")
            for address in (
                "127.0.0.1",
                "10.0.0.1",
                "172.16.5.4",
                "192.168.0.1",
                "100.64.0.1",
                "::1",
                "fd00::1",
                "::ffff:10.0.0.1",
                "64:ff9b::a00:1",
                "2002:a00:1::1",
                "198.18.0.1",
                "2001:db8::1",
                "192.0.2.1",
            )
        ),
        *(
            (address, "never")
            for address in (
                "169.254.169.254",
                "0.0.0.0",
                "0.1.2.3",
                "224.0.0.1",
                "255.255.255.255",
                "::",
                "240.0.0.1",
                "fe80::1",
                "ff02::1",
                "fd00:ec2::254",
                "168.63.129.16",
                "fec0::1",
                "100.100.100.200",
                "::ffff:169.254.169.254",
                "64:ff9b::a9fe:a9fe",
                "::7f00:1",
                "2002:a9fe:a9fe::1",
                "2001:0:a9fe:a9fe::1",
                "64:ff9b:1::1",
                "100::1",
                "fe80::1%1",
            )
        ),
    ],
)
def test_addresses_are_classified(address, leads):
    assert reach(ip_address(address)) == leads


@pytest.fixture
def names(monkeypatch):
    """Fake DNS with a table of names, which counts the lookups."""
    table, asked = {}, []

    def look_up(host, port, *args, **options):
        asked.append(host)
        if host not in table:
            raise socket.gaierror(-2, "Name or service not known")
        found = table[host]
        found = found.pop(0) if isinstance(found, list) else found
        return [(socket.AF_INET6 if ":" in a else socket.AF_INET, 1, 6, "", (a, port)) for a in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    table["asked"] = asked
    return table


def test_all_addresses_of_a_name_must_be_public(names):
    egress = Egress(["*"])
    names |= {
        "ok.com": ("1.1.1.1", "2606:4700::1"),
        "in.com": ("10.0.0.1",),
        "half.com": ("1.1.1.1", "127.0.0.1"),
        "meta.com": ("169.254.169.254",),
        "mapped.com": ("::ffff:10.0.0.1",),
        "127.0.0.1.nip.io": ("127.0.0.1",),
        "none.com": (),
        "zone.com": ("fe80::1%2",),
    }
    assert egress.resolve("https://ok.com") == (ip_address("1.1.1.1"), ip_address("2606:4700::1"))
    for name in ("in.com", "half.com", "meta.com", "mapped.com", "127.0.0.1.nip.io", "zone.com"):
        with pytest.raises(EgressError, match="its address"):
            egress.resolve(f"https://{name}")
    for name in ("none.com", "missing.com"):
        with pytest.raises(FetchError, match=name):
            egress.resolve(f"https://{name}")


def test_a_private_address_is_reached_if_it_is_listed_or_all_are_allowed(names):
    names |= {"in.com": ("10.0.0.1",), "localhost": ("127.0.0.1", "::1"), "meta.com": ("169.254.169.254",)}
    for hosts, options in [
        (["in.com", "10.0.0.0/8"], {}),
        (["in.com", "10.0.0.1"], {}),
        (["in.com"], {"private": True}),
    ]:
        assert Egress(hosts, **options).resolve("https://in.com")
    for hosts in (["in.com", "10.0.0.1:8000"], ["in.com", "http://10.0.0.1"], ["in.com", "10.0.0.2"]):
        with pytest.raises(EgressError):
            Egress(hosts).resolve("https://in.com")
    assert len(Egress(["localhost"]).resolve("https://localhost")) == 2
    for egress in (
        Egress(["meta.com"], private=True),
        Egress(["meta.com", "0.0.0.0/0"]),
        Egress(["169.254.0.0/15", "*"]),
    ):
        with pytest.raises(EgressError):
            egress.resolve("https://meta.com")
    assert Egress(["meta.com", "169.254.169.254"]).resolve("https://meta.com")


@each_case(
    "hosts",
    [
        "good.com",
        None,
        3,
        {"good.com": 1},
        [""],
        [3],
        ["*good.com"],
        ["a.*.com"],
        ["https://good.com/x"],
        ["ftp://good.com"],
        ["good.com:0"],
        ["good.com:x"],
        ["good com"],
        ["*.1.2.3.4"],
        ["10.0.0.1/8"],
        ["bücher.de"],
        ["good.com."],
        ["**"],
        ["user@good.com"],
        ["://good.com"],
        ["*.*"],
        ["127.1"],
    ],
)
def test_an_invalid_list_is_rejected(hosts):
    with pytest.raises(RegistrationError, match="hosts"):
        Egress(hosts)


@pytest.mark.parametrize(
    "options",
    [
        {"schemes": ["ftp"]},
        {"schemes": []},
        {"ports": []},
        {"ports": [0]},
        {"ports": [True]},
        {"private": 1},
        {"tls": 1},
    ],
)
def test_invalid_options_are_rejected(options):
    with pytest.raises(RegistrationError):
        Egress(["good.com"], **options)


pieces = st.sampled_from(
    [
        "https://",
        "http://",
        "https:",
        "/",
        "//",
        "\\",
        "good.com",
        "evil.com",
        "a.wild.org",
        "@",
        ":",
        "443",
        "80",
        "?",
        "#",
        ".",
        "%2e",
        "%40",
        "[",
        "]",
        "::1",
        "127.0.0.1",
        "0x7f",
        "1",
        "\t",
        "\n",
        " ",
        "\0",
        "。",
        "／",
        "＠",
        "\u200b",
        "ß",
        "é",
        "-",
        "_",
        "user",
        "xn--",
        ";",
        "&",
        "|",
        "'",
        '"',
        "$",
        "~",
        "\ud800",
        "www.",
    ]
)
urls = (
    st.lists(pieces, max_size=10).map("".join)
    | st.lists(pieces, max_size=8).map(lambda p: "https://" + "".join(p))
    | st.text()
)
WIDE = Egress(["*", "http://*"], private=True)


def same_host(theirs, ours):
    theirs = (theirs or "").strip("[]").lower()
    return theirs == ours or (":" in ours and ip_address(theirs) == ip_address(ours))


@pytest.mark.slow
@settings(max_examples=examples(600), deadline=None)
@given(urls)
@example("https://XN--00K")
@example("https://good.com/@evil.com")
@example("https://good.com/\\@evil.com")
def test_allowed_urls_are_parsed_the_same_by_other_libraries(text):
    try:
        url = parse_url(text)
    except UrlError:
        return
    for spelling in (text, str(url)):
        split = urlsplit(spelling)
        assert (split.scheme, split.port or url.port, split.username) == (url.scheme, url.port, None)
        assert same_host(split.hostname, url.host)
        other = httpx2.URL(spelling)
        assert (other.scheme, other.port or url.port, other.userinfo) == (url.scheme, url.port, b"")
        assert same_host(other.raw_host.decode(), url.host)  # the connection uses raw_host; ``host`` is for display
    assert parse_url(str(url)) == url
    assert str(url).isascii()


@settings(max_examples=examples(300), deadline=None)
@given(urls)
def test_no_text_crashes_the_check(text):
    for egress in (WIDE, Egress(HOSTS)):
        reason = egress.check(text)
        assert reason is None or "not allowed" in reason
        try:
            assert isinstance(egress.judge(text, bare=True), Url)
        except EgressError:
            pass


@pytest.mark.parametrize(
    "text", ["https://" + "a" * 10**6, "https://" + "a." * 10**6, "://" * 10**6, "https://[" + ":" * 10**6, "@" * 10**6]
)
def test_a_huge_text_is_checked_in_linear_time(text):
    assert "longer than" in Egress(["*"]).check(text)
    assert len(Egress(["*"]).check(text)) < 400
