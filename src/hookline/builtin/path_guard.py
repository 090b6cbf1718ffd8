"""A guard that keeps the paths of all tool calls in one folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from ..base.files import below
from ..kernel.errors import RegistrationError
from ..kernel.payloads import ToolCallRequest
from ..kernel.points import BEFORE_TOOL
from ..kernel.results import HookResult
from .checks import flag, names_of, path_of


class PathGuard:
    """Blocks calls that name a path outside a folder, and calls that write unless that is allowed.

    A tool's paths are found by the types, names and values of its parameters (:meth:`Tool.paths`), and
    judged as the tool would see them: from its own folder, with ``..``, links, ``~`` and variables
    resolved. It judges what a call says; it cannot know what else a tool does.

    Args:
        folder: where paths must lead.
        write: whether tools that write may be used.
        write_tools: globs of the names of tools that write.
        keep: globs of file names, or paths, that no tool that writes may touch.

    Raises:
        RegistrationError: there is no such folder, or a value that makes no sense.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __init__(
        self,
        folder: str | os.PathLike[str],
        write: bool = False,
        write_tools: Iterable[str] = ("write_*", "edit_*", "delete_*", "move_*"),
        keep: Iterable[str] = (),
    ) -> None:
        from pathlib import Path

        self.folder = Path(path_of(folder, "folder is the path of a folder")).resolve()
        if not self.folder.is_dir():
            raise RegistrationError(f"there is no folder {str(folder)!r}")
        self.write = flag(write, "write")
        self.write_tools, self.keep = names_of(write_tools, "write_tools", 0), names_of(keep, "keep", 0)

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Judge one call."""
        writes = any(fnmatchcase(request.name, glob) for glob in self.write_tools)
        if writes and not self.write:
            message = f"{request.name} is not allowed: files may only be read. Go on without writing."
            return HookResult.block(message, reason="writing is off")
        tool = ctx.tool_registry.get(request.name)
        for path in tool.paths(request.arguments):
            places = [os.path.join(tool.folder, form) for form in _forms(path)]
            if not all(below(self.folder, place) for place in places):
                message = f"{path!r:.200} is not allowed: only paths in {str(self.folder)!r} are. Use a path there."
                return HookResult.block(message, reason="outside the folder")
            if writes and any(self._is_kept(place) for place in places):
                return HookResult.block(f"{path!r:.200} may not be changed.", reason="it controls the agent")
        return None

    def _is_kept(self, place: str) -> bool:
        real = os.path.realpath(place)
        name = os.path.basename(real).lower()
        return any(real == os.path.realpath(kept) or fnmatchcase(name, kept.lower()) for kept in self.keep)


def _forms(path: str) -> set[str]:
    """A path as it is, and as a tool might expand it."""
    from urllib.parse import unquote

    forms = {path, os.path.expandvars(os.path.expanduser(path))}
    uri = path.strip()
    if uri.lower().startswith("file:"):
        forms.add(unquote(uri[5:]))
    return forms
