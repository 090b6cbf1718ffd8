"""Tool calls as Claude Code's hooks know them: names, arguments and results, in both directions."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from ..._base.frozen import thaw
from ..._run.events import log
from .protocol import ClaudeToolNames

_PATHS = ("file_path", "notebook_path")


class Translator:
    """Translates the calls of one agent.

    Args:
        names: the names of tools and arguments.
        folder: the folder of paths whose tool names no folder.
        given: Claude Code's names of the tools that the program has mapped itself. They may be tools of MCP servers;
            others with the name of one of our tools are not.
    """

    def __init__(self, names: ClaudeToolNames, folder: str, given: Collection[str] = ()) -> None:
        self._names, self._folder = names, folder
        self._known = {entry.hookline for entry in names}
        self._given = {entry.hookline for entry in names if entry.claude in given}

    def call(self, name: str, arguments: Mapping[str, Any], tool: Any = None) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments of a call for a hook. Paths of files are absolute there."""
        server = getattr(tool, "server", None)
        if server is not None and name not in self._given:
            return f"mcp__{server.name}__{tool.remote_name}", thaw(arguments)
        theirs, renamed = self._names.to_claude(name, thaw(arguments))
        for path in _PATHS:
            if isinstance(given := renamed.get(path), str) and "\0" not in given:
                renamed[path] = os.path.abspath(os.path.join(self._folder_of(tool), given))
        return theirs, renamed

    def arguments(
        self, theirs: str, updated: Mapping[str, Any], before: Mapping[str, Any], tool: Any = None
    ) -> dict[str, Any]:
        """Return the arguments for our tool from the ``updatedInput`` of a hook.

        Args:
            theirs: Claude Code's name of the tool.
            updated: the new input.
            before: the arguments of the call, which a path that did not change keeps.
            tool: the tool.

        Raises:
            ValueError: an argument is given under both names.
        """
        name, renamed = self._names.to_hookline(theirs, updated)
        if name in self._known:
            renamed = self._without_unknown(theirs, renamed, tool)
        shown = self.call(name, before, tool)[1] if before else {}
        for path in _PATHS:
            if path not in updated:
                continue
            (ours,) = self._names.to_hookline(theirs, {path: None})[1]
            if updated[path] == shown.get(path):
                renamed[ours] = before[ours]
            elif isinstance(updated[path], str) and ours in renamed:
                renamed[ours] = self._inside(updated[path], self._folder_of(tool))
        return renamed

    def _without_unknown(self, theirs: str, arguments: dict[str, Any], tool: Any) -> dict[str, Any]:
        """Leave out arguments that only Claude Code's tool has, such as the description of a command."""
        known = {} if tool is None else tool.spec.parameters.get("properties", {})
        unknown = [name for name in arguments if name not in known] if known else []
        if unknown:
            log.warning("updatedInput of a hook for %s: %s does not exist here", theirs, ", ".join(unknown)[:200])
        return {name: value for name, value in arguments.items() if name not in unknown}

    def _folder_of(self, tool: Any) -> str:
        return self._folder if tool is None else getattr(tool, "folder", self._folder)

    @staticmethod
    def _inside(path: str, folder: str) -> str:
        """Return a path relative to a folder if it is in it."""
        relative = os.path.relpath(path, folder) if os.path.isabs(path) else path
        return path if relative == ".." or relative.startswith(f"..{os.sep}") else relative


def response_of(theirs: str, arguments: Mapping[str, Any], result: Any, text: str) -> Any:
    """Return the result of a tool in the structure that Claude Code's tool has."""
    path = arguments.get("file_path")
    if theirs in ("Bash", "PowerShell"):
        return {"stdout": text, "stderr": "", "interrupted": False, "isImage": False}
    if theirs == "Read":
        return {"type": "text", "file": {"filePath": path, "content": text, "numLines": text.count("\n") + 1}}
    if theirs == "Write":
        return {"type": "create", "filePath": path, "content": arguments.get("content"), "success": True}
    if theirs == "Edit":
        names = {"old_string": "oldString", "new_string": "newString", "replace_all": "replaceAll"}
        changed = {names[name]: value for name, value in arguments.items() if name in names}
        return {"filePath": path, **changed, "success": True}
    return thaw(result)


def result_of(theirs: str, updated: Any) -> Any:
    """Return the result for the model from the ``updatedToolOutput`` of a hook."""
    if isinstance(updated, dict):
        if theirs in ("Bash", "PowerShell") and isinstance(updated.get("stdout"), str):
            return "\n".join(filter(None, (updated["stdout"], updated.get("stderr"))))
        content = updated.get("file", {}).get("content") if isinstance(updated.get("file"), dict) else None
        if theirs == "Read" and isinstance(content, str):
            return content
    return updated
