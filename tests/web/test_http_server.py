"""The HTTP server and its security checks."""

import asyncio
import signal
import socket

import httpx
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from hookline._web import middleware
from hookline._web.http_server import HttpServer, WebError
from hookline.channels.protocol import ChannelError
from hookline.channels.web.channel import WebChannel

from ..waiting import wait_until


class Echo:
    """A component that returns the length of a body and echoes WebSocket messages."""

    def __init__(self, path="/echo"):
        self.path, self.reading, self.taken = path, 0, []

    def routes(self):
        async def echo(request):
            self.reading += 1
            self.taken.append(len(await request.body()))
            return PlainTextResponse(str(self.taken[-1]))

        async def talk(socket):
            await socket.accept()
            async for text in socket.iter_text():
                await socket.send_text(text)

        return [Route(self.path, echo, methods=["GET", "POST"]), WebSocketRoute(f"{self.path}/ws", talk)]


class CatchesAll:
    """A component that catches every exception, as some libraries do."""

    def routes(self):
        async def catch(request):
            try:
                return PlainTextResponse(str(len(await request.body())))
            except Exception as error:  # noqa: BLE001
                return PlainTextResponse(f"oh: {error}", 200)

        return [Route("/catch", catch, methods=["POST"])]


@pytest.fixture
async def host():
    host = HttpServer([Echo()], port=0, max_body=1000, body_seconds=20, grace=1)
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
async def client(host):
    async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:
        yield client


