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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from posixpath import normpath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..._base.errors import NotInstalledError
from ..._base.text import did_you_mean
from ..._kernel.errors import HooklineError

EXTRA = "rules"

MAX_LENGTH = 10_000
"""Longer conditions are refused: the library needs a second for some of them."""

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
    "called(tools)": "whether such a call ran, or may run, in this run and its conversation: called('read_*')",
    "count(tools)": "the number of these calls",
    "count(tools, time)": "the number of calls of this caller in all runs: count('refund', duration('24h'))",
    "host(url)": "the host of an address, in lower case; empty without one",
    "within(path, folder)": "whether a path without its '..' is in a folder",
    "glob(text, pattern)": "whether a text matches a pattern with * and ?",
}
"""The functions beside those of CEL, with what they return."""


_ROOTS = frozenset(name.partition(".")[0] for names in VARIABLES.values() for name in names)


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


class Shape(NamedTuple):
    """What conditions read of the calls in ``history``, so that only that is converted.

    Args:
        fields: the fields of a call.
        arguments: the names of arguments; ``None`` for all.
    """

    fields: frozenset[str] = frozenset(CALL_FIELDS)
    arguments: frozenset[str] | None = None

    def of(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is read of a call, as the library takes it."""
        shown = {name: cel_value(value) for name, value in call.items() if name in self.fields and name != "arguments"}
        if "arguments" in self.fields:
            shown["arguments"] = chosen(call["arguments"], self.arguments)
        return shown


class Situation:
    """What a condition is asked about.

    Args:
        values: the variables, by name.
        count: returns how many calls of this run and conversation match a glob.
        counts: the calls of the caller in each window.
    """

    __slots__ = ("count", "counts", "values")

    def __init__(
        self,
        values: Mapping[str, Any],
        count: Callable[[str], int] = lambda tools: 0,
        counts: Mapping[Window, int] | None = None,
    ) -> None:
        self.values, self.count, self.counts = values, count, counts or {}


class Condition:
    """A compiled condition.

    Args:
        source: the expression.
        point: the point at which it is asked.

    Raises:
        ConditionError: it is no condition, or uses a name that does not exist.
        NotInstalledError: the library for CEL is missing.
    """

    def __init__(self, source: str, point: str) -> None:
        if len(source) > MAX_LENGTH:
            raise ConditionError(f"a condition has at most {MAX_LENGTH:,} characters")
        cel = _library()
        self.source, self._point = source, point
        self._tokens = _Tokens(source)
        self._tokens.check_names()
        try:
            self._compiled = _environment(point).compile(source)
        except Exception as error:  # noqa: BLE001 - the library raises RuntimeError
            raise _problem(error, VARIABLES[point]) from None
        kind = self._compiled.return_type()
        if kind not in (cel.Type.BOOL, cel.Type.DYN):
            raise ConditionError(f"a condition must be true or false, and this is {_type_name(kind)}")
        self._tokens.check_literals()
        self.shape = self._tokens.shape()
        """What it reads of each call in ``history``."""
        self.windows = tuple(dict.fromkeys(self._tokens.windows()))
        """The calls of the caller in all runs that it counts."""
        names = self._tokens.names
        dotted = {name: name.split(".") for name in VARIABLES[point]}
        self.names = tuple(name for name, parts in dotted.items() if names.issuperset(parts))
        """The variables that it may read."""
        self.reads_calls = not names.isdisjoint(("history", "labels", "called", "count"))
        """Whether it asks about earlier calls."""
        self.arguments = self._tokens.keys("call", "arguments")
        """The names of the arguments of the call that it reads; ``None`` for all."""
        self.metadata = self._tokens.keys("metadata")
        """The keys of ``metadata`` that it reads; ``None`` for all."""

    def check_arguments(self, arguments: Mapping[str, JsonType]) -> None:
        """Check it against the names and types of the arguments of the tools that it is asked about.

        Raises:
            ConditionError: it reads an argument that no tool has, or compares one with another type.
        """
        checked = self._tokens.with_arguments(arguments)
        if checked is None:
            return
        typed = tuple((name, kind) for name, kind in arguments.items() if _IDENTIFIER.fullmatch(name))
        try:
            _environment(self._point, typed).compile(checked)
        except Exception as error:  # noqa: BLE001 - the library raises RuntimeError
            raise _problem(error, VARIABLES[self._point]) from None

    def holds(self, situation: Situation) -> bool:
        """Return whether it is true.

        Raises:
            EvaluationError: it has no value.
        """
        _current.situation = situation
        try:
            result = self._compiled.eval(data=situation.values)
            value = result.value()
        except Exception as error:  # noqa: BLE001 - the library raises RuntimeError
            raise EvaluationError(_first_line(str(error))) from None
        finally:
            _current.situation = None
        if value is True or value is False:
            return bool(value)
        if result.type() == _library().Type.ERROR:
            raise EvaluationError(_first_line(str(result)))
        raise EvaluationError(f"it is {_type_name(result.type())}, neither true nor false")


def cel_value(value: Any) -> Any:
    """Return a JSON value as the library takes it.

    The library ends a text at a NUL character, refuses lone surrogates and integers of more than 64 bits, and forgets
    the rest of the map that contains them. What a guard does not see must not run, so such characters become visible
    ones, and such integers become texts, which no number equals.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() and "\0" not in value else _clean(value)
    if kind is int:
        return value if -(2**63) <= value < 2**63 else str(value)
    if value is None or kind is bool or kind is float:
        return value
    if isinstance(value, Mapping):
        return {cel_value(str(name)): cel_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cel_value(item) for item in value]
    return value if isinstance(value, datetime) else cel_value(str(value))


def chosen(values: Mapping[str, Any], names: Iterable[str] | None) -> dict[str, Any]:
    """Return the values with these names, as the library takes them; all of them for ``None``."""
    if names is None:
        return cel_value(values)  # type: ignore[no-any-return]
    return {name: cel_value(values[name]) for name in names if name in values}


def _clean(text: str) -> str:
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode()


_current = threading.local()
"""The situation that a condition of this thread is asked about: functions of CEL get only their arguments."""


@cache
def _library() -> Any:
    try:
        from cel_expr_python import cel
    except ModuleNotFoundError as error:
        raise NotInstalledError("cel-expr-python", EXTRA) from error
    return cel


@lru_cache(maxsize=256)
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
                id=f"{name}_{len(takes)}",
                return_type=types[returned],
                parameters=[types[each] for each in takes],
                impl=impl,
            )
            for takes, impl in overloads
        ],
    )


