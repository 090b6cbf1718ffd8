"""Where the values of a TOML file are: ``tomllib`` reads values without their places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

Path = tuple[str | int, ...]
"""The keys and indexes that lead to a value, such as ``("rules", 0, "when")``."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\#[^\n]*)
    |(?P<line>\n)
    |(?P<text>\"\"\"(?:\\.|[^\\])*?\"{3,5}|'''.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    |(?P<bare>[^\s\#\[\]{},=."']+(?:\.[^\s\#\[\]{},=."']+)*)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}|[ \t]*\n\s*|.)", re.DOTALL)


class Position(NamedTuple):
    """A place in a file, counted from 1."""

    line: int
    column: int


class Positions:
    """The places of the values of a valid TOML file, whose lines end with a newline character only."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._keys: dict[Path, int] = {}
        self._values: dict[Path, int] = {}
        _Reader(text, self._keys, self._values).read()

    def of(self, *path: str | int) -> Position | None:
        """Return the place of a key or table; that of the table around it if it has none; ``None`` without both."""
        while path:
            if path in self._keys:
                return self._position(self._keys[path])
            path = path[:-1]
        return None

    def inside(self, path: Path, line: int, column: int) -> Position | None:
        """Return the place of a character in the text at a path. ``line`` and ``column`` are those in the text."""
        start = self._values.get(path)
        if start is None:
            return self.of(*path)
        at, reached = start, Position(1, 1)
        for place, decoded in self._characters(start):
            at = place
            if reached >= (line, column):
                break
            reached = Position(reached.line + 1, 1) if decoded == "\n" else reached._replace(column=reached.column + 1)
        return self._position(at)

    def _characters(self, start: int) -> Iterator[tuple[int, str]]:
        """Yield the place of each character of a text, and the place of its end."""
        found = _TOKEN.match(self._text, start)
        if found is None or found.lastgroup != "text":
            yield start, ""
            return
        token = found.group()
        quote = token[0]
        width = 3 if token.startswith(quote * 3) and len(token) >= 6 else 1
        place, end = start + width, found.end() - width
        if width == 3 and self._text[place : place + 1] == "\n":
            place += 1
        while place < end:
            escape = _ESCAPE.match(self._text, place) if quote == '"' else None
            if escape is None:
                yield place, self._text[place]
                place += 1
                continue
            if "\n" not in escape.group():  # the escape of the end of a line stands for nothing
                yield place, "\n" if escape.group() == "\\n" else " "
            place = escape.end()
        yield end, ""

    def _position(self, at: int) -> Position:
        return Position(self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at))


class _Reader:
    """Reads the tokens of a file, and notes where keys and values begin."""

    def __init__(self, text: str, keys: dict[Path, int], values: dict[Path, int]) -> None:
        self._tokens = [
            (found.lastgroup or "", found.group(), found.start())
            for found in _TOKEN.finditer(text)
            if found.lastgroup != "space"
        ]
        self._next = 0
        self._keys, self._values = keys, values
        self._counts: dict[Path, int] = {}
        """The number of tables in each array of tables."""

    def read(self) -> None:
        table: Path = ()
        while self._next < len(self._tokens):
            kind, text, start = self._tokens[self._next]
            if kind == "line":
                self._next += 1
            elif text == "[":
                table = self._header(start)
            else:
                self._pair(table)

    def _header(self, start: int) -> Path:
        self._next += 1
        is_array = self._peek() == "["
        self._next += is_array
        *outer, last = self._dotted()
        self._next += 1 + is_array
        path: Path = ()
        for name in outer:
            path = (*path, name)
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        path = (*path, last)
        if is_array:
            self._counts[path] = self._counts.get(path, 0) + 1
            path = (*path, self._counts[path] - 1)
        self._keys.setdefault(path, start)
        return path

    def _pair(self, table: Path) -> None:
        start = self._tokens[self._next][2]
        names = self._dotted()
        path = table
        for name in names:
            path = (*path, name)
            self._keys.setdefault(path, start)
        self._next += 1  # the "="
        self._value(path)

    def _dotted(self) -> list[str]:
        names: list[str] = []
        while self._next < len(self._tokens):
            kind, text, _ = self._tokens[self._next]
            if kind == "bare":
                names += text.split(".")
            elif kind == "text":
                names.append(text.strip("\"'"))
            elif text != ".":
                break
            self._next += 1
        return names or [""]

    def _value(self, path: Path) -> None:
        self._lines()
        if self._next >= len(self._tokens):
            return
        _, text, start = self._tokens[self._next]
        self._values[path] = start
        self._keys.setdefault(path, start)
        self._next += 1
        if text == "[":
            self._items(path, "]")
        elif text == "{":
            self._items(path, "}")
        else:
            while self._next < len(self._tokens) and self._peek() not in (",", "]", "}", "\n"):
                self._next += 1

    def _items(self, path: Path, end: str) -> None:
        number = 0
        while self._next < len(self._tokens):
            self._lines()
            if self._peek() == end:
                self._next += 1
                return
            if self._peek() == ",":
                self._next += 1
                number += 1
            elif end == "}":
                self._pair(path)
            else:
                self._value((*path, number))

    def _lines(self) -> None:
        while self._next < len(self._tokens) and self._tokens[self._next][0] == "line":
            self._next += 1

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""
