"""Pins: what servers said about themselves when a person, or the first start, approved it.

A server may change the descriptions of its tools at any time, and models obey descriptions. So each tool is used only
as it was approved. The pins of a server are a file in the user's data folder, outside every project.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..._base.errors import HooklineError
from ..._base.files import distrust_reason, locked_folder, replace_file, user_folder
from ..._base.own_files import OwnFile, register_own_file
from ..._base.text import error_text, escape_invisible, shorten

FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What is pinned of a tool: all that the model reads, or that says what the tool does."""
INSTRUCTIONS = "(instructions)"
"""The instructions of a server among its pins. No tool can have this name."""
LOCK_SECONDS = 10.0
MAX_SHOWN = 20_000


class PinError(HooklineError):
    """The pins of a server cannot be used."""


class Pin(msgspec.Struct, frozen=True):
    """A tool, or the instructions, as a server described it."""

    digest: str
    definition: Any
    at: float
    by: str = ""


class PinFile(msgspec.Struct):
    """The pins of one server: what is approved, and what differs from it and waits for approval."""

    server: tuple[str, ...]
    name: str
    approved: dict[str, Pin] = {}
    waiting: dict[str, Pin] = {}
    version: int = 1


class PinStore:
    """The pins of one server, in a file that only the user can read.

    Args:
        server: the command or the address of the server.
        name: its name for people.
        folder: the folder of the pins; by default, in the user's data folder.
    """

    def __init__(self, server: Sequence[str], name: str, folder: Path | None = None) -> None:
        self.server, self.name = identity_of(server), name
        self.folder = pins_folder() if folder is None else folder
        key = hashlib.sha256(json.dumps(self.server).encode()).hexdigest()[:32]
        self.path = self.folder / f"{key}.json"
        self._seen: tuple[int, ...] = ()
        self._known: PinFile | None = None
        register_own_file(self, OwnFile(str(self.folder), "the approved tools of MCP servers", is_folder=True))

    def read(self) -> PinFile | None:
        """Return the pins; ``None`` if the server was never seen.

        Raises:
            PinError: the file cannot be read, or others could have written it.
        """
        try:
            state = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PinError(f"{self.path} cannot be read: {error_text(error)}") from error
        stamp = (state.st_mtime_ns, state.st_ino, state.st_size)
        if stamp != self._seen:
            self._known, self._seen = read_pins(self.path), stamp
        return self._known

    def approve_first(self, found: Mapping[str, Any], by: str) -> None:
        """Approve everything that a server says that was never seen. Without effect if it was."""

        def change(pins: PinFile | None) -> PinFile:
            return pins or PinFile(self.server, self.name, {name: pin_of(each, by) for name, each in found.items()})

        self._change(change)

    def note_waiting(self, found: Mapping[str, Any]) -> None:
        """Remember what differs from what was approved."""
        known = self.read()
        new = {name: pin_of(each) for name, each in found.items()}
        if known is not None and all(_same(known.waiting.get(name), pin) for name, pin in new.items()):
            return

        def change(pins: PinFile | None) -> PinFile:
            pins = pins or PinFile(self.server, self.name)
            pins.waiting.update(new)
            return pins

        self._change(change)

    def approve(self, names: Iterable[str], by: str, shown: Mapping[str, str]) -> None:
        """Approve what waits under these names, if it is still what was ``shown``: their digests."""
        wanted = set(names)

        def change(pins: PinFile | None) -> PinFile:
            pins = pins or PinFile(self.server, self.name)
            for name in wanted & pins.waiting.keys():
                if pins.waiting[name].digest == shown.get(name):
                    pins.approved[name] = msgspec.structs.replace(pins.waiting.pop(name), at=time.time(), by=by)
            return pins

        self._change(change)

    def forget(self) -> None:
        """Forget the server, as if it was never seen."""
        self.path.unlink(missing_ok=True)

    def _change(self, change: Any) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked_folder(self.folder, LOCK_SECONDS):
                self._seen = ()
                replace_file(self.path, msgspec.json.format(msgspec.json.encode(change(self.read()))), 0o600)
        except OSError as error:
            raise PinError(f"{self.path} cannot be written: {error_text(error)}") from error


def pins_folder() -> Path:
    """Return the folder of all pins of this user."""
    return user_folder("data") / "mcp-pins"


def read_pins(path: Path) -> PinFile:
    """Read a file of pins.

    Raises:
        PinError: the file cannot be read, or others could have written it.
    """
    if problem := distrust_reason(path):
        raise PinError(f"{path} is not used: {problem}. Remove it, and approve the server again")
    try:
        return msgspec.json.decode(path.read_bytes(), type=PinFile)
    except (OSError, msgspec.DecodeError) as error:
        raise PinError(
            f"{path} cannot be read: {error_text(error)}. Remove it, and approve the server again"
        ) from error


def identity_of(server: Sequence[str]) -> tuple[str, ...]:
    """Return a command with the full paths of the files that it names, so that it is the same in every folder."""
    return tuple([os.path.abspath(word) if os.sep in word and os.path.isfile(word) else word for word in server])


def digest_of(definition: Any) -> str:
    """Return the digest of a tool or of instructions."""
    seen = {key: definition.get(key) for key in FIELDS} if isinstance(definition, Mapping) else definition
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def pin_of(definition: Any, by: str = "") -> Pin:
    """Return the pin of a tool or of instructions."""
    seen = {key: definition[key] for key in FIELDS if key in definition} if isinstance(definition, dict) else definition
    return Pin(digest_of(definition), seen, time.time(), by)


def diff_of(before: Pin | None, after: Pin) -> str:
    """Return the difference between two pins as text in which every character is visible."""
    old = [] if before is None else _lines(before.definition)
    found = difflib.unified_diff(old, _lines(after.definition), "approved", "now", lineterm="", n=1)
    return shorten("\n".join(list(found)[2:]), MAX_SHOWN)


def _lines(definition: Any) -> list[str]:
    text = json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False)
    return [escape_invisible(line) for line in text.splitlines()]


def _same(known: Pin | None, pin: Pin) -> bool:
    return known is not None and known.digest == pin.digest
