"""Conditions of rules: expressions of CEL, the language that Kubernetes, Envoy and Google use for policies.

``cel-expr-python`` is chosen from the libraries that exist for Python, because it is the only one that checks types: a
misspelt field is an error when the rules are loaded, with its line and column. Google's CEL team maintains it, it wraps
their C++ implementation, has no dependencies, matches regular expressions in linear time, and evaluates a condition in
a few microseconds. ``common-expression-language`` (Rust) is as fast and checks nothing before it runs; ``cel-python``
(Python) needs more than half a millisecond.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from posixpath import normpath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..._base.errors import NotInstalledError
from ..._base.text import did_you_mean
from ..._kernel.errors import HooklineError

EXTRA = "rules"

CALL_FIELDS = ("tool", "arguments", "outcome", "approved", "labels", "agent")
"""The fields of a call in ``history``."""

JsonType = str
"""A type of JSON schema: ``string``, ``number``, ``integer``, ``boolean``, ``array``, ``object``; empty if unknown."""

_COMMON = {
    "agent": "string",
    "caller": "string",
    "platform": "string",
    "task": "string",
    "now": "timestamp",
    "metadata": "map",
    "labels": "strings",
    "history": "calls",
}
_CALL = {
    "call.tool": "string",
    "call.arguments": "map",
    "call.attempt": "int",
    "call.effects": "strings",
    "call.untrusted": "bool",
}
VARIABLES: Mapping[str, Mapping[str, str]] = {
    "on_run_start": _COMMON,
    "before_llm": {
        **_COMMON,
        "request.model": "string",
        "request.purpose": "string",
        "request.text": "string",
        "request.tools": "strings",
    },
    "after_llm": {**_COMMON, "reply.text": "string", "reply.tools": "strings", "reply.purpose": "string"},
    "before_tool": {**_COMMON, **_CALL},
    "after_tool": {
        **_COMMON,
        **_CALL,
        "result.text": "string",
        "result.value": "dyn",
        "result.outcome": "string",
        "result.seconds": "double",
    },
}
"""What conditions know at each point, with its type."""

FUNCTIONS = {
    "called(tools)": "whether a call of such a tool ran, or may run, in this run and its conversation: called('read_*')",
    "count(tools)": "the number of these calls",
    "count(tools, time)": "the number of calls of this caller in all runs: count('refund', duration('24h'))",
    "host(url)": "the host of an address, in lower case; empty without one",
    "within(path, folder)": "whether a path without its '..' is in a folder",
    "glob(text, pattern)": "whether a text matches a pattern with * and ?",
}
"""The functions beside those of CEL, with what they return."""


class ConditionError(HooklineError):
    """A condition is wrong. ``line`` and ``column`` are its place in the expression, from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class EvaluationError(HooklineError):
    """A condition has no value: a field is missing, or a type does not fit."""


class Window(NamedTuple):
    """Calls of a caller that a condition counts: the tools as a glob, and the seconds up to now."""

    tools: str
    seconds: float


class Situation:
    """What a condition is asked about.

    Args:
        values: the variables, by name.
        entries: the calls of this run and conversation, oldest first, for ``called`` and ``count``.
        counts: the calls of the caller in each window.
    """

    __slots__ = ("counts", "entries", "values")

    def __init__(
        self,
        values: Mapping[str, Any],
        entries: Sequence[Mapping[str, Any]] = (),
        counts: Mapping[Window, int] | None = None,
    ) -> None:
        self.values, self.entries, self.counts = values, entries, counts or {}


class Condition:
    """A compiled condition.

    Args:
        source: the expression.
        point: the point at which it is asked.
        arguments: the names and types of the arguments of the calls that it is asked about; ``None`` if not known.

    Raises:
        ConditionError: it is no condition, or uses a name that does not exist.
        NotInstalledError: the library for CEL is missing.
    """

    def __init__(self, source: str, point: str, arguments: Mapping[str, JsonType] | None = None) -> None:
        cel = _library()
        self.source = source
        tokens = list(_tokens(source))
        _check_history(source, tokens)
        if arguments is not None:
            _check_arguments(source, tokens, point, arguments)
        try:
            self._compiled = _environment(point).compile(source)
        except Exception as error:
            raise _problem(error, VARIABLES[point]) from None
        kind = self._compiled.return_type()
        if kind not in (cel.Type.BOOL, cel.Type.DYN):
            raise ConditionError(f"a condition must be true or false, and this is {kind.name().lower()}")
        self.windows = tuple(dict.fromkeys(_windows(source, tokens)))
        """The calls of the caller in all runs that it counts."""
        names = {text for kind, text, _ in tokens if kind == "name"}
        self.reads_history = not names.isdisjoint(("history", "labels", "called", "count"))
        dotted = {name: name.split(".") for name in VARIABLES[point]}
        self.names = tuple(name for name, parts in dotted.items() if names.issuperset(parts))
        """The variables that it may read."""

    def holds(self, situation: Situation) -> bool:
        """Return whether it is true.

        Raises:
            EvaluationError: it has no value.
        """
        _current.situation = situation
        try:
            result = self._compiled.eval(data=situation.values)
            value = result.value()
        except Exception as error:
            raise EvaluationError(_first_line(str(error))) from None
        finally:
            _current.situation = None
        if value is True or value is False:
            return bool(value)
        if result.type() == _library().Type.ERROR:
            raise EvaluationError(_first_line(str(result)))
        raise EvaluationError(f"it is {result.type().name().lower()}, neither true nor false")