def _called(tools: str) -> bool:
    return _count(tools) > 0


def _count(tools: str) -> int:
    found: int = _current.situation.count(tools)
    return found


def _count_within(tools: str, time: timedelta) -> int:
    counts: Mapping[Window, int] = _current.situation.counts
    return counts[Window(tools, time.total_seconds())]


def _host(url: str) -> str:
    try:
        return cel_value(urlsplit(url).hostname or "")  # type: ignore[no-any-return]
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


# What the library does not check: the fields of calls in the history, the arguments of tools, and written values.

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<text>[bB]?[rR][bB]?(?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\n]*"|'[^'\n]*')
        |[bB]?(?:\"\"\"(?:\\.|.)*?\"\"\"|'''(?:\\.|.)*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    |(?P<number>\d[\w.]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<quoted>`[^`\n]*`)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MACROS = ("exists", "all", "exists_one", "filter", "map")


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Tokens:
    """The tokens of an expression, and what they say about its names."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = [
            _Token(found.lastgroup or "", found.group(), found.start())
            for found in _TOKEN.finditer(source)
            if found.lastgroup != "space"
        ]
        self._texts = ["" if token.kind == "text" else token.text for token in self._tokens]
        """What they are, where a text is empty, so that no name in it is taken for a variable."""
        self.names = {token.text for token in self._tokens if token.kind == "name"}

    def check_names(self) -> None:
        """Check the names of variables of macros, and the fields of calls.

        Raises:
            ConditionError: a name hides a variable, or a call has no such field.
        """
        for place, text in enumerate(self._texts):
            if text == "." and not self._continues(place):
                raise self._error(place, "a name does not begin with a '.'")
            if self._is_macro(place) and self._text(place + 4) == ",":
                name = self._text(place + 3)
                if name in _ROOTS:
                    raise self._error(place + 3, f"{name!r} is a variable of rules: choose another name")
        for _, at in self._fields():
            if at is not None and self._tokens[at].kind == "name" and self._texts[at] not in CALL_FIELDS:
                name = self._texts[at]
                hint = did_you_mean(name, CALL_FIELDS)
                raise self._error(at, f"a call of the history has no {name!r}.{hint} It has {', '.join(CALL_FIELDS)}")

    def check_literals(self) -> None:
        """Check patterns and times that are written out, which the library reads only when it evaluates them.

        Raises:
            ConditionError: one of them is wrong.
        """
        for place, text in enumerate(self._texts):
            if text not in ("matches", "duration", "timestamp") or self._text(place + 1) != "(":
                continue
            last = self._closing(place + 1) - 1
            if self._kind(last) == "text" and self._text(last - 1) in ("(", ","):
                written = self._tokens[last].text
                expression = f"''.matches({written})" if text == "matches" else f"{text}({written})"
                problem = _written_problem(expression)
                if problem:
                    raise self._error(last, problem)

    def shape(self) -> Shape:
        """Return what is read of the calls in ``history``."""
        fields, arguments = set[str](), set[str]()
        for field, at in self._fields():
            if at is None or self._tokens[at].kind != "name":
                return Shape()
            fields.add(field)
            if field == "arguments":
                key = self._key(at + 1)
                if key is None:
                    return Shape()
                arguments.add(key)
        return Shape(frozenset(fields), frozenset(arguments))

    def keys(self, *path: str) -> frozenset[str] | None:
        """Return the keys of a variable that is a map, such as ``call.arguments``; ``None`` if all are read."""
        found = set()
        for after in self._uses(*path):
            key = self._key(after)
            if key is None:
                return None
            found.add(key)
        return frozenset(found)

    def windows(self) -> Iterator[Window]:
        """Yield the windows that are counted. They must be written out, because they are read before it is asked."""
        for place, text in enumerate(self._texts):
            if text != "count" or self._text(place + 1) != "(" or self._text(place - 1) == ".":
                continue
            end = self._closing(place + 1)
            inside = self._texts[place + 2 : end]
            if len(inside) < 2:
                continue
            is_written = self._kind(place + 2) == "text" and inside == ["", ",", "duration", "(", "", ")"]
            time = _written(f"duration({self._tokens[place + 6].text})") if is_written else None
            tools = _written(self._tokens[place + 2].text) if is_written else None
            if not isinstance(tools, str) or not isinstance(time, timedelta) or time <= timedelta(0):
                raise self._error(place, "write the tools and the time as texts: count('refund', duration('24h'))")
            yield Window(tools, time.total_seconds())

    def with_arguments(self, arguments: Mapping[str, JsonType]) -> str | None:
        """Return the expression for an environment with a variable for each argument; ``None`` if that cannot be.

        The condition itself has the arguments in one map, because ``has(call.arguments.x)`` asks about the field of a
        map. Here, that is always true.

        Raises:
            ConditionError: there is no such argument.
        """
        checked, can_be_typed = self._source, True
        for after in self._uses("call", "arguments"):
            key = self._key(after)
            if key is None:
                can_be_typed = False
                continue
            if key not in arguments:
                takes = f"It takes {', '.join(arguments)}" if arguments else "It takes none"
                hint = did_you_mean(key, arguments)
                raise self._error(after + 1, f"the tool has no argument {key!r}.{hint} {takes}")
            if self._texts[after] != "." or self._kind(after + 1) != "name" or not _IDENTIFIER.fullmatch(key):
                can_be_typed = False
            elif self._texts[max(after - 5, 0) : after - 3] == ["has", "("] and self._text(after + 2) == ")":
                start, end = self._tokens[after - 5].start, self._tokens[after + 2].start + 1
                checked = checked[:start] + "true".ljust(end - start) + checked[end:]
        return checked if can_be_typed else None

    def _uses(self, *path: str) -> Iterator[int]:
        """Yield the place after each use of a variable."""
        wanted = ".".join(path).replace(".", " . ").split()
        for place in range(len(self._texts)):
            if self._texts[place : place + len(wanted)] == wanted and self._text(place - 1) != ".":
                yield place + len(wanted)

    def _key(self, place: int) -> str | None:
        """Return the key that is read of a map whose name ends before this place; ``None`` if it is read as a whole."""
        if self._text(place) == ".":
            token = self._tokens[place + 1] if place + 1 < len(self._tokens) else None
            if token is None or token.kind not in ("name", "quoted") or self._text(place + 2) == "(":
                return None
            return token.text.strip("`")
        if self._text(place) == "[" and self._kind(place + 1) == "text" and self._text(place + 2) == "]":
            key = _written(self._tokens[place + 1].text)
            return key if isinstance(key, str) else None
        return None

    def _fields(self) -> Iterator[tuple[str, int | None]]:
        """Yield the fields that are read of calls in ``history``, and their places; no place for a whole call."""
        for after in self._uses("history"):
            yield from self._fields_after(after)

    def _fields_after(self, place: int) -> Iterator[tuple[str, int | None]]:
        while True:
            if self._text(place) == "[":
                yield self._field(self._closing(place) + 1)
                return
            if self._text(place) != "." or not self._is_macro(place):
                if self._text(place) == "." and self._text(place + 1) == "size":
                    return
                if not self._is_argument_of_size(place):
                    yield "", None
                return
            macro, end = self._text(place + 1), self._closing(place + 2)
            variable = self._text(place + 3)
            for inner in range(place + 5, end):
                if self._texts[inner] == variable and self._text(inner - 1) != ".":
                    yield self._field(inner + 1)
            if macro != "filter":
                return
            place = end + 1

    def _field(self, place: int) -> tuple[str, int | None]:
        """Return the field that is read of a call whose name ends before this place."""
        if self._text(place) == "." and place + 1 < len(self._texts):
            return self._texts[place + 1], place + 1
        return "", None

    def _is_argument_of_size(self, after: int) -> bool:
        return self._texts[max(after - 3, 0) : after - 1] == ["size", "("] and self._text(after) == ")"

    def _is_macro(self, place: int) -> bool:
        """Return whether a macro such as ``.exists(`` begins at a place."""
        return self._text(place) == "." and self._text(place + 1) in _MACROS and self._text(place + 2) == "("

    def _continues(self, place: int) -> bool:
        """Return whether something comes before a '.' that can have fields."""
        before = self._kind(place - 1) if place else ""
        return before in ("name", "quoted", "text", "number") or self._text(place - 1) in (")", "]", "}")

    def _text(self, place: int) -> str:
        return self._texts[place] if 0 <= place < len(self._texts) else ""

    def _kind(self, place: int) -> str:
        return self._tokens[place].kind if 0 <= place < len(self._tokens) else ""

    def _closing(self, start: int) -> int:
        """Return the place of the bracket that closes the one at a place."""
        depth = 0
        for place in range(start, len(self._texts)):
            text = self._texts[place]
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            if not depth:
                return place
        return len(self._texts)

    def _error(self, place: int, message: str) -> ConditionError:
        position = self._tokens[min(place, len(self._tokens) - 1)].start
        before = self._source[:position]
        return ConditionError(message, before.count("\n") + 1, position - before.rfind("\n"))


def _written(expression: str) -> Any:
    """Return the value of an expression without variables; ``None`` if it has none."""
    try:
        result = _environment("on_run_start").compile(expression).eval(data={})
        return None if result.type() == _library().Type.ERROR else result.value()
    except Exception:  # noqa: BLE001 - it has no value
        return None


def _written_problem(expression: str) -> str:
    """Return what is wrong with an expression without variables; empty if it has a value."""
    try:
        result = _environment("on_run_start").compile(expression).eval(data={})
    except Exception as error:  # noqa: BLE001 - reported
        return _first_line(str(error))
    return _first_line(str(result)) if result.type() == _library().Type.ERROR else ""


def _type_name(kind: Any) -> str:
    """Return the name of a type for people."""
    name = str(kind.name()).lower()
    return {"int": "a number", "double": "a number", "uint": "a number", "string": "a text"}.get(name, f"a {name}")


_PLACE = re.compile(r"<input>:(\d+):(\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")


def _problem(error: Exception, variables: Mapping[str, str]) -> ConditionError:
    found = _PLACE.search(str(error))
    if found is None:
        return ConditionError(_first_line(str(error)))
    line, column, message = int(found[1]), int(found[2]), found[3]
    if (name := _UNDECLARED.match(message)) is not None:
        known = [*variables, *(function.partition("(")[0] for function in FUNCTIONS)]
        known = list(dict.fromkeys(known))
        column = max(column - len(name[1].rpartition(".")[0]), 1)  # the library names the place of the last dot
        message = f"{name[1]!r} is not known here.{did_you_mean(name[1], known)} Known: {', '.join(known)}"
    return ConditionError(message.removesuffix(" (in container '')"), line, column)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("NOT_FOUND: ")
