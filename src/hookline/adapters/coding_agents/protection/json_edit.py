"""Change a settings file of JSON, with or without comments, and keep the rest of it as it is written.

Settings of coding agents are written by people and by the agents: a file that is read and written again would lose its
comments, its order and its layout. So a value is inserted into the text, and removed from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INDENT = re.compile(r"\n([ \t]+)\S")


class JsonTextError(ValueError):
    """The text cannot be read; the message says why, and in which line."""


@dataclass
class Node:
    """A value in the text.

    Attributes:
        start: where it begins; for the member of an object, where its name begins.
        end: where it ends.
        value: the value; of an object or array, without what is in it.
        key: the name of a member.
        children: the members or items.
        named: where the name of a member ends.
        opens: where the opening bracket of an object or array is.
        lead: where the last word or comment before it ends.
        tail: where the last word or comment inside an object or array ends.
        comma: where the comma behind it is; -1 if there is none.
    """

    start: int
    end: int = -1
    value: Any = None
    key: str = ""
    children: list[Node] = field(default_factory=list)
    named: int = -1
    opens: int = -1
    lead: int = -1
    tail: int = -1
    comma: int = -1

    def get(self, key: str) -> Node | None:
        """Return a member of an object."""
        return next((child for child in self.children if child.key == key), None)

    def plain(self) -> Any:
        """Return the whole value."""
        if isinstance(self.value, dict):
            return {child.key: child.plain() for child in self.children}
        return [child.plain() for child in self.children] if isinstance(self.value, list) else self.value


class JsonText:
    """A text with one JSON object, which can be changed.

    Args:
        text: the text.
        comments: whether it may have comments.

    Raises:
        JsonTextError: it is not an object in JSON, or an object in it has a name twice.
    """

    def __init__(self, text: str, *, comments: bool = False) -> None:
        self.text, self._comments = text, comments
        self.spans: list[tuple[int, int]] = []
        """Where the inserted texts are, in order."""
        self._newline = "\r\n" if "\r\n" in text else "\n"
        found = _INDENT.search(text)
        self._unit = found[1] if found else "  "
        self._parse()

    def _parse(self) -> None:
        try:
            self.root = _Parser(self.text, self._comments).document()
        except RecursionError:
            raise JsonTextError("it is nested too deeply") from None

    def node(self, *path: str) -> Node | None:
        """Return the value at a path of names of members; ``None`` if there is none."""
        found: Node | None = self.root
        for name in path:
            found = None if found is None else found.get(name)
        return found

    def add_member(self, path: tuple[str, ...], key: str, value: Any, *, levels: int = 0) -> None:
        """Add a member at the end of the object at a path."""
        self._add(path, f"{json.dumps(key, ensure_ascii=False)}: ", value, levels)

    def add_item(self, path: tuple[str, ...], value: Any) -> None:
        """Add an item at the end of the array at a path."""
        self._add(path, "", value, 0)

    def _add(self, path: tuple[str, ...], name: str, value: Any, levels: int) -> None:
        node = self.node(*path)
        assert node is not None
        line = self.text.rfind("\n", 0, node.start) + 1
        base = re.match(r"[ \t]*", self.text[line:])[0]  # type: ignore[index]
        inner = base + self._unit
        shown = laid_out(value, levels, self._unit).replace("\n", f"{self._newline}{inner}")
        new = f"{self._newline}{inner}{name}{shown}"
        if "\n" not in self.text[node.tail : node.end]:  # the closing bracket gets its own line
            new += self._newline + base
        self._insert(node.tail, new)
        if node.children:
            self._insert(node.children[-1].end, ",")
        self._parse()

    def _insert(self, at: int, new: str) -> None:
        size = len(new)
        self.text = self.text[:at] + new + self.text[at:]
        spans = []
        for start, end in self.spans:
            if start < at < end:
                spans.append((start, end + size))
            else:
                spans.append((start + size, end + size) if start >= at else (start, end))
        if not any(start < at < end for start, end in self.spans):
            spans.append((at, at + size))
        self.spans = sorted(spans)

    def holds_only(self, node: Node, child: Node) -> bool:
        """Return whether nothing else is in an object or array, no comment either, and none before it."""
        inside = self.text[node.opens + 1 : child.start] + self.text[child.end : node.end - 1]
        return not inside.strip() and not self.text[node.named : node.opens].strip(": \t\r\n")

    def remove(self, node: Node, child: Node) -> None:
        """Remove a member or item of an object or array."""
        index = next(number for number, each in enumerate(node.children) if each is child)
        cuts = [(child.lead, child.end)]
        if child.comma >= 0:
            cuts.append((child.comma, child.comma + 1))
        elif index:
            before = node.children[index - 1]
            cuts.append((before.comma, before.comma + 1))
        elif not (self.text[node.opens + 1 : child.start] + self.text[child.end : node.end - 1]).strip():
            cuts = [(node.opens + 1, node.end - 1)]
        self.text = without(self.text, cuts)
        self.spans = []
        self._parse()


def laid_out(value: Any, levels: int, unit: str = "  ") -> str:
    """Return a value as JSON with so many levels of objects and arrays in lines of their own, and the others in one."""
    if not levels or not value or not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {laid_out(each, levels - 1, unit)}" for key, each in value.items()
        ]
    else:
        parts = [laid_out(each, levels - 1, unit) for each in value]
    lines = ",\n".join(parts).replace("\n", f"\n{unit}")
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{unit}{lines}\n{end}"


def without(text: str, cuts: list[tuple[int, int]]) -> str:
    """Return a text without some of its parts."""
    for start, end in sorted(cuts, reverse=True):
        text = text[:start] + text[end:]
    return text


class _Parser:
    """Reads JSON, and where its parts are."""

    def __init__(self, text: str, comments: bool) -> None:
        self._text, self._comments = text, comments
        self._at = 0
        self._last = 0
        """Where the last word or comment ended."""

    def document(self) -> Node:
        self._at = self._last = 1 if self._text.startswith("\ufeff") else 0
        self._skip()
        if self._text[self._at : self._at + 1] != "{":
            raise self._error("an object is expected")
        root = self._value(self._at)
        self._skip()
        if self._at < len(self._text):
            raise self._error("there is more behind the object")
        return root

    def _error(self, problem: str) -> JsonTextError:
        return JsonTextError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {problem}")

    def _skip(self) -> None:
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if not self._text.startswith(("//", "/*"), self._at):
                return
            if not self._comments:
                raise self._error("a comment, which this agent does not read")
            found = _COMMENT.match(self._text, self._at)
            if found is None:
                raise self._error("a comment does not end")
            self._at = self._last = found.end()

    def _take(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += 1
        self._last = self._at
        return True

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise self._error("a text in double quotes is expected")
        try:
            value: str = json.loads(found[0])
        except ValueError:
            raise self._error("a text has an unknown escape") from None
        self._at = self._last = found.end()
        return value

    def _value(self, start: int) -> Node:
        sign = self._text[self._at : self._at + 1]
        if sign in ("{", "["):
            node = Node(start, named=start, value={} if sign == "{" else [], opens=self._at)
            node.children.extend(self._children(is_object=sign == "{", node=node))
            node.end = self._at
            return node
        if sign == '"':
            value: Any = self._string()
        elif (found := _SCALAR.match(self._text, self._at)) is not None:
            value = json.loads(found[0])
            self._at = self._last = found.end()
        else:
            raise self._error("a value is expected")
        return Node(start, self._at, value)

    def _children(self, *, is_object: bool, node: Node) -> Iterator[Node]:
        self._take("{" if is_object else "[")
        names: set[str] = set()
        is_first = True
        while True:
            self._skip()
            tail = self._last
            if is_first and self._take("}" if is_object else "]"):
                node.tail = tail
                return
            is_first = False
            start, named, key = self._at, self._at, ""
            if is_object:
                key, named = self._string(), self._at
                if key in names:
                    raise self._error(f"{key!r:.80} is there twice in one object")
                names.add(key)
                self._skip()
                if not self._take(":"):
                    raise self._error("a colon is expected")
                self._skip()
            child = self._value(start)
            child.key, child.named, child.lead = key, named, tail
            self._skip()
            tail = self._last
            if self._text.startswith(",", self._at):
                child.comma = self._at
                self._take(",")
                yield child
                continue
            if not self._take("}" if is_object else "]"):
                raise self._error("a comma or a closing bracket is expected")
            node.tail = tail
            yield child
            return