_current = threading.local()
"""The situation that a condition of this thread is asked about: functions of CEL get only their arguments."""


@cache
def _library() -> Any:
    try:
        from cel_expr_python import cel
    except ModuleNotFoundError as error:
        raise NotInstalledError("cel-expr-python", EXTRA) from error
    return cel


@cache
def _environment(point: str, arguments: tuple[tuple[str, JsonType], ...] | None = None) -> Any:
    """Return the environment of a point. With ``arguments``, each of them is a variable of its own type."""
    from cel_expr_python.ext import ext_math, ext_strings

    cel = _library()
    kinds = {
        "string": cel.Type.STRING,
        "bool": cel.Type.BOOL,
        "boolean": cel.Type.BOOL,
        "int": cel.Type.INT,
        "double": cel.Type.DOUBLE,
        "timestamp": cel.Type.TIMESTAMP,
        "map": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
        "object": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
        "array": cel.Type.List(cel.Type.DYN),
        "strings": cel.Type.List(cel.Type.STRING),
        "calls": cel.Type.List(cel.Type.Map(cel.Type.STRING, cel.Type.DYN)),
    }
    variables = {name: kinds.get(kind, cel.Type.DYN) for name, kind in VARIABLES[point].items()}
    if arguments is not None:  # numbers stay dynamic, because CEL compares 5.0 with 5 only then
        del variables["call.arguments"]
        variables |= {f"call.arguments.{name}": kinds.get(kind, cel.Type.DYN) for name, kind in arguments}
    return cel.NewEnv(
        variables=variables,
        extensions=[ext_strings.ExtStrings(), ext_math.ExtMath()],
        functions=[_declaration(cel, kinds, *each) for each in _FUNCTIONS],
    )


def _declaration(cel: Any, kinds: Mapping[str, Any], name: str, returned: str, overloads: Sequence[Any]) -> Any:
    types = {**kinds, "duration": cel.Type.DURATION}
    return cel.FunctionDecl(
        name,
        [
            cel.Overload(
                id=f"{name}_{len(takes)}", return_type=types[returned], parameters=[types[each] for each in takes], impl=impl
            )
            for takes, impl in overloads
        ],
    )


def _called(tools: str) -> bool:
    return _count(tools) > 0


def _count(tools: str) -> int:
    return sum(_counts(entry) and fnmatchcase(entry["tool"], tools) for entry in _current.situation.entries)


def _counts(entry: Mapping[str, Any]) -> bool:
    return entry["outcome"] not in ("blocked", "answered", "cancelled")


def _count_within(tools: str, time: timedelta) -> int:
    counts: Mapping[Window, int] = _current.situation.counts
    return counts[Window(tools, time.total_seconds())]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _within(path: str, folder: str) -> bool:
    folder, path = normpath(folder), normpath(path.replace("\\", "/"))
    return path == folder or path.startswith(folder.rstrip("/") + "/")


_FUNCTIONS: tuple[tuple[str, str, tuple[tuple[tuple[str, ...], Callable[..., Any]], ...]], ...] = (
    ("called", "bool", ((("string",), _called),)),
    ("count", "int", ((("string",), _count), (("string", "duration"), _count_within))),
    ("host", "string", ((("string",), _host),)),
    ("within", "bool", ((("string", "string"), _within),)),
    ("glob", "bool", ((("string", "string"), fnmatchcase),)),
)


