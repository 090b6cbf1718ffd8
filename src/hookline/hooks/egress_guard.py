"""Restrict the hosts that tool calls may name."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from .._base.workers import in_thread
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_bool, check_name_or_names, check_names
from .._net.egress import Egress, EgressError
from .._net.http_client import FetchError
from .._net.urls import Url
from ..tools.registry import ToolView
from ._support.tools import require_tool

LOCAL_TOOLS = ("write_*", "edit_*", "append_*", "find_text", "remember", "recall", "forget", "calculate")
"""Usual names of tools that do not connect to a network."""

_MAX_HOSTS = 200


class EgressGuard:
    """Blocks tool calls that name a host which is not allowed or is in a private network.

    The guard finds URLs by the types, formats, names and values of a tool's parameters, and inside texts such as
    commands (:meth:`Tool.urls`). Texts are not searched if the tool declares effects without ``network`` and
    ``execute``: a link in a note is not a connection. An :class:`Egress` checks the URLs; a URL that it cannot parse is
    blocked. The guard only sees the arguments of the call. The tool may follow redirects and resolve the name again.
    Only the ``fetch`` tool and ``Egress.fetch`` connect to the address that was checked.

    Example::

        EgressGuard(["api.example.com", "*.wikipedia.org"])

    Args:
        hosts: the allowed hosts, as for :class:`Egress`, or an ``Egress``.
        tools: glob or globs of the tools to check.
        local: globs of further tools that do not connect.
        resolve: whether to resolve names, and block private addresses. Turn it off where only a proxy can resolve
            names.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __init__(
        self,
        hosts: Iterable[str] | Egress,
        *,
        tools: str | Iterable[str] = "*",
        local: Iterable[str] = LOCAL_TOOLS,
        resolve: bool = True,
    ) -> None:
        self.egress = hosts if isinstance(hosts, Egress) else Egress(hosts)
        self.tools = check_name_or_names(tools, "tools")
        self.local, self.resolve = check_names(local, "local", 0), check_bool(resolve, "resolve")

    def covers(self, tool: ToolView) -> bool:
        """Whether the guard judges all that a tool does: it only connects, says so, and is given a URL or host."""
        if tool.effects != {"network"}:
            return False
        names = tool.spec.parameters.get("properties", ())
        return any(True for name in names for _ in tool.urls({name: "https://any.example"}, free=False))

    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call if a host is not allowed."""
        tool = require_tool(ctx, request.name)
        free = tool.may("network") and not any(fnmatchcase(request.name, glob) for glob in self.local)
        found: dict[str, Url] = {}
        try:
            for text in tool.urls(request.arguments, free=free):
                url = self.egress.judge(text, bare=True)
                found.setdefault(url.origin, url)
                if len(found) > _MAX_HOSTS:
                    return HookResult.block(f"Name at most {_MAX_HOSTS} hosts in a call.", reason="too many hosts")
            for url in found.values() if self.resolve else ():
                await in_thread(self.egress.resolve, url)
        except EgressError as error:
            return HookResult.block(f"{error}. Use another source, or go on without it.", reason="host not allowed")
        except FetchError as error:
            return HookResult.block(f"This cannot be reached: {error}.", reason="host not found")
        return None
