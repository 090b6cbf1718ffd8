"""What occurs in calls, as candidates for rules."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from posixpath import dirname, normpath
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from .._base.text import counted, shorten
from ..hooks._rules.file import Example, PastCall
from .calls import DAY, Call
from .expressions import field, glob_of, has, literal, literals, number, quoted, round_down, round_up

Kind = Literal[
    "tools", "arguments", "values", "known or named", "range", "hosts", "domains", "folders", "inside", "size",
    "calls a run", "calls a day", "only after", "never after", "same value",
]  # fmt: skip

MAX_LISTED = 24
"""Values that a rule lists: more are no enumeration."""
MAX_KNOWN = 40
MAX_FOLDERS = 6
NEW = 0.2
"""Candidates are left out if a larger share of the calls had a value that no other run had."""
REDACTED = re.compile(r"\*\*\*|\[[a-z][a-z0-9_ -]*(?::\w+)?\]|…\(\+\d+\)$")
"""How values look in records in which sensitive parts were replaced, or that were cut."""
_DOMAIN = re.compile(r"[^@\s]+@([A-Za-z0-9.-]+\.[A-Za-z]{2,})")
_HAS_PATH_NAME = re.compile(r"(?:^|_)(?:path|file|filename|folder|directory|dir|cwd)$")
MANY_RUNS = 20
"""Runs after which "once in a conversation" is a habit. Other limits are twice what was seen."""
_LONG = 60
"""Texts that are longer on average are read as prose, whose size is limited."""


_OF_FORM = frozenset(("range", "hosts", "domains", "folders", "inside", "size"))


class Candidate:
    """A rule that may be proposed.

    Args:
        kind: what it is about.
        tools: the tools whose calls it judges.
        argument: the argument that it judges, or the tool that comes before.
        source: the tool that an argument must be known from.
        when: its condition.
        what: what is usual, in words, after the tool.
        message: what the model or the person reads.
        key: calls with the same key get the same answer.
        example: what the condition reads of a call and of those before it, as an example of the rule.
        learned: the calls that it was learned from.
    """

    def __init__(
        self,
        kind: Kind,
        tool: str,
        when: str,
        what: str,
        message: str,
        *,
        argument: str = "",
        source: str = "",
        key: Callable[[Call], Hashable],
        example: Callable[[Call], Example],
        learned: Sequence[Call],
    ) -> None:
        self.kind, self.tool, self.when, self.what, self.message = kind, tool, when, what, message
        self.argument, self.source, self.key, self.example = argument, source, key, example
        self.calls, self.runs = len(learned), len({call.run.tree for call in learned})
        parts = [tool if tool != "*" else "all", argument, kind.replace(" ", "-")]
        self.name = re.sub(r"[^\w.-]", "_", ".".join(filter(None, parts)), flags=re.ASCII)[:80]

    def covers(self, other: Candidate) -> bool:
        """Whether it interrupts whatever another candidate interrupts, because it says more about the same."""
        if self.tool != other.tool:
            return False
        if self.kind == "values":
            return self.argument == other.argument and other.kind in _OF_FORM
        return self.kind == "same value" and other.kind == "only after" and self.source == other.argument

    def judges(self, tool: str) -> bool:
        """Whether it is asked about calls of a tool."""
        return self.tool in ("*", tool)


class _Argument:
    """The values of an argument of a tool."""

    def __init__(self, tool: str, name: str) -> None:
        self.tool, self.name = tool, name
        self.calls: list[Call] = []
        self.values: list[list[Any]] = []
        """The scalars of each call: several for a list."""
        self.in_lists = 0

    def add(self, call: Call, value: Any) -> None:
        items = value if isinstance(value, list) else [value]
        self.in_lists += isinstance(value, list)
        self.calls.append(call)
        self.values.append(items)

    @property
    def is_list(self) -> bool:
        return self.in_lists == len(self.calls)


def learn(calls: Sequence[Call], support: int) -> list[Candidate]:
    """Return candidates for all that occurs at least ``support`` times, in at least two runs."""
    by_tool: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_tool[call.tool].append(call)
    found = [*_tools(by_tool, calls)]
    earlier = _earlier(calls)
    for tool, own in sorted(by_tool.items()):
        if len(own) < support or len({call.run.tree for call in own}) < 2:
            continue
        found += _argument_names(tool, own)
        for argument in _arguments_of(tool, own):
            if len(argument.calls) >= support:
                found += _of_argument(argument)
                found += _same_values(argument)
        found += _rates(tool, own)
        found += _order(tool, own, by_tool, len(calls), earlier)
    return _named_once(found)


def _named_once(found: list[Candidate]) -> list[Candidate]:
    names: Counter[str] = Counter()
    for each in found:
        names[each.name] += 1
        if names[each.name] > 1:
            each.name = f"{each.name[:75]}-{names[each.name]}"
    return found


# Tools and the names of arguments.


def _tools(by_tool: Mapping[str, Sequence[Call]], calls: Sequence[Call]) -> Iterator[Candidate]:
    if not by_tool:
        return
    yield Candidate(
        "tools",
        "*",
        f"!(call.tool in {literals(sorted(by_tool))})",
        f"is one of {counted(len(by_tool), 'tool')}",
        "No earlier run has called this tool.",
        key=lambda call: call.tool,
        example=lambda call: Example("", call.tool),
        learned=calls,
    )


def _argument_names(tool: str, calls: Sequence[Call]) -> Iterator[Candidate]:
    names = sorted({name for call in calls for name in call.arguments})
    if len(names) > MAX_LISTED or any(REDACTED.search(name) for name in names):
        return
    yield Candidate(
        "arguments",
        tool,
        f"!call.arguments.all(name, name in {literals(names)})",
        f"has no arguments but {', '.join(names)}" if names else "has no arguments",
        f"{tool} was never called with this argument.",
        key=lambda call: tuple(call.arguments),
        example=lambda call: Example("", arguments=call.arguments),
        learned=calls,
    )


def _arguments_of(tool: str, calls: Sequence[Call]) -> Iterable[_Argument]:
    found: dict[str, _Argument] = {}
    for call in calls:
        for name, value in call.arguments.items():
            if name not in found:
                found[name] = _Argument(tool, name)
            found[name].add(call, value)
    return [found[name] for name in sorted(found)]


# Values of an argument.


def _of_argument(argument: _Argument) -> Iterator[Candidate]:
    items = [item for values in argument.values for item in values]
    if not items or any(isinstance(item, (dict, list)) for item in items):
        return  # objects are not looked into
    if argument.in_lists and not argument.is_list:
        return
    if all(isinstance(item, bool) or item is None for item in items):
        yield from _exact(argument, items, is_closed=True)
    elif all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items):
        closed = len(set(items)) <= 6
        found = list(_exact(argument, items)) if closed else []
        yield from found or _range(argument, items)
    elif all(isinstance(item, str) for item in items):
        yield from _of_texts(argument, items)
    elif all(isinstance(item, (str, bool, int, float)) or item is None for item in items):
        yield from _exact(argument, items)


def _of_texts(argument: _Argument, items: Sequence[str]) -> Iterator[Candidate]:
    hidden = any(call.is_inexact for call in argument.calls) and any(REDACTED.search(item) for item in items)
    domains, hosts = [_domain(item) for item in items], [_host(item) for item in items]
    formed = False
    for kind, names in (("domains", domains), ("hosts", hosts)):
        if all(names) and _novelty(argument, names) <= NEW and len(set(names)) <= MAX_LISTED:
            formed = True
            yield _names(argument, kind, sorted(set(names)))
    if not any(hosts) and not any(domains) and _are_paths(argument.name, items):
        yield from _paths(argument, items)
    if hidden:  # the values of a record are not those of later calls
        return
    exact = [] if formed and len(set(items)) > MAX_LISTED else list(_exact(argument, items))
    yield from exact
    if not exact and not formed and sum(map(len, items)) / len(items) > _LONG:
        yield _size(argument, items)


def _exact(argument: _Argument, items: Sequence[Any], *, is_closed: bool = False) -> Iterator[Candidate]:
    """Yield a list of the values; or, if others are named by the task that a person gave, the list with these."""
    distinct = Counter(map(_key_of, items))
    values = {_key_of(item): item for item in items}
    if is_closed and len(distinct) > 1:
        return  # true and false
    new = _novelty(argument, items)
    if new and all(isinstance(item, str) for item in items):
        named, known = _unnamed(argument)
        if named <= NEW and named <= new / 2:
            ask = f"!({{0}} in {literals(known)}) && !task.contains({{0}})" if known else "!task.contains({0})"
            what = f"is {_listed_or_number(known)}, or named in the task" if known else "is named in the task"
            message = f"{argument.name} is neither named in the task nor a usual value."
            yield _about(argument, "known or named", ask, what, message, reads_task=True)
            return
    if new <= NEW and len(distinct) <= MAX_LISTED and all(literal(value) is not None for value in values.values()):
        listed = sorted(values.values(), key=lambda value: (type(value).__name__, value if value is not None else 0))
        message = f"{argument.name} has a value that no earlier call had."
        yield _about(argument, "values", f"!({{0}} in {literals(listed)})", f"is {_listed_or_number(listed)}", message)


def _unnamed(argument: _Argument) -> tuple[float, list[str]]:
    """Return the share of calls whose value occurs in one run only and is not in its task, and the usual values."""
    runs: dict[str, set[Any]] = defaultdict(set)
    for call, given in zip(argument.calls, argument.values, strict=True):
        for item in given:
            runs[item].add(call.run.tree)
    usual = sorted(runs, key=lambda item: (-len(runs[item]), item))
    known = sorted(item for item in usual[:MAX_KNOWN] if len(runs[item]) > 1)
    listed = set(known)
    unnamed = sum(
        any(item not in listed and item not in call.run.task for item in given)
        for call, given in zip(argument.calls, argument.values, strict=True)
    )
    return unnamed / len(argument.calls), known


def _novelty(argument: _Argument, items: Sequence[Any]) -> float:
    """Return the share of calls with a value that occurs in one run only.

    It estimates how many later calls will have a value that none of these has (Good and Turing).
    """
    runs: dict[Any, set[Any]] = defaultdict(set)
    flat = iter(items)
    by_call = [[_key_of(next(flat)) for _ in given] for given in argument.values]
    for call, keys in zip(argument.calls, by_call, strict=True):
        for key in keys:
            runs[key].add(call.run.tree)
    return sum(any(len(runs[key]) < 2 for key in keys) for keys in by_call) / len(by_call)


def _key_of(value: Any) -> Hashable:
    return value if type(value) is str else (type(value), value)


def _listed_or_number(values: Sequence[Any]) -> str:
    if len(values) < 4:
        return " or ".join(shorten(literal(value) or "", 40) for value in values)
    return f"one of {len(values)} values"


def _range(argument: _Argument, items: Sequence[float]) -> Iterator[Candidate]:
    low, high = round_down(min(items)), round_up(max(items))
    if low > 0 and low < high / 10:
        low = 0
    if max(map(abs, (low, high))) >= 2**53:
        return
    ask = f"({{0}} < {number(low)} || {{0}} > {number(high)})"
    message = f"{argument.name} is not between {number(low)} and {number(high)}."
    yield _about(argument, "range", ask, f"is between {number(low)} and {number(high)}", message)


def _size(argument: _Argument, items: Sequence[str]) -> Candidate:
    limit = number(round_up(max(map(len, items))))
    message = f"{argument.name} is longer than {limit} characters."
    return _about(argument, "size", f"size({{0}}) > {limit}", f"has at most {limit} characters", message)


def _domain(text: str) -> str:
    found = _DOMAIN.fullmatch(text)
    return found[1] if found else ""


def _host(text: str) -> str:
    try:
        return (urlsplit(text).hostname or "") if "://" in text else ""
    except ValueError:
        return ""


def _names(argument: _Argument, kind: str, names: Sequence[str]) -> Candidate:
    if kind == "hosts":
        ask, what = f"!(host({{0}}) in {literals(names)})", "host"
        return _about(argument, "hosts", ask, f"is at {_some(names, what)}", f"{argument.name} is at another {what}.")
    ends = [f"@{name}" for name in names]
    ask = " && ".join(f"!{{0}}.endsWith({quoted(end)})" for end in ends)
    if len(ends) > 2:
        ask = f"!{literals(ends)}.exists(end, {{0}}.endsWith(end))"
    return _about(
        argument, "domains", ask, f"is at {_some(names, 'domain')}", f"{argument.name} is an address at another domain."
    )


def _some(names: Sequence[str], what: str) -> str:
    return " or ".join(names) if len(names) < 4 else f"one of {len(names)} {what}s"


def _are_paths(name: str, items: Sequence[str]) -> bool:
    looks = sum("/" in item and " " not in item for item in items)
    return looks == len(items) or (bool(_HAS_PATH_NAME.search(name)) and looks > 0)


def _paths(argument: _Argument, items: Sequence[str]) -> Iterator[Candidate]:
    rooted = [item for item in items if item.startswith(("/", "~"))]
    if not rooted:
        if not any(".." in item for item in items):
            ask = "({0}.startsWith('/') || {0}.startsWith('~') || {0}.contains('..'))"
            message = f"{argument.name} leaves the folder in which the agent works."
            yield _about(argument, "inside", ask, "is a path below the working folder", message)
        return
    if len(rooted) < len(items):
        return
    folders = _folders(rooted)
    if folders:
        ask = " && ".join(f"!within({{0}}, {quoted(folder)})" for folder in folders)
        if len(folders) > 2:
            ask = f"!{literals(folders)}.exists(folder, within({{0}}, folder))"
        message = f"{argument.name} is not in a folder that earlier calls used."
        yield _about(argument, "folders", ask, f"is in {_some(folders, 'folder')}", message)


def _folders(paths: Sequence[str]) -> list[str]:
    """Return a few folders that contain all paths, as deep as possible."""
    parents = {dirname(normpath(path)) for path in paths}
    for depth in range(max(parent.count("/") for parent in parents), 0, -1):
        cut = {"/".join(parent.split("/")[: depth + 1]) for parent in parents}
        outer = sorted(one for one in cut if not any(one.startswith(other + "/") for other in cut))
        if "" in outer or "/" in outer:
            return []
        if len(outer) <= MAX_FOLDERS:
            return outer
    return []


def _about(
    argument: _Argument, kind: Kind, ask: str, what: str, message: str, *, reads_task: bool = False
) -> Candidate:
    """Return a candidate about the value of an argument, or each value of a list. ``{0}`` stands for it."""
    name, tool = argument.name, argument.tool
    if argument.is_list:
        when = f"{has(name)} && {field(name)}.exists(item, {ask.replace('{0}', 'item')})"
    else:
        when = f"{has(name)} && {ask.replace('{0}', field(name))}"
    missing = object()

    def key(call: Call) -> Hashable:
        value = call.arguments.get(name, missing)
        if type(value) is not str:
            value = None if value is missing else (type(value), msgspec.json.encode(value))
        return (value, call.run.task) if reads_task else value

    def example(call: Call) -> Example:
        arguments = {name: call.arguments[name]} if name in call.arguments else {}
        return Example("", arguments=arguments, task=call.run.task if reads_task else "")

    return Candidate(
        kind, tool, when, f"{name} {what}", f"{tool}: {message}", argument=name, key=key, example=example,
        learned=argument.calls,
    )  # fmt: skip


# The calls before.


def _rates(tool: str, calls: Sequence[Call]) -> Iterator[Candidate]:
    most = max(call.own for call in calls) + 1
    is_single = most == 1 and len({call.run.tree for call in calls}) >= MANY_RUNS
    limit = 1 if is_single else int(round_up(2 * most))
    yield Candidate(
        "calls a run",
        tool,
        f"count({quoted(glob_of(tool))}) >= {limit}",
        "is called once in a conversation" if is_single else f"{_at_most(most, limit)} in a conversation",
        f"{tool} was called {counted(limit, 'time')} in this conversation.",
        key=lambda call: min(call.own, limit),
        example=lambda call: Example("", history=(PastCall(tool),) * min(call.own, limit)),
        learned=calls,
    )
    times = [call.time for call in calls if call.time]
    if len(times) < len(calls) or max(times) - min(times) < 3 * DAY:
        return
    most = max(call.day for call in calls) + 1
    daily = int(round_up(2 * most))
    yield Candidate(
        "calls a day",
        tool,
        f"count({quoted(glob_of(tool))}, duration('24h')) >= {daily}",
        f"{_at_most(most, daily)} a day for a caller",
        f"{tool} was called {counted(daily, 'time')} for this caller in 24 hours.",
        key=lambda call: min(call.day, daily),
        example=lambda call: Example("", count=min(call.day, daily)),
        learned=calls,
    )


def _at_most(most: int, limit: int) -> str:
    return f"is called at most {counted(most, 'time')} (the limit is {limit})"


def _order(
    tool: str, own: Sequence[Call], by_tool: Mapping[str, Sequence[Call]], total: int, earlier: Mapping[str, int]
) -> Iterator[Candidate]:
    """Yield what comes always, and what never comes, before the calls of a tool in the same conversation."""
    before, others = _earlier(own), total - len(own)
    shares = {other: (earlier[other] - before[other]) / others for other in by_tool if others and other != tool}
    always = [other for other in shares if before[other] == len(own) and shares[other] < 0.8]
    if always:
        first = min(always, key=lambda other: (shares[other], other))
        yield Candidate(
            "only after",
            tool,
            f"!called({quoted(glob_of(first))})",
            f"comes only after {first}",
            f"{tool} comes before any call of {first}.",
            argument=first,
            key=partial(_has_seen, first),
            example=partial(_after, first),
            learned=own,
        )
    # As often as elsewhere, it would have been expected at least eight times: by chance, that is one in 3000.
    # If that tool comes only after this one, it is the other rule once more.
    runs = len({call.run.tree for call in own})
    never = [
        other
        for other in shares
        if not before[other] and shares[other] * runs >= 8 and not all(tool in call.seen for call in by_tool[other])
    ]
    if never:
        other = max(never, key=lambda other: (shares[other], other))
        yield Candidate(
            "never after",
            tool,
            f"called({quoted(glob_of(other))})",
            f"never comes after {other}",
            f"{tool} comes after a call of {other}.",
            argument=other,
            key=partial(_has_seen, other),
            example=partial(_after, other),
            learned=own,
        )


def _has_seen(other: str, call: Call) -> bool:
    return other in call.seen


def _after(other: str, call: Call) -> Example:
    return Example("", history=(PastCall(other),) if other in call.seen else ())


def _earlier(calls: Sequence[Call]) -> Counter[str]:
    """Return for each tool how many of the calls came after a call of it."""
    sets = Counter(call.seen for call in calls)
    found: Counter[str] = Counter()
    for seen, times in sets.items():
        for tool in seen:
            found[tool] += times
    return found


def _same_values(argument: _Argument) -> Iterator[Candidate]:
    """Yield the argument of an earlier call that always had the value of this one."""
    if argument.in_lists or not all(type(values[0]) is str for values in argument.values):
        return
    found: Counter[tuple[str, str]] = Counter()
    for call in argument.calls:
        found.update({(tool, other) for name, tool, other in call.same if name == argument.name})
    if not found:
        return
    (tool, other), times = max(found.items(), key=lambda item: (item[1], item[0][0] != argument.tool, item[0]))
    if times < len(argument.calls) or tool == argument.tool or len({values[0] for values in argument.values}) < 3:
        return
    name, key = argument.name, (argument.name, tool, other)
    when = (
        f"{has(name)} && !history.exists(earlier, earlier.tool == {quoted(tool)} && "
        f"{has(other, 'earlier')} && {field(other, 'earlier')} == {field(name)})"
    )

    def example(call: Call) -> Example:
        given = {name: call.arguments[name]} if name in call.arguments else {}
        history = (PastCall(tool, {other: call.arguments[name]}),) if key in call.same else ()
        return Example("", arguments=given, history=history)

    yield Candidate(
        "same value",
        argument.tool,
        when,
        f"{name} is {other} of an earlier {tool}",
        f"{argument.tool}: {name} is not what an earlier {tool} was about.",
        argument=name,
        source=tool,
        key=lambda call: (name in call.arguments, key in call.same),
        example=example,
        learned=argument.calls,
    )