# What the library does not check: the fields of calls in the history, and the arguments of tools.

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<text>[bBrR]{0,2}(?:\"\"\"(?:\\.|.)*?\"\"\"|'''(?:\\.|.)*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<number>\d[\w.]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
Token = tuple[str, str, int]

_MACROS = ("exists", "all", "exists_one", "filter", "map")


def _tokens(source: str) -> Iterator[Token]:
    """Yield the tokens of an expression: the kind, the text and the position of each."""
    for found in _TOKEN.finditer(source):
        if found.lastgroup != "space":
            yield found.lastgroup or "", found.group(), found.start()


def _texts(tokens: Sequence[Token]) -> list[str]:
    return ["" if kind == "text" else text for kind, text, _ in tokens]


def _check_history(source: str, tokens: Sequence[Token]) -> None:
    """Check the fields of calls in ``history``, which are maps for the library."""
    texts = _texts(tokens)
    for start, text in enumerate(texts):
        if text != "history" or (start and texts[start - 1] == "."):
            continue
        place = start + 1
        while place + 1 < len(texts):
            if texts[place] == "[":
                place = _closing(texts, place) + 1
                if texts[place : place + 1] == ["."]:
                    _check_field(source, tokens[place + 1])
                break
            if texts[place] != "." or texts[place + 1] not in _MACROS or texts[place + 2 : place + 3] != ["("]:
                break
            end = _closing(texts, place + 2)
            call = texts[place + 3 : place + 4]
            for inner in range(place + 5, end - 1):
                if texts[inner : inner + 2] == [*call, "."] and texts[inner - 1] != ".":
                    _check_field(source, tokens[inner + 2])
            if texts[place + 1] != "filter":
                break
            place = end + 1


def _check_field(source: str, token: Token) -> None:
    kind, name, at = token
    if kind == "name" and name not in CALL_FIELDS:
        hint = did_you_mean(name, CALL_FIELDS)
        raise _at(source, at, f"a call of the history has no {name!r}.{hint} It has {', '.join(CALL_FIELDS)}")


def _closing(texts: Sequence[str], start: int) -> int:
    depth = 0
    for place in range(start, len(texts)):
        depth += (texts[place] in ("(", "[")) - (texts[place] in (")", "]"))
        if not depth:
            return place
    return len(texts) - 1


def _check_arguments(source: str, tokens: Sequence[Token], point: str, arguments: Mapping[str, JsonType]) -> None:
    """Check the names and types of arguments: compile the condition with a variable for each.

    The condition itself has them in one map, because ``has(call.arguments.x)`` asks about the field of a map. Here,
    that is always true. An argument in brackets is only checked for its name.
    """
    texts, known = _texts(tokens), list(arguments)
    checked = source
    for place in range(len(texts) - 3):
        if texts[place : place + 3] != ["call", ".", "arguments"] or (place and texts[place - 1] == "."):
            continue
        mark, field = texts[place + 3], tokens[place + 4 : place + 5]
        if mark == "." and texts[place - 2 : place] == ["has", "("] and field[0][1] in known:
            start, end = tokens[place - 2][2], tokens[place + 5][2] + 1
            checked = checked[:start] + "true".ljust(end - start) + checked[end:]
        elif mark == "." and field[0][1] not in known:
            raise _unknown_argument(source, field[0][1], field[0][2], known)
        elif mark == "[" and field[0][0] == "text" and (name := field[0][1].strip("\"'")) not in known:
            raise _unknown_argument(source, name, field[0][2], known)
        if mark != ".":  # the whole map is used
            return
    if texts[-3:] == ["call", ".", "arguments"]:
        return
    try:
        _environment(point, tuple(arguments.items())).compile(checked)
    except Exception as error:
        raise _problem(error, VARIABLES[point]) from None


def _unknown_argument(source: str, name: str, at: int, known: Sequence[str]) -> ConditionError:
    takes = f"It takes {', '.join(known)}" if known else "It takes none"
    return _at(source, at, f"the tool has no argument {name!r}.{did_you_mean(name, known)} {takes}")


def _windows(source: str, tokens: Sequence[Token]) -> Iterator[Window]:
    """Yield the windows that a condition counts in. They must be written out, because they are read before it."""
    texts = [text for _, text, _ in tokens]
    for place, (kind, text, at) in enumerate(tokens):
        if kind != "name" or text != "count" or texts[place + 1 : place + 2] != ["("]:
            continue
        end = _closing(texts, place + 1)
        inside = texts[place + 2 : end]
        if "," not in inside:
            continue
        tools, time = tokens[place + 2 : place + 3], inside[2:]
        is_written = tools[0][0] == "text" and inside[1] == "," and time[:2] == ["duration", "("] and len(time) == 4
        seconds = _seconds(time[2].strip("\"'")) if is_written else 0.0
        if not seconds:
            raise _at(source, at, "write the tools and the time as texts: count('refund', duration('24h'))")
        yield Window(tools[0][1].strip("\"'"), seconds)


def _seconds(text: str) -> float:
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?[hms])+", text):
        return 0.0
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([hms])", text))


def _at(source: str, position: int, message: str) -> ConditionError:
    before = source[:position]
    return ConditionError(message, before.count("\n") + 1, position - before.rfind("\n"))


_PLACE = re.compile(r"<input>:(\d+):(\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")


def _problem(error: Exception, variables: Mapping[str, str]) -> ConditionError:
    found = _PLACE.search(str(error))
    if found is None:
        return ConditionError(_first_line(str(error)))
    line, column, message = int(found[1]), int(found[2]), found[3]
    if (name := _UNDECLARED.match(message)) is not None:
        known = [*variables, *(function.partition("(")[0] for function in FUNCTIONS)]
        message = f"{name[1]!r} is not known here.{did_you_mean(name[1], known)} Known: {', '.join(known)}"
    return ConditionError(message.removesuffix(" (in container '')"), line, column)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("NOT_FOUND: ")
