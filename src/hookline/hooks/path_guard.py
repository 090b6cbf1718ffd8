"""Restrict the paths in tool calls to certain folders, and protect files with secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from .._base.files import below, find_matching, matches_globs, matches_path
from .._base.own_files import protection_of
from .._base.secret_files import SECRET_FILES
from .._base.text import snake_case
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_folder, check_name_or_names, check_names
from ..tools.arguments import decoded, named_files_in
from ..tools.registry import ToolView
from ._support.tools import require_tool

Folder = str | os.PathLike[str]


class _Change(NamedTuple):
    """What a call may do with a whole folder: delete or move it, or put one somewhere."""

    removes: bool
    places: bool


WRITE_TOOLS = (
    *("write_*", "edit_*", "delete_*", "move_*", "append_*", "rename_*", "save_*", "copy_file*", "mkdir*", "make_dir*"),
    *("remove_file*", "remove_dir*", "create_file*", "create_dir*", "create_folder*"),
)
"""Usual names of tools that write files. They count as writing whatever they declare."""

SEARCH_TOOLS = (
    "*grep*",
    "rg",
    "search_text*",
    "search_code*",
    "search_content*",
    "search_in_*",
    "search_file_content*",
    "search_for_pattern*",
    "find_text*",
    "find_in_*",
)
"""Usual names of tools that show parts of all files in a folder."""

_REMOVES = re.compile(r"(^|_)(delete|move|rename|remove|rm|rmdir|rmtree|mv|unlink|trash|erase|purge)(_|$)")
_COPIES = re.compile(r"(^|_)(copy|cp|clone|sync|extract|unpack|unzip|untar)(_|$)")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|[\\/]{2}[?.][\\/]")
_WILD = re.compile(r"[*?\[]")
_STREAM = re.compile(r"(?!^[A-Za-z]:[\\/]).*:")
_OFF = "writing is off: PathGuard(write=True), or --write on the command line, allows it"
_MAX_PATH, _MAX_MATCHES, _MAX_WILD = 4096, 1000, 3
_MAX_ENTRIES = 100_000


class PathGuard:
    """Blocks tool calls with paths outside certain folders, calls for secret files, and by default all writes.

    Even where tools may write, they may not write the files that Hookline uses (code, configuration, stores), and those
    that make git run code. A search in a folder is blocked if it would show parts of a secret file there.

    The guard finds paths by the types, names and values of a tool's parameters (:meth:`Tool.paths`), and resolves them
    as the tool would: from the tool's folder, with ``..``, links, ``~``, variables, wildcards and ``file:``. It only
    sees the arguments of the call: it does not see other actions of the tool, or hard links.

    A call writes if the name of its tool is in ``write_tools``; if it has a path, and the tool declares the effect
    ``write`` or ``delete``, or no effects; or if the tool declares ``execute``. A value of any parameter but one for
    text is a path too if it is a file or folder that exists, or leads below one. A call without a path, such as
    ``drop_table(name="orders")``, is not about files: only the names of secret and protected files are judged then
    (:meth:`Tool.file_names`).

    Example::

        PathGuard("project", write=["project/out"])

    Args:
        folder: the folder that paths must be in.
        write: whether tools may write in ``folder``; or a list of folders in which they may.
        write_tools: globs of further tools that write; ``writeFile`` counts as ``write_file``.
        protect: globs or paths of further files and folders that must not be written.
        read: further folders that may be read.
        secrets: globs of files and folders that no tool may touch, such as ``.env`` or ``.git/config``; a glob that
            begins with ``!`` names exceptions. An empty list allows all files.
        search_tools: globs of tools that show parts of all files in a folder, besides those that declare it
            (:attr:`Tool.is_search`).
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
        search_tools: Iterable[str] = SEARCH_TOOLS,
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
        self.search_tools = check_names(search_tools, "search_tools", 0)
        self.commands = check_name_or_names(commands, "commands", 0)

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        """Block the call if the tool may write and must not, or if one of its paths is not allowed."""
        plain = snake_case(request.name.rpartition("__")[2])  # mcp__server__
        called = (request.name, snake_case(request.name), plain)
        writes = _matches_any(called, self.write_tools)
        if writes and not self.write:
            return _read_only(request)
        tool = require_tool(ctx, request.name)
        paths = tool.paths(request.arguments)
        may_write = writes or tool.may("write", "delete")
        is_about_files = writes or tool.may("read", "write", "delete")
        names = list(named_files_in(request.arguments, tool.folder, tool.texts)) if is_about_files else []
        writes = writes or self._may_write(tool, [*paths, *names])
        if writes and not self.write:
            return _read_only(request, undeclared=tool.effects is None)
        folders = self.write if writes else self.read
        removes = bool(_REMOVES.search(plain)) or (tool.effects is not None and "delete" in tool.effects)
        change = _Change(removes, removes or bool(_COPIES.search(plain)))
        searches = bool(self.secrets) and (tool.is_search or _matches_any(called, self.search_tools))
        searches = searches and tool.may("read", "write", "delete")  # and not only in the code of a website
        if searches and not paths:
            paths = [tool.folder]
        for name in tool.file_names(request.arguments):
            if (found := self._judge_name(name, tool, change if may_write else None)) is not None:
                return found
        for path in dict.fromkeys((*paths, *names)):
            for target in _targets(path, tool.folder):
                root = None if target is None else next((root for root in folders if below(root, target)), None)
                if target is None or root is None:
                    message = f"{path!r:.200} is not allowed: only paths in {_shown(folders)} are. Use a path there."
                    return HookResult.block(message, reason="outside the folder")
                if self._is_secret(target, root) or ("**" in target and self._may_match_secret(target)):
                    return _secret(path)
                if writes and (why := self._protection(target, change)) is not None:
                    return _protected(path, why)
                if searches and (problem := self._search_problem(tool, request, target, root)):
                    return HookResult.block(problem, reason="a search in files with secrets")
        return None

    def _judge_name(self, name: str, tool: ToolView, change: _Change | None) -> HookResult | None:
        """Block a word that leads to a secret file, or to a protected one, from the folder of the tool.

        A protected file need not exist: a tool could create it, or move another file there.
        """
        for target in (os.path.join(tool.folder, form) for form in decoded(name)):
            if self._is_secret(target, Path(tool.folder)):
                return _secret(name)
            if change is None or _is_revision(target):
                continue
            if (why := self._protection(target, change)) is not None:
                return _protected(name, why)
        return None

    def covers(self, tool: ToolView) -> bool:
        """Whether the guard judges all that a tool does: it only touches files, says so, and is given their paths."""
        if not tool.effects or not tool.effects <= {"read", "write", "delete"}:
            return False
        return any(tool.paths({name: "/any"}) for name in tool.spec.parameters.get("properties", ()))

    def find_secrets(self, folder: str) -> list[tuple[str, str]]:
        """Find the secret files below a folder: each with the outermost folder that makes it secret, or itself.

        Raises:
            OverflowError: there are too many files to look at.
        """
        return list(find_matching(os.path.realpath(folder), self.secrets, _MAX_ENTRIES))

    def _protection(self, target: str, change: _Change) -> str | None:
        """Return why a file must not be written, as the end of a sentence; ``None`` if it may be."""
        if matches_path(os.path.realpath(target), self.protect):
            return ""
        found = protection_of(target, removes=change.removes, places=change.places)
        return None if found is None else f": it is {found}"

    def _search_problem(self, tool: ToolView, request: ToolCallRequest, target: str, root: Path) -> str:
        """Return why a search in a folder is not allowed; empty if it is."""
        if not os.path.isdir(target) or _hides_all(tool.hides, self.secrets):
            return ""
        try:
            found = [path for path, _ in self.find_secrets(target) if tool.may_read(request.arguments, path)]
        except OverflowError:
            return f"{request.name} is not allowed here: there are too many files to check. Search a smaller folder."
        if not found:
            return ""
        shown = ", ".join(repr(os.path.relpath(path, root)) for path in sorted(found)[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return (
            f"{request.name} is not allowed here: it would read {shown:.300}{more}, which may contain secrets. Search "
            "a folder or files without them."
        )

    def _may_match_secret(self, target: str) -> bool:
        """Return whether a glob with ``**`` may match a secret file, at any depth."""
        folder = os.path.dirname(re.split(r"[*?\[{]", target)[0])
        glob = f"{os.path.realpath(folder)}/{target[len(folder) :].lstrip('/')}".replace("**/", "*").casefold()
        try:
            return "/../" in glob or any(fnmatchcase(path.casefold(), glob) for path, _ in self.find_secrets(folder))
        except OverflowError:
            return True

    def _may_write(self, tool: ToolView, paths: list[str]) -> bool:
        """Return whether a call may write files, by what the tool declares.

        A call without a path is not about files, unless the tool runs code: to declare more is never worse than to
        declare nothing, except for code, which may do everything.
        """
        if tool.effects is None or "execute" not in tool.effects:
            return bool(paths) and tool.may("write", "delete")
        return not any(fnmatchcase(tool.name, glob) for glob in self.commands)

    def _is_secret(self, target: str, root: Path) -> bool:
        spelled = os.path.normpath(target)
        names = {os.path.realpath(target), spelled if Path(spelled).is_relative_to(root) else ""}
        return any(matches_globs(name, self.secrets, str(root)) for name in names)


def _matches_any(names: Iterable[str], globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for name in names for glob in globs)


def _hides_all(hides: Iterable[str], secrets: Iterable[str]) -> bool:
    """Return whether a tool that hides files by these globs hides all secret files."""
    hidden, spared = ({glob for glob in hides if glob.startswith("!") is flag} for flag in (False, True))
    wanted, excepted = ({glob for glob in secrets if glob.startswith("!") is flag} for flag in (False, True))
    return wanted <= hidden and spared <= excepted


def _secret(path: str) -> HookResult:
    message = f"{path!r:.200} is not allowed: it may contain secrets. Go on without it."
    return HookResult.block(message, reason="a file with secrets")


def _protected(path: str, why: str) -> HookResult:
    message = f"{path!r:.200} may not be changed{why}. Go on without it."
    return HookResult.block(message, reason="it controls the agent")


def _read_only(request: ToolCallRequest, undeclared: bool = False) -> HookResult:
    if undeclared:
        return HookResult.block(
            f"{request.name} is not allowed: files may only be read, and it does not declare that it only reads. Go on "
            "without it.",
            reason=f"{_OFF}; or the tool declares that it only reads: @tool(effects=['read']), trusted_mcp",
        )
    return HookResult.block(
        f"{request.name} is not allowed: files may only be read. Go on without writing.", reason=_OFF
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


def _is_revision(target: str) -> bool:
    """Return whether a name is ``HEAD`` and no file, in a folder that this file would not make a git repository."""
    folder, name = os.path.split(target)
    return name == "HEAD" and not any(
        os.path.lexists(os.path.join(folder, each)) for each in ("HEAD", "objects", "refs")
    )


def _folders(folders: Any, name: str) -> tuple[Path, ...]:
    if isinstance(folders, (str, os.PathLike, Mapping)) or not isinstance(folders, Iterable):
        either = "True, False or " if name == "write" else ""
        raise RegistrationError(f"{name} must be {either}a list of folders, not {folders!r:.80}")
    return tuple(Path(check_folder(folder, name)) for folder in folders)


def _shown(folders: Iterable[Path]) -> str:
    return " or ".join(repr(str(folder)) for folder in folders)
