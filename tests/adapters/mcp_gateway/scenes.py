"""A client and a scripted server with a gateway between them, all in one process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hookline import HookRegistry
from hookline.adapters.mcp_gateway.catalog import Catalog
from hookline.adapters.mcp_gateway.gateway import Gateway
from hookline.adapters.mcp_gateway.guards import Guards
from hookline.adapters.mcp_gateway.pins import PinStore
from hookline.adapters.mcp_gateway.run import SessionRun

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "sampling": {}},
}


def a_tool(name: str, description: str = "Does it.", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}


def a_text(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


def text_of(response: dict[str, Any]) -> str:
    """The text that the model reads, or the message of an error."""
    if "error" in response:
        return str(response["error"]["message"])
    return "\n".join(each.get("text", "") for each in response["result"]["content"])


class Scene:
    """A session. ``answers`` says what the server answers: a result, or a function of the message that returns one.

    ``server_got`` and ``client_got`` are all messages, as bytes.
    """

    def __init__(
        self,
        folder: Path,
        hooks: Iterable[Any] = (),
        *,
        tools: list[dict[str, Any]] | None = None,
        answers: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        ask_first: bool = False,
        modern: bool = False,
        answer_client: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.tools = tools if tools is not None else [a_tool("echo"), a_tool("other")]
        self.answers = {
            "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}},
            "tools/list": lambda message: {"tools": self.tools},
            "tools/call": lambda message: a_text(str(message["params"].get("arguments", {}).get("text", ""))),
            **(answers or {}),
        }
        self.modern, self.answer_client = modern, answer_client
        self.server_got: list[bytes] = []
        self.client_got: list[bytes] = []
        self.events: list[Any] = []
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._ids = iter(range(1, 1_000_000))
        registry = HookRegistry()
        for hook in hooks:
            registry.register(hook)
        self.guards = Guards(registry, {"sinks": [self.events.append], **(options or {})})  # type: ignore[typeddict-item]
        self.pins = PinStore(["a-server"], "demo", folder / "pins")
        self.run = SessionRun(self.guards.adapter)
        self.catalog = Catalog(self.pins, "demo", ask_first=ask_first)
        self.gateway = Gateway(
            "demo", self.catalog, self.run, self.guards.calls, self._to_client, self._to_server, self.guards.stack
        )

    async def _to_client(self, line: bytes) -> None:
        self.client_got.append(line)
        message = json.loads(line)
        if "method" not in message:
            future = self._waiting.pop(message["id"], None)
            if future is not None:
                future.set_result(message)
        elif "id" in message and self.answer_client is not None:
            result = self.answer_client(message)
            if result is not None:
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                asyncio.get_running_loop().create_task(self.gateway.from_client(json.dumps(answer).encode()))

    async def _to_server(self, line: bytes) -> None:
        self.server_got.append(line)
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            return
        answer = self.answers.get(message["method"])
        result = answer(message) if callable(answer) else answer
        if result is not None:
            asyncio.get_running_loop().create_task(self.from_server(result, message["id"]))

    async def from_server(self, result: Any, ident: Any) -> None:
        """Have the server answer: with a result, an error, or a line of bytes."""
        if isinstance(result, bytes):
            await self.gateway.from_server(result)
            return
        key = "error" if isinstance(result, dict) and set(result) == {"code", "message"} else "result"
        await self.gateway.from_server(json.dumps({"jsonrpc": "2.0", "id": ident, key: result}).encode())

    async def server_asks(self, method: str, params: dict[str, Any], ident: Any = "s1") -> None:
        """Have the server send a request of its own."""
        message = {"jsonrpc": "2.0", "id": ident, "method": method, "params": params}
        await self.gateway.from_server(json.dumps(message).encode())

    async def start(self, **capabilities: Any) -> dict[str, Any]:
        """Initialize the session."""
        info = {"name": "tester", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        response = await self.request("initialize", params)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return response

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message of the client."""
        await self.gateway.from_client(json.dumps(message).encode())

    def begin(self, method: str, params: dict[str, Any] | None = None, ident: Any = None) -> asyncio.Future[Any]:
        """Send a request of the client, and return the future of its response."""
        ident = next(self._ids) if ident is None else ident
        future = self._waiting[ident] = asyncio.get_running_loop().create_future()
        given = {**(params or {}), **({"_meta": MODERN} if self.modern else {})}
        line = json.dumps({"jsonrpc": "2.0", "id": ident, "method": method, "params": given}).encode()
        asyncio.get_running_loop().create_task(self.gateway.from_client(line))
        return future

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request of the client, and return its response."""
        async with asyncio.timeout(10):
            return await self.begin(method, params)  # type: ignore[no-any-return]

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool."""
        return await self.request("tools/call", {"name": name, "arguments": arguments})

    async def names(self) -> list[str]:
        """The tools that the client sees."""
        return [tool["name"] for tool in (await self.request("tools/list"))["result"]["tools"]]

    def calls_at_server(self) -> list[dict[str, Any]]:
        """The calls that reached the server."""
        messages = [json.loads(line) for line in self.server_got]
        return [message["params"] for message in messages if message.get("method") == "tools/call"]

    async def close(self) -> None:
        await self.gateway.close()
        await self.run.end()
