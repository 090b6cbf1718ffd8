"""A server on a real port, raw clients for it, and checks that nothing is left behind."""

import asyncio
import gc
import json
import os
import socket
import threading
from contextlib import asynccontextmanager

from hookline import Agent, ScriptedModel, call
from hookline.config.settings import Settings
from hookline.server.build import build_server

from ..waiting import wait_until
from .rig import Blocker

FAST = {"rate": 1e9, "burst": 1_000_000, "max_runs": 1000, "max_runs_per_caller": 1000}


class TalkingBlocker(Blocker):
    """A blocker whose agent writes a text after the tool call, or before it."""

    def __init__(self, text="one two three", *, closed=True, before=False):
        super().__init__(closed=closed)

        def turn(request):
            if request.messages[-1].role == "tool":
                return "that was all" if before else text
            return [text if before else "let us see", call("blocker")]

        self.talker = Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[self.tool])


def built(folder, agent, **options):
    """A server as ``hookline serve`` builds it."""
    settings = Settings(
        server={"port": 0, **FAST, **options},
        runs=str(folder / "runs.db"),
        sessions=str(folder / "sessions.db"),
        approval_file=str(folder / "approvals.db"),
    )
    return build_server(settings, agent, home=folder)


@asynccontextmanager
async def served(folder, agent, **options):
    """A running server. Afterwards no task, reader, thread or connection is left."""
    gc.collect()  # stores of earlier tests close their connections now, and not within this test
    before = _left()
    server = built(folder, agent, **options)
    await server.start()
    try:
        yield server
        await wait_until(lambda: server.service.counts()["readers"] == 0)
    finally:
        await server.stop(grace=0)
    assert sum(server.service.counts().values()) == 0
    await wait_until(lambda: not _added(before))


def _left():
    """Tasks, threads of a service, and connections. The watcher of sse-starlette ends with its event loop."""
    tasks = {task for task in asyncio.all_tasks() if "_shutdown_watcher" not in repr(task.get_coro())}
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("hookline-run-log")}
    files = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)]
    return tasks, threads, sum(name.startswith("socket:") for name in files)


def _added(before):
    """Whether there is more than before. What earlier tests left may go meanwhile, such as a connection."""
    (tasks, threads, sockets), (old_tasks, old_threads, old_sockets) = _left(), before
    return tasks - old_tasks or threads - old_threads or sockets > old_sockets


def _is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


class Wire:
    """A raw connection."""

    def __init__(self, url, *, narrow=False):
        self._where = url.removeprefix("http://").rsplit(":", 1)
        self._narrow = narrow

    async def __aenter__(self):
        here = socket.socket()
        if self._narrow:
            here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        here.setblocking(False)
        await asyncio.get_running_loop().sock_connect(here, (self._where[0], int(self._where[1])))
        self.reader, self.writer = await asyncio.open_connection(sock=here, limit=2**24)
        return self

    async def __aexit__(self, *_):
        self.writer.transport.abort()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass  # the server closed the connection

    def send(self, data):
        self.writer.write(data)

    def ask(self, method, target, body=None, **headers):
        """Send a request."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {target} HTTP/1.1", f"Host: {':'.join(self._where)}", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "Content-Type: application/json", "\r\n"]).encode() + data)

    async def head(self):
        """The status of the response and its headers; 0 without a response."""
        try:
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, {}
        first, *lines = text.strip().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in lines)

    async def json(self, method, target, body=None, **headers):
        """The status and the JSON of a response."""
        self.ask(method, target, body, **headers)
        status, found = await self.head()
        return status, json.loads(await self.reader.readexactly(int(found["content-length"])))

    async def gone(self):
        """Wait until the server has closed the connection."""
        try:
            while await self.reader.read(2**16):
                pass
        except ConnectionError:
            pass

    async def blocks(self):
        """The blocks of an event stream."""
        left = b""
        while size := int(await self.reader.readline(), 16):
            data = left + (await self.reader.readexactly(size + 2))[:-2].replace(b"\r\n", b"\n")
            *blocks, left = data.split(b"\n\n")
            for block in blocks:
                yield block
        await self.reader.readline()

    async def events(self, run_id, after=0, most=None):
        """Read the events of a run from a stream, at most ``most`` of them."""
        self.ask("GET", f"/runs/{run_id}/events", Last_Event_ID=after)
        assert (await self.head())[0] == 200
        found = []
        async for block in self.blocks():
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
            if b"id" in fields:
                found.append(json.loads(fields[b"data"]))
                assert (int(fields[b"id"]), fields[b"event"].decode()) == (found[-1]["seq"], found[-1]["type"])
            if len(found) == most:
                break
        return found

    async def start(self, task="go", **fields):
        """Start a run and return its id."""
        status, run = await self.json("POST", "/runs", {"task": task, **fields})
        assert status in (201, 202), run
        return run["id"]

    async def a2a(self, task="go"):
        """The updates in an A2A stream of a new task."""
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": task}]}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
        self.ask("POST", "/a2a/helper", asked, A2A_Version="1.0")
        assert (await self.head())[0] == 200
        return [json.loads(block[6:])["result"] async for block in self.blocks() if block.startswith(b"data: ")]

    async def chat(self, task="go"):
        """The chunks of a streamed chat completion."""
        asked = {"model": "helper", "stream": True, "messages": [{"role": "user", "content": task}]}
        self.ask("POST", "/v1/chat/completions", asked)
        assert (await self.head())[0] == 200
        return [block[6:].decode() async for block in self.blocks() if block.startswith(b"data: ")]


def is_whole(events, status="completed"):
    """Whether these are all events of a run, each once and in order."""
    last = events[-1]
    return [each["seq"] for each in events] == list(range(1, len(events) + 1)) and (last["type"], last["status"]) == (
        "run_closed",
        status,
    )
