"""The format of ``rules.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from ..._base.text import did_you_mean, error_text
from ..._kernel.errors import HooklineError

Verb = Literal["block", "ask", "stop", "end", "retry", "withhold", "label"]
PointName = Literal["on_run_start", "before_llm", "after_llm", "before_tool", "after_tool"]
ArgumentType = Literal["string", "number", "integer", "boolean", "array", "object", "any"]

VERBS: Mapping[PointName, tuple[Verb, ...]] = {
    "on_run_start": ("end", "stop"),
    "before_llm": ("end", "stop"),
    "after_llm": ("retry", "end", "stop"),
    "before_tool": ("block", "ask", "end", "stop"),
    "after_tool": ("withhold", "label", "end", "stop"),
}
"""What a rule may do at each point."""

TOOL_POINTS = ("before_tool", "after_tool")


class RulesError(HooklineError):
    """A file of rules is wrong. The message says where."""


class PastCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call before the moment of an example."""

    tool: str
    arguments: Mapping[str, Any] = {}
    outcome: Literal["ok", "error", "blocked", "answered", "cancelled", "pending"] = "ok"
    approved: bool = False
    labels: tuple[str, ...] = ()
    agent: str = ""


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A moment, and what the rule does then. ``then`` is the verb of the rule, or ``pass``."""

    then: str
    tool: str = ""
    arguments: Mapping[str, Any] = {}
    history: tuple[PastCall, ...] = ()
    agent: str = ""
    caller: str = ""
    platform: str = ""
    task: str = ""
    text: str = ""
    model: str = ""
    tools: tuple[str, ...] = ()
    outcome: Literal["ok", "error", "blocked", "answered", "cancelled"] = "ok"
    metadata: Mapping[str, Any] = {}
    effects: tuple[str, ...] = ()
    untrusted: bool = False
    now: datetime | None = None
    count: int | None = None


class RuleData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule as it is written."""

    name: str
    when: str
    then: Verb
    message: str = ""
    reason: str = ""
    point: PointName = "before_tool"
    tools: tuple[str, ...] = ("*",)
    agents: tuple[str, ...] = ("*",)
    label: str = ""
    shadow: bool = False
    priority: float = 0
    examples: tuple[Example, ...] = ()


class ToolData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a tool, for the check of conditions."""

    arguments: Mapping[str, ArgumentType] = {}


class FileData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of rules."""

    rules: tuple[RuleData, ...]
    tools: Mapping[str, ToolData] = {}
    store: str = ""


