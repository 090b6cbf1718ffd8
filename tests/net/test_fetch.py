"""Fetching from real servers: pinned addresses, redirects, limits, certificates, cancellation."""

import asyncio
import datetime
import gzip
import ipaddress
import socket
import ssl
import threading
import time
import tracemalloc
from contextlib import contextmanager

import pytest

from hookline import RegistrationError, call
from hookline._net import http_client
from hookline._net.pages import html_text
from hookline.testing import scripted_agent
from hookline.tools import Egress, EgressError, FetchError, fetch_tool
from tests.cases import each_case


class Server:
    """A server that answers with the bytes that a function returns for the request's first line."""

    def __init__(self, answer, tls=None):
        self.answer, self.tls, self.requests, self.gone = answer, tls, [], threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=[client], daemon=True).start()

    def talk(self, client):
        try:
            with self.tls.wrap_socket(client, server_side=True) if self.tls else client as client:
                data = b""
                while b"\r\n\r\n" not in data:
                    piece = client.recv(65536)
                    if not piece:
                        return
                    data += piece
                self.requests.append(data.decode())
                for piece in self.answer(data.split(b" ")[1].decode()):
                    client.sendall(piece)
        except OSError:
            self.gone.set()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"


@contextmanager
def serving(answer, tls=None):
    server = Server(answer, tls)
    try:
        yield server
    finally:
        server.listener.close()


