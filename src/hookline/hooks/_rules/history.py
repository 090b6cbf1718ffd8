"""The calls that rules can ask about: those of a run and its conversation, and those of a caller in all runs."""

from __future__ import annotations

import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, ClassVar, Protocol

import msgspec

from ..._base.workers import in_thread
from ..._kernel.hook import matches
from ..._kernel.payloads import ApprovalDecision, ToolCallRequest, ToolCallResult
from ..._kernel.points import AFTER_TOOL, APPROVAL_DECIDED, BEFORE_TOOL
from ..._kernel.results import HookAction, Verdict
from ..._kernel.values import Message, ToolSpec
from ...stores.callers import user_of
from ...stores.calls import CallStore
from ...stores.errors import StoreError
from .._injection.fence import EARLIER, fenced
from .._support.tools import find_tool
from .conditions import Shape, Window

log = logging.getLogger("hookline")

PENDING = "pending"
"""The outcome of a call that was judged and has not ended."""
_NOT_RUN = frozenset({"blocked", "answered"})
"""The outcomes of calls that do not count, because their tool did not run. A cancelled call may have done its work."""

Key = tuple[str, str]
"""A call: the run and the id."""


class Entry(msgspec.Struct):
    """A call of the history."""

    tool: str
    arguments: Mapping[str, Any]
    outcome: str
    agent: str = ""
    approved: bool = False
    labels: tuple[str, ...] = ()
    asked: bool = False
    """Whether a hook asked a person about it."""
    is_known: bool = True
    """Whether its arguments are known."""
    shown: dict[Shape, dict[str, Any]] = {}
    """What conditions read of it, by what they read."""

    def view(self, shape: Shape) -> dict[str, Any]:
        """Return it as conditions see it."""
        found = self.shown.get(shape)
        if found is None:
            found = self.shown[shape] = shape.of(
                {
                    "tool": self.tool,
                    "arguments": self.arguments,
                    "outcome": self.outcome,
                    "approved": self.approved,
                    "labels": self.labels,
                    "agent": self.agent,
                }
            )
        return found


class Calls:
    """The calls of a run, its subagents and its conversation, oldest first."""

    def __init__(self, earlier: Iterable[tuple[Key, Entry]] = ()) -> None:
        self._entries: dict[Key, Entry] = {}
        self._ran: Counter[str] = Counter()
        """How many calls of each tool ran, or may run."""
        self._labelled: dict[Key, tuple[str, ...]] = {}
        self._lock = Lock()  # a tool in a thread may run an agent
        self.tree = ""
        """An id of the outermost run that no later run has, also if it is deleted and another gets its run id."""
        for key, entry in earlier:
            self.put(key, entry)

    def id_of(self, key: Key) -> str:
        """Return the id of a call in the store."""
        return " ".join((self.tree, *key))

    def get(self, key: Key) -> Entry | None:
        """Return a call."""
        return self._entries.get(key)

    def put(self, key: Key, entry: Entry) -> None:
        """Add a call, or a changed copy of one, which keeps its place."""
        with self._lock:
            known = self._entries.get(key)
            if known is not None and known.outcome not in _NOT_RUN:
                self._ran[known.tool] -= 1
            if entry.outcome not in _NOT_RUN:
                self._ran[entry.tool] += 1
            self._entries[key] = entry
            if entry.labels:
                self._labelled[key] = entry.labels
            else:
                self._labelled.pop(key, None)

    def change(self, key: Key, **changes: Any) -> None:
        """Change a call, if it is known."""
        known = self._entries.get(key)
        if known is not None:
            self.put(key, msgspec.structs.replace(known, **changes, shown={}))

    def before(self, own: Key, shape: Shape) -> list[dict[str, Any]]:
        """Return the other calls as conditions see them, as far as they are known."""
        return [entry.view(shape) for key, entry in list(self._entries.items()) if key != own and entry.is_known]

    def count(self, own: Key, tools: str) -> int:
        """Return how many of the other calls ran, or may run, and match a glob."""
        globs = (tools,)
        found = sum(number for tool, number in list(self._ran.items()) if matches(tool, globs))
        entry = self._entries.get(own)
        is_own = entry is not None and entry.outcome not in _NOT_RUN and matches(entry.tool, globs)
        return found - is_own

    def labels(self) -> list[str]:
        """Return the labels of all calls, each once."""
        return labels_of(list(self._labelled.values()))