class Source:
    """The text of a file, to find the place of a mistake."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self._lines = path, text.split("\n")
        self._heads = [number for number, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*rules\s*\]\]", line)]

    def line_of(self, index: int, key: str = "") -> int:
        """Return the line of a rule, or of one of its keys, from 1; 0 if it is not known."""
        if index >= len(self._heads):
            return 0
        start = self._heads[index]
        for number in range(start + 1, len(self._lines)) if key else ():
            line = self._lines[number]
            if re.match(r"\s*\[", line):
                break
            if re.match(rf"\s*{key}\s*=", line):
                return number + 1
        return start + 1

    def place(self, index: int, key: str, line: int, column: int) -> str:
        """Return the place of a character of a value, as ``rules.toml:12:9``."""
        first = self.line_of(index, key)
        if not first:
            return str(self.path)
        opening = re.match(r"""\s*\w+\s*=\s*('''|\"\"\"|'|")""", self._lines[first - 1])
        if opening is None:
            return f"{self.path}:{first}"
        starts_below = len(opening[1]) == 3 and not self._lines[first - 1][opening.end() :]
        line = first + line - 1 + starts_below
        return f"{self.path}:{line}:{column + (opening.end() if line == first else 0)}"


def read(path: Path) -> tuple[FileData, Source]:
    """Read a file of rules.

    Raises:
        RulesError: it cannot be read, or has another form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(f"{path} cannot be read: {error_text(error)}") from error
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RulesError(f"{path} is not valid TOML: {error}") from error
    source = Source(path, text)
    return _converted(given, source), source


def is_rules(path: Path) -> bool:
    """Return whether a TOML file contains rules, and not settings."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    return isinstance(given.get("rules"), list)


def _converted(given: Mapping[str, Any], source: Source) -> FileData:
    items = given.get("rules")
    if not isinstance(items, list) or not items:
        raise RulesError(f"{source.path} has no rules. A rule begins with [[rules]] and has name, when and then")
    for name in given.keys() - set(FileData.__struct_fields__):
        hint = did_you_mean(name, FileData.__struct_fields__)
        raise RulesError(f"{source.path}: {name!r} is not known.{hint} Known: {', '.join(FileData.__struct_fields__)}")
    rules = [_rule(item, index, source) for index, item in enumerate(items)]
    names: dict[str, int] = {}
    for index, rule in enumerate(rules):
        if rule.name in names:
            place = _where(source, index, "name")
            raise RulesError(f"{place}: there are two rules with the name {rule.name!r}. A name identifies its rule")
        names[rule.name] = index
    try:
        rest = {name: value for name, value in given.items() if name != "rules"}
        return msgspec.convert({**rest, "rules": rules}, FileData)
    except msgspec.ValidationError as error:
        raise RulesError(f"{source.path}: {_readable(error)}") from error


def _rule(item: Any, index: int, source: Source) -> RuleData:
    if not isinstance(item, dict):
        raise RulesError(f"{_where(source, index)}: a rule is a table: [[rules]]")
    known = RuleData.__struct_fields__
    for name in item:
        if name not in known:
            hint = did_you_mean(name, known)
            raise RulesError(f"{_where(source, index, name)}: a rule has no {name!r}.{hint} It has {', '.join(known)}")
    given = {name: [value] if name in ("tools", "agents") and isinstance(value, str) else value for name, value in item.items()}
    try:
        rule = msgspec.convert(given, RuleData)
    except msgspec.ValidationError as error:
        key = re.search(r"at `\$\.(\w+)", str(error))
        raise RulesError(f"{_where(source, index, key[1] if key else '')}: {_readable(error)}") from error
    _check(rule, index, source)
    return rule


def _check(rule: RuleData, index: int, source: Source) -> None:
    if not re.fullmatch(r"[\w.-]{1,80}", rule.name):
        where = _where(source, index, "name")
        raise RulesError(f"{where}: the name {rule.name!r:.90} must be letters, digits, '.', '_' and '-', at most 80")
    verbs = VERBS[rule.point]
    if rule.then not in verbs:
        where = _where(source, index, "then")
        points = [point for point, known in VERBS.items() if rule.then in known]
        raise RulesError(
            f"{where}: a rule at {rule.point} cannot {rule.then}: it may {', '.join(verbs)}. "
            f"{rule.then!r} is for {', '.join(points)}"
        )
    if rule.point not in TOOL_POINTS and rule.tools != ("*",):
        raise RulesError(f"{_where(source, index, 'tools')}: {rule.point} is about no tool")
    if (rule.then == "label") != bool(rule.label):
        raise RulesError(f'{_where(source, index)}: a label needs then = "label" and label = "NAME", both')
    if rule.then in ("block", "ask", "withhold", "end", "retry") and not rule.message:
        raise RulesError(f"{_where(source, index)}: rule {rule.name!r} needs a message, which says what to do instead")
    for example in rule.examples:
        if example.then not in (rule.then, "pass"):
            where = _where(source, index, "examples")
            raise RulesError(f"{where}: an example says then = {rule.then!r} or 'pass', not {example.then!r}")


def _where(source: Source, index: int, key: str = "") -> str:
    line = source.line_of(index, key)
    return f"{source.path}:{line}" if line else str(source.path)


def _readable(error: msgspec.ValidationError) -> str:
    text = str(error)
    match = re.fullmatch(r"Invalid enum value '(.*)' - at `\$\.?(.*)`", text)
    if match is not None:
        kinds = {"then": get_args(Verb), "point": get_args(PointName)}.get(match[2], get_args(ArgumentType))
        return f"{match[1]!r} is not known.{did_you_mean(match[1], kinds)} Known: {', '.join(kinds)}"
    return re.sub(r" - at `\$\.?(.*)`", r" (at \1)", text.replace("Object missing required field", "it needs"))


def schema() -> dict[str, Any]:
    """Return the JSON schema of the format, for editors."""
    found = msgspec.json.schema(FileData)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Rules of Hookline", **found}


def argument_types(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the names and types of the arguments of a tool, from its JSON schema."""
    found = {}
    for name, about in (schema.get("properties") or {}).items():
        kind = about.get("type") if isinstance(about, Mapping) else None
        found[name] = kind if isinstance(kind, str) else "any"
    return found


def joined_types(tools: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the arguments of any of several tools. A type that differs is not known."""
    found: dict[str, str] = {}
    for arguments in tools:
        for name, kind in arguments.items():
            found[name] = kind if found.get(name, kind) == kind else "any"
    return found
