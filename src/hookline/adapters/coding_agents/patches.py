"""Patches of the tool ``apply_patch``: which files they add, change, delete and move.

The form is that of Codex, which other agents use too. A model writes a patch as the argument of a tool, or into a shell
command, mostly as a here document. The parser is our own, because there is no library
for this form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ..._toolbox.command_line import CommandError
from ...hooks._terminal.developer import possible_commands
from ...hooks._terminal.errors import BlockedError
from ...hooks._terminal.script import find_commands

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_FILE = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE = re.compile(r"\*\*\* Move to: (.+)")
_PROGRAM = re.compile(r"apply_?patch", re.IGNORECASE)
_HINT = re.compile(r"apply_?patch|\*\*\*\s*Begin\s+Patch", re.IGNORECASE)


class PatchError(ValueError):
    """A patch cannot be read."""


def patches_in(text: str, *, is_command: bool = False) -> Sequence[str]:
    """Return the patches in a text, or in a shell command.

    Raises:
        PatchError: a patch is not written out completely.
    """
    if not _HINT.search(text) or (is_command and _BEGIN not in text and not _applies_patch(text)):
        return ()
    lines, found, start = text.splitlines(), list[str](), -1
    for number, line in enumerate(lines):
        if line.rstrip().endswith(_BEGIN) and not line.startswith(("+", "-", " ")):
            if start >= 0:
                raise PatchError("a patch begins inside another one")
            start = number
        elif line.lstrip().startswith(_END) and start >= 0:
            found.append("\n".join([_BEGIN, *lines[start + 1 : number], _END]))
            start = -1
        elif start < 0 and (_FILE.match(line.strip()) or _MOVE.match(line.strip())):
            raise PatchError("it has a file outside of its beginning and end")
    if start >= 0:
        raise PatchError("its end is missing")
    if not found:
        raise PatchError("it is not written out in the command")
    for patch in found:
        files_of(patch)
    return found


def _applies_patch(command: str) -> bool:
    """Return whether a shell command runs ``apply_patch``, and does not only mention it."""
    try:
        commands = find_commands(command).commands
        return any(
            _PROGRAM.fullmatch(os.path.basename(words[0].text))
            for given in commands
            for words in possible_commands(given)
            if words
        )
    except (CommandError, BlockedError) as error:
        raise PatchError(f"its command cannot be read: {error}") from error


def folder_of(command: str, cwd: str) -> str:
    """Return the folder in which a shell command applies a patch: that of its ``cd``, if it has one.

    Raises:
        PatchError: the folder is only known when the command runs.
    """
    folder = cwd
    try:
        commands = find_commands(command).commands
    except CommandError as error:
        raise PatchError(f"its command cannot be read: {error}") from error
    for words in commands:
        name = os.path.basename(words[0].text)
        if name in ("pushd", "popd", "chroot", "eval", "source", "."):
            raise PatchError(f"{name} in the same command may lead to another folder")
        if name == "cd":
            if len(words) != 2 or words[1].expansions or words[1].text.startswith("-"):
                raise PatchError("its cd does not name a folder plainly")
            folder = os.path.join(folder, words[1].text)
    return folder


def files_of(patch: str) -> list[str]:
    """Return the files of a patch, with the places to which it moves some.

    Raises:
        PatchError: a line is neither a file nor a part of one.
    """
    files: list[str] = []
    for line in patch.splitlines():
        text = line.strip()
        if text in ("", _BEGIN, _END):
            continue
        if (found := _FILE.fullmatch(text)) is not None:
            files.append(found[2].strip())
        elif (found := _MOVE.fullmatch(text)) is not None:
            files.append(found[1].strip())
        elif text.startswith("***") and text != "*** End of File":
            raise PatchError(f"its line {text[:80]!r} is not known")
        elif not files:
            raise PatchError("it has changes before the first file")
    if not files:
        raise PatchError("it names no file")
    return files


def deletes(patch: str) -> bool:
    """Return whether a patch deletes or moves a file."""
    return any(line.strip().startswith(("*** Delete File:", "*** Move to:")) for line in patch.splitlines())
