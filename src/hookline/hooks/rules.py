"""Rules that are data: guards from a file that people can read and review."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from .._base.frozen import plain
from .._base.own_files import OwnFile, register_own_file
from .._kernel.hook import matches
from .._kernel.payloads import ModelRequest, RunStart, ToolCallResult
from .._kernel.results import HookResult
from ..stores.callers import user_of
from ..stores.calls import KEEP_SECONDS, CallStore
from ..stores.paths import default_calls_path
from ._rules import file
from ._rules.conditions import Condition, ConditionError, EvaluationError, Situation
from ._rules.file import Example, RuleData, RulesError
from ._rules.history import History, labels_of
from ._support.tools import find_tool
from .shadow_mode import shadow


class Rule:
    """A rule of a file: an ordinary guard.

    If its condition has no value, the action does not happen: a call is blocked, and at other points the run fails.
    """

    def __init__(self, data: RuleData, place: str, condition: Condition, history: History) -> None:
        self.data, self.place, self.condition, self._history = data, place, condition, history
        self.name = data.name
        self.points = frozenset({data.point})
        self.phase = "rewrite" if data.then == "withhold" else "guard"
        self.priority = data.priority - 1000 if data.then == "withhold" else data.priority
        self.on_failure = "block" if data.point == "before_tool" else "closed"
        self.label = data.label
        if data.point in file.TOOL_POINTS:
            self.tools = data.tools
        register_own_file(self, OwnFile(str(place.rpartition(":")[0] or place), "rules of this program"))

    def __repr__(self) -> str:
        return f"<rule {self.name} at {self.place}>"

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Carry out the rule if its condition is true."""
        if not self._holds(ctx, payload):
            return None
        if self.data.then == "block":
            self._history.refuse(ctx, payload.id)
        return self._result(payload)

    def applies(self, ctx: Any, result: ToolCallResult) -> bool:
        """Return whether a call gets the label of this rule."""
        if not matches(result.name, self.data.tools):
            return False
        try:
            return self._holds(ctx, result)
        except EvaluationError:  # what cannot be judged is labelled
            return True

    def try_example(self, example: Example) -> str:
        """Return what the rule does in an example: its verb, or ``pass``.

        Raises:
            EvaluationError: the condition has no value.
        """
        if self.data.point in file.TOOL_POINTS and example.tool and not matches(example.tool, self.data.tools):
            return "pass"
        if example.agent and not matches(example.agent, self.data.agents):
            return "pass"
        return self.data.then if self.condition.holds(_situation_of(example, self.data, self.condition)) else "pass"

    def _holds(self, ctx: Any, payload: Any) -> bool:
        if self.data.agents != ("*",) and not matches(ctx.agent_name, self.data.agents):
            return False
        condition = self.condition
        entries: Sequence[Mapping[str, Any]] = ()
        if condition.reads_history:
            entries = self._history.of(ctx, getattr(payload, "id", ""))
        counts = self._history.counts(ctx, payload.id) if condition.windows else None
        values = {name: _READERS[name](ctx, payload, entries) for name in condition.names}
        try:
            return condition.holds(Situation(values, entries, counts))
        except EvaluationError as error:
            raise EvaluationError(f"{self.place}: rule {self.name!r} has no answer: {error}") from None

    def _result(self, payload: Any) -> HookResult:
        message, reason = self.data.message, self.data.reason or self.name
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

    def __init__(self, path: Path, rules: Sequence[Rule], hooks: Sequence[Any]) -> None:
        self.path, self.rules = path, tuple(rules)
        self._hooks = tuple(hooks)

    def __getitem__(self, index: Any) -> Any:
        return self._hooks[index]

    def __len__(self) -> int:
        return len(self._hooks)

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

        agent = Agent("clerk", llm=model, tools=[refund], hooks=load_rules("rules.toml", tools=[refund]))

    Args:
        path: the file.
        tools: tools whose arguments are checked in conditions, beside those that the file declares.
        store: where calls of callers are counted, if a rule does: a SQLite file, the address of a PostgreSQL database
            or a :class:`~hookline.stores.CallStore`; by default what the file says, else a file of the project.

    Raises:
        RulesError: the file is wrong; the message has the line and the column.
        NotInstalledError: the library for CEL is missing.
    """
    place = Path(path)
    data, source = file.read(place)
    declared = {name: dict(tool.arguments) for name, tool in data.tools.items()}
    for tool in tools:
        declared[tool.spec.name] = file.argument_types(tool.spec.parameters)
    compiled = [_compiled(rule, index, source, declared) for index, rule in enumerate(data.rules)]
    windows = tuple(dict.fromkeys(window for condition in compiled for window in condition.windows))
    history = History(_store(store, data.store, place) if windows else None, windows)
    rules = [
        Rule(rule, _place(source, index), condition, history)
        for index, (rule, condition) in enumerate(zip(data.rules, compiled, strict=True))
    ]
    history.labellers += [rule for rule in rules if rule.label]
    acting = [rule for rule in rules if not rule.label]
    needed = any(condition.reads_history or condition.windows for condition in compiled)
    return RuleFile(
        place, rules, [*([history] if needed else []), *(shadow(rule) if rule.data.shadow else rule for rule in acting)]
    )


def _compiled(
    rule: RuleData, index: int, source: file.Source, declared: Mapping[str, Mapping[str, str]]
) -> Condition:
    arguments = None
    if rule.point in file.TOOL_POINTS and all(name in declared for name in rule.tools):
        arguments = file.joined_types([declared[name] for name in rule.tools])
    try:
        condition = Condition(rule.when, rule.point, arguments)
        if rule.label and condition.reads_history:
            raise ConditionError("a label depends on its own call only, not on the history")
        if condition.windows and rule.point != "before_tool":
            raise ConditionError("calls of a caller are counted at before_tool only")
        for window in condition.windows:
            if window.seconds > KEEP_SECONDS:
                raise ConditionError(f"calls are kept for {KEEP_SECONDS / 3600:.0f}h")
    except ConditionError as error:
        where = source.place(index, "when", error.line, error.column)
        raise RulesError(f"{where}: rule {rule.name!r}: {error}") from error
    return condition


def _situation_of(example: Example, rule: RuleData, condition: Condition) -> Situation:
    """Return the situation that an example describes."""
    entries = [plain(past) for past in example.history]
    tool = example.tool or next((name for name in rule.tools if not set(name) & set("*?[")), "")
    known = {
        "agent": example.agent,
        "caller": example.caller,
        "platform": example.platform,
        "task": example.task,
        "now": example.now or datetime.now(UTC),
        "metadata": plain(example.metadata),
        "labels": labels_of(entries),
        "history": entries,
        "call.tool": tool,
        "call.arguments": plain(example.arguments),
        "call.attempt": 1,
        "call.effects": list(example.effects),
        "call.untrusted": example.untrusted,
        "result.text": example.text,
        "result.value": example.text,
        "result.outcome": example.outcome,
        "result.seconds": 0.0,
        "request.model": example.model,
        "request.purpose": "step",
        "request.text": example.text,
        "request.tools": list(example.tools),
        "reply.text": example.text,
        "reply.tools": list(example.tools),
        "reply.purpose": "step",
    }
    counts = {
        window: example.count if example.count is not None else sum(matches(past.tool, (window.tools,)) for past in example.history)
        for window in condition.windows
    }
    return Situation({name: known[name] for name in condition.names}, entries, counts)


def _place(source: file.Source, index: int) -> str:
    line = source.line_of(index)
    return f"{source.path}:{line}" if line else str(source.path)


def _store(given: CallStore | str | os.PathLike[str] | None, named: str, path: Path) -> CallStore:
    if isinstance(given, CallStore):
        return given
    if given is None and named:
        given = named if "://" in named else path.parent / named
    return CallStore(default_calls_path(".") if given is None else given)


# What conditions know.


def _effects(ctx: Any, payload: Any) -> list[str]:
    tool = find_tool(ctx, payload.name)
    return [] if tool is None or tool.effects is None else sorted(tool.effects)


def _untrusted(ctx: Any, payload: Any) -> bool:
    tool = find_tool(ctx, payload.name)
    return tool is None or bool(tool.untrusted)


def _last_text(request: ModelRequest) -> str:
    return request.messages[-1].content if request.messages else ""


_READERS: Mapping[str, Any] = {
    "agent": lambda ctx, payload, entries: ctx.agent_name,
    "caller": lambda ctx, payload, entries: user_of(ctx.state.metadata),
    "platform": lambda ctx, payload, entries: ctx.session.platform,
    "task": lambda ctx, payload, entries: payload.task if isinstance(payload, RunStart) else _task_of(ctx),
    "now": lambda ctx, payload, entries: datetime.fromtimestamp(ctx.clock.time(), UTC),
    "metadata": lambda ctx, payload, entries: plain(ctx.state.metadata),
    "labels": lambda ctx, payload, entries: labels_of(entries),
    "history": lambda ctx, payload, entries: list(entries),
    "call.tool": lambda ctx, payload, entries: payload.name,
    "call.arguments": lambda ctx, payload, entries: plain(payload.arguments),
    "call.attempt": lambda ctx, payload, entries: payload.attempt,
    "call.effects": lambda ctx, payload, entries: _effects(ctx, payload),
    "call.untrusted": lambda ctx, payload, entries: _untrusted(ctx, payload),
    "result.text": lambda ctx, payload, entries: payload.text,
    "result.value": lambda ctx, payload, entries: plain(payload.result),
    "result.outcome": lambda ctx, payload, entries: payload.outcome,
    "result.seconds": lambda ctx, payload, entries: float(payload.duration),
    "request.model": lambda ctx, payload, entries: payload.model,
    "request.purpose": lambda ctx, payload, entries: payload.purpose,
    "request.text": lambda ctx, payload, entries: _last_text(payload),
    "request.tools": lambda ctx, payload, entries: [tool.name for tool in payload.tools],
    "reply.text": lambda ctx, payload, entries: payload.content,
    "reply.tools": lambda ctx, payload, entries: [call.name for call in payload.tool_calls],
    "reply.purpose": lambda ctx, payload, entries: payload.purpose,
}


def _task_of(ctx: Any) -> str:
    asked = [message.content for message in ctx.state.messages if message.role == "user"]
    return asked[-1] if asked else ""
