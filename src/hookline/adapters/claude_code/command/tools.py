"""The tools of Claude Code as tools that guards can ask about: what they do, and which arguments are paths.

Nothing here is ever called. A guard looks up the tool of a call, because it must know its effects and its folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...._base.files import is_below
from ....tools._tool import Effect, Tool
from ....tools.registry import ToolRegistry
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


def list_files(pattern: str, path: str = ".", **others: Any) -> None:
    """List files by a pattern."""


def find_text(text: str, path: str = ".", glob: str = "", **others: Any) -> None:
    """Search the text of files."""


def fetch(url: str, prompt: str = "", **others: Any) -> None:
    """Fetch a page."""


def search_web(query: str, **others: Any) -> None:
    """Search the web."""


def agent(prompt: str, description: str = "", **others: Any) -> None:
    """Start a subagent, whose calls are judged like all others."""


def undeclared(**arguments: Any) -> None:
    """Do anything: a tool of an MCP server, or one that is not known here."""


_KNOWN: dict[str, tuple[Any, tuple[Effect, ...], tuple[str, ...]]] = {
    "Bash": (shell, ("execute",), ()),
    "PowerShell": (shell, ("execute",), ()),
    "Monitor": (shell, ("execute",), ()),
    "Read": (read_file, ("read",), ()),
    "Write": (write_file, ("write",), ("content",)),
    "Edit": (edit_file, ("read", "write"), ("old_string", "new_string", "edits")),
    "MultiEdit": (edit_file, ("read", "write"), ("old_string", "new_string", "edits")),
    "NotebookEdit": (edit_notebook, ("read", "write"), ("new_source",)),
    "Glob": (list_files, ("read",), ()),
    "Grep": (find_text, ("read",), ("text", "glob")),
    "WebFetch": (fetch, ("network",), ("prompt",)),
    "WebSearch": (search_web, ("network",), ("query",)),
    "Agent": (agent, (), ("prompt", "description")),
    "Task": (agent, (), ("prompt", "description")),
}

SEARCHES = frozenset(("Glob", "Grep"))
"""The tools that search the working folder if they are given no path."""


class ClaudeTool(Tool):
    """A tool of Claude Code, under the name that hooks know."""

    def __init__(self, claude: str, name: str, folder: str, sandboxed: bool) -> None:
        fn, effects, texts = _KNOWN.get(claude, (undeclared, None, ()))
        super().__init__(fn, name="tool", folder=folder, effects=effects, texts=texts)
        self.name = name  # names of MCP tools may be longer than those of our tools
        self.searches, self.is_search = claude in SEARCHES, claude == "Grep"
        if sandboxed and effects == ("execute",):
            self.sandbox = "claude-code"

    def paths(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the paths in these arguments. Globs that may name hidden files count, because those have secrets."""
        found = super().paths(arguments)
        if self.searches:
            folder = str(arguments.get("path") or ".")
            arguments = {"glob": arguments.get("glob")} if self.is_search else arguments  # its pattern is a text
            found += [os.path.join(folder, glob) for glob in search_arguments(arguments)]
        return found

    def may_read(self, arguments: Mapping[str, Any], path: str) -> bool:
        """Return whether a search may read a file in its folder: not if its glob excludes the file."""
        start = os.path.realpath(self.folder)
        searched = os.path.realpath(os.path.join(start, str(arguments.get("path") or ".")))
        from_start = os.path.relpath(path, start) if is_below(path, start) else path
        return may_match(arguments.get("glob"), from_start, os.path.relpath(path, searched))


@lru_cache(256)
def tools_for(claude: str, name: str, folder: str, sandboxed: bool) -> ToolRegistry:
    """Return the tools of a session as hooks see them during one call: the tool that is called."""
    return ToolRegistry([ClaudeTool(claude, name, folder, sandboxed)])


def judged_argument(claude: str) -> str | None:
    """Return our name of the argument of a tool that guards judge first; ``None`` for a tool that is not known."""
    if claude not in _KNOWN:
        return None
    return _KNOWN[claude][0].__code__.co_varnames[0]  # type: ignore[no-any-return]
