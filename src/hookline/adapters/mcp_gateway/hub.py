"""One client in front of several servers, whose tools and prompts get the name of their server as a prefix.

The client speaks any version of the protocol with the hub, and the hub speaks the handshake version with each server,
which all servers know. Behind it, each server has a :class:`Gateway` of its own, so one that dies, hangs or lies
disturbs no other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ..._base.errors import HooklineError
from ..._base.text import describe, error_text
from .catalog import Catalog
from .gateway import Gateway, Send
from .guards import Guards
from .pins import PinStore
from .process import MAX_MESSAGE, Server
from .protocol import (
    CAPABILITIES,
    CLIENT,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REFUSED,
    VERSION,
    Message,
    MessageError,
    decode,
    encode,
    error_of,
    id_key,
    meta_of,
    result_of,
)
from .run import SessionRun

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = ("2026-07-28",)
INSTRUCTIONS = 2_000
"""Maximum length of the instructions of one server that a client gets."""
START_SECONDS = 120.0
"""Seconds that a server may take to start: the first start of one from npm downloads it."""
PATIENCE = 10.0
"""Seconds after the start of a server in which a client waits for it, and for lists of what it has."""
RESTART_SECONDS = 5.0
"""Seconds between two starts of a server that has ended."""
MAX_PAGES = 100
_LISTS = {
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "resources"),
}
"""Methods of lists, with the key of the list and the capability of servers that have one."""
_NAME = re.compile(r"[A-Za-z0-9-]{1,32}")
SEPARATOR = "__"

log = logging.getLogger("hookline")


class ServerSettings(msgspec.Struct, frozen=True):
    """How to start one server."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    cwd: str | None = None


def read_servers(path: Path) -> list[ServerSettings]:
    """Read servers from a file with ``mcpServers``, as most MCP clients have it.

    Raises:
        HooklineError: the file is not such a file, or a server is not a command.
    """
    try:
        found = json.loads(path.read_text())["mcpServers"]
        servers = [
            ServerSettings(
                name,
                (each["command"], *each.get("args", ())),
                {str(key): str(value) for key, value in each.get("env", {}).items()},
                each.get("cwd"),
            )
            for name, each in found.items()
        ]
    except OSError as error:
        raise HooklineError(f"{path} cannot be read: {error_text(error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HooklineError(
            f'{path}: expected {{"mcpServers": {{NAME: {{"command": ..., "args": [...]}}}}}}: {describe(error)}'
        ) from None
    for server in servers:
        if _NAME.fullmatch(server.name) is None:
            raise HooklineError(f"{path}: the name {server.name!r:.80} must be of letters, digits and -")
        if not all(isinstance(word, str) for word in server.command):
            raise HooklineError(f"{path}: {server.name}: command and args must be texts")
    if not servers:
        raise HooklineError(f"{path}: there are no servers")
    return servers


