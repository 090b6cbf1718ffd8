"""The files that Hookline itself uses: its code, its configuration and its stores.

A sandbox keeps commands from writing to them. They are not listed by name: code is found in the modules that this
process has loaded, and whatever opens a file of Hookline registers it here.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import NamedTuple

from .files import user_folder


class OwnFile(NamedTuple):
    """A file or folder that Hookline uses.

    Args:
        path: the path.
        description: what it is, for messages.
        beside: whether Hookline replaces the file, or creates others beside it, such as the journal of a database. Then
            its folder must be protected too.
        is_folder: whether it is a folder, which may not exist yet.
    """

    path: str
    description: str
    beside: bool = False
    is_folder: bool = False


_registered: dict[int, OwnFile] = {}
_numbers = count()


def register_own_file(owner: object, file: OwnFile) -> None:
    """Register a file that Hookline uses, for as long as its ``owner`` exists."""
    number = next(_numbers)
    _registered[number] = file._replace(path=os.path.abspath(file.path))
    weakref.finalize(owner, _registered.pop, number, None).atexit = False


def own_files() -> Iterator[OwnFile]:
    """Return the files and folders that this process uses, with links resolved. Some may not exist yet.

    They include the links in the path of a file, because replacing a link replaces the file.
    """
    for file in (*list(_registered.values()), *_environment()):
        yield file._replace(path=os.path.realpath(file.path))
        for link in _links(file.path):
            yield OwnFile(link, f"a link to {file.description}", beside=True)
    yield from _loaded_code()


def _environment() -> Iterator[OwnFile]:
    for folder in (user_folder("data"), user_folder("cache")):
        yield OwnFile(str(folder), "Hookline's folder for the user's data", is_folder=True)
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        yield OwnFile(prefix, "the Python environment", is_folder=True)
    for entry in dict.fromkeys(sys.path):
        description = "a place from which Python imports modules (sys.path)"
        yield OwnFile(os.path.abspath(entry), description, is_folder=os.path.isdir(entry or "."))


def _links(path: str) -> Iterator[str]:
    """Return the links among a path and the folders above it."""
    place, *names = path.split(os.sep)
    for name in names:
        place = os.path.join(os.path.realpath(place or os.sep), name)
        if os.path.islink(place):
            yield place


def _loaded_code() -> Iterator[OwnFile]:
    """Return the folders from which modules were imported, and the files that were loaded by their path."""
    found: dict[str, OwnFile] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            code = _code(name, file, getattr(module, "__spec__", None) is not None)
            found.setdefault(code.path, code)
    yield from found.values()


@cache  # each command in a sandbox asks, and a program has thousands of modules
def _code(name: str, file: str, was_imported: bool) -> OwnFile:
    if not was_imported:  # a script, or a file of hooks
        return OwnFile(os.path.realpath(file), "code that this program has loaded")
    # The folder that was searched: a package or a compiled module there would be found before the module.
    folder = os.path.dirname(file)
    for _ in range(name.count(".") + (os.path.basename(file).partition(".")[0] == "__init__")):
        folder = os.path.dirname(folder)
    description = f"the folder from which this program has imported {name.partition('.')[0]}"
    return OwnFile(os.path.realpath(folder), description, is_folder=True)
