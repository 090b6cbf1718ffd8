"""Rules that are data: guards from a file that people can read and review."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

from .._base.own_files import OwnFile, register_own_file
from .._kernel.errors import RegistrationError
from .._kernel.hook import matches
from .._kernel.payloads import ModelRequest, RunStart, ToolCallResult
from .._kernel.results import HookResult
from .._kernel.validation import check_path
from .._kernel.values import ToolSpec
from ..stores.callers import user_of
from ..stores.calls import KEEP_SECONDS, CallStore
from ..stores.paths import default_calls_path
from ..tools._tool import Tool
from ._rules import file
from ._rules.conditions import Condition, ConditionError, EvaluationError, Situation, Window, cel_value, chosen
from ._rules.file import EVERY, TOOL_POINTS, Example, RuleData, RulesError
from ._rules.history import Calls, Entry, History
from ._support.tools import find_tool
from .shadow_mode import shadow

__all__ = ["Rule", "RuleFile", "RulesError", "load_rules"]

log = logging.getLogger("hookline")

Types = Mapping[str, str]
"""The names and types of the arguments of a tool."""


class Rule:
    """A rule of a file: an ordinary guard.

    If its condition has no value, the action does not happen: a call is blocked, and at other points the run fails.
    """

    def __init__(self, data: RuleData, place: str, condition: Condition, history: History) -> None:
        self.data, self.place, self.condition, self._history = data, place, condition, history
        self.name = data.name
        self.points = frozenset({data.point})
        self.phase = "rewrite" if data.then == "withhold" else "guard"
        self.priority = data.priority - 10_000 if data.then == "withhold" else data.priority  # after all that change it
        self.on_failure = "block" if data.point == "before_tool" else "closed"
        self.label = data.label
        self.reads_arguments = condition.arguments
        if data.tools != EVERY:
            self.tools = data.tools
        register_own_file(self, OwnFile(str(place.rpartition(":")[0] or place), "rules of this program"))

    def __repr__(self) -> str:
        return f"<rule {self.name} at {self.place}>"

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Carry out the rule if its condition is true."""
        return self._result() if self._holds(ctx, payload) else None

    @property
    def windows(self) -> tuple[Window, ...]:
        """The calls of a caller that its condition counts."""
        return self.condition.windows

    def selects(self, tool: str) -> bool:
        """Return whether it is about a tool."""
        return matches(tool, self.data.tools)

    def applies(self, ctx: Any, result: ToolCallResult) -> bool:
        """Return whether a call gets the label of this rule."""
        if not self.selects(result.name):
            return False
        try:
            return self._holds(ctx, result)
        except EvaluationError:  # what cannot be judged is labelled
            return True

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Check the arguments that the condition reads against the tools that the rule is about.

        Other tools that match a glob may appear later, so for a rule with globs, a mistake is only a warning.

        Raises:
            RegistrationError: none of these tools has an argument, or it has another type.
        """
        selected = [tool for tool in tools if self.selects(tool.name)]
        if self.data.point not in TOOL_POINTS or not selected:
            return
        found = file.joined_types(file.argument_types(tool.parameters) for tool in selected)
        if found is None:
            return
        try:
            self.condition.check_arguments(found)
        except ConditionError as error:
            message = f"{self.place}: rule {self.name!r}: {error}"
            if any(set(glob) & set("*?[") for glob in self.data.tools):
                log.warning("%s", message)
            else:
                raise RegistrationError(message) from error

    def try_example(self, example: Example) -> str:
        """Return what the rule does in an example: its verb, or ``pass``.

        Raises:
            EvaluationError: the condition has no value.
        """
        if self.data.point in TOOL_POINTS and example.tool and not self.selects(example.tool):
            return "pass"
        if example.agent and not matches(example.agent, self.data.agents):
            return "pass"
        return self.data.then if self.condition.holds(situation_of(example, self.data, self.condition)) else "pass"

    def _holds(self, ctx: Any, payload: Any) -> bool:
        if self.data.agents != EVERY and not matches(ctx.agent_name, self.data.agents):
            return False
        condition = self.condition
        reader = _Reader(ctx, payload, condition, self._history)
        values = {name: _READERS[name](reader) for name in condition.names}
        counts = self._history.counts(ctx, payload.id) if condition.windows else None
        try:
            return condition.holds(Situation(values, reader.count, counts))
        except EvaluationError as error:
            raise EvaluationError(f"{self.place}: rule {self.name!r} has no answer: {error}") from None

    def _result(self) -> HookResult:
        message, reason = self.data.message, self.data.reason
        match self.data.then:
            case "block":
                return HookResult.block(message, reason=reason)
            case "ask":
                return HookResult.ask(message, reason=reason)
            case "retry":
                return HookResult.retry(message, reason=reason)
            case "end":
                return HookResult.end(message, reason=reason)
            case "withhold":
                return HookResult.replace({"result": None, "error": message, "attachments": ()}, reason=reason)
            case _:
                return HookResult.stop(message, reason=reason)


class RuleFile(Sequence[Any]):
    """The rules of a file, as hooks, in the order of the file. Read one with :func:`load_rules`."""

    def __init__(
        self, path: Path, data: file.FileData, source: file.Source, rules: Sequence[Rule], hooks: Sequence[Any]
    ) -> None:
        self.path, self.data, self.rules = path, data, tuple(rules)
        self._source, self._hooks = source, tuple(hooks)

    def __getitem__(self, index: Any) -> Any:
        return self._hooks[index]

    def __len__(self) -> int:
        return len(self._hooks)

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Check the arguments in all conditions against tools. An agent does that with its own tools.

        Raises:
            RegistrationError: no tool of a rule has an argument that it reads, or it has another type.
        """
        for rule in self.rules:
            rule.check_tools(tools)

    def place_of(self, rule: Rule, example: int) -> str:
        """Return the place of an example of a rule, counted from 1, as ``rules.toml:12``."""
        return self._source.place("rules", self.rules.index(rule), "examples", example - 1)

    def failed_examples(self) -> Iterator[tuple[Rule, int, str]]:
        """Yield each example that is wrong: its rule, its number from 1, and what the rule does instead."""
        for rule in self.rules:
            for number, example in enumerate(rule.data.examples, 1):
                try:
                    done = rule.try_example(example)
                except EvaluationError as error:
                    yield rule, number, f"no answer: {error}"
                else:
                    if done != example.then:
                        yield rule, number, done