class Link:
    """The connection of a session to one server."""

    def __init__(self, hub: Hub, settings: ServerSettings) -> None:
        self.settings, self.name = settings, settings.name
        self.prefix = settings.name + SEPARATOR
        self.capabilities: Mapping[str, Any] = {}
        self.instructions = ""
        self.why = "it was not started"
        self._hub = hub
        self._server: Server | None = None
        self._gateway: Gateway | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._numbers = count(1)
        self._starting: asyncio.Task[None] | None = None
        self._started = -RESTART_SECONDS

    @property
    def up(self) -> bool:
        """Whether the server answers."""
        return self._gateway is not None and not self.why

    async def ensure(self) -> bool:
        """Start the server, unless it runs, and wait for it for a while. Return whether it runs.

        A server that is slow to start goes on starting, so that it keeps nobody from using the others.
        """
        if not self.up and self._starting is None and time.monotonic() >= self._started + RESTART_SECONDS:
            self._started = time.monotonic()
            self._starting = asyncio.get_running_loop().create_task(self._begin())
        if self._starting is not None:
            left = self._started + PATIENCE - time.monotonic()
            await asyncio.wait((self._starting,), timeout=max(left, 0))
        return self.up

    async def _begin(self) -> None:
        """Start the server. A failure is remembered and logged."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._start()
        except (HooklineError, TimeoutError) as error:
            self.why = error_text(error) or "it did not start in time"
            log.warning("the MCP server %s is not used: %s", self.name, self.why)
            await self._stop()
        finally:
            self._starting = None
        if self.up and time.monotonic() > self._started + PATIENCE:
            await self._hub.say_changed()

    async def _start(self) -> None:
        await self._stop()
        hub, settings = self._hub, self.settings
        env = {**os.environ, **settings.env}
        self._server = await Server.start(
            settings.command, max_message=hub.max_message, env=env, cwd=settings.cwd or None
        )
        catalog = Catalog(
            PinStore((f"{self.name}:", *settings.command), self.name), self.name, self.prefix, ask_first=hub.ask_first
        )
        guards = hub.guards
        self._gateway = Gateway(
            self.name, catalog, hub.run, guards.calls, self._to_client, self._server.send, guards.stack, self.prefix
        )
        self._receiving = asyncio.get_running_loop().create_task(self._receive(self._server, self._gateway))
        client = {"name": "hookline", "version": __version__}
        asked = {"protocolVersion": HANDSHAKE[-1], "capabilities": dict(hub.capabilities), "clientInfo": client}
        opened = await self.request("initialize", asked)
        await self._gateway.from_client(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        capabilities = opened.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.instructions = str(opened.get("instructions") or "")[:INSTRUCTIONS]
        self.why = ""

    async def _receive(self, server: Server, gateway: Gateway) -> None:
        try:
            await server.receive(gateway.from_server)
        finally:
            if self._gateway is gateway:
                self.why = server.why
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(HooklineError(server.why))
            await gateway.server_ended(server.why)

    async def request(self, method: str, params: Mapping[str, Any]) -> Message:
        """Send a request of the hub, and return its result.

        Raises:
            HooklineError: the server answered with an error, or has ended.
        """
        gateway = self._gateway
        if gateway is None:
            raise HooklineError(f"the MCP server {self.name} is not running: {self.why}")
        ident = f"hub-{next(self._numbers)}"
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = future
        try:
            await gateway.from_client(encode({"jsonrpc": "2.0", "id": ident, "method": method, "params": dict(params)}))
            answer = await future
        finally:
            del self._waiting[ident]
        result = answer.get("result")
        if not isinstance(result, dict):
            error = answer.get("error")
            raise HooklineError(str(error.get("message") if isinstance(error, dict) else "the answer is invalid"))
        return result

    async def pages(self, method: str, key: str) -> list[Any]:
        """Return a list of the server, from all its pages."""
        found: list[Any] = []
        cursor, seen = None, set[str]()
        for _ in range(MAX_PAGES):
            result = await self.request(method, {} if cursor is None else {"cursor": cursor})
            page = result.get(key)
            found += page if isinstance(page, list) else []
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
        return found

    async def take(self, line: bytes, declared: Mapping[str, Any] | None = None) -> None:
        """Pass on a message of the client."""
        if self._gateway is not None:
            await self._gateway.from_client(line, declared)

    async def _to_client(self, line: bytes) -> None:
        message = decode(line)
        ident = message.get("id")
        if "method" not in message and isinstance(ident, str) and ident in self._waiting:
            future = self._waiting[ident]
            if not future.done():
                future.set_result(message)
            return
        await self._hub.from_link(self, message)

    async def close(self) -> None:
        """End the server, also while it starts."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait((self._starting,), timeout=2)
        await self._stop()

    async def _stop(self) -> None:
        gateway, server, receiving = self._gateway, self._server, self._receiving
        self._gateway = self._server = self._receiving = None
        if gateway is not None:
            await gateway.close()
        if server is not None:
            await server.close()
        if receiving is not None:
            receiving.cancel()
            await asyncio.wait((receiving,), timeout=2)


