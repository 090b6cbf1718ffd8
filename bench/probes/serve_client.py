"""Clients of ``serve.py`` in their own process: each starts a run and follows it to its end.

It prints a line when it is ready, waits for a line on stdin, and prints the result at the end.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

AGENT = "bench"
FINAL = "And this is what came of it in the end, told word by word as a model tells it, until there is no more."


class Connection:
    """An HTTP connection for consecutive requests."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.host, self.port = where.hostname, where.port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, target: str, body: Any = None, **headers: str) -> str:
        """Send a request and return the head of the response."""
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}:{self.port}", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if data:
            lines.append("Content-Type: application/json")
        self.writer.write("\r\n".join([*lines, "\r\n"]).encode() + data)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert " 20" in head[:12], head + (await self.reader.read(500)).decode()
        return head

    async def json(self, method: str, target: str, body: Any = None, **headers: str) -> Any:
        """Return the JSON of a response."""
        head = await self.ask(method, target, body, **headers)
        assert self.reader is not None
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        return json.loads(await self.reader.readexactly(length))

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the blocks of an event stream."""
        assert self.reader is not None
        left = b""
        while size := int(await self.reader.readline(), 16):
            data = left + (await self.reader.readexactly(size + 2))[:-2].replace(b"\r\n", b"\n")
            *blocks, left = data.split(b"\n\n")
            for block in blocks:
                yield block
        await self.reader.readline()

    def close(self) -> None:
        """Close the connection at once."""
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None


class Client:
    """A client that starts a run and follows it."""

    def __init__(self, url: str) -> None:
        self.url, self.began, self.first, self.took = url, time.perf_counter(), 0.0, 0.0
        self.events, self.lost, self.repeated, self.resumed, self.closed = 0, 0, 0, 0, False
        self._last = 0

    def saw(self, seq: int) -> None:
        """Record an event."""
        self.first = self.first or time.perf_counter() - self.began
        self.events += 1
        self.repeated += seq <= self._last
        self.lost += max(0, seq - self._last - 1)
        self._last = max(seq, self._last)

    def end(self, whole: bool) -> None:
        """Record the last event, and whether everything arrived in order."""
        self.closed, self.took = whole, time.perf_counter() - self.began

    async def sse(self, leave: Callable[[], bool] = lambda: False) -> None:
        """Use the JSON API; ``leave`` says when to disconnect and resume."""
        here = Connection(self.url)
        run = await here.json("POST", "/runs", {"task": "go"})
        while not self.closed:
            await here.ask("GET", f"/runs/{run['id']}/events", Last_Event_ID=str(self._last))
            async for block in here.pieces():
                fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
                if b"id" not in fields:
                    continue
                self.saw(int(fields[b"id"]))
                if fields[b"event"] == b"run_closed":
                    self.end(json.loads(fields[b"data"])["status"] == "completed")
                elif leave():
                    self.resumed += 1
                    here.close()
                    break
            else:
                assert self.closed, "the stream ended before the run"
        here.close()

    async def a2a(self) -> None:
        """Use A2A, which carries only the events of a task, so the numbers have gaps."""
        here, text = Connection(self.url), ""
        message = {"messageId": f"m{id(self)}", "role": "ROLE_USER", "parts": [{"text": "go"}]}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
        await here.ask("POST", f"/a2a/{AGENT}", asked, A2A_Version="1.0")
        async for block in here.pieces():
            if not block.startswith(b"data: "):
                continue
            ((kind, event),) = json.loads(block[6:])["result"].items()
            if kind == "artifactUpdate":
                piece = "".join(part.get("text", "") for part in event["artifact"].get("parts", ()))
                text = text + piece if event.get("append") else piece
            seq = int(event.get("metadata", {}).get("seq", self._last + 1))
            self._last = seq - 1 if seq > self._last else self._last
            self.saw(seq)
            if kind == "statusUpdate" and event["status"]["state"] == "TASK_STATE_COMPLETED":
                self.end(text == FINAL)
        here.close()

    async def openai(self) -> None:
        """Use chat completions, which carry only text."""
        here, text = Connection(self.url), ""
        asked = {"model": AGENT, "stream": True, "messages": [{"role": "user", "content": "go"}]}
        await here.ask("POST", "/v1/chat/completions", asked)
        async for block in here.pieces():
            if block == b"data: [DONE]":
                self.end(text.endswith(FINAL))
            elif block.startswith(b"data: "):
                text += json.loads(block[6:])["choices"][0]["delta"].get("content") or ""
                self.saw(self._last + 1)
        here.close()


async def stall(url: str) -> Connection:
    """Start a run with long output, request its events and read none of them."""
    here = Connection(url)
    run = await here.json("POST", "/runs", {"task": "say much"})
    await here.ask("GET", f"/runs/{run['id']}/events")
    assert here.writer is not None
    here.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return here


async def main(kind: str, url: str, clients: int) -> None:
    chance = random.Random(7)
    ways: dict[str, Callable[[Client], Any]] = {
        "sse": Client.sse,
        "flood": Client.sse,
        "stalled": Client.sse,
        "a2a": Client.a2a,
        "openai": Client.openai,
        "resume": lambda each: each.sse(lambda: each.resumed < 2 and chance.random() < 0.2),
    }
    await ways[kind](Client(url))  # warm up
    slow = await asyncio.gather(*(stall(url) for _ in range(min(20, clients) if kind == "stalled" else 0)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.perf_counter()
    there: list[Client] = []

    async def one() -> None:
        there.append(client := Client(url))
        await ways[kind](client)

    async with asyncio.timeout(600), asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one())
    took = time.perf_counter() - began
    for each in slow:
        each.close()
    print(json.dumps({
        "took": took,
        "first": [each.first for each in there],
        "whole": [each.took for each in there],
        "events": sum(each.events for each in there),
        "dropped": clients - sum(each.closed for each in there),
        "lost": sum(each.lost for each in there),
        "repeated": sum(each.repeated for each in there),
        "resumed": sum(each.resumed for each in there),
    }))  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(main(given.kind, given.url, given.clients))
