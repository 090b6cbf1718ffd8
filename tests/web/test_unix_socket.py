"""The Unix socket of a server: who can reach it, and what its callers may do."""

import os
import socket
import stat

import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route

from hookline._web.http_server import HttpServer, WebError
from hookline._web.middleware import is_local, is_peer
from hookline._web.unix_socket import SocketError, UnixListener


class Told:
    """A component that says what it knows about its client."""

    def routes(self):
        async def tell(request):
            return JSONResponse({"peer": is_peer(request.scope), "local": is_local(request.scope)})

        return [Route("/", tell)]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    return tmp_path / "run" / "h.sock"


def client_of(path):
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://localhost")


async def test_a_server_answers_on_its_socket_and_on_its_port(path):
    server = HttpServer([Told()], port=0, socket=str(path), grace=1)
    await server.start()
    try:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with client_of(path) as client:
            assert (await client.get("/")).json() == {"peer": True, "local": True}
            through_a_proxy = await client.get("/", headers={"X-Forwarded-For": "203.0.113.9"})
            assert through_a_proxy.json() == {"peer": False, "local": False}
            by_name = await client.get("/", headers={"Host": "127.0.0.1.example.com"})
            assert by_name.status_code == 421
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(server.url)).json() == {"peer": False, "local": True}
    finally:
        await server.stop()
    assert not path.exists()


async def test_a_folder_that_others_can_enter_is_refused(path):
    path.parent.mkdir(0o755)
    server = HttpServer([Told()], port=0, socket=str(path))
    with pytest.raises(WebError, match="nobody else can enter"):
        await server.start()


def test_a_link_in_the_place_of_the_folder_is_refused(path, tmp_path):
    (tmp_path / "other").mkdir(0o700)
    path.parent.symlink_to(tmp_path / "other")
    with pytest.raises(SocketError, match="nobody else can enter"):
        UnixListener(path)


def test_a_socket_in_use_is_left_alone_and_one_of_a_killed_process_is_replaced(path):
    first = UnixListener(path)
    first.listen()
    with pytest.raises(SocketError, match="another program listens"):
        UnixListener(path)
    first.close()  # as when the process is killed: the file stays
    with UnixListener(path) as second:
        first.remove()
        assert path.exists()
        second.remove()
        assert not path.exists()


def test_a_file_that_is_no_socket_is_never_removed(path):
    path.parent.mkdir(0o700)
    path.write_text("mine")
    with pytest.raises(SocketError, match="is not a socket"):
        UnixListener(path)
    assert path.read_text() == "mine"


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not name the user of a peer")
def test_a_program_of_another_user_is_refused(path, monkeypatch):
    listener = UnixListener(path)
    listener.listen()
    listener.setblocking(True)
    with listener, socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as own:
        user, seen = os.getuid(), iter((os.getuid() + 1, os.getuid()))  # the first peer is another user's
        monkeypatch.setattr(os, "getuid", lambda: next(seen, user))
        other.connect(str(path))
        own.connect(str(path))
        own.sendall(b"own")
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(3) == b"own"
        assert other.recv(1) == b""
