"""Restrict the paths in tool calls to certain folders, and protect files with secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from .._base.files import below, matches_globs, matches_path
from .._base.text import snake_case
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_folder, check_name_or_names, check_names
from ..tools.registry import ToolView
from ._support.secret_files import SECRET_FILES
from ._support.tools import require_tool

Folder = str | os.PathLike[str]

WRITE_TOOLS = (
    *("write_*", "edit_*", "delete_*", "move_*", "append_*", "rename_*", "save_*", "copy_file*", "mkdir*", "make_dir*"),
    *("remove_file*", "remove_dir*", "create_file*", "create_dir*", "create_folder*"),
)
"""Usual names of tools that write files. They count as writing whatever they declare."""

_DRIVE = re.compile(r"[A-Za-z]:[\\/]|[\\/]{2}[?.][\\/]")
_WILD = re.compile(r"[*?\[]")
_STREAM = re.compile(r"(?!^[A-Za-z]:[\\/]).*:")
_MAX_PATH, _MAX_MATCHES, _MAX_WILD = 4096, 1000, 3


class PathGuard:
    """Blocks tool calls with paths outside certain folders, calls for secret files, and by default all writes.

    The guard finds paths by the types, names and values of a tool's parameters (:meth:`Tool.paths`), and resolves them
    as the tool would: from the tool's folder, with ``..``, links, ``~``, variables, wildcards and ``file:``. It only
    sees the arguments of the call: it does not see other actions of the tool, or hard links.

    A tool writes if it declares the effect ``write``, ``delete`` or ``execute``, or if its name is in ``write_tools``.
    A tool that declares no effects counts as writing as soon as a call has a path.

    Example::

        PathGuard("project", write=["project/out"])

    Args:
        folder: the folder that paths must be in.
        write: whether tools may write in ``folder``; or a list of folders in which they may.
        write_tools: globs of further tools that write; ``writeFile`` counts as ``write_file``.
        protect: globs or paths of files and folders that must not be written.
        read: further folders that may be read.
        secrets: globs of files and folders that no tool may touch, such as ``.env`` or ``.git/config``; a glob that
            begins with ``!`` names exceptions. An empty list allows all files.
        commands: glob or globs of the tools whose commands a :class:`TerminalGuard` judges. They run even if nothing
            may be written.

    Raises:
        RegistrationError: a folder does not exist, or an argument is invalid.
    """

    points = frozenset({BEFORE_TOOL})
    phase = "guard"
    priority = 100

    def __init__(
        self,
        folder: Folder,
        write: bool | Iterable[Folder] = False,
        write_tools: Iterable[str] = WRITE_TOOLS,
        protect: Iterable[str] = (),
        *,
        read: Iterable[Folder] = (),
        secrets: Iterable[str] = SECRET_FILES,
        commands: str | Iterable[str] = "shell",
    ) -> None:
        self.folder = Path(check_folder(folder, "folder"))
        if isinstance(write, bool):
            self.write: tuple[Path, ...] = (self.folder,) if write else ()
        else:
            self.write = _folders(write, "write")
        self.read = tuple(dict.fromkeys((self.folder, *_folders(read, "read"), *self.write)))
        self.write_tools, self.protect = check_names(write_tools, "write_tools", 0), check_names(protect, "protect", 0)
        self.secrets = check_names(secrets, "secrets", 0)
        self.commands = check_name_or_names(commands, "commands", 0)

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call if the tool may write and must not, or if one of its paths is not allowed."""
        names = (request.name, snake_case(request.name), snake_case(request.name.rpartition("__")[2]))  # mcp__server__
        writes = any(fnmatchcase(name, glob) for name in names for glob in self.write_tools)
        if writes and not self.write:
            return _read_only(request)
        tool = require_tool(ctx, request.name)
        paths = tool.paths(request.arguments)
        writes = writes or self._may_write(tool, paths)
        if writes and not self.write:
            return _read_only(request, undeclared=tool.effects is None)
        folders = self.write if writes else self.read
        for path in paths:
            for target in _targets(path, tool.folder):
                root = None if target is None else next((root for root in folders if below(root, target)), None)
                if target is None or root is None:
                    message = f"{path!r:.200} is not allowed: only paths in {_shown(folders)} are. Use a path there."
                    return HookResult.block(message, reason="outside the folder")
                if self._is_secret(target, root):
                    message = f"{path!r:.200} is not allowed: it may contain secrets. Go on without it."
                    return HookResult.block(message, reason="a file with secrets")
                if writes and matches_path(os.path.realpath(target), self.protect):
                    return HookResult.block(f"{path!r:.200} may not be changed.", reason="it controls the agent")
        return None

    def covers(self, tool: ToolView) -> bool:
        """Whether the guard judges all that a tool does: it only touches files, says so, and is given their paths."""
        if not tool.effects or not tool.effects <= {"read", "write", "delete"}:
            return False
        return any(tool.paths({name: "/any"}) for name in tool.spec.parameters.get("properties", ()))

    def _may_write(self, tool: ToolView, paths: list[str]) -> bool:
        """Return whether a call may write files, by what the tool declares."""
        if tool.effects is None:
            return bool(paths)
        judged = "execute" in tool.effects and any(fnmatchcase(tool.name, glob) for glob in self.commands)
        return tool.may("write", "delete") and not judged

    def _is_secret(self, target: str, root: Path) -> bool:
        spelled = os.path.normpath(target)
        names = {os.path.realpath(target), spelled if Path(spelled).is_relative_to(root) else ""}
        return any(matches_globs(name, self.secrets, str(root)) for name in names)


