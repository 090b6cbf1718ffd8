"""Which files a search of Claude Code reads, and how to leave out those with secrets.

Claude Code's ``Grep`` runs ripgrep, hidden files included, and its result cannot be filtered before the model has it.
So the search itself is changed: ``glob`` excludes the secret files in the folder. That works only where the model has
set no ``glob``, because one glob cannot include some files and exclude others. A search with a ``glob`` is judged as it
is, by what the glob can match: where that is not certain, it counts as a match.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..._base.files import below
from ..._kernel.payloads import ToolCallRequest
from ..._kernel.points import BEFORE_TOOL
from ..._kernel.registry import HookRegistry
from ...hooks.path_guard import PathGuard

_SIMPLE_NAME = re.compile(r"[A-Za-z0-9._*-]+")
_BRACES = re.compile(r"([^{}]*)\{([^{}]*)\}(.*)", re.DOTALL)
_MAX_PIECES = 200


class ExcludeSecrets:
    """Excludes the secret files of the path guards from searches in a folder."""

    points = frozenset({BEFORE_TOOL})
    priority = -1000  # after hooks that change the folder

    def __init__(self, registry: HookRegistry) -> None:
        self._registry = registry

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> ToolCallRequest | None:
        """Return the search with a glob that excludes the secret files, if there are any."""
        tool = ctx.tool_registry.get(request.name)
        if tool is None or not tool.is_search or request.arguments.get("glob"):
            return None
        folder = os.path.join(tool.folder, str(request.arguments.get("path") or "."))
        guards = [hook for hook in self._registry if isinstance(hook, PathGuard) and _is_inside(folder, hook.read)]
        try:
            found = {os.path.basename(entry) for guard in guards for _, entry in guard.find_secrets(folder)}
        except (OverflowError, ValueError):  # the guard will say so
            return None
        if not found:
            return None
        return request.replace(arguments={**request.arguments, "glob": _excluding(found)})


def _is_inside(folder: str, roots: Iterable[Path]) -> bool:
    return any(below(root, folder) is not None for root in roots)


def _excluding(names: Iterable[str]) -> str:
    """Return a glob that excludes files and folders of these names, at any depth.

    Claude Code splits a glob at spaces, and at commas outside braces, so other characters than the usual ones become
    wildcards.
    """
    plain = {re.sub(r"[^A-Za-z0-9._-]+", "*", name) for name in names}
    return f"!{{{','.join(sorted(plain))}}}"


def may_match(glob: Any, path: str, inner: str) -> bool:
    """Return whether a search with this glob may read a file.

    Args:
        glob: the argument, which may be anything.
        path: the path of the file, from the working folder if it is there.
        inner: its path from the folder that is searched. Only names in it can be excluded.
    """
    pieces = _pieces(glob) if isinstance(glob, str) else None
    if pieces is None:
        return True
    wanted = [piece for piece in pieces if not piece.startswith("!")]
    if wanted:
        return any(_may_match(piece, path) for piece in wanted)
    excluded = [piece[1:] for piece in pieces if _SIMPLE_NAME.fullmatch(piece[1:])]
    return not any(fnmatchcase(name, piece) for name in inner.split("/") for piece in excluded)


def _pieces(glob: str) -> list[str] | None:
    """Return the patterns of a glob, without braces; ``None`` if they are not certain."""
    if not glob.isprintable():  # JavaScript splits at other spaces than Python
        return None
    pieces: list[str] = []
    for token in glob.split():
        for part in [token] if "{" in token else token.split(","):
            sign = "!" if part.startswith("!") else ""  # of this part alone: "!a,b" includes b
            for piece in _expand(part.removeprefix("!")):
                if re.search(r"[{}\[\]\\!]", piece) or len(pieces) >= _MAX_PIECES:
                    return None
                if piece:
                    pieces.append(sign + piece)
    return pieces or None


def _expand(text: str) -> Iterator[str]:
    """Return the alternatives of a text with braces; nested ones stay as they are."""
    found = _BRACES.fullmatch(text)
    if found is None:
        yield text
        return
    start, inner, rest = found.groups()
    for choice in inner.split(","):
        for end in _expand(rest):
            yield start + choice + end


def _may_match(pattern: str, path: str) -> bool:
    return _compiled(pattern.casefold()).search(path.casefold()) is not None


@lru_cache(256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return an expression for a file, or a folder above it, that matches at least what the pattern does."""
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.strip("/").removeprefix("./"))
    body = "".join(known.get(part, re.escape(part)) for part in parts)
    return re.compile(rf"(?:^|/){body}(?:/|\Z)", re.DOTALL)


def search_arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Return the names of single files, and of hidden ones, among the globs of a search."""
    for name in ("glob", "pattern"):
        glob = arguments.get(name)
        if not isinstance(glob, str):
            continue
        for piece in _expand(re.sub(r"\[([^\]!^\\])\]", r"\1", glob)):  # [.]env is .env
            is_hidden = any(part[:1] == "." for part in piece.split("/"))
            if is_hidden or (name == "pattern" and not re.search(r"[*?\[]", piece)):
                yield piece