class HistoryRule(Protocol):
    """A rule, as far as the history must know it."""

    label: str

    @property
    def windows(self) -> Sequence[Window]:
        """The calls of a caller that it counts."""
        ...

    def selects(self, tool: str) -> bool:
        """Return whether it is about a tool."""
        ...

    def applies(self, ctx: Any, result: ToolCallResult) -> bool:
        """Return whether a call gets its label."""
        ...

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Check the arguments that it reads against tools."""


class History:
    """Keeps the calls of a run, its subagents and its conversation for the rules of a file.

    A call is in the history from the moment that it is judged, because the calls of one reply are all judged before the
    first of them runs. A call that a hook blocks or answers does not count after that.

    Args:
        store: returns the store in which calls of callers are counted, when it is first needed.
        blocked: the texts with which rules block calls. Later runs of a conversation know only the texts of results.
        place: the file of the rules.
        reads_labels: whether a rule asks for labels.
    """

    points = frozenset({BEFORE_TOOL, AFTER_TOOL, APPROVAL_DECIDED})
    phase: ClassVar[Mapping[str, Any]] = {
        BEFORE_TOOL: ("guard", "observe"),
        AFTER_TOOL: "observe",
        APPROVAL_DECIDED: "observe",
    }
    priority: ClassVar[Mapping[str, float]] = {BEFORE_TOOL: 10_000}  # before the rules
    reads_arguments: ClassVar[frozenset[str]] = frozenset()
    """It judges nothing."""
    on_failure: ClassVar[Mapping[str, str]] = {BEFORE_TOOL: "block", AFTER_TOOL: "closed"}

    def __init__(
        self,
        store: Callable[[], CallStore],
        blocked: Iterable[str] = (),
        *,
        place: str = "",
        reads_labels: bool = False,
    ) -> None:
        self.name, self.place = f"history of {os.path.basename(place)}" if place else "history", place
        self._store, self._blocked, self._reads_labels = store, frozenset(blocked), reads_labels
        self._rules: tuple[HistoryRule, ...] = ()
        self.windows: tuple[Window, ...] = ()
        """All windows in which rules count calls of a caller."""
        self._replayed = _ReplayedCalls()

    def use(self, rules: Iterable[HistoryRule]) -> None:
        """Set the rules for which calls are kept."""
        self._rules = tuple(rules)
        self.windows = tuple(dict.fromkeys(window for rule in self._rules for window in rule.windows))

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Check the rules that only give labels, and so are no hooks, against tools.

        Raises:
            RegistrationError: none of these tools has an argument that a rule reads.
        """
        for rule in self._rules:
            if rule.label:
                rule.check_tools(tools)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    async def __call__(
        self, point: str, ctx: Any, payload: Any, *, phase: str = "", verdict: Verdict | None = None
    ) -> None:
        """Add a call, or note what became of it."""
        if phase == "guard":
            await self._begin(ctx, payload)
        elif point == BEFORE_TOOL and verdict is not None:
            await self._judged(ctx, payload, verdict)
        elif point == AFTER_TOOL:
            await self._end(ctx, payload)
        elif point == APPROVAL_DECIDED:
            self._decide(ctx, payload)

    def calls(self, ctx: Any) -> Calls:
        """Return the calls of a run."""
        calls: Calls | None = ctx.tree_state.get(id(self))
        if calls is None:
            calls = ctx.tree_state[id(self)] = Calls(self._earlier(ctx))
        return calls

    def counts(self, ctx: Any, call: str) -> Mapping[Window, int]:
        """Return how many calls the caller of a call made before it, in each window."""
        found: dict[str, Mapping[Window, int]] = ctx.own_state(self, dict)
        return found.get(call, {})

    def _earlier(self, ctx: Any) -> Iterator[tuple[Key, Entry]]:
        """Yield the calls of the conversation before this run, as its messages tell them."""
        messages: Sequence[Message] = ctx.state.messages
        results = {message.call_id: message for message in messages if message.role == "tool"}
        for message in messages:
            for call in message.tool_calls:
                answer = results.get(call.id)
                if answer is None:
                    continue
                entry = Entry(call.name, call.arguments, "error" if answer.is_error else "ok", ctx.agent_name, shown={})
                entry.is_known = call.id != EARLIER or bool(call.arguments)
                if answer.is_error and answer.content in self._blocked:
                    entry.outcome = "blocked"
                else:
                    result = ToolCallResult(call.id, call.name, call.arguments, answer.content, outcome=entry.outcome)  # type: ignore[arg-type]
                    entry.labels = self._labels(ctx, result)
                yield ("", call.id), entry

    def _labels(self, ctx: Any, result: ToolCallResult) -> tuple[str, ...]:
        if not self._reads_labels:
            return ()
        found = []
        tool, mark = find_tool(ctx, result.name), fenced(result.text)
        if mark is not None or tool is None or tool.untrusted:
            found.append("untrusted")
        if mark is not None and mark[1]:
            found.append("suspicious")
        found += [rule.label for rule in self._rules if rule.label and rule.applies(ctx, result)]
        return tuple(dict.fromkeys(found))

    async def _begin(self, ctx: Any, request: ToolCallRequest) -> None:
        calls, key = self.calls(ctx), (ctx.run_id, request.id)
        known = calls.get(key)
        approved = known is not None and known.approved and known.outcome == PENDING
        calls.put(key, Entry(request.name, request.arguments, PENDING, ctx.agent_name, approved, shown={}))
        is_counted = self._is_counted(request.name)
        if not is_counted and not any(rule.windows and rule.selects(request.name) for rule in self._rules):
            return
        if not calls.tree:
            tree = await ctx.once("calls of this run", lambda: secrets.token_hex(8))
            calls.tree = calls.tree or tree
        caller, id, now = user_of(ctx.state.metadata), calls.id_of(key), ctx.clock.time()

        async def count() -> list[int]:
            if ctx.is_replay:
                return self._replayed.add(caller, id, request.name, now, self.windows, is_counted)
            store = await in_thread(self._store)
            if is_counted:
                found: list[int] = await in_thread(store.add, caller, id, request.name, self.windows)
            else:
                found = await in_thread(store.count, caller, self.windows)
            return found

        found = await ctx.once("calls of the caller", count)
        ctx.own_state(self, dict)[request.id] = dict(zip(self.windows, found, strict=True))

    async def _judged(self, ctx: Any, request: ToolCallRequest, verdict: Verdict) -> None:
        """Note what the hooks have decided about a call."""
        key, calls = (ctx.run_id, request.id), self.calls(ctx)
        if verdict.action in (HookAction.BLOCK, HookAction.INVALID):
            if calls.get(key) is None:
                calls.put(key, Entry(request.name, request.arguments, "blocked", ctx.agent_name, shown={}))
            else:
                await self._forget(ctx, request.id, request.name, "blocked")
        elif verdict.asks:
            calls.change(key, asked=True)
        elif verdict.answer is not None:
            await self._forget(ctx, request.id, request.name, "answered")

    async def _end(self, ctx: Any, result: ToolCallResult) -> None:
        key, calls = (ctx.run_id, result.id), self.calls(ctx)
        known = calls.get(key)
        if known is None:  # it was not judged in this process
            calls.put(key, Entry(result.name, result.arguments, result.outcome, ctx.agent_name, shown={}))
        elif known.outcome != PENDING:  # it never began
            return
        if result.outcome in _NOT_RUN:
            await self._forget(ctx, result.id, result.name, result.outcome)
        else:
            approved = known is not None and (known.approved or known.asked)
            calls.change(key, outcome=result.outcome, approved=approved, labels=self._labels(ctx, result))

    def _decide(self, ctx: Any, decision: ApprovalDecision) -> None:
        approved = decision.decision in ("approved", "edited")
        self.calls(ctx).change((ctx.run_id, decision.call_id), approved=approved)

    async def _forget(self, ctx: Any, call: str, tool: str, outcome: str) -> None:
        """Note that a call does not run."""
        self.calls(ctx).change((ctx.run_id, call), outcome=outcome)
        if not self._is_counted(tool):
            return
        id = self.calls(ctx).id_of((ctx.run_id, call))
        if ctx.is_replay:
            self._replayed.remove(id)
        else:
            try:
                store = await in_thread(self._store)
                await in_thread(store.remove, id)
            except StoreError as error:
                log.warning("a call of %s that did not run counts for its caller: %s", tool, error)

    def _is_counted(self, tool: str) -> bool:
        return any(matches(tool, (window.tools,)) for window in self.windows)


class _ReplayedCalls:
    """The calls of callers in recorded runs, which are judged again and must not count in the store."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, tuple[str, float]]] = {}
        self._callers: dict[str, str] = {}

    def add(
        self, caller: str, call: str, tool: str, now: float, windows: Sequence[Window], is_counted: bool
    ) -> list[int]:
        """Add a call, and return how many calls the caller made before it in each window."""
        calls = self._calls.setdefault(caller, {})
        found = [
            sum(now - seconds < at <= now and matches(name, (tools,)) for id, (name, at) in calls.items() if id != call)
            for tools, seconds in windows
        ]
        if is_counted:
            calls[call] = tool, now
            self._callers[call] = caller
        oldest = now - max(seconds for _, seconds in windows)
        while calls and next(iter(calls.values()))[1] <= oldest:
            first = next(iter(calls))
            del calls[first]
            self._callers.pop(first, None)
        return found

    def remove(self, call: str) -> None:
        """Remove a call that did not run."""
        caller = self._callers.pop(call, None)
        if caller is not None:
            self._calls.get(caller, {}).pop(call, None)


def labels_of(labels: Iterable[Iterable[str]]) -> list[str]:
    """Return the labels of several calls, each once."""
    return list(dict.fromkeys(label for each in labels for label in each))
