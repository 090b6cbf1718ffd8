"""The tools of a coding agent as tools that guards can ask about: what they do, and which arguments are paths.

Nothing here is ever called. A guard looks up the tool of a call, because it must know its effects and its folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args

from ..._base.files import is_below
from ..._kernel.errors import HooklineError
from ..._run.foreign import OutsideTool
from ...tools._tool import Effect
from .codecs.base import AgentTool, Codec, ToolKind, renamed
from .patches import files_of
from .searches import may_match, search_arguments


def shell(command: str, **others: Any) -> None:
    """Run a command."""


def read_file(path: str, start_line: int = 1, max_lines: int = 0, **others: Any) -> None:
    """Read a file."""


def write_file(path: str, content: str, **others: Any) -> None:
    """Write a file."""


def edit_file(path: str, old_string: str = "", new_string: str = "", edits: Any = None, **others: Any) -> None:
    """Replace text in a file."""


def edit_notebook(path: str, new_source: str = "", **others: Any) -> None:
    """Change a cell of a notebook."""


def delete_file(path: str, **others: Any) -> None:
    """Delete a file."""


def apply_patch(patch: str, **others: Any) -> None:
    """Add, change, delete and move files."""


def list_files(pattern: str = "", path: str = ".", **others: Any) -> None:
    """List files by a pattern."""


def find_text(text: str, path: str = ".", glob: str = "", **others: Any) -> None:
    """Search the text of files."""


def fetch(url: str, prompt: str = "", **others: Any) -> None:
    """Fetch a page."""


def search_web(query: str, **others: Any) -> None:
    """Search the web."""


def subagent(task: str = "", prompt: str = "", description: str = "", **others: Any) -> None:
    """Start a subagent, whose calls are judged like all others."""


def harmless(**arguments: Any) -> None:
    """Change nothing outside the agent, such as its plan."""


def undeclared(**arguments: Any) -> None:
    """Do anything: a tool of an MCP server, or one that is not known here."""


_EDITED = ("old_string", "new_string", "edits")
_KINDS: dict[ToolKind, tuple[Any, tuple[Effect, ...], tuple[str, ...]]] = {
    "shell": (shell, ("execute",), ()),
    "read_file": (read_file, ("read",), ()),
    "write_file": (write_file, ("write",), ("content",)),
    "edit_file": (edit_file, ("read", "write"), _EDITED),
    "edit_notebook": (edit_notebook, ("read", "write"), ("new_source",)),
    "delete_file": (delete_file, ("delete",), ()),
    "apply_patch": (apply_patch, ("read", "write"), ("patch",)),
    "list_files": (list_files, ("read",), ()),
    "find_text": (find_text, ("read",), ("text", "glob")),
    "fetch": (fetch, ("network",), ("prompt",)),
    "search_web": (search_web, ("network",), ("query",)),
    "subagent": (subagent, (), ("prompt", "description", "task")),
    "harmless": (harmless, (), ()),
}
"""For each kind a function with its arguments, its effects, and the arguments that are texts."""
_NOT_NEEDED: frozenset[ToolKind] = frozenset(("list_files", "subagent", "harmless"))
"""Tools whose calls guards judge although their first argument is missing."""


class KnownTool:
    """A tool of a coding agent, as this command knows it."""

    def __init__(
        self, theirs: str, ours: str, kind: ToolKind | None, arguments: Mapping[str, str], takes_glob: bool
    ) -> None:
        self.theirs, self.ours, self.arguments = theirs, ours, dict(arguments)
        self.kind: ToolKind | None = kind
        self.takes_glob = takes_glob
        if len(set(self.arguments.values())) < len(self.arguments):
            raise HooklineError(f"two arguments of {theirs} have the same name: {self.arguments!r:.200}")

    @property
    def searches(self) -> bool:
        """Whether the tool searches the working folder if it is given no path."""
        return self.kind in ("list_files", "find_text")

    @property
    def judged_argument(self) -> str:
        """Our name of the argument that guards judge first; empty if there is none that every call has."""
        if self.kind is None or self.kind in _NOT_NEEDED:
            return ""
        return str(_KINDS[self.kind][0].__code__.co_varnames[0])


class ToolMap:
    """Translates names and arguments of the tools of a coding agent in both directions.

    Example::

        tools = ToolMap(codec_of("claude"), ["Bash=terminal", "Bash.command=line"])
        tools.to_hookline("Bash", {"command": "ls"})     # ("terminal", {"line": "ls"})
        tools.input_of("Bash", {"line": "ls"})           # {"command": "ls"}

    Args:
        codec: the agent, which has tools.
        changes: other names: ``TOOL=NAME`` and ``TOOL.ARGUMENT=NAME``. A tool that is called like one of our kinds of
            tools, such as ``run_command=shell``, is one.

    Raises:
        HooklineError: an entry has another form.
    """

    def __init__(self, codec: Codec, changes: Iterable[str] = ()) -> None:
        entries: dict[str, AgentTool] = {tool.theirs: tool for tool in codec.tools}
        names: dict[str, str] = {}
        arguments: dict[str, dict[str, str]] = {}
        for change in changes:
            theirs, equals, ours = change.partition("=")
            tool, dot, argument = theirs.partition(".")
            if not (equals and tool and ours) or bool(dot) != bool(argument):
                raise HooklineError(f"--tool {change}: write TOOL=NAME, or TOOL.ARGUMENT=NAME")
            if argument:
                known = entries[tool].arguments if tool in entries else {}
                arguments.setdefault(tool, dict(known))[argument] = ours
            else:
                names[tool] = ours
        self._tools: dict[str, KnownTool] = {}
        for theirs in (*entries, *names, *arguments):
            usual = entries.get(theirs)
            ours = names.get(theirs, theirs if usual is None else usual.name)
            kind = usual.kind if usual is not None else ours if ours in get_args(ToolKind) else None
            given = arguments.get(theirs, {} if usual is None else usual.arguments)
            takes_glob = usual is not None and usual.takes_glob
            self._tools[theirs] = KnownTool(theirs, ours, kind, given, takes_glob)  # type: ignore[arg-type]

    def get(self, theirs: str) -> KnownTool | None:
        """Return a tool by the agent's name."""
        return self._tools.get(theirs)

    def name_of(self, theirs: str) -> str:
        """Return our name of a tool."""
        known = self._tools.get(theirs)
        return theirs if known is None else known.ours

    def to_hookline(self, theirs: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return our name of a tool of the agent, and the arguments under our names.

        Raises:
            ValueError: an argument is given under both names, so that nobody can say which one counts.
        """
        known = self._tools.get(theirs)
        return (theirs, dict(arguments)) if known is None else (known.ours, renamed(arguments, known.arguments))

    def input_of(self, theirs: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return our arguments as the input of a tool of the agent.

        Raises:
            ValueError: an argument is given under both names, so that nobody can say which one counts.
        """
        known = self._tools.get(theirs)
        names = {} if known is None else {ours: name for name, ours in known.arguments.items()}
        return renamed(arguments, names)


class HostTool(OutsideTool):
    """A tool of a coding agent, under the name that hooks know."""

    def __init__(
        self, kind: ToolKind | None, name: str, folder: str, *, sandboxed: bool, deletes: bool, takes_glob: bool
    ) -> None:
        fn, effects, texts = (undeclared, None, ()) if kind is None else _KINDS[kind]
        if deletes and effects is not None:
            effects = (*effects, "delete")
        super().__init__(fn, name="tool", folder=folder, effects=effects, texts=texts)
        self.name = name  # names of MCP tools may be longer than those of our tools
        self.kind = kind
        self.is_search = takes_glob
        if sandboxed and effects == ("execute",):
            self.sandbox = "coding-agent"

    def paths(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the paths in these arguments. Globs that may name hidden files count, because those have secrets."""
        if self.kind == "apply_patch":
            return files_of(str(arguments.get("patch", "")))
        found = super().paths(arguments)
        if self.kind in ("list_files", "find_text"):
            folder = str(arguments.get("path") or ".")
            is_text = self.kind == "find_text"  # its pattern is no path
            arguments = {"glob": arguments.get("glob")} if is_text else arguments
            found += [os.path.join(folder, glob) for glob in search_arguments(arguments)]
        return found

    def file_names(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Return the words that may be names of files. A patch says which words are."""
        return iter(()) if self.kind == "apply_patch" else super().file_names(arguments)

    def may_read(self, arguments: Mapping[str, Any], path: str) -> bool:
        """Return whether a search may read a file in its folder: not if its glob excludes the file."""
        start = os.path.realpath(self.folder)
        searched = os.path.realpath(os.path.join(start, str(arguments.get("path") or ".")))
        from_start = os.path.relpath(path, start) if is_below(path, start) else path
        return may_match(arguments.get("glob"), from_start, os.path.relpath(path, searched))


@lru_cache(256)
def tool_for(
    kind: ToolKind | None,
    name: str,
    folder: str,
    *,
    sandboxed: bool = False,
    deletes: bool = False,
    takes_glob: bool = False,
) -> HostTool:
    """Return the tool of a call as hooks see it."""
    return HostTool(kind, name, folder, sandboxed=sandboxed, deletes=deletes, takes_glob=takes_glob)