def load_rules(
    path: str | os.PathLike[str],
    *,
    tools: Iterable[Any] = (),
    store: CallStore | str | os.PathLike[str] | None = None,
) -> RuleFile:
    """Read a file of rules, and return them as hooks.

    Every mistake is an error now: an unknown name, a misspelt field, a type that does not fit, a wrong verb.

    Example::

        agent = Agent("clerk", llm=model, tools=[refund], hooks=load_rules("rules.toml"))

    Args:
        path: the file.
        tools: tools whose arguments are checked in conditions, beside those that the file declares. An agent checks its
            own tools when it runs first.
        store: where calls of callers are counted, if a rule does: a SQLite file, the address of a PostgreSQL database
            or a :class:`~hookline.stores.CallStore`; by default what the file says, else a file of the project.

    Raises:
        RulesError: the file is wrong; the message has the line and the column.
        RegistrationError: a tool has no such argument, or an argument of this function is invalid.
        NotInstalledError: the library for CEL is missing.
    """
    place = Path(check_path(path, "path must be the file of the rules"))
    given: list[Any] = list(tools) if isinstance(tools, Iterable) and not isinstance(tools, (str, bytes)) else [tools]
    for tool in given:
        if not isinstance(tool, Tool):
            raise RegistrationError(f"tools must be a list of tools, not {tool!r:.80}: decorate a function with @tool")
    if not isinstance(store, (CallStore, NoneType)):
        store = check_path(store, "store must be a SQLite file, an address or a CallStore")
    data, source = file.read(place)
    found = _rule_file(place, data, source, store)
    found.check_tools([tool.spec for tool in given])
    return found


def _rule_file(
    place: Path,
    data: file.FileData,
    source: file.Source,
    store: CallStore | str | os.PathLike[str] | None = None,
) -> RuleFile:
    declared = {name: dict(tool.arguments) for name, tool in data.tools.items()}
    compiled = [_compiled(rule, index, source, declared) for index, rule in enumerate(data.rules)]
    reads_labels = any("labels" in condition.names or "labels" in condition.shape.fields for condition in compiled)
    texts = {rule.message for rule in data.rules if rule.then == "block"}
    texts -= {rule.message for rule in data.rules if rule.then == "withhold"}
    make = cache(lambda: _store(store, data.store, place))
    history = History(make, texts, place=str(place), reads_labels=reads_labels)
    rules = [
        Rule(rule, source.place("rules", index), condition, history)
        for index, (rule, condition) in enumerate(zip(data.rules, compiled, strict=True))
    ]
    history.use(rules)
    hooks: list[Any] = [shadow(rule) if rule.data.shadow else rule for rule in rules if not rule.label]
    if any(condition.reads_calls for condition in compiled):
        hooks.insert(0, history)
    return RuleFile(place, data, source, rules, hooks)


def _compiled(rule: RuleData, index: int, source: file.Source, declared: Mapping[str, Types]) -> Condition:
    try:
        condition = Condition(rule.when, rule.point)
        known = [types for name, types in declared.items() if matches(name, rule.tools)]
        if rule.point in TOOL_POINTS and all(name in declared for name in rule.tools):
            condition.check_arguments(file.joined_types(known) or {})
        if rule.label and condition.reads_calls:
            raise ConditionError("a label depends on its own call only, not on the history")
        if condition.windows and rule.point != "before_tool":
            raise ConditionError("calls of a caller are counted at before_tool only")
        for window in condition.windows:
            if window.seconds > KEEP_SECONDS:
                raise ConditionError(f"calls are kept for {KEEP_SECONDS / 3600:.0f}h")
    except ConditionError as error:
        where = source.inside(("rules", index, "when"), error.line, error.column)
        raise RulesError(f"{where}: rule {rule.name!r}: {error}") from error
    return condition