def response(body, status="200 OK", kind="text/plain", **headers):
    body = body.encode() if isinstance(body, str) else body
    named = {"Content-Type": kind, "Content-Length": len(body), **{k.replace("_", "-"): v for k, v in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return [f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body]


def to(location, status="302 Found"):
    return response("", status, Location=location)


@pytest.fixture
def names(monkeypatch):
    """Fake DNS whose addresses change with each lookup."""
    table, asked = {}, []

    def look_up(host, port, *args, **options):
        asked.append(host)
        found = table[host]
        return [(socket.AF_INET, 1, 6, "", (found.pop(0) if isinstance(found, list) else found, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return table, asked


def test_a_page_is_fetched_with_its_status_and_type(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with serving(lambda path: response(f"höre {path}", "404 Not Found", "text/plain; charset=utf-8")) as server:
        page = Egress([server.url]).fetch(f"{server.url}/a?b=ü#c", headers={"x-mine": "1", "user-agent": "me"})
    assert (page.status, page.reason, page.content_type, page.cut) == (404, "Not Found", "text/plain", False)
    assert page.text == "höre /a?b=%C3%BC"
    assert page.url == f"{server.url}/a?b=%C3%BC"
    assert f"Host: 127.0.0.1:{server.port}\r\n" in server.requests[0]
    assert "X-Mine: 1\r\n" in server.requests[0]
    assert server.requests[0].count("User-Agent: me") == server.requests[0].lower().count("user-agent") == 1


def test_a_name_is_resolved_once_and_the_checked_address_is_used(names):
    table, asked = names
    with serving(lambda path: response("here")) as server:
        table["pinned.test"] = ["127.0.0.1", "10.99.99.99"]
        page = Egress([f"http://pinned.test:{server.port}", server.url]).fetch(f"http://pinned.test:{server.port}/")
        assert (page.text, asked) == ("here", ["pinned.test"])
        assert f"Host: pinned.test:{server.port}\r\n" in server.requests[0]
        table["rebound.test"] = ["93.184.216.34", "127.0.0.1"]
        with pytest.raises(FetchError):
            Egress([f"http://rebound.test:{server.port}"]).fetch(f"http://rebound.test:{server.port}/", seconds=0.3)
        assert (asked[1:], len(server.requests)) == (["rebound.test"], 1)


def test_a_name_with_a_private_address_is_not_connected_to(names):
    table, _ = names
    with serving(lambda path: response("secret")) as server:
        table["evil.test"] = "127.0.0.1"
        with pytest.raises(EgressError, match=r"its address 127.0.0.1 is in a private network"):
            Egress([f"http://evil.test:{server.port}"]).fetch(f"http://evil.test:{server.port}/")
        assert server.requests == []


def test_a_connection_for_other_requests_is_pinned_too(names):
    table, asked = names
    with serving(lambda path: response("taken")) as server:
        table["pinned.test"] = ["127.0.0.1"]
        connection = Egress([f"http://pinned.test:{server.port}", server.url]).connect(
            f"http://pinned.test:{server.port}"
        )
        for _ in range(2):  # the server closes the connection, so the client reconnects
            connection.request("POST", "/hook", body=b"{}")
            assert connection.getresponse().read() == b"taken"
            connection.close()
    assert (asked, [request[:10] for request in server.requests]) == (["pinned.test"], ["POST /hook"] * 2)
    with pytest.raises(EgressError):
        Egress(["good.com"]).connect("https://evil.com")


@pytest.mark.parametrize(
    "location",
    [
        "http://evil.com/",
        "//evil.com/x",
        "\\\\evil.com",
        "/\\evil.com",
        "https:evil.com",
        "http://127.0.0.1:1/",
        "file:///etc/passwd",
        "http://u@127.0.0.1/",
        "http://[::1]/",
        "http://169.254.169.254/latest",
        "javascript:alert(1)",
        "http://[",
        "http://2130706433/",
    ],
)
def test_a_redirect_to_another_host_is_rejected(location):
    with serving(lambda path: to(location)) as server, pytest.raises(EgressError):
        Egress([server.url]).fetch(server.url)


@each_case("status", ["301 x", "302 x", "303 x", "307 x", "308 x"])
@pytest.mark.parametrize(
    "location", ["/b", "b", "./x/../b", "?/b", "{origin}/b", "//{host}/b", "/b#here", "/ b", "/\xfcb"]
)
def test_a_redirect_within_the_list_is_followed(status, location):
    def answer(path):
        host = f"127.0.0.1:{server.port}"
        return response("there") if path != "/a/" else to(location.format(origin=server.url, host=host), status)

    with serving(answer) as server:
        assert Egress([server.url]).fetch(f"{server.url}/a/").text == "there"


def test_a_loop_of_redirects_ends():
    with serving(lambda path: to(path + "x")) as server, pytest.raises(FetchError, match="more than 5 times"):
        Egress([server.url]).fetch(server.url)
    assert len(server.requests) == 6


def test_headers_are_not_sent_to_another_server():
    with (
        serving(lambda path: response("b")) as second,
        serving(lambda path: to("/on" if path == "/" else second.url)) as first,
    ):
        Egress([first.url, second.url]).fetch(first.url, headers={"Authorization": "Bearer x"})
    assert ["Bearer" in request for request in first.requests + second.requests] == [True, True, False]


@pytest.mark.parametrize("name", ["Host", "content-length", "Connection", "Transfer-Encoding"])
def test_reserved_headers_are_rejected(name):
    with pytest.raises(ValueError, match="cannot be set"):
        Egress(["good.com"]).fetch("https://good.com", headers={name: "x"})


def test_a_header_cannot_smuggle_another():
    with serving(lambda path: response("x")) as server, pytest.raises(FetchError):
        Egress([server.url]).fetch(server.url, headers={"X": "1\r\nHost: evil.com"})
    assert server.requests == []


def drip(pieces):
    for piece in pieces:
        yield piece
        time.sleep(0.02)


@pytest.mark.parametrize(
    "answer",
    [
        lambda path: drip(b"H" for _ in range(500)),
        lambda path: drip([b"HTTP/1.1 200 OK\r\n"] + [b"X: 1\r\n"] * 500),
        lambda path: drip([b"HTTP/1.1 100 Continue\r\n\r\n"] * 500),
        lambda path: drip([b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"] + [b"x"] * 500),
        lambda path: drip([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"] + [b"X: 1\r\n"] * 500),
        lambda path: (time.sleep(5), b"")[1:],
    ],
)
def test_a_slow_server_is_abandoned_after_the_total_timeout(answer):
    with serving(answer) as server, pytest.raises(FetchError, match=r"longer than 0\.3 s"):
        Egress([server.url]).fetch(server.url, seconds=0.3)


def test_a_slow_handshake_and_a_slow_lookup_time_out_too(monkeypatch):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, pytest.raises(FetchError, match=r"longer than 0\.2 s"):
        Egress([f"127.0.0.1:{listener.getsockname()[1]}"]).fetch(
            f"https://127.0.0.1:{listener.getsockname()[1]}", seconds=0.2
        )
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: released.wait(20))
    with pytest.raises(FetchError, match="long"):
        Egress(["slow.test"]).fetch("https://slow.test", seconds=0.2)
    released.set()


def test_long_pages_are_cut_and_decompression_bombs_are_not_unpacked():
    bomb = gzip.compress(b"0" * 50_000_000)
    pages = {
        "/long": response("x" * 5000),
        "/bomb": response(bomb, Content_Encoding="gzip"),
        "/zip": response(gzip.compress(b"hi"), Content_Encoding="gzip"),
        "/endless": (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", *[b"y" * 1000] * 50),
        "/exact": response("x" * 1000),
    }
    with serving(lambda path: pages[path]) as server:
        egress = Egress([server.url])
        got = {path: egress.fetch(server.url + path, max_bytes=1000) for path in pages}
    assert {path: (len(page.text), page.cut) for path, page in got.items()} == {
        "/long": (1000, True),
        "/bomb": (1000, True),
        "/zip": (2, False),
        "/endless": (1000, True),
        "/exact": (1000, False),
    }


def test_a_decompression_bomb_does_not_use_its_unpacked_memory():
    bomb = gzip.compress(b"0" * 50_000_000)
    with serving(lambda path: response(bomb, Content_Encoding="gzip")) as server:
        egress = Egress([server.url])
        tracemalloc.start()
        try:
            egress.fetch(server.url, max_bytes=100_000)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


def test_a_chunk_of_negative_size_is_an_error():
    taken = []

    def answer(path):
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"
        for _ in range(1000):
            taken.append(1)
            yield b"x" * 65536

    with serving(answer) as server, pytest.raises(FetchError, match="negative"):
        Egress([server.url]).fetch(server.url)
    assert server.gone.wait(60)
    assert len(taken) < 900


@pytest.mark.parametrize(
    "answer",
    [
        [b"HTTP/1.1 200 OK\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"y" * 60_000) for n in range(5)) + b"\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n" * 9000],
        [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000],
        [b"nonsense\r\n\r\n"],
        [b""],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n" + b"x" * 9000],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"],
        response(b"no gzip", Content_Encoding="gzip"),
        response(gzip.compress(b"x" * 99)[:-9], Content_Encoding="gzip"),
        response(b"x", Content_Encoding="br"),
        response(b"x", Content_Encoding="gzip, gzip"),
        response(b"\x89PNG", kind="image/png"),
        response(b"a\0b", kind=""),
        response(b"x", kind="application/octet-stream"),
    ],
)
def test_a_page_that_is_not_text_is_an_error(answer):
    with serving(lambda path: answer) as server, pytest.raises(FetchError) as caught:
        Egress([server.url]).fetch(server.url, seconds=5)
    assert 10 < len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/html; charset=ISO-8859-1", b"\xfc", "ü"),
        ('text/plain;charset="utf-8"', b"\xc3\xbc\xff", "ü\ufffd"),
        ("application/json", b"{}", "{}"),
        ("application/ld+json", b"{}", "{}"),
        ("image/svg+xml", b"x", None),
        ("", b"x", "x"),
        ("application/atom+xml", b"x", "x"),
        ("text/plain; charset=punycode", b"x-", "x-"),
        ("text/x; charset=nonsense", b"x", "x"),
        ("text/plain; charset=unicode_escape", b"\\x41", "\\x41"),
        ("text/plain; charset=iso-8859-99", b"x", "x"),
    ],
)
def test_a_known_charset_is_used_for_decoding(kind, body, text):
    with serving(lambda path: response(body, kind=kind)) as server:
        if text is None:
            with pytest.raises(FetchError, match="not text"):
                Egress([server.url]).fetch(server.url)
        else:
            assert Egress([server.url]).fetch(server.url).text == text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1 and good.test, with contexts for server and client."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    alternatives = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("good.test")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName(alternatives), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(private + made.public_bytes(pem))
    serve = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serve.load_cert_chain(file)
    return serve, ssl.create_default_context(cadata=made.public_bytes(pem).decode())


def test_a_certificate_must_be_valid_for_the_name(certificate, names):
    serve, trust = certificate
    table, _ = names
    with serving(lambda path: response("safe"), serve) as server:
        table |= {"good.test": "127.0.0.1", "other.test": "127.0.0.1"}
        hosts = [f"127.0.0.1:{server.port}", f"good.test:{server.port}", f"other.test:{server.port}"]
        for host in hosts[:2]:
            assert Egress(hosts, tls=trust).fetch(f"https://{host}").text == "safe"
        with pytest.raises(FetchError, match=r"certificate of other\.test is invalid"):
            Egress(hosts, tls=trust).fetch(f"https://{hosts[2]}")
        with pytest.raises(FetchError, match="certificate"):
            Egress(hosts).fetch(f"https://{hosts[0]}")
        assert len(server.requests) == 2


def test_a_redirect_from_https_to_http_needs_the_host_listed_with_http(certificate):
    serve, trust = certificate
    with serving(lambda path: response("plain")) as plain, serving(lambda path: to(plain.url), serve) as safe:
        mixed = Egress(["127.0.0.1"], schemes=["https", "http"], ports=[plain.port, safe.port], tls=trust)
        assert mixed.fetch(plain.url).text == "plain"
        with pytest.raises(EgressError, match="from https to http"):
            mixed.fetch(safe.url)
        assert Egress([safe.url, plain.url], tls=trust).fetch(safe.url).text == "plain"


async def test_cancelling_closes_the_connection():
    asked = threading.Event()

    def answer(path):
        asked.set()
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
        for _ in range(1000):
            time.sleep(0.01)
            yield b"x"

    with serving(answer) as server:
        task = asyncio.create_task(Egress([server.url]).afetch(server.url))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.gone.wait, 5)


def test_no_threads_or_timers_are_left_behind():
    with serving(lambda path: response("x")) as server:
        for _ in range(3):
            Egress([server.url]).fetch(server.url)
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(1)
    assert not any(timer.is_alive() for timer in timers)


# The tool


def test_a_run_fetches_a_page_and_gets_an_error_for_other_hosts():
    page = (
        "<html><head><title>News &amp; more</title><script>x()</script></head><body><h1>Hi</h1><p>One<br>two</p></body>"
    )
    with serving(lambda path: response(page, kind="text/html")) as server:
        tool = fetch_tool([server.url])
        calls = [
            call("fetch", url=server.url),
            call("fetch", url="https://evil.com"),
            call("fetch", url=f"{server.url}0"),
        ]
        result = scripted_agent([calls, "done"], tools=[tool]).run("go")
    assert result.steps[0].outcomes == ("ok", "error", "error")
    assert result.messages[2].content == f"200 OK, text/html, {server.url}/\n\nNews & more\nHi\nOne\ntwo"
    assert "evil.com is not one of the allowed hosts (http://127.0.0.1:" in result.messages[3].content
    assert (tool.name, tool.untrusted, tool.dangerous) == ("fetch", True, False)


def test_a_long_page_is_cut_and_html_may_stay_as_it_is():
    with serving(lambda path: response("<p>" + "x" * 500, kind="text/html")) as server:
        turns = [call("fetch", url=server.url), "done"]
        result = scripted_agent(turns, tools=[fetch_tool(Egress([server.url]), max_text=50, html="raw")]).run("go")
    assert result.messages[2].content.endswith("<p>" + "x" * 47 + "\n[the page is longer]")


def test_cancelling_a_run_closes_the_connection_of_its_fetch():
    asked = threading.Event()

    def answer(path):
        asked.set()
        for _ in range(1000):
            time.sleep(0.01)
            yield b"H"

    with serving(answer) as server:
        run = scripted_agent([call("fetch", url=server.url), "done"], tools=[fetch_tool([server.url])]).start("go")
        assert asked.wait(60)
        run.cancel("enough")
        assert run.wait().status == "cancelled"
        assert server.gone.wait(60)


@pytest.mark.parametrize(
    "options", [{"hosts": "x"}, {"seconds": 0}, {"max_text": True}, {"max_bytes": "1"}, {"html": "pdf"}]
)
def test_invalid_options_of_the_tool_are_rejected(options):
    with pytest.raises(RegistrationError):
        fetch_tool(**{"hosts": ["good.com"], **options})


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("plain & simple", "plain & simple"),
        ("<p>a<p>b", "a\nb"),
        ("a<!-- <p>hidden --> b", "a b"),
        ("a < b > c", "a < b > c"),
        ("<STYLE>x</STYLE >y<svg><text>t</text></svg>z", "yz"),
        ("<script>never closed", "never closed"),
        ("", ""),
        ("<b>İ</b><script>x</script>ok", "İok"),
        ("<ul><li>1<li>2</ul>", "1\n2"),
        ("<header>top</header>x", "top\nx"),
    ],
)
def test_the_text_of_html_is_its_visible_text(page, text):
    assert html_text(page) == text


@pytest.mark.parametrize("piece", ["<", "<a ", "<!--", "<script>", "<svg", "</", "<p", "&", "<title>", "&#x", "<p\xa0"])
@pytest.mark.slow
def test_html_is_converted_in_linear_time(piece):
    assert isinstance(html_text(piece * 200_000), str)


def test_the_limit_on_headers_is_64_kb():
    assert http_client.MAX_HEAD == 64_000
