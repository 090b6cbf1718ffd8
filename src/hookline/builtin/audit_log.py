"""An audit log of runs: what models, tools, hooks and people did, in records that are chained."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..base.errors import HooklineError
from ..base.event import Event
from ..base.frozen import digest, json_text
from ..base.names import snake
from ..kernel.errors import RegistrationError
from ..kernel.payloads import ModelReply, ToolCallResult
from ..kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_PROGRESS, ON_RUN_END
from ..kernel.records import HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from ..kernel.results import Verdict
from ..kernel.values import Ids
from ..run import events as e
from ..stores import audit_records as r
from ..stores.audit import LEAST_BYTES, MOST, AuditError, AuditLog, Fsync, kind_of, record_of
from .checks import flag, path_of, whole
from .shadow import ShadowDecided

log = logging.getLogger("hookline")

Redact = Callable[[str], str]

CLOSED_SECONDS = 10.0
"""How long a run that must not go on unrecorded waits for its records."""
OPEN_SECONDS = 0.25
"""How long the end of a run waits to learn whether the log can be written at all."""
WINDOW = 1_000_000
"""Characters beyond ``max_text`` that are redacted before a text is cut."""

_ALWAYS = frozenset({AFTER_LLM, AFTER_TOOL, ON_RUN_END})
_CLOSED = frozenset({BEFORE_LLM, BEFORE_TOOL, ON_PROGRESS, AFTER_TOOL, ON_RUN_END})


class _Run(msgspec.Struct):
    """What is known of a run that goes on: its ids, how much was lost before it, digests of calls that run."""

    ids: Ids
    lost: int
    digests: dict[tuple[str, int], str] = {}
    kinds: dict[str, bytes] = {}

    def kind(self, type: str) -> bytes:
        """The part that all records of that type have."""
        made = self.kinds.get(type)
        if made is None:
            made = self.kinds[type] = kind_of(type, self.ids)
        return made


class AuditLogHook:
    """Writes a chained audit log of runs: model calls, verdicts, tool calls, approvals, failures and ends.

    One JSON object per line (docs/audit.md); each holds the hash of the line before, so that changes show
    (``hookline audit verify``). Names, numbers, ids, digests and the reasons of hooks are written; texts, arguments and
    results only with ``content``. A thread writes: a run does not wait for the disk, and goes on if that fails; it is
    told in the log of the program, in the errors of the run, and in the file as soon as it can be written.

    Args:
        path: the file, made, with its folder, for its owner only; or an :class:`AuditLog`. ``None`` with a ``logger``.
        content: whether texts, arguments and results are written too.
        redact: a function from text to text, or an object with such a method ``apply``, for every text and reason. It
            comes before texts are cut.
        max_text: characters of each text that are written.
        logger: the name of a logger that gets each record at INFO, such as ``"hookline.audit"``.
        on_failure: ``"closed"``: no model is asked and no tool runs before all records until then are on the disk.
        max_bytes: a file that would grow longer is put aside under a number, and the chain goes on in a new one.
        fsync: when records are forced to the disk: ``"batch"``, ``"always"`` or ``"never"``; see :class:`AuditLog`.
        sign: the path of an Ed25519 private key that signs every line (``hookline audit keygen``).
        checkpoint: where the head of the chain is written; beside the log if left out.

    Raises:
        RegistrationError: a value that makes no sense, or a key that cannot be used.
    """

    points = _ALWAYS
    phase = "observe"
    priority = 0
    events = frozenset({
        e.RunStarted, e.TaskTaken, e.ApprovalAsked, e.ApprovalDecided, e.Signalled, e.Failed, e.Steered,
        e.RunFinished, HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored, ShadowDecided,
    })  # fmt: skip

    def __init__(
        self,
        path: str | os.PathLike[str] | AuditLog | None,
        *,
        content: bool = False,
        redact: Redact | Any = None,
        max_text: int = 2000,
        logger: str | None = None,
        on_failure: Literal["open", "closed"] = "open",
        max_bytes: int | None = None,
        fsync: Fsync = "batch",
        sign: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self.content, self.max_text = flag(content, "content"), whole(max_text, "max_text")
        if on_failure not in ("open", "closed"):
            raise RegistrationError(f"on_failure is 'open' or 'closed', not {on_failure!r:.80}")
        self.on_failure = on_failure
        if on_failure == "closed":
            self.points, self.events = _ALWAYS | _CLOSED, self.events | {e.ToolStarted}
        self._redact = _redactor(redact)
        given = {
            "logger": _logger(logger),
            "max_bytes": None if max_bytes is None else whole(max_bytes, "max_bytes", LEAST_BYTES),
            "sign": None if sign is None else path_of(sign, "sign= is the path of a private key"),
            "checkpoint": None if checkpoint is None else path_of(checkpoint, "checkpoint= is the path of a file"),
        }
        if fsync not in ("never", "batch", "always"):
            raise RegistrationError(f"fsync is 'never', 'batch' or 'always', not {fsync!r:.80}")
        if isinstance(path, AuditLog):
            if fsync != "batch" or any(value is not None for value in given.values()):
                raise RegistrationError("an AuditLog has its own settings: give them to it, not to the hook")
            self.log = path
        else:
            if path is None and logger is None:
                raise RegistrationError("give path=, the file to write into, or logger=, such as 'hookline.audit'")
            if path is not None:
                path = path_of(path, "path= is the file to write into, such as 'audit.jsonl'")
            try:
                self.log = AuditLog(path, fsync=fsync, **given)  # type: ignore[arg-type]
            except HooklineError as error:
                raise RegistrationError(str(error)) from error
        self._runs: dict[str, _Run] = {}

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what happened so far is written; false if time ran out."""
        return self.log.flush(timeout)

    # What is recorded.

    def on_event(self, event: Event) -> None:
        """Put the event into the log, without waiting."""
        if type(event) is e.RunStarted:
            self._runs[event.run_id] = _Run(event.ids, self.log.lost)
        make = _MAKERS.get(type(event))
        if make is not None:
            self._put(event.at, event.run_id, make(self, event))
        if type(event) is e.RunFinished:
            self._runs.pop(event.run_id, None)

    def __call__(self, point: str, ctx: Any, payload: Any, verdict: Verdict) -> Any:
        """Record replies and results, and wait for the disk where that is wanted."""
        if point == AFTER_LLM:
            self._put(ctx.clock.time(), payload.ids.run_id, self._model(payload, verdict))
        elif point == AFTER_TOOL:
            self._put(ctx.clock.time(), payload.ids.run_id, self._tool(payload))
        if self.on_failure == "closed":
            if point in _CLOSED and getattr(payload, "phase", "") != "progress":
                return self._wait(ctx, CLOSED_SECONDS)
        elif point == ON_RUN_END:
            if not self.log.working:
                return self._wait(ctx, OPEN_SECONDS)
            self._complain(ctx)
        return None

    async def _wait(self, ctx: Any, seconds: float) -> None:
        if not await self.log.settled(seconds):
            raise AuditError(f"records of the audit log are not written after {seconds:g} s: its disk or reader hangs")
        self._complain(ctx)

    def _complain(self, ctx: Any) -> None:
        run = self._runs.get(ctx.run_id)
        lost = self.log.lost - (run.lost if run else 0)
        if lost or self.log.working is False:
            raise AuditError(f"{lost} records of the audit log were lost: {self.log.problem}")

    def _put(self, at: float, run_id: str, fields: r.Fields) -> None:
        run = self._runs.get(run_id)
        self.log.put(record_of(at, run.kind(fields.type) if run else kind_of(fields.type, Ids(run_id)), fields))

    def _model(self, reply: ModelReply, verdict: Verdict) -> r.Model:
        usage, calls, arguments = reply.usage, reply.tool_calls[:MOST], None
        if self.content:
            arguments = [self._json(call.arguments if call.raw is None else call.raw) for call in calls]
        return r.Model(
            reply.provider, reply.model, reply.organization_id, usage.input_tokens, usage.output_tokens,
            usage.cached_tokens, reply.cost, reply.finish_reason, reply.purpose, reply.hop, reply.attempt,
            _ms(reply.duration), reply.source, verdict.action, [call.name for call in calls],
            [call.id for call in calls], self._text(reply.content), UNSET if arguments is None else arguments,
        )  # fmt: skip

    def _tool(self, result: ToolCallResult) -> r.ToolEnd:
        run = self._runs.get(result.ids.run_id)
        known = run.digests.pop((result.id, result.attempt), None) if run else None
        return r.ToolEnd(
            result.id, result.name, known or digest([result.name, result.arguments]), result.attempt,
            result.outcome, _ms(result.duration), UNSET if result.error is not None else self._json(result.result),
            UNSET if result.error is None else self._text(result.error),
        )  # fmt: skip

    def _tool_start(self, event: e.ToolStarted) -> r.ToolStart:
        made = digest([event.tool, event.arguments])
        if run := self._runs.get(event.run_id):
            run.digests[event.call_id, event.attempt] = made
        return r.ToolStart(
            event.call_id, event.tool, made, event.attempt, self._json(event.arguments)
        )  # fmt: skip

    def _verdict(self, event: HookExecuted) -> r.Verdict:
        return r.Verdict(
            event.hook, str(event.point), event.phase, str(event.verb), self._safe(event.reason),
            UNSET if event.error is None else self._text(event.error),
        )  # fmt: skip

    def _asked(self, event: e.ApprovalAsked) -> r.ApprovalAsked:
        questions = [self._safe(text) for text in event.questions[:MOST]] if self.content else UNSET
        return r.ApprovalAsked(
            event.call_id, event.tool, event.digest, self._json(event.arguments), questions
        )  # fmt: skip

    def _error(self, event: e.Failed) -> r.Error:
        error = event.error
        return r.Error(
            error.where, error.type, error.source, error.call_id, error.fatal,
            self._text(error.message),
        )  # fmt: skip

    def _run_end(self, event: e.RunFinished) -> r.RunEnd:
        result = event.result
        usage, stop = result.usage, result.stop
        return r.RunEnd(
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
        text = json_text(self._leaves(value, left))  # a secret may span what JSON writes as several characters
        return self._safe(f"{text}…") if left[0] <= 0 else self._safe(text)

    def _leaves(self, value: Any, left: list[int]) -> Any:
        """A JSON value with its texts redacted, as far as it will be read."""
        if left[0] <= 0:
            return None
        if isinstance(value, str):
            left[0] -= len(value)
            return self._redacted(value[: self.max_text + WINDOW])
        left[0] -= 8
        if isinstance(value, Mapping):
            return {key: self._leaves(item, left) for key, item in value.items() if left[0] > 0}
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
        if self._redact is None:
            return text
        try:
            return str(self._redact(text))
        except Exception as error:
            log.exception("the redactor of the audit log failed")
            return f"[withheld: the redactor failed with {type(error).__name__}]"


def _redactor(redact: Any) -> Redact | None:
    if redact is None:
        return None
    apply = redact if callable(redact) else getattr(redact, "apply", None)
    if isinstance(redact, type) or not callable(apply):
        raise RegistrationError(f"redact is a function from text to text, or has such a method apply: {redact!r:.80}")
    return apply  # type: ignore[no-any-return]


def _logger(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name.strip() or "\0" in name):
        raise RegistrationError(f"logger is the name of a logger, such as 'hookline.audit', not {name!r:.80}")
    return name


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _notice(kind: type[Event], point: str, hook: str, about: str) -> r.Notice:
    return r.Notice(snake(kind.__name__), str(point), hook, about)


_MAKERS: dict[type[Event], Callable[[AuditLogHook, Any], r.Fields]] = {
    e.RunStarted: lambda hook, event: r.RunStart(),
    e.TaskTaken: lambda hook, event: r.Task(len(event.task), hook._text(event.task)),
    e.ToolStarted: AuditLogHook._tool_start,
    e.ApprovalAsked: AuditLogHook._asked,
    e.ApprovalDecided: lambda hook, event: r.Approval(event.call_id, event.decision, event.by, event.digest),
    e.Signalled: lambda hook, event: r.Stop(event.signal.kind, event.signal.hook, hook._text(event.signal.message)),
    e.Failed: AuditLogHook._error,
    e.Steered: lambda hook, event: r.Steered(len(event.text), hook._text(event.text)),
    e.RunFinished: AuditLogHook._run_end,
    HookExecuted: AuditLogHook._verdict,
    ShadowDecided: lambda hook, event: r.Shadow(event.hook, str(event.point), event.verb, hook._safe(event.reason)),
    JudgedBeforeRewrite: lambda hook, event: _notice(type(event), event.point, event.by, ", ".join(event.hooks)),
    MergeLost: lambda hook, event: _notice(type(event), event.point, event.hook, f"{event.field}: {event.kept}"),
    RetryIgnored: lambda hook, event: _notice(type(event), event.point, event.hook, event.why),
}
