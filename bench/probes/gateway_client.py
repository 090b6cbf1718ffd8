"""Clients of ``gateway.py`` in their own process: post signed messages and receive the replies.

It prints the callback URL, reads the URL for messages from stdin, and prints the result at the end.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hookline._net.signatures import HEADER, sign, verify
from hookline._web.http_server import HttpServer

SECRET = "a secret of this benchmark alone"
PATH = "/webhook/bench"


class Connection:
    """A persistent connection. If the server closed it, the request is sent again on a new one."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.host, self.port = where.hostname, where.port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        """Send a signed request and return the status and the JSON of the response."""
        signed = sign(SECRET, body or f"{method} {target}".encode())
        head = f"{method} {target} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n{HEADER}: {signed}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        for again in (True, False):
            try:
                return await self._exchange(f"{head}\r\n".encode() + body)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                if not again:
                    raise
        raise AssertionError

    async def _exchange(self, request: bytes) -> tuple[int, Any]:
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


class People:
    """Conversations that send numbers and record when each was sent and answered."""

    def __init__(self, kind: str, conversations: int, each: int) -> None:
        self.kind, self.each = kind, each
        self.chats = [f"chat{number}" for number in range(conversations)]
        self.sent_at: dict[str, list[float]] = {chat: [] for chat in self.chats}
        self.replies: dict[str, dict[str, tuple[str, float]]] = {chat: {} for chat in self.chats}
        self.again = 0
        self.news = {chat: asyncio.Event() for chat in self.chats}

    def receive(self, reply: dict[str, Any]) -> None:
        """Record a reply; repeated replies are counted separately."""
        chat = self.replies[reply["chat"]]
        self.again += reply["id"] in chat
        chat.setdefault(reply["id"], (reply["text"], time.perf_counter()))
        self.news[reply["chat"]].set()

    async def talk(self, url: str, chat: str) -> None:
        """Send all numbers, each after the previous one was accepted (in a ``talk``: answered)."""
        connection = Connection(url)
        for number in range(self.each):
            body = json.dumps({"id": f"m{number}", "chat": chat, "text": str(number)}).encode()
            self.sent_at[chat].append(time.perf_counter())
            status, response = await connection.ask("POST", PATH, body)
            assert status in (200, 202), response
            if self.kind == "talk":
                await self.until(chat, number + 1)
        connection.close()

    async def until(self, chat: str, count: int) -> None:
        """Wait until a chat has ``count`` replies."""
        while len(self.replies[chat]) < count:
            self.news[chat].clear()
            await self.news[chat].wait()

    async def fetch(self, url: str, chat: str) -> None:
        """Poll for the replies of a chat until all have arrived."""
        connection, after = Connection(url), 0
        while len(self.replies[chat]) < self.each:
            query = urlencode({"chat": chat, "after": after, "wait": 30})
            status, found = await connection.ask("GET", f"{PATH}/replies?{query}")
            assert status == 200, found
            after = found["after"]
            for reply in found["replies"]:
                self.receive(reply)
        connection.close()

    def outcome(self, took: float) -> dict[str, Any]:
        """Return the result."""
        wanted = [f"echo {number}" for number in range(self.each)]
        got = {chat: [text for text, _ in replies.values()] for chat, replies in self.replies.items()}
        pairs = [zip(self.replies[chat].values(), self.sent_at[chat], strict=False) for chat in self.chats]
        return {
            "took": took,
            "waits": [at - begun for pair in pairs for (_, at), begun in pair],
            "lost": sum(len(set(wanted) - set(texts)) for texts in got.values()),
            "out_of_order": sum(texts != [text for text in wanted if text in texts] for texts in got.values()),
            "twice": self.again,
        }


class Inbox:
    """The server that receives callbacks."""

    def __init__(self, people: People) -> None:
        self.people = people

    def routes(self) -> list[Route]:
        return [Route("/replies", self.post, methods=["POST"])]

    async def post(self, request: Request) -> Response:
        body = await request.body()
        verify([SECRET], request.headers[HEADER], body)
        self.people.receive(json.loads(body))
        return Response(status_code=204)


async def main(kind: str, conversations: int, each: int, posted: bool) -> None:
    people = People(kind, conversations, each)
    inbox = HttpServer([Inbox(people)], port=0)
    await inbox.start()
    print(f"{inbox.url}/replies", flush=True)
    url = (await asyncio.to_thread(sys.stdin.readline)).strip()
    began = time.perf_counter()
    async with asyncio.timeout(600), asyncio.TaskGroup() as group:
        for chat in people.chats:
            group.create_task(people.talk(url, chat))
            group.create_task(people.until(chat, each) if posted else people.fetch(url, chat))
    took = time.perf_counter() - began
    await inbox.stop()
    print(json.dumps(people.outcome(took)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["flood", "talk"])
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--each", type=int, required=True)
    parser.add_argument("--posted", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.kind, given.conversations, given.each, given.posted))
