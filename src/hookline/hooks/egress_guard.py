"""A guard that keeps tool calls to listed hosts."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from .._base.workers import in_thread
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._net.egress import Egress, EgressError
from .._net.http_client import FetchError
from .._net.urls import Url
from ._support.tools import require_tool
from ._support.validation import check_bool, check_name_or_names, check_names

LOCAL_TOOLS = ("write_*", "edit_*", "append_*", "find_text", "remember", "recall", "forget", "calculate")
"""Tools whose texts go nowhere: a link in a note is not a connection."""

_MOST = 200


class EgressGuard:
    """Blocks calls that name a URL or a host which is not listed, or which leads into a private network.

    URLs are found by the types, formats, names and values of a tool's parameters, and in the middle of any text, such
    as a command (:meth:`Tool.urls`). They are judged by an :class:`Egress`: what is not understood is blocked. It
    judges what a call says. A tool then connects by itself: it may follow redirects, and look up the name again. Only
    the ``fetch`` tool and ``Egress.fetch`` connect to the very address that was judged.

    Args:
        hosts: as for :class:`Egress`, or one of those.
        tools: glob or globs of the names of tools that are judged.
        local: globs of the names of tools whose texts go nowhere: of them only parameters that are URLs are judged.
        resolve: whether names are looked up, and blocked if an address is private. Turn it off where only a
            proxy can look up names.

    Raises:
        RegistrationError: a host that makes no sense, or globs that are none.
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

    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Judge one call."""
        tool = require_tool(ctx, request.name)
        free = not any(fnmatchcase(request.name, glob) for glob in self.local)
        found: dict[str, Url] = {}
        try:
            for text in tool.urls(request.arguments, free=free):
                url = self.egress.judge(text, bare=True)
                found.setdefault(url.origin, url)
                if len(found) > _MOST:
                    return HookResult.block(f"Name at most {_MOST} hosts in a call.", reason="too many hosts")
            for url in found.values() if self.resolve else ():
                await in_thread(self.egress.resolve, url)
        except EgressError as error:
            return HookResult.block(f"{error}. Use another source, or go on without it.", reason="host not allowed")
        except FetchError as error:
            return HookResult.block(f"This cannot be reached: {error}.", reason="host not found")
        return None
