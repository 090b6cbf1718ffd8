"""Write a tamper-evident audit log of runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from .._base.attachment import Attachment
from .._base.errors import HooklineError
from .._base.frozen import any_digest, json_text
from .._base.text import snake_case
from .._kernel.errors import RegistrationError
from .._kernel.events import Event, HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from .._kernel.fire_observers import FireObserver, FireReport
from .._kernel.payloads import WITHHELD, ModelReply, ToolCallResult
from .._kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_PROGRESS, ON_RUN_END
from .._kernel.results import Verdict
from .._kernel.validation import check_bool, check_integer, check_path
from .._kernel.values import Ids
from .._run import events as e
from .._run.events import RunFinished, RunStarted, ToolStarted, is_silent
from .._run.new_fires import NewFireObserver
from .._run.run_hooks import RunHooks
from ..records.rules import rules_of
from ..stores.audit import records as r
from ..stores.audit.file import Fsync, reason
from ..stores.audit.format import MAX_ITEMS, encode_ids, encode_record, encode_type
from ..stores.audit.log import MIN_FILE_BYTES, AuditError, AuditLog
from ..stores.audit.records import AuditRecord
from .shadow_mode import ShadowDecided

if TYPE_CHECKING:
    from .._run.engine import Engine

log = logging.getLogger("hookline")

CLOSED_SECONDS = 10.0
"""With ``on_failure="closed"``, time that a run waits for its records to be written, in seconds."""
OPEN_SECONDS = 2.0
"""With ``on_failure="open"``, time that the end of a run waits for the first write, in seconds."""

Redact = Callable[[str], str]

WINDOW = 1_000_000
"""Number of characters beyond ``max_text`` that are redacted, so that no secret is cut in two before that."""


class _RecordBuilder:
    """Turns events and payloads into audit records.

    Args:
        content: whether texts are recorded.
        redact: removes secrets from texts, before they are shortened.
        max_text: maximum number of characters of each text.
    """

    def __init__(self, content: bool, redact: Redact, max_text: int) -> None:
        self.content, self.max_text = content, max_text
        self._redact = redact
        self._makers: dict[type[Event], Callable[[Any], r.AuditRecord | None]] = {
            e.TaskTaken: lambda event: r.TaskRecord(len(event.task), self._text(event.task), _files(event.attachments)),
            e.ApprovalAsked: self._asked,
            e.ApprovalDecided: self._decided,
            e.Signalled: self._stop,
            e.Failed: self._error,
            e.Steered: lambda event: r.SteeredRecord(
                len(event.text), self._text(event.text), _files(event.attachments)
            ),
            e.RunFinished: self._run_end,
            ShadowDecided: self._shadow,
            JudgedBeforeRewrite: lambda event: _notice(event, event.by, ", ".join(event.hooks)),
            MergeLost: lambda event: _notice(event, event.hook, f"{event.field}: {event.kept}"),
            RetryIgnored: lambda event: _notice(event, event.hook, event.why),
        }

    @property
    def events(self) -> frozenset[type[Event]]:
        """Return the types of events that become records."""
        return frozenset(self._makers)

    def record(self, event: Event) -> r.AuditRecord | None:
        """Return the record of an event."""
        make = self._makers.get(type(event))
        return None if make is None else make(event)

    def model(self, reply: ModelReply, verdict: Verdict) -> r.ModelRecord:
        """Return the record of a model reply, with the verdict of the hooks."""
        usage, calls, arguments = reply.usage, reply.tool_calls[:MAX_ITEMS], None
        if self.content:
            arguments = [self._json(call.arguments if call.raw is None else call.raw) for call in calls]
        return r.ModelRecord(
            reply.provider,
            reply.model,
            reply.organization_id,
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_tokens,
            reply.cost,
            reply.finish_reason,
            reply.purpose,
            reply.hop,
            reply.attempt,
            _ms(reply.duration),
            reply.source,
            verdict.action,
            [call.name for call in calls],
            [call.id for call in calls],
            self._text(reply.content),
            UNSET if arguments is None else arguments,
        )

    def tool_start(self, event: e.ToolStarted, digest: str) -> r.ToolStartRecord:
        """Return the record of a tool call that starts."""
        return r.ToolStartRecord(event.call_id, event.tool, digest, event.attempt, self._json(event.arguments))

    def tool(self, result: ToolCallResult, digest: str) -> r.ToolEndRecord:
        """Return the record of a finished tool call."""
        failed = result.error is not None
        return r.ToolEndRecord(
            result.id,
            result.name,
            digest,
            result.attempt,
            result.outcome,
            _ms(result.duration),
            UNSET if failed else self._json(result.result),
            self._text(result.error or "") if failed else UNSET,
            UNSET if failed else _files(result.attachments),
        )

    def verdict(self, event: HookExecuted, rules: str) -> r.VerdictRecord:
        """Return the record of a verdict under these rules."""
        failed = UNSET if event.error is None else self._text(event.error)
        return r.VerdictRecord(
            event.hook, str(event.point), event.phase, str(event.verb), self._safe(event.reason), rules, failed
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
        )

    def _run_end(self, event: e.RunFinished) -> r.RunEndRecord:
        result = event.result
        usage, stop = result.usage, result.stop
        return r.RunEndRecord(
            result.status,
            stop.kind if stop else "",
            self._safe(result.hook_ended or ""),
            len(result.steps),
            result.tool_calls,
            usage.input_tokens,
            usage.output_tokens,
            usage.cached_tokens,
            result.cost,
            _ms(result.elapsed),
            len(result.errors),
            self._text(result.task),
            self._text(result.reply),
        )

    def _text(self, text: str) -> str | UnsetType:
        return self._safe(text) if self.content else UNSET

    def _json(self, value: Any) -> str | UnsetType:
        if not self.content:
            return UNSET
        if isinstance(value, str):
            return self._safe(value)
        left = [self.max_text + WINDOW]
        text = json_text(
            self._redact_values(value, left)
        )  # redacted before encoding, because JSON escapes would hide secrets
        return self._safe(f"{text}…" if left[0] <= 0 else text)

    def _redact_values(self, value: Any, left: list[int]) -> Any:
        """Redact the texts in a JSON value, up to the length that can be shown."""
        if isinstance(value, str):
            left[0] -= len(value)
            return self._redacted(value)
        left[0] -= 8
        if isinstance(value, Mapping):
            return {
                self._redact_values(key, left): self._redact_values(item, left)
                for key, item in value.items()
                if left[0] > 0
            }
        if isinstance(value, list):
            return [self._redact_values(item, left) for item in value if left[0] > 0]
        return value

    def _safe(self, text: str) -> str:
        """Redact a text, then shorten it."""
        if not text:
            return text
        shown, size = self._redacted(text), self.max_text
        over = len(shown) - size + max(0, len(text) - size - WINDOW)
        return shown if over <= 0 and len(text) <= size + WINDOW else f"{shown[:size]}…(+{max(over, 0)})"

    def _redacted(self, text: str) -> str:
        """Redact the beginning of a text."""
        longest = self.max_text + WINDOW
        try:
            clean = str(self._redact(text[:longest]))
            # A secret that is cut in two is not recognized. It is at the end, and replacements may shorten the text.
            return clean if len(text) <= longest else clean[: max(0, len(clean) - WINDOW)]
        except Exception as error:
            log.exception("the redactor of the audit log failed")
            return f"[withheld: the redactor failed with {type(error).__name__}]"


_EVENTS = _RecordBuilder(False, str, 1).events | {RunStarted, HookExecuted}
_ALWAYS = frozenset({AFTER_LLM, AFTER_TOOL, ON_RUN_END})
_CLOSED = frozenset({BEFORE_LLM, BEFORE_TOOL, ON_PROGRESS, AFTER_TOOL, ON_RUN_END})


class _AuditedRun(msgspec.Struct):
    """State of an active run.

    It has the run's ids, its hooks, the counts of lost records and failed writes at its start, the digests of running
    calls, and the encoded beginning of the records of each type.
    """

    ids: bytes
    hooks: RunHooks
    lost: int
    failures: int
    digests: dict[tuple[str, int], str] = {}
    kinds: dict[str, bytes] = {}


class AuditLogHook:
    """Writes a tamper-evident audit log: model calls, verdicts, tool calls, approvals, failures and ends of runs.

    The log has one JSON object per line (docs/guides/audit.md). Each contains the hash of the line before, so that
    ``hookline audit verify`` detects changes. The log contains names, numbers, ids, digests and the reasons of hooks;
    texts, arguments and results only with ``content``. A thread writes the file: a run does not wait for the disk, and
    continues if writing fails. The failure is reported in the program's log, in the errors of the run, and in the file
    as soon as it can be written.

    Example::

        agent = Agent("a", llm=model, tools=[search], hooks=[AuditLogHook("audit.jsonl")])

    Args:
        path: the file, which is created, with its folder, for its owner only; or an :class:`AuditLog`. May be ``None``
            if there is a ``logger``.
        content: whether to record texts, arguments and results.
        redact: a function from text to text, or an object with such a method ``apply``, for every text and reason. It
            runs before texts are shortened. By default a :class:`Redactor` for all kinds of sensitive data.
        max_text: maximum number of characters of each text.
        logger: name of a logger that also gets each record at level INFO, such as ``"hookline.audit"``.
        on_failure: with ``"closed"``, every model call and tool call waits until all earlier records are on the disk.
        max_bytes: size at which the file is renamed with a number, and the chain continues in a new file.
        keep_files: number of full files to keep; older ones are deleted. By default all are kept.
        fsync: when records are forced to the disk: ``"batch"``, ``"always"`` or ``"never"``; see :class:`AuditLog`.
        sign: path of an Ed25519 private key that signs every line (``hookline audit keygen``).
        checkpoint: path of the file with the head of the chain; by default beside the log.
        index: SQLite file, or address of a PostgreSQL database, for an index of the logs of all machines; see
            :class:`AuditLog`.

    Raises:
        RegistrationError: an argument is invalid, or the key cannot be used.
    """

    points = _ALWAYS
    watched_in_runs = frozenset({AFTER_LLM, AFTER_TOOL})
    phase = "observe"
    priority = 0
    events = _EVENTS

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
        keep_files: int | None = None,
        fsync: Fsync = "batch",
        sign: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        index: str | os.PathLike[str] | None = None,
    ) -> None:
        self._records = _RecordBuilder(
            check_bool(content, "content"), _redactor(redact), check_integer(max_text, "max_text")
        )
        if on_failure not in ("open", "closed"):
            raise RegistrationError(f"on_failure must be 'open' or 'closed', not {on_failure!r:.80}")
        self.on_failure = on_failure
        if on_failure == "closed":
            self.points, self.events = _ALWAYS | _CLOSED, _EVENTS | {ToolStarted}
        given = {
            "logger": _logger(logger),
            "max_bytes": None if max_bytes is None else check_integer(max_bytes, "max_bytes", MIN_FILE_BYTES),
            "keep_files": None if keep_files is None else check_integer(keep_files, "keep_files"),
            "sign": None if sign is None else check_path(sign, "sign must be the path of a private key"),
            "checkpoint": None
            if checkpoint is None
            else check_path(checkpoint, "checkpoint must be the path of a file"),
            "index": None if index is None else check_path(index, "index must be a file or the address of a database"),
        }
        if fsync not in ("never", "batch", "always"):
            raise RegistrationError(f"fsync must be 'never', 'batch' or 'always', not {fsync!r:.80}")
        if isinstance(path, AuditLog):
            if fsync != "batch" or any(value is not None for value in given.values()):
                raise RegistrationError("give the settings to the AuditLog, not to the hook")
            self.log = path
        else:
            if path is None and logger is None:
                raise RegistrationError("give path=, the file to write to, or logger=, such as 'hookline.audit'")
            if path is not None:
                path = check_path(path, "path must be the file to write to, such as 'audit.jsonl'")
            try:
                self.log = AuditLog(path, fsync=fsync, **given)  # type: ignore[arg-type]
            except HooklineError as error:
                raise RegistrationError(str(error)) from error
        self._runs: dict[str, _AuditedRun] = {}

    @property
    def own_files(self) -> tuple[str, ...]:
        """Files that the agent's tools must not write; see :attr:`AuditLog.own_files`."""
        return self.log.own_files

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all records so far are written; return false on timeout."""
        return self.log.flush(timeout)

    def observe_fires(self, engine: Engine) -> FireObserver:
        """Return the fire observer that records the replies and results of a run. Events say what else happens."""
        ids = engine.ids
        run = _AuditedRun(encode_ids(ids), engine.hooks, self.log.lost, self.log.failures)
        self._runs[ids.run_id] = run
        return _AuditObserver(engine, self, run)

    def on_event(self, event: Event) -> None:
        """Add the event to the log, without waiting."""
        run = self._runs.get(event.run_id)
        try:
            fields = self._record(event, run)
            if fields is not None:
                self._put(event.at, run, event.run_id, fields)
        except Exception as error:
            self.log.count_lost(1, reason(error))
            raise
        finally:
            if type(event) is RunFinished:
                self._runs.pop(event.run_id, None)

    def __call__(self, point: str, ctx: Any, payload: Any, verdict: Verdict) -> Any:
        """Record replies and results outside of runs; with ``on_failure="closed"``, wait for the disk."""
        if point in self.watched_in_runs:
            self.record_end(point, payload, verdict, ctx.clock.time(), None)
        if self.on_failure == "closed":
            if point in _CLOSED and getattr(payload, "phase", "") != "progress":
                return self._wait(ctx, CLOSED_SECONDS)
        elif point == ON_RUN_END:
            if not self.log.is_working:
                return self._wait(ctx, OPEN_SECONDS)
            self._raise_if_lost(ctx)
        return None

    def record_end(self, point: str, payload: Any, verdict: Verdict, at: float, run: _AuditedRun | None) -> None:
        """Add the reply of a model or the result of a tool to the log, without waiting."""
        self._put(at, run, payload.ids.run_id, self._finished_record(point, run, payload, verdict))

    def _finished_record(self, point: str, run: _AuditedRun | None, payload: Any, verdict: Verdict) -> AuditRecord:
        if point == AFTER_LLM:
            return self._records.model(payload, verdict)
        known = run.digests.pop((payload.id, payload.attempt), None) if run else None
        if verdict.error is not None:  # the model does not read the result either
            payload = payload.replace(result=None, error=WITHHELD)
        return self._records.tool(payload, known or any_digest([payload.name, payload.arguments]))

    def _record(self, event: Event, run: _AuditedRun | None) -> AuditRecord | None:
        match event:
            case HookExecuted():
                return None if is_silent(event) else self._records.verdict(event, _rules(run))
            case ToolStarted():
                made = any_digest([event.tool, event.arguments])
                if run is not None:
                    run.digests[event.call_id, event.attempt] = made
                return self._records.tool_start(event, made)
            case RunStarted():
                return r.RunStartRecord(_rules(run))
            case _:
                return self._records.record(event)

    def _put(self, at: float, run: _AuditedRun | None, run_id: str, fields: AuditRecord) -> None:
        if run is None:
            kind = encode_type(fields.type, encode_ids(Ids(run_id)))
        elif (kind := run.kinds.get(fields.type, b"")) == b"":
            kind = run.kinds[fields.type] = encode_type(fields.type, run.ids)
        if self._records.content:
            self.log.put(encode_record(at, kind, fields))
        else:
            self.log.put_short(at, kind, fields)

    async def _wait(self, ctx: Any, seconds: float) -> None:
        if not await self.log.flush_async(seconds):
            raise AuditError(
                f"records of the audit log are not written after {seconds:g} s: the disk or the logger does not respond"
            )
        self._raise_if_lost(ctx)

    def _raise_if_lost(self, ctx: Any) -> None:
        run = self._runs.get(ctx.run_id)
        lost = self.log.lost - (run.lost if run else 0)
        if lost:
            raise AuditError(f"{lost} records of the audit log were lost: {self.log.problem}")
        if self.log.is_working is False or self.log.failures > (run.failures if run else 0):
            raise AuditError(f"records of the audit log may not be on the disk: {self.log.problem}")


class _AuditObserver(NewFireObserver):
    """Records the replies and results of one run."""

    points = AuditLogHook.watched_in_runs
    wants_hooked_fires = False
    wants_calls = "results"

    def __init__(self, engine: Engine, hook: AuditLogHook, run: _AuditedRun) -> None:
        super().__init__(engine)
        self._hook, self._run = hook, run
        self._clock = engine.environment.clock

    def new_fire(self, fire: FireReport) -> None:
        """Record a reply or a result."""
        try:
            payload = self._engine.clean(fire.verdict.payload)
            self._hook.record_end(fire.point, payload, fire.verdict, self._clock.time(), self._run)
        except Exception as error:
            self._hook.log.count_lost(1, reason(error))
            log.exception("the audit log cannot record a fire of %s", fire.point)


def _rules(run: _AuditedRun | None) -> str:
    return "" if run is None else rules_of(run.hooks.stack)


def _files(attachments: Sequence[Attachment]) -> list[str] | UnsetType:
    """Return attachments for a record, without their names, which are texts."""
    if not attachments:
        return UNSET
    return [f"sha256:{each.digest} {each.media_type} {each.size}" for each in attachments[:MAX_ITEMS]]


def _redactor(redact: Any) -> Redact:
    if redact is None:
        from .._sensitive.redactor import Redactor

        return Redactor().apply
    apply = redact if callable(redact) else getattr(redact, "apply", None)
    if isinstance(redact, type) or not callable(apply):
        raise RegistrationError(
            f"redact must be a function from text to text, or an object with such a method apply, not {redact!r:.80}"
        )
    return apply  # type: ignore[no-any-return]


def _logger(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name.strip() or "\0" in name):
        raise RegistrationError(f"logger must be the name of a logger, such as 'hookline.audit', not {name!r:.80}")
    return name


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _notice(event: Any, hook: str, about: str) -> r.NoticeRecord:
    return r.NoticeRecord(snake_case(type(event).__name__), str(event.point), hook, about)
