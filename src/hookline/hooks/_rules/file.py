"""The format of ``rules.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

import msgspec

from ..._base.text import did_you_mean, error_text
from ..._kernel.errors import RegistrationError
from .positions import Positions

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

EVERY = ("*",)
"""The tools or agents of a rule that names none."""


class RulesError(RegistrationError):
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
    """Calls that the caller made before it, in each window that the rule counts; by default those in ``history``."""


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


_CHOICES: Mapping[str, Sequence[str]] = {
    "then": get_args(Verb),
    "point": get_args(PointName),
    "outcome": ("ok", "error", "blocked", "answered", "cancelled", "pending"),
}


class Source:
    """A file as it is written, to find the place of a mistake."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self._positions = Positions(text)

    def place(self, *path: str | int) -> str:
        """Return the place of a value, as ``rules.toml:12``."""
        position = self._positions.of(*path)
        return f"{self.path}:{position.line}" if position is not None else str(self.path)

    def inside(self, path: tuple[str | int, ...], line: int, column: int) -> str:
        """Return the place of a character of a text, as ``rules.toml:12:9``."""
        position = self._positions.inside(path, line, column)
        return f"{self.path}:{position.line}:{position.column}" if position is not None else str(self.path)


def read(path: Path) -> tuple[FileData, Source]:
    """Read a file of rules.

    Raises:
        RulesError: it cannot be read, or has another form.
    """
    try:
        return parse(path.read_bytes().decode(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(f"{path} cannot be read: {error_text(error)}") from error


def parse(text: str, path: Path) -> tuple[FileData, Source]:
    """Read the text of a file of rules.

    Raises:
        RulesError: it has another form.
    """
    try:
        given = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RulesError(f"{path} is not valid TOML: {error}") from error
    source = Source(path, text.replace("\r\n", "\n"))
    return _converted(given, source), source


def is_rules(path: Path) -> bool:
    """Return whether a TOML file contains rules, and not settings."""
    try:
        given = tomllib.loads(path.read_bytes().decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        return False
    return isinstance(given.get("rules"), list)


def _converted(given: Mapping[str, Any], source: Source) -> FileData:
    items = given.get("rules")
    if not isinstance(items, list) or not items:
        raise RulesError(f"{source.path} has no rules. A rule begins with [[rules]] and has name, when and then")
    _check_keys(given, FileData, source, "a file of rules")
    try:
        data = msgspec.convert({**given, "rules": [_with_lists(item) for item in items]}, FileData)
    except msgspec.ValidationError as error:
        path = _path_in(str(error))
        if path[:1] == ("tools",):
            path = _wrong_tool(given["tools"]) or path
        index = path[1] if path[:1] == ("rules",) and len(path) > 1 else None
        if isinstance(index, int) and isinstance(rule := items[index], dict):  # explain a misspelt key better
            _check_keys(rule, RuleData, source, "a rule", "rules", index)
            _check_examples(rule, source, index)
        raise RulesError(f"{source.place(*path)}: {_readable(error, path)}") from error
    names: set[str] = set()
    for index, rule in enumerate(data.rules):
        if rule.name in names:
            place = source.place("rules", index, "name")
            raise RulesError(f"{place}: there are two rules with the name {rule.name!r}. A name identifies its rule")
        names.add(rule.name)
        _check(rule, index, source)
    if data.store and not _is_inside(data.store):
        raise RulesError(
            f"{source.place('store')}: store is a file beside the rules, such as 'calls.db'. For a database, set "
            "database in hookline.toml, or give store= to load_rules"
        )
    return data


def _wrong_tool(tools: Any) -> tuple[str | int, ...]:
    """Return the path of the first declared argument with an unknown type: the error does not name it."""
    for name, tool in tools.items() if isinstance(tools, dict) else ():
        arguments = tool.get("arguments") if isinstance(tool, dict) else None
        for argument, kind in arguments.items() if isinstance(arguments, dict) else ():
            if kind not in get_args(ArgumentType):
                return ("tools", name, "arguments", argument)
    return ()


def _with_lists(item: Any) -> Any:
    """Return a rule whose tools and agents are lists."""
    if not isinstance(item, dict):
        return item
    return {
        name: [value] if name in ("tools", "agents") and isinstance(value, str) else value
        for name, value in item.items()
    }


def _check_keys(given: Mapping[str, Any], kind: Any, source: Source, what: str, *path: Any) -> None:
    known = kind.__struct_fields__
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise RulesError(
                f"{source.place(*path, name)}: {what} has no {name!r:.80}.{hint} It has {', '.join(known)}"
            )


def _check_examples(rule: Mapping[str, Any], source: Source, index: Any) -> None:
    examples = rule.get("examples")
    for number, example in enumerate(examples if isinstance(examples, list) else ()):
        if isinstance(example, dict):
            _check_keys(example, Example, source, "an example", "rules", index, "examples", number)


def _is_inside(store: str) -> bool:
    parts = PurePath(store).parts
    return "://" not in store and bool(parts) and not PurePath(store).is_absolute() and ".." not in parts


def _check(rule: RuleData, index: int, source: Source) -> None:
    def wrong(key: str, problem: str) -> RulesError:
        return RulesError(f"{source.place('rules', index, key)}: {problem}")

    if not re.fullmatch(r"[\w.-]{1,80}", rule.name):
        raise wrong("name", f"the name {rule.name!r:.90} must be letters, digits, '.', '_' and '-', at most 80")
    verbs = VERBS[rule.point]
    if rule.then not in verbs:
        points = [point for point, known in VERBS.items() if rule.then in known]
        raise wrong(
            "then",
            f"a rule at {rule.point} cannot {rule.then}: it may {', '.join(verbs)}. "
            f"{rule.then!r} is for {', '.join(points)}",
        )
    if rule.point not in TOOL_POINTS and rule.tools != EVERY:
        raise wrong("tools", f"{rule.point} is about no tool")
    for key, globs in (("tools", rule.tools), ("agents", rule.agents)):
        if not globs or not all(globs):
            raise wrong(key, f"{key} names at least one, such as {key} = 'send_*'")
    if (rule.then == "label") != bool(rule.label):
        raise wrong("label", 'a label needs then = "label" and label = "NAME", both')
    if rule.label and rule.shadow:
        raise wrong("shadow", "a label only marks a call for other rules: put those into shadow mode")
    if not -1000 <= rule.priority <= 1000:
        raise wrong("priority", "priority is a number from -1000 to 1000; rules with a higher one come first")
    if rule.then not in ("label", "stop") and not rule.message:
        raise wrong("", f"rule {rule.name!r} needs a message, which says what to do instead")
    if rule.label and rule.message:
        raise wrong("message", "a label has no message, because nobody is told")
    for number, example in enumerate(rule.examples):
        if example.then not in (rule.then, "pass"):
            place = source.place("rules", index, "examples", number, "then")
            raise RulesError(f"{place}: an example says then = {rule.then!r} or 'pass', not {example.then!r:.80}")


def _path_in(text: str) -> tuple[str | int, ...]:
    """Return the path in an error of msgspec, such as ``$.rules[0].when``."""
    found = re.search(r" - at `(?:key in )?\$(.*)`$", text)
    parts = re.findall(r"\.([\w-]+)|\[(\d+)\]|\[(\.\.\.)\]", found[1]) if found else []
    return tuple(name or int(number) for name, number, rest in parts if not rest)


def _readable(error: msgspec.ValidationError, path: tuple[str | int, ...]) -> str:
    text = str(error)
    match = re.fullmatch(r"Invalid enum value '(.*)' - at `.*`", text, re.DOTALL)
    if match is not None:
        kinds = _CHOICES.get(str(path[-1]) if path else "", get_args(ArgumentType))
        return f"{match[1]!r:.80} is not known.{did_you_mean(match[1], kinds)} Known: {', '.join(kinds)}"
    text = re.sub(r" - at `.*`$", "", text.replace("Object missing required field", "it needs"))
    where = ".".join(map(str, path[2:] if path[:1] == ("rules",) else path))
    return f"{where}: {text}" if where else text


def schema() -> dict[str, Any]:
    """Return the JSON schema of the format, for editors."""
    found = msgspec.json.schema(FileData)
    rule = found["$defs"]["RuleData"]["properties"]
    for name in ("tools", "agents"):  # one of them may be written without brackets
        many = rule[name]
        rule[name] = {"anyOf": [{"type": "string"}, {k: v for k, v in many.items() if k != "default"}], "default": "*"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Rules of Hookline", **found}


def argument_types(schema: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the names and types of the arguments of a tool, from its JSON schema; ``None`` if it takes any."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or schema.get("additionalProperties"):
        return None
    found = {}
    for name, about in properties.items():
        kind = about.get("type") if isinstance(about, Mapping) else None
        found[name] = kind if isinstance(kind, str) else "any"
    return found


def joined_types(tools: Iterable[Mapping[str, str] | None]) -> dict[str, str] | None:
    """Return the arguments of any of several tools; ``None`` if one takes any. A type that differs is not known."""
    found: dict[str, str] = {}
    for arguments in tools:
        if arguments is None:
            return None
        for name, kind in arguments.items():
            found[name] = kind if found.get(name, kind) == kind else "any"
    return found
