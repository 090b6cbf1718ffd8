"""The tools of a server: what it says about them now, compared with what was approved."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ..._base.text import printable, shorten
from ..._kernel.values import ToolSpec
from .pins import INSTRUCTIONS, PinError, PinStore, diff_of, digest_of
from .protocol import Message

MAX_PAGES, MAX_TOOLS, MAX_CURSOR = 100, 5_000, 4_096
LIST_SECONDS = 30.0
FIRST_USE = "first start"

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
"""The names that MCP allows. Others could look like the name of another tool."""

APPROVE_TOOLS = "approve_tools"
"""The name, for hooks, of the question whether tools may be used as they are now. No tool of a server may have it."""

log = logging.getLogger("hookline")

ListPage = Callable[[str | None], Awaitable[Message]]
"""Asks the server for a page of its tools."""


class Catalog:
    """What one server offers to one client.

    Args:
        pins: what was approved.
        server: the name of the server, for messages.
        prefix: what is put before the names of its tools.
        ask_first: whether the tools of a server that was never seen wait for approval, too.
    """

    def __init__(self, pins: PinStore, server: str, prefix: str = "", *, ask_first: bool = False) -> None:
        self._pins, self._server, self._prefix, self._ask_first = pins, server, prefix, ask_first
        self._now: dict[str, str] = {}
        """The digests of the tools that the server lists now, by their names."""
        self._names: dict[str, str] = {}
        """The names of tools, by the names under which hooks see them."""
        self._doubled: set[str] = set()
        self._instructions: str | None = None
        self._listing = asyncio.Lock()
        self._noted: set[tuple[tuple[str, str], str]] = set()
        self.ask: Callable[[list[str]], None] = lambda names: None
        """Asks people about tools that wait for approval."""
        self.with_schema: set[str] = set()
        """The tools that the client expects structured results from."""
        self.complete = False
        """Whether all tools were listed, since the server has said that they changed."""
        self.problem = ""
        """Why the tools are not known."""

    async def ensure(self, list_page: ListPage) -> None:
        """List the tools, unless they are known."""
        async with self._listing:
            if self.complete:
                return
            tools: list[Any] = []
            cursor, seen = None, set[str]()
            self.problem = ""
            try:
                async with asyncio.timeout(LIST_SECONDS):
                    for _ in range(MAX_PAGES):
                        result = await list_page(cursor)
                        page = result.get("tools")
                        tools += page if isinstance(page, list) else []
                        cursor = result.get("nextCursor")
                        if not isinstance(cursor, str) or cursor in seen or len(cursor) > MAX_CURSOR:
                            break
                        seen.add(cursor)
                        if len(tools) > MAX_TOOLS:
                            break
                    else:
                        self.problem = f"The server lists more than {MAX_PAGES} pages of tools."
            except TimeoutError:
                self.problem = "The server did not list its tools in time."
                return
            if len(tools) > MAX_TOOLS:
                self.problem = f"The server lists more than {MAX_TOOLS:,} tools."
            self._now, self._names, self._doubled = {}, {}, set()
            self._take(tools[:MAX_TOOLS])
            self._approve_first(tools[:MAX_TOOLS])
            self.complete = True

    def _take(self, tools: list[Any]) -> None:
        for tool in tools:
            if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
                continue
            name = tool["name"]
            folded = hook_name(self._prefix, name)
            known = self._names.setdefault(folded, name)
            if known != name or any(each != name and _skeleton(each) == _skeleton(name) for each in self._now):
                self._doubled |= {name}  # it shadows a tool that the server listed before
            self._now[name] = digest_of(tool)

    def _approve_first(self, tools: list[Any]) -> None:
        found = {each["name"]: each for each in tools if isinstance(each, dict) and isinstance(each.get("name"), str)}
        offered: dict[str, Any] = {**found, **({INSTRUCTIONS: self._instructions} if self._instructions else {})}
        if not self._ask_first and not self.problem and self._pins.read() is None:
            self._pins.approve_first(offered, FIRST_USE)
            log.warning(
                "the MCP server %s is used for the first time: its %d tools are approved as they are now",
                printable(self._server, keep=""),
                len(found),
            )
        self._note_waiting(offered)

    def instructions(self, text: str) -> bool:
        """Take the instructions of the server. Return whether the client may see them."""
        self._instructions = text
        pins = self._pins.read()
        if pins is None:
            return not self._ask_first
        return self._is_approved(INSTRUCTIONS, text)

    def visible(self, tools: list[Any], *, without_schema: bool) -> list[Any]:
        """Return the tools of a page that the client may see.

        Args:
            tools: the page.
            without_schema: whether hooks may change results, so that clients must not expect a schema.
        """
        kept = []
        for tool in tools:
            if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
                continue
            self._now[tool["name"]] = digest_of(tool)
            if self.refusal(tool["name"]) is not None:
                continue
            if "outputSchema" in tool and not without_schema:
                self.with_schema.add(tool["name"])
            kept.append({key: each for key, each in tool.items() if key != "outputSchema" or not without_schema})
        self._note_waiting({each["name"]: each for each in tools if isinstance(each, dict) and "name" in each})
        return kept

    def _note_waiting(self, found: Mapping[str, Any]) -> None:
        new = {name: each for name, each in found.items() if not self._is_approved(name, each)}
        if not new:
            return
        try:
            self._pins.note_waiting(new)
        except PinError as error:
            log.error("%s", error)
            return
        fresh = {(name, digest_of(each)): name for name, each in new.items()}.items() - self._noted
        self._noted |= fresh
        for name in sorted(name for _, name in fresh):
            log.warning(
                "the MCP server %s: %s is new or has changed, and is hidden until it is approved: hookline mcp-pins",
                printable(self._server, keep=""),
                shorten(printable(name, keep=""), 80),
            )
        if asked := [name for _, name in fresh if name == INSTRUCTIONS or self._may_be_approved(name)]:
            self.ask(sorted(asked))

    def _may_be_approved(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and name not in self._doubled

    def waiting(self, names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return what differs from what was approved, for people, and the digests that they see."""
        pins = self._pins.read()
        known = {} if pins is None else {name: pins.waiting[name] for name in names if name in pins.waiting}
        approved = {} if pins is None else pins.approved
        shown = {name: diff_of(approved.get(name), pin) for name, pin in known.items()}
        return shown, {name: pin.digest for name, pin in known.items()}

    def approve(self, digests: Mapping[str, str], by: str) -> None:
        """Approve what people have seen."""
        self._pins.approve(digests, by, digests)

    def _is_approved(self, name: str, definition: Any) -> bool:
        return self._approved_digest(name) == digest_of(definition)

    def _approved_digest(self, name: str) -> str | None:
        pins = self._pins.read()
        pin = None if pins is None else pins.approved.get(name)
        return None if pin is None else pin.digest

    def refusal(self, name: str) -> str | None:
        """Return why a tool must not be used; ``None`` if it may be."""
        if _NAME.fullmatch(name) is None:
            return "Not run: a tool with this name cannot be approved."
        if name in self._doubled or hook_name(self._prefix, name) == APPROVE_TOOLS:
            return f"Not run: {name} looks like another tool than it is."
        digest = self._now.get(name)
        if digest is None:
            return f"Not run: {self._server} has no tool {name}. {self.problem}".rstrip()
        approved = self._approved_digest(name)
        if approved is None:
            return f"Not run: {name} is not a tool of {self._server} that was approved."
        if approved != digest:
            return f"Not run: {name} of {self._server} has changed since it was approved."
        return None

    def remote_name(self, seen: str) -> str:
        """Return the server's name for a tool that hooks see under this name."""
        return self._names.get(seen, seen)

    def specs(self, tools: list[Any]) -> list[ToolSpec]:
        """Return the tools of a page for hooks."""
        found = []
        for tool in tools:
            schema = tool.get("inputSchema")
            try:
                found.append(
                    ToolSpec(
                        hook_name(self._prefix, tool["name"]),
                        str(tool.get("description") or ""),
                        schema if isinstance(schema, dict) else {},
                    )
                )
            except (TypeError, ValueError, RecursionError):
                continue
        return found


def hook_name(prefix: str, name: str) -> str:
    """Return the name under which hooks see a tool: such as every tool of Hookline may have."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", prefix + name)
    return (plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}")[:64]


def _skeleton(name: str) -> str:
    return re.sub(r"[_./-]", "", name).casefold()
