"""What of a run is written into an audit log, and how its texts are made safe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from .._base.frozen import json_text
from .._base.text import snake_case
from .._kernel.events import Event, HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from .._kernel.payloads import ModelReply, ToolCallResult
from .._kernel.results import Verdict
from .._run import events as e
from ..stores.audit import records as r
from ..stores.audit.format import MAX_ITEMS
from ._shadow import ShadowDecided

log = logging.getLogger("hookline")

Redact = Callable[[str], str]

WINDOW = 1_000_000
"""Characters beyond ``max_text`` that are redacted before a text is cut."""


class Scribe:
    """Makes records of events and payloads.

    Args:
        content: whether texts are written.
        redact: makes texts safe, before they are cut.
        max_text: characters of each text that are written.
    """

    def __init__(self, content: bool, redact: Redact, max_text: int) -> None:
        self.content, self.max_text = content, max_text
        self._redact = redact
        self._makers: dict[type[Event], Callable[[Any], r.AuditRecord | None]] = {
            e.RunStarted: lambda event: r.RunStartRecord(),
            e.TaskTaken: lambda event: r.TaskRecord(len(event.task), self._text(event.task)),
            e.ApprovalAsked: self._asked,
            e.ApprovalDecided: self._decided,
            e.Signalled: self._stop,
            e.Failed: self._error,
            e.Steered: lambda event: r.SteeredRecord(len(event.text), self._text(event.text)),
            e.RunFinished: self._run_end,
            HookExecuted: lambda event: None if e.is_silent(event) else self._verdict(event),
            ShadowDecided: self._shadow,
            JudgedBeforeRewrite: lambda event: _notice(event, event.by, ", ".join(event.hooks)),
            MergeLost: lambda event: _notice(event, event.hook, f"{event.field}: {event.kept}"),
            RetryIgnored: lambda event: _notice(event, event.hook, event.why),
        }

    @property
    def events(self) -> frozenset[type[Event]]:
        """The events that become records."""
        return frozenset(self._makers)

    def record(self, event: Event) -> r.AuditRecord | None:
        """What is written of an event."""
        make = self._makers.get(type(event))
        return None if make is None else make(event)

    def model(self, reply: ModelReply, verdict: Verdict) -> r.ModelRecord:
        """What is written of a reply, and of what its hooks made of it."""
        usage, calls, arguments = reply.usage, reply.tool_calls[:MAX_ITEMS], None
        if self.content:
            arguments = [self._json(call.arguments if call.raw is None else call.raw) for call in calls]
        return r.ModelRecord(
            reply.provider, reply.model, reply.organization_id, usage.input_tokens, usage.output_tokens,
            usage.cached_tokens, reply.cost, reply.finish_reason, reply.purpose, reply.hop, reply.attempt,
            _ms(reply.duration), reply.source, verdict.action, [call.name for call in calls],
            [call.id for call in calls], self._text(reply.content), UNSET if arguments is None else arguments,
        )  # fmt: skip

    def tool_start(self, event: e.ToolStarted, digest: str) -> r.ToolStartRecord:
        """What is written of a call that begins."""
        return r.ToolStartRecord(event.call_id, event.tool, digest, event.attempt, self._json(event.arguments))

    def tool(self, result: ToolCallResult, digest: str) -> r.ToolEndRecord:
        """What is written of a call that is over."""
        failed = result.error is not None
        return r.ToolEndRecord(
            result.id, result.name, digest, result.attempt, result.outcome, _ms(result.duration),
            UNSET if failed else self._json(result.result), self._text(result.error or "") if failed else UNSET,
        )  # fmt: skip

    def _verdict(self, event: HookExecuted) -> r.VerdictRecord:
        failed = UNSET if event.error is None else self._text(event.error)
        return r.VerdictRecord(
            event.hook, str(event.point), event.phase, str(event.verb), self._safe(event.reason), failed
        )

    def _shadow(self, event: ShadowDecided) -> r.ShadowRecord:
        return r.ShadowRecord(event.hook, str(event.point), str(event.verb), self._safe(event.reason))

    def _asked(self, event: e.ApprovalAsked) -> r.ApprovalAskedRecord:
        questions = [self._safe(text) for text in event.questions[:MAX_ITEMS]] if self.content else UNSET
        return r.ApprovalAskedRecord(event.call_id, event.tool, event.digest, self._json(event.arguments), questions)

    def _decided(self, event: e.ApprovalDecided) -> r.ApprovalRecord:
        message = self._text(event.message) if event.message else UNSET
        return r.ApprovalRecord(event.call_id, event.decision, event.by, event.digest, message)

    def _stop(self, event: e.Signalled) -> r.StopRecord:
        return r.StopRecord(event.signal.kind, event.signal.hook, self._text(event.signal.message))

    def _error(self, event: e.Failed) -> r.ErrorRecord:
        error = event.error
        return r.ErrorRecord(
            error.where, error.type, error.source, error.call_id, error.fatal, self._text(error.message)
        )  # fmt: skip

    def _run_end(self, event: e.RunFinished) -> r.RunEndRecord:
        result = event.result
        usage, stop = result.usage, result.stop
        return r.RunEndRecord(
            result.status, stop.kind if stop else "", self._safe(result.hook_ended or ""), len(result.steps),
            result.tool_calls, usage.input_tokens, usage.output_tokens, usage.cached_tokens, result.cost,
            _ms(result.elapsed), len(result.errors), self._text(result.task), self._text(result.reply),
        )  # fmt: skip

    # Texts.

    def _text(self, text: str) -> str | UnsetType:
        return self._safe(text) if self.content else UNSET

    def _json(self, value: Any) -> str | UnsetType:
        if not self.content:
            return UNSET
        if isinstance(value, str):
            return self._safe(value)
        left = [self.max_text + WINDOW]
        text = json_text(self._leaves(value, left))  # a secret may hold what JSON writes in another way
        return self._safe(f"{text}…" if left[0] <= 0 else text)

    def _leaves(self, value: Any, left: list[int]) -> Any:
        """A JSON value with its texts redacted, as far as it could be shown."""
        if isinstance(value, str):
            left[0] -= len(value)
            return self._redacted(value[: self.max_text + WINDOW])
        left[0] -= 8
        if isinstance(value, Mapping):
            return {self._leaves(key, left): self._leaves(item, left) for key, item in value.items() if left[0] > 0}
        if isinstance(value, list):
            return [self._leaves(item, left) for item in value if left[0] > 0]
        return value

    def _safe(self, text: str) -> str:
        """A text, redacted and then cut."""
        if not text:
            return text
        shown, size = self._redacted(text[: self.max_text + WINDOW]), self.max_text
        over = len(shown) - size + max(0, len(text) - size - WINDOW)
        return shown if over <= 0 else f"{shown[:size]}…(+{over})"

    def _redacted(self, text: str) -> str:
        try:
            return str(self._redact(text))
        except Exception as error:
            log.exception("the redactor of the audit log failed")
            return f"[withheld: the redactor failed with {type(error).__name__}]"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _notice(event: Any, hook: str, about: str) -> r.NoticeRecord:
    return r.NoticeRecord(snake_case(type(event).__name__), str(event.point), hook, about)