async def test_a_rejection_is_sent_even_if_the_application_catches_it(host, client):
    host.add(CatchesAll())
    answer = await client.post("/catch", content=b"x" * 5000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_long")
    assert (await client.post("/catch", content=b"x" * 1000)).text == "1000"


async def raw(host, *pieces):
    """Write to a connection and read until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


async def test_every_response_has_the_security_headers(client):
    for path in ("/echo", "/nothing"):
        headers = (await client.get(path)).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


async def test_an_unknown_host_name_is_rejected(client):
    expected = {"evil.example": 421, "127.0.0.1:1": 200, "localhost": 200, "[::1]:80": 200, "a@b": 400, "": 400}
    answers = {asked: (await client.get("/echo", headers={"Host": asked})).status_code for asked in expected}
    assert answers == expected


async def test_two_host_headers_are_rejected(host):
    head = b"GET /echo HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert b" 400 " in (await raw(host, head)).splitlines()[0]


async def test_a_listed_host_name_is_accepted():
    host = HttpServer([Echo()], port=0, hosts=["Chat.example"])
    await host.start()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert (await client.get(f"{host.url}/echo", headers={"Host": "chat.example"})).status_code == 200
    await host.stop()


async def test_pages_of_other_sites_can_neither_post_nor_open_websockets(host, client):
    for origin in ("https://evil.example", "null", "http://localhost:1", "file://", "x"):
        assert (await client.post("/echo", headers={"Origin": origin})).status_code == 403, origin
        assert (await client.get("/echo", headers={"Origin": origin})).status_code == 200, origin
        with pytest.raises(InvalidStatus, match="403"):
            await connect(host.url.replace("http", "ws") + "/echo/ws", origin=origin, proxy=None)


async def test_our_own_page_and_programs_can_post_and_open_websockets(host, client):
    assert (await client.post("/echo", headers={"Origin": host.url})).status_code == 200
    behind_tls = {"Origin": "https://localhost", "Host": "localhost"}
    assert (await client.post("/echo", headers=behind_tls)).status_code == 200
    for origin in (host.url, None):
        async with connect(host.url.replace("http", "ws") + "/echo/ws", origin=origin, proxy=None) as ws:
            await ws.send("hello")
            assert await ws.recv() == "hello"


async def test_a_body_that_is_too_long_is_rejected_before_it_is_read(host, monkeypatch):
    monkeypatch.setattr(middleware, "_DRAIN_SECONDS", 0.01)
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n"
    answer = await raw(host, head)
    assert b" 413 " in answer.splitlines()[0]
    assert b"longer than 1000 bytes" in answer
    assert host.components[0].taken == []


async def test_a_body_without_a_length_is_rejected_at_the_limit(host, client):
    async def pieces(size):
        for start in range(0, size, 50_000):
            yield b"x" * min(50_000, size - start)

    for size in (999, 1000, 1001, 3_000_000):
        answer = await client.post("/echo", content=pieces(size))
        assert answer.status_code == (200 if size <= 1000 else 413), size
    assert host.components[0].taken == [999, 1000]


async def test_a_body_that_does_not_arrive_in_time_is_rejected(monkeypatch):
    monkeypatch.setattr(middleware, "_DRAIN_SECONDS", 0.01)
    host = HttpServer([Echo()], port=0, body_seconds=0.1)
    await host.start()
    answer = await raw(host, b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", b"abc")
    assert b" 408 " in answer.splitlines()[0]
    await host.stop()


async def test_a_client_that_disconnects_while_sending_a_body_is_not_an_error(host, client, caplog):
    _, writer = await asyncio.open_connection("127.0.0.1", host.port)
    writer.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
    await wait_until(lambda: host.components[0].reading == 1)
    writer.close()
    await wait_until(lambda: not host._server.server_state.tasks)
    assert (await client.post("/echo", content=b"abc")).text == "3"
    assert caplog.records == []


class Endless:
    """A component that sends without end."""

    def __init__(self):
        self.begun = 0

    def routes(self):
        async def pieces(count):
            self.begun += 1
            for _ in range(count):
                yield b"x" * 100_000

        async def send(request):
            return StreamingResponse(pieces(int(request.query_params["count"])))

        async def talk(socket):
            await socket.accept()
            self.begun += 1
            while True:
                await socket.send_bytes(b"x" * 100_000)

        return [Route("/send", send), WebSocketRoute("/talk", talk)]


UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.mark.parametrize("head", [b"GET /send?count=1000000000 HTTP/1.1\r\n", b"GET /talk HTTP/1.1\r\n" + UPGRADE])
async def test_a_response_to_a_client_that_never_reads_is_abandoned(head, monkeypatch):
    monkeypatch.setattr(middleware, "SEND_SECONDS", 0.2)
    part = Endless()
    host = HttpServer([part], port=0, grace=1)
    await host.start()
    deaf = socket.create_connection(("127.0.0.1", host.port))
    deaf.sendall(head + b"Host: localhost\r\n\r\n")
    await wait_until(lambda: part.begun == 1)
    await wait_until(lambda: not host._server.server_state.tasks)
    deaf.close()
    await host.stop()


async def test_a_slow_reader_gets_the_whole_response(monkeypatch):
    part = Endless()
    host = HttpServer([part], port=0, grace=1)
    await host.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port, limit=1000)
    writer.write(b"GET /send?count=100 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    await wait_until(lambda: any(each.flow.write_paused for each in host._server.server_state.connections))
    size = 0
    while piece := await reader.read(100_000):
        size += len(piece)
    assert size > 10_000_000
    writer.close()
    await host.stop()


async def test_connections_stay_open_longer_than_clients_reuse_them(host):
    assert host._server.config.timeout_keep_alive > 5 + 1  # httpx and Node reuse connections for 5 s


async def test_a_websocket_message_that_is_too_long_closes_only_its_connection(host):
    url = host.url.replace("http", "ws") + "/echo/ws"
    async with connect(url, proxy=None) as good, connect(url, proxy=None) as bad:
        await bad.send("x" * 1001)
        with pytest.raises(ConnectionClosed) as caught:
            await bad.recv()
        assert caught.value.rcvd.code == 1009
        await good.send("x" * 1000)
        assert len(await good.recv()) == 1000


async def test_a_server_stops_with_open_connections_and_frees_its_port(host):
    half = await asyncio.open_connection("127.0.0.1", host.port)
    half[1].write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
    idle = await asyncio.open_connection("127.0.0.1", host.port)
    ws = await connect(host.url.replace("http", "ws") + "/echo/ws", proxy=None)
    await wait_until(lambda: host.components[0].reading == 1)
    await asyncio.wait_for(host.stop(), 60)
    with pytest.raises(ConnectionClosed):
        await ws.recv()
    assert await idle[0].read() == b""
    await half[0].read()
    for _, writer in (half, idle):
        writer.close()
    again = HttpServer([Echo()], port=host.port)
    await again.start()
    await again.stop()
    await again.stop()


async def test_signal_handlers_of_the_program_are_kept():
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    host = HttpServer([Echo()], port=0)
    await host.start()
    assert [signal.getsignal(number) for number in numbers] == before
    await host.stop()


async def test_a_server_that_cannot_start_says_what_to_change(host):
    with pytest.raises(WebError, match="choose another, or 0"):
        await HttpServer([], port=host.port).start()
    with pytest.raises(WebError, match="not a valid port"):
        await HttpServer([], port=70_000).start()
    with pytest.raises(WebError, match="127.0.0.1 or 0.0.0.0"):
        await HttpServer([], host="no.such.host.invalid", port=0).start()
    with pytest.raises(WebError, match="another path"):
        await HttpServer([Echo(), Echo()], port=0).start()


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"host": "::"}, {"hosts": ["chat.example"]}])
async def test_a_web_chat_without_a_token_is_not_served_to_other_machines(options, tmp_path):
    with pytest.raises(ChannelError, match="token"):
        await HttpServer([WebChannel(store=tmp_path / "c.db")], port=0, **options).start()


async def test_the_server_can_listen_on_an_ipv6_address():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    host = HttpServer([Echo()], host="::1", port=0)
    await host.start()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert (await client.get(f"{host.url}/echo")).status_code == 200
    await host.stop()