class Hub:
    """The session of one client with several servers.

    Args:
        servers: the servers.
        guards: the hooks.
        to_client: sends a message to the client.
    """

    def __init__(
        self,
        servers: Iterable[ServerSettings],
        guards: Guards,
        to_client: Send,
        *,
        ask_first: bool = False,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self.guards, self.ask_first, self.max_message = guards, ask_first, max_message
        self.run = SessionRun(guards.adapter)
        self.capabilities: Mapping[str, Any] = {}
        self.links = {each.name: Link(self, each) for each in servers}
        self._to_client = to_client
        self._open: dict[Any, tuple[str, bool]] = {}
        """The requests that a server has: its name, and whether the client uses the stateless protocol."""
        self._asked: dict[str, tuple[Link, Any]] = {}
        """The requests of servers, by the id that the client sees."""
        self._numbers = count(1)
        self._uris: dict[str, Link] = {}
        self._schemas: dict[str, Any] = {}
        """The schemas of tools as they were last listed to the client."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, line: bytes) -> None:
        """Take a message of the client."""
        try:
            message = decode(line)
            params = message.get("params", {})
            if not isinstance(params, dict) or not isinstance(message.get("method", ""), str):
                raise MessageError(INVALID_PARAMS, "this is not a JSON-RPC message")
        except MessageError as error:
            await self._to_client(encode(error_of(None, error.code, str(error))))
            return
        if "method" not in message:
            await self._answer(message)
        elif "id" not in message:
            await self._notify(message, params)
        elif id_key(message["id"]) in self._open:
            await self._to_client(
                encode(error_of(message["id"], INVALID_REQUEST, "a request with this id is in flight"))
            )
        else:
            task = asyncio.get_running_loop().create_task(self._request(message, params))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self, message: Message, params: Message) -> None:
        ident = message["id"]
        modern = VERSION in meta_of(params)
        try:
            result = await self._result(message, params, modern=modern)
            if result is None:
                return  # a server answers
            answer = result_of(ident, self._complete(result) if modern else result)
        except MessageError as error:
            answer = error_of(ident, error.code, str(error))
        except HooklineError as error:
            answer = error_of(ident, REFUSED, str(error))
        except Exception as error:  # a client must not wait for ever
            log.exception("an MCP request")
            answer = error_of(ident, REFUSED, f"it could not be answered: {type(error).__name__}")
        await self._to_client(encode(answer))

    def _complete(self, result: Message) -> Message:
        """Return a result with what the stateless protocol requires."""
        return {"ttlMs": 0, "cacheScope": "private", "resultType": "complete", **result}

    async def _result(self, message: Message, params: Message, *, modern: bool) -> Message | None:
        """Return the result of a request; ``None`` if a server answers it."""
        method = message["method"]
        if method == "initialize":
            return await self._open_session(params)
        if method == "ping":
            return {}
        if modern and not self.capabilities:
            declared = meta_of(params).get(CAPABILITIES)
            self.capabilities = _offered(declared)
            self._name_task(meta_of(params).get(CLIENT))
        if method == "server/discover":
            return {"supportedVersions": list(STATELESS), **await self._about()}
        if method in _LISTS:
            return {_LISTS[method][0]: await self._listed(method)}
        if method == "logging/setLevel":
            await self._each(lambda link: link.request(method, params) if "logging" in link.capabilities else _none())
            return {}
        link, changed = await self._routed(method, params)
        if modern:
            meta = {key: each for key, each in meta_of(params).items() if key not in (VERSION, CAPABILITIES, CLIENT)}
            changed = {key: each for key, each in changed.items() if key != "_meta"} | ({"_meta": meta} if meta else {})
        if not await link.ensure():
            if method != "tools/call":
                raise HooklineError(f"the MCP server {link.name} is not running: {link.why}")
            text = f"Not run: the MCP server {link.name} is not running."
            return {"content": [{"type": "text", "text": text}], "isError": True}
        self._open[id_key(message["id"])] = link.name, modern
        declared = meta_of(params).get(CAPABILITIES) if modern else None
        given = declared if isinstance(declared, dict) else {} if modern else None
        await link.take(encode({**message, "params": changed}), given)
        return None

    async def _open_session(self, params: Message) -> Message:
        self.capabilities = _offered(params.get("capabilities"))
        self._name_task(params.get("clientInfo"))
        wanted = params.get("protocolVersion")
        return {"protocolVersion": wanted if wanted in HANDSHAKE else HANDSHAKE[-1], **await self._about()}

    def _name_task(self, client: Any) -> None:
        name = client.get("name") if isinstance(client, Mapping) else None
        self.run.task = f"A session of {str(name or 'an MCP client')[:80]!r} with {', '.join(self.links)}"

    async def say_changed(self) -> None:
        """Tell the client that there are more tools."""
        await self._to_client(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')

    async def _about(self) -> Message:
        await self._each(lambda link: link.ensure())
        up = [link for link in self.links.values() if link.up]
        capabilities: Message = {"tools": {"listChanged": True}}
        for name in ("prompts", "resources", "completions", "logging"):
            if any(name in link.capabilities for link in up):
                capabilities[name] = {}
        about: Message = {
            "capabilities": capabilities,
            "serverInfo": {"name": "hookline", "version": __version__},
        }
        texts = [f"{link.name}: {link.instructions}" for link in up if link.instructions]
        return {**about, "instructions": "\n\n".join(texts)} if texts else about

    async def _listed(self, method: str) -> list[Any]:
        key, capability = _LISTS[method]

        async def one(link: Link) -> list[Any]:
            if not await link.ensure() or capability not in link.capabilities:
                return []
            async with asyncio.timeout(PATIENCE):
                return await link.pages(method, key)

        found: list[Any] = []
        for link, listed in (await self._each(one)).items():
            for each in listed if isinstance(listed, list) else ():
                if not isinstance(each, dict):
                    continue
                if key in ("tools", "prompts"):
                    found.append({**each, "name": f"{link.prefix}{each.get('name')}"})
                    if key == "tools":
                        self._schemas[found[-1]["name"]] = each.get("inputSchema")
                else:
                    uri = str(each.get("uri") or each.get("uriTemplate"))
                    if self._uris.setdefault(uri, link) is link:  # another server has it: its own is hidden
                        found.append(each)
        return found

    async def schema_of(self, tool: str) -> Any:
        """Return the schema of a tool, as the client knows it; ``None`` if there is no such tool."""
        if tool not in self._schemas:
            await self._listed("tools/list")
        return self._schemas.get(tool)

    async def _routed(self, method: str, params: Message) -> tuple[Link, Message]:
        """Return the server of a request, and the parameters that it gets.

        Raises:
            MessageError: there is none.
        """
        if method in ("tools/call", "prompts/get"):
            link, name = self._named(params.get("name"))
            return link, {**params, "name": name}
        if method in ("resources/read", "resources/subscribe", "resources/unsubscribe"):
            return await self._holder(str(params.get("uri"))), params
        ref = params.get("ref")
        if method == "completion/complete" and isinstance(ref, dict):
            if ref.get("type") == "ref/prompt":
                link, name = self._named(ref.get("name"))
                return link, {**params, "ref": {**ref, "name": name}}
            return await self._holder(str(ref.get("uri"))), params
        raise MessageError(METHOD_NOT_FOUND, f"{method:.80} is not supported")

    def _named(self, name: object) -> tuple[Link, str]:
        server, found, rest = str(name).partition(SEPARATOR)
        link = self.links.get(server) if found else None
        if link is None or not isinstance(name, str):
            raise MessageError(INVALID_PARAMS, f"{name!r:.80} is not the name of a tool or prompt of a server")
        return link, rest

    async def _holder(self, uri: str) -> Link:
        """Return the server that has a resource: that lists it, or a template that it begins with."""
        for _ in range(2):
            if uri in self._uris:
                return self._uris[uri]
            starts = {
                link for known, link in self._uris.items() if "{" in known and uri.startswith(known.split("{")[0])
            }
            if len(starts) == 1:
                return starts.pop()
            await self._listed("resources/list")
            await self._listed("resources/templates/list")
        raise MessageError(INVALID_PARAMS, f"no server has the resource {uri:.200}")

    async def _each(self, work: Callable[[Link], Awaitable[Any]]) -> dict[Link, Any]:
        """Do something with every server at once. One that fails counts as if it had answered with nothing."""
        links = list(self.links.values())
        done = await asyncio.gather(*(work(link) for link in links), return_exceptions=True)
        for link, result in zip(links, done, strict=True):
            if isinstance(result, Exception):
                log.warning("the MCP server %s: %s", link.name, describe(result)[:200])
        return dict(zip(links, done, strict=True))

    async def _notify(self, message: Message, params: Message) -> None:
        if message["method"] == "notifications/cancelled":
            name, _ = self._open.get(id_key(params.get("requestId")), ("", False))
            if name:
                await self.links[name].take(encode(message))
        elif message["method"] == "notifications/roots/list_changed":
            await self._each(lambda link: link.take(encode(message)))

    async def _answer(self, message: Message) -> None:
        link, ident = self._asked.pop(str(message.get("id")), (None, None))
        if link is not None:
            await link.take(encode({**message, "id": ident}))

    async def from_link(self, link: Link, message: Message) -> None:
        """Pass on a message of a server."""
        if "method" in message and "id" in message:
            ident = f"{link.name}-{next(self._numbers)}"
            self._asked[ident] = link, message["id"]
            await self._to_client(encode({**message, "id": ident}))
            return
        if "method" not in message:
            _, modern = self._open.pop(id_key(message.get("id")), ("", False))
            result = message.get("result")
            if modern and isinstance(result, dict) and "resultType" not in result:
                message = {**message, "result": self._complete(result)}
        await self._to_client(encode(message))

    async def close(self) -> None:
        """End all servers, and the run."""
        for task in list(self._tasks):
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await asyncio.gather(self.run.end(), *(link.close() for link in self.links.values()))


async def _none() -> None:
    """Do nothing."""


def _offered(declared: Any) -> Mapping[str, Any]:
    """Return the capabilities of a client that servers are told."""
    known = declared if isinstance(declared, Mapping) else {}
    return {name: known[name] for name in ("sampling", "elicitation", "roots") if name in known}