def situation_of(example: Example, rule: RuleData, condition: Condition) -> Situation:
    """Return the situation that an example describes."""
    entries = [
        Entry(past.tool, past.arguments, past.outcome, past.agent, past.approved, past.labels, shown={})
        for past in example.history
    ]
    calls = Calls(((("", str(number)), entry) for number, entry in enumerate(entries)))
    tool = example.tool or next((name for name in rule.tools if not set(name) & set("*?[")), "")
    now = example.now or datetime.now(UTC)
    known = {
        "agent": example.agent,
        "caller": example.caller,
        "platform": example.platform,
        "task": example.task,
        "now": now if now.tzinfo is not None else now.replace(tzinfo=UTC),
        "metadata": example.metadata,
        "labels": calls.labels(),
        "history": calls.before(_NO_CALL, condition.shape),
        "call.tool": tool,
        "call.arguments": example.arguments,
        "call.attempt": 1,
        "call.effects": example.effects,
        "call.untrusted": example.untrusted,
        "result.text": example.text,
        "result.value": example.text,
        "result.outcome": example.outcome,
        "result.seconds": 0.0,
        "request.model": example.model,
        "request.purpose": "step",
        "request.text": example.text,
        "request.tools": example.tools,
        "reply.text": example.text,
        "reply.tools": example.tools,
        "reply.purpose": "step",
    }
    counts = {
        window: calls.count(_NO_CALL, window.tools) if example.count is None else example.count
        for window in condition.windows
    }
    values = {name: cel_value(known[name]) for name in condition.names}
    return Situation(values, lambda tools: calls.count(_NO_CALL, tools), counts)


_NO_CALL = "", ""


def _store(given: CallStore | str | os.PathLike[str] | None, named: str, path: Path) -> CallStore:
    if isinstance(given, CallStore):
        return given
    if given is None and named:
        given = path.parent / named
    return CallStore(default_calls_path(".") if given is None else given)


# What conditions know.


class _Reader:
    """Reads the variables of a condition."""

    def __init__(self, ctx: Any, payload: Any, condition: Condition, history: History) -> None:
        self.ctx, self.payload, self.condition = ctx, payload, condition
        self._history = history

    @property
    def _own(self) -> tuple[str, str]:
        return self.ctx.run_id, getattr(self.payload, "id", "")

    def count(self, tools: str) -> int:
        """Return how many calls before this one match a glob."""
        return self._history.calls(self.ctx).count(self._own, tools)

    def labels(self) -> list[str]:
        """Return the labels of the calls before this one."""
        return self._history.calls(self.ctx).labels()

    def history(self) -> list[dict[str, Any]]:
        """Return the calls before this one."""
        return self._history.calls(self.ctx).before(self._own, self.condition.shape)

    def effects(self) -> list[str]:
        """Return the declared effects of the tool."""
        tool = find_tool(self.ctx, self.payload.name)
        return [] if tool is None or tool.effects is None else sorted(tool.effects)

    def untrusted(self) -> bool:
        """Return whether the tool returns text of strangers."""
        tool = find_tool(self.ctx, self.payload.name)
        return tool is None or bool(tool.untrusted)

    def task(self) -> str:
        """Return what the user asked last."""
        if isinstance(self.payload, RunStart):
            return self.payload.task
        asked = (message.content for message in reversed(self.ctx.state.messages) if message.role == "user")
        return next(asked, "")


def _last_text(request: ModelRequest) -> str:
    return request.messages[-1].content if request.messages else ""


_READERS: Mapping[str, Callable[[_Reader], Any]] = {
    "agent": lambda at: cel_value(at.ctx.agent_name),
    "caller": lambda at: cel_value(user_of(at.ctx.state.metadata)),
    "platform": lambda at: cel_value(at.ctx.session.platform),
    "task": lambda at: cel_value(at.task()),
    "now": lambda at: datetime.fromtimestamp(at.ctx.clock.time(), UTC),
    "metadata": lambda at: chosen(at.ctx.state.metadata, at.condition.metadata),
    "labels": lambda at: cel_value(at.labels()),
    "history": lambda at: at.history(),
    "call.tool": lambda at: cel_value(at.payload.name),
    "call.arguments": lambda at: chosen(at.payload.arguments, at.condition.arguments),
    "call.attempt": lambda at: at.payload.attempt,
    "call.effects": lambda at: at.effects(),
    "call.untrusted": lambda at: at.untrusted(),
    "result.text": lambda at: cel_value(at.payload.text),
    "result.value": lambda at: cel_value(at.payload.result),
    "result.outcome": lambda at: at.payload.outcome,
    "result.seconds": lambda at: float(at.payload.duration),
    "request.model": lambda at: cel_value(at.payload.model),
    "request.purpose": lambda at: at.payload.purpose,
    "request.text": lambda at: cel_value(_last_text(at.payload)),
    "request.tools": lambda at: cel_value([tool.name for tool in at.payload.tools]),
    "reply.text": lambda at: cel_value(at.payload.content),
    "reply.tools": lambda at: cel_value([call.name for call in at.payload.tool_calls]),
    "reply.purpose": lambda at: at.payload.purpose,
}