def _read_only(request: ToolCallRequest, undeclared: bool = False) -> HookResult:
    if undeclared:
        return HookResult.block(
            f"{request.name} is not allowed: files may only be read, and it does not declare that it only reads. Go on "
            "without it.",
            reason="writing is off, and the tool declares no effects: @tool(effects=['read']), or trusted_mcp",
        )
    return HookResult.block(
        f"{request.name} is not allowed: files may only be read. Go on without writing.", reason="writing is off"
    )


def _targets(path: str, folder: str) -> Iterator[str | None]:
    """Iterate over all files that a tool could take the path for; ``None`` if they cannot be determined."""
    if (
        len(path) > _MAX_PATH
        or (os.name != "nt" and _DRIVE.match(path.strip()))
        or (os.name == "nt" and _STREAM.match(path))
    ):
        yield None
        return
    try:
        forms = _forms(path)
    except ValueError:  # an invalid user name after ~
        yield None
        return
    for form in forms:
        target = os.path.join(folder, form)
        yield target
        if _WILD.search(form) and "\0" not in form:
            from glob import iglob

            if sum(map(bool, map(_WILD.search, form.split("/")))) > _MAX_WILD:  # the search would take too long
                yield None
                return
            matches = list(islice(iglob(target, include_hidden=True), _MAX_MATCHES + 1))
            yield from matches
            if len(matches) > _MAX_MATCHES:
                yield None


def _forms(path: str) -> set[str]:
    """Return a path as it is, and as a tool might expand or clean it."""
    from urllib.parse import unquote

    forms = {path, path.strip(" \t\r\n\"'"), path.replace("\\", "/")}
    for form in tuple(forms):
        forms.add(os.path.expandvars(os.path.expanduser(form)))
        if form.strip().lower().startswith("file:"):
            whole = form.strip()[5:]
            forms |= {unquote(whole), unquote(re.split("[?#]", re.sub("[\t\r\n]", "", whole))[0])}  # as URL parsers do
        elif "%" in form:
            forms.add(unquote(form))
    return forms


def _folders(folders: Any, name: str) -> tuple[Path, ...]:
    if isinstance(folders, (str, os.PathLike, Mapping)) or not isinstance(folders, Iterable):
        either = "True, False or " if name == "write" else ""
        raise RegistrationError(f"{name} must be {either}a list of folders, not {folders!r:.80}")
    return tuple(Path(check_folder(folder, name)) for folder in folders)


def _shown(folders: Iterable[Path]) -> str:
    return " or ".join(repr(str(folder)) for folder in folders)
