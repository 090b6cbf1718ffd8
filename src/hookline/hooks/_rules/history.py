"""The calls that rules can ask about: those of a run and its conversation, and those of a caller in all runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from ..._base.frozen import plain
from ..._base.workers import in_thread
from ..._kernel.payloads import ApprovalDecision, ToolCallRequest, ToolCallResult
from ..._kernel.points import AFTER_TOOL, APPROVAL_DECIDED, BEFORE_TOOL
from ..._kernel.values import Message
from ...stores.callers import user_of
from ...stores.calls import CallStore
from .._injection.fence import fenced
from .._support.tools import find_tool
from .conditions import Window

PENDING = "pending"
"""The outcome of a call that was judged and has not ended."""

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

    def value(self) -> dict[str, Any]:
        """Return it as conditions see it."""
        return {
            "tool": self.tool,
            "arguments": plain(self.arguments),
            "outcome": self.outcome,
            "approved": self.approved,
            "labels": list(self.labels),
            "agent": self.agent,
        }


class Labeller(Protocol):
    """A rule that gives calls a label."""

    label: str

    def applies(self, ctx: Any, result: ToolCallResult) -> bool:
        """Return whether a call gets the label."""


class History:
    """Keeps the calls of a run, its subagents and its conversation for the rules of a file.

    A call is in the history from the moment that it is judged, because the calls of one reply are all judged before the
    first of them runs. A call that a hook blocks or answers does not count after that.

    Args:
        store: where calls of callers are counted; ``None`` if no rule asks for that.
        windows: what is counted there.
    """

    name = "history of rules"
    points = frozenset({BEFORE_TOOL, AFTER_TOOL, APPROVAL_DECIDED})
    phase: ClassVar[Mapping[str, str]] = {BEFORE_TOOL: "guard", AFTER_TOOL: "observe", APPROVAL_DECIDED: "observe"}
    priority: ClassVar[Mapping[str, float]] = {BEFORE_TOOL: 10_000}  # before the rules
    on_failure: ClassVar[Mapping[str, str]] = {BEFORE_TOOL: "block"}

    def __init__(self, store: CallStore | None = None, windows: Sequence[Window] = ()) -> None:
        self.store, self.windows = store, tuple(windows)
        self.labellers: list[Labeller] = []

    async def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Add a call, or note what became of it."""
        if point == BEFORE_TOOL:
            await self._begin(ctx, payload)
        elif point == AFTER_TOOL:
            await self._end(ctx, payload)
        else:
            self._decide(ctx, payload)

    def of(self, ctx: Any, call: str = "") -> list[dict[str, Any]]:
        """Return the calls, oldest first, without one of this run."""
        own = ctx.run_id, call
        return [entry.value() for key, entry in self._entries(ctx).items() if key != own]

    def counts(self, ctx: Any, call: str) -> Mapping[Window, int]:
        """Return how many calls the caller of a call made before it, in each window."""
        found: dict[str, Mapping[Window, int]] = ctx.own_state(self, dict)
        return found.get(call, {})

    def refuse(self, ctx: Any, call: str) -> None:
        """Note that a rule blocks a call, so that it does not count for the next call of the same reply."""
        entry = self._entries(ctx).get((ctx.run_id, call))
        if entry is not None and entry.outcome == PENDING:
            entry.outcome = "blocked"

    def _entries(self, ctx: Any) -> dict[Key, Entry]:
        entries: dict[Key, Entry] | None = ctx.tree_state.get(id(self))
        if entries is None:
            entries = ctx.tree_state[id(self)] = dict(self._earlier(ctx))
        return entries

    def _earlier(self, ctx: Any) -> Iterator[tuple[Key, Entry]]:
        """Yield the calls of the conversation before this run, as its messages tell them."""
        messages: Sequence[Message] = ctx.state.messages
        results = {message.call_id: message for message in messages if message.role == "tool"}
        for message in messages:
            for call in message.tool_calls:
                answer = results.get(call.id)
                if answer is None:
                    continue
                outcome = "error" if answer.is_error else "ok"
                entry = Entry(call.name, call.arguments, outcome, ctx.agent_name)
                result = ToolCallResult(call.id, call.name, call.arguments, answer.content, outcome=outcome)
                entry.labels = self._labels(ctx, result)
                yield ("", call.id), entry

    def _labels(self, ctx: Any, result: ToolCallResult) -> tuple[str, ...]:
        found = []
        tool, mark = find_tool(ctx, result.name), fenced(result.text)
        if mark is not None or tool is None or tool.untrusted:
            found.append("untrusted")
        if mark is not None and mark[1]:
            found.append("suspicious")
        found += [rule.label for rule in self.labellers if rule.applies(ctx, result)]
        return tuple(dict.fromkeys(found))

    async def _begin(self, ctx: Any, request: ToolCallRequest) -> None:
        key, entries = (ctx.run_id, request.id), self._entries(ctx)
        known = entries.get(key)
        entries[key] = Entry(
            request.name,
            request.arguments,
            PENDING,
            ctx.agent_name,
            known is not None and known.approved,
        )
        if self.store is None or not any(window for window in self.windows):
            return
        store, caller, id = self.store, user_of(ctx.state.metadata), f"{ctx.run_id} {request.id}"

        def count() -> Any:
            if ctx.is_replay:
                return [0] * len(self.windows)
            return in_thread(store.add, caller, id, request.name, self.windows)

        found = await ctx.once("calls of the caller", count)
        ctx.own_state(self, dict)[request.id] = dict(zip(self.windows, found, strict=True))

    async def _end(self, ctx: Any, result: ToolCallResult) -> None:
        entry = self._entries(ctx).setdefault(
            (ctx.run_id, result.id), Entry(result.name, result.arguments, PENDING, ctx.agent_name)
        )
        entry.outcome = result.outcome
        if result.outcome in ("ok", "error"):
            entry.labels = self._labels(ctx, result)
        elif self.store is not None and not ctx.is_replay:
            await in_thread(self.store.remove, f"{ctx.run_id} {result.id}")

    def _decide(self, ctx: Any, decision: ApprovalDecision) -> None:
        entry = self._entries(ctx).get((ctx.run_id, decision.call_id))
        if entry is not None:
            entry.approved = decision.decision in ("approved", "edited")


def labels_of(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all labels of these calls, each once."""
    return list(dict.fromkeys(label for entry in entries for label in entry["labels"]))
