"""An audit log of runs: what models, tools, hooks and people did, in records that are chained."""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec

from .._base.errors import HooklineError
from .._base.frozen import digest
from .._kernel.errors import RegistrationError
from .._kernel.events import Event
from .._kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_PROGRESS, ON_RUN_END
from .._kernel.results import Verdict
from .._kernel.values import Ids
from .._run.events import RunFinished, RunStarted, ToolStarted
from ..stores.audit.file import Fsync, reason
from ..stores.audit.format import encode_ids, encode_record, encode_type
from ..stores.audit.log import MIN_FILE_BYTES, AuditError, AuditLog
from ..stores.audit.records import AuditRecord
from .audit_scribe import Redact, Scribe
from .checks import flag, path_of, whole

CLOSED_SECONDS = 10.0
"""How long a run that must not go on unrecorded waits for its records."""
OPEN_SECONDS = 0.25
"""How long the end of a run waits to learn whether the log can be written at all."""

_EVENTS = Scribe(False, str, 1).events
_ALWAYS = frozenset({AFTER_LLM, AFTER_TOOL, ON_RUN_END})
_CLOSED = frozenset({BEFORE_LLM, BEFORE_TOOL, ON_PROGRESS, AFTER_TOOL, ON_RUN_END})


class _Run(msgspec.Struct):
    """What is known of a run that goes on: its ids, how much was lost and how often writing failed before it, the
    payload it recorded last, digests of calls that run.
    """

    ids: bytes
    lost: int
    failures: int
    last: Any = None
    digests: dict[tuple[str, int], str] = {}


class AuditLogHook:
    """Writes a chained audit log of runs: model calls, verdicts, tool calls, approvals, failures and ends.

    One JSON object per line (docs/guides/audit.md); each holds the hash of the line before, so that changes show
    (``hookline audit verify``). Names, numbers, ids, digests and the reasons of hooks are written; texts, arguments and
    results only with ``content``. A thread writes: a run does not wait for the disk, and goes on if that fails; it is
    told in the log of the program, in the errors of the run, and in the file as soon as it can be written.

    Args:
        path: the file, made, with its folder, for its owner only; or an :class:`AuditLog`. ``None`` with a ``logger``.
        content: whether texts, arguments and results are written too.
        redact: a function from text to text, or an object with such a method ``apply``, for every text and reason. It
            comes before texts are cut. If left out, a :class:`Redactor` of all that :class:`SensitiveDataHook` finds.
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
        fsync: Fsync = "batch",
        sign: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self._scribe = Scribe(flag(content, "content"), _redactor(redact), whole(max_text, "max_text"))
        if on_failure not in ("open", "closed"):
            raise RegistrationError(f"on_failure is 'open' or 'closed', not {on_failure!r:.80}")
        self.on_failure = on_failure
        if on_failure == "closed":
            self.points, self.events = _ALWAYS | _CLOSED, _EVENTS | {ToolStarted}
        given = {
            "logger": _logger(logger),
            "max_bytes": None if max_bytes is None else whole(max_bytes, "max_bytes", MIN_FILE_BYTES),
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

    @property
    def own_files(self) -> tuple[str, ...]:
        """What no tool of the agent may write; see :attr:`AuditLog.own_files`."""
        return self.log.own_files

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what happened so far is written; false if time ran out."""
        return self.log.flush(timeout)

    def on_event(self, event: Event) -> None:
        """Put the event into the log, without waiting."""
        if type(event) is RunStarted:
            self._runs[event.run_id] = _Run(encode_ids(event.ids), self.log.lost, self.log.failures)
        try:
            fields = self._start(event) if type(event) is ToolStarted else self._scribe.record(event)
            if fields is not None:
                self._put(event.at, self._runs.get(event.run_id), event.run_id, fields)
        except Exception as error:
            self.log.count_lost(1, reason(error))
            raise
        finally:
            if type(event) is RunFinished:
                self._runs.pop(event.run_id, None)

    def __call__(self, point: str, ctx: Any, payload: Any, verdict: Verdict) -> Any:
        """Record replies and results, and wait for the disk where that is wanted."""
        if point in (AFTER_LLM, AFTER_TOOL):
            run = self._runs.get(payload.ids.run_id)
            if run is None or run.last is not payload:  # registered twice, say
                self._put(ctx.clock.time(), run, payload.ids.run_id, self._over(point, run, payload, verdict))
                if run is not None:
                    run.last = payload
        if self.on_failure == "closed":
            if point in _CLOSED and getattr(payload, "phase", "") != "progress":
                return self._wait(ctx, CLOSED_SECONDS)
        elif point == ON_RUN_END:
            if not self.log.is_working:
                return self._wait(ctx, OPEN_SECONDS)
            self._complain(ctx)
        return None

    def _over(self, point: str, run: _Run | None, payload: Any, verdict: Verdict) -> AuditRecord:
        if point == AFTER_LLM:
            return self._scribe.model(payload, verdict)
        known = run.digests.pop((payload.id, payload.attempt), None) if run else None
        return self._scribe.tool(payload, known or digest([payload.name, payload.arguments]))

    def _start(self, event: ToolStarted) -> AuditRecord:
        made = digest([event.tool, event.arguments])
        if run := self._runs.get(event.run_id):
            run.digests[event.call_id, event.attempt] = made
        return self._scribe.tool_start(event, made)

    def _put(self, at: float, run: _Run | None, run_id: str, fields: AuditRecord) -> None:
        kind = encode_type(fields.type, run.ids if run else encode_ids(Ids(run_id)))
        if self._scribe.content:
            self.log.put(encode_record(at, kind, fields))
        else:
            self.log.put_short(at, kind, fields)

    async def _wait(self, ctx: Any, seconds: float) -> None:
        if not await self.log.flush_async(seconds):
            raise AuditError(f"records of the audit log are not written after {seconds:g} s: its disk or reader hangs")
        self._complain(ctx)

    def _complain(self, ctx: Any) -> None:
        run = self._runs.get(ctx.run_id)
        lost = self.log.lost - (run.lost if run else 0)
        if lost:
            raise AuditError(f"{lost} records of the audit log were lost: {self.log.problem}")
        if self.log.is_working is False or self.log.failures > (run.failures if run else 0):
            raise AuditError(f"records of the audit log may not be on the disk: {self.log.problem}")


def _redactor(redact: Any) -> Redact:
    if redact is None:
        from ._sensitive.redactor import Redactor

        return Redactor().apply
    apply = redact if callable(redact) else getattr(redact, "apply", None)
    if isinstance(redact, type) or not callable(apply):
        raise RegistrationError(f"redact is a function from text to text, or has such a method apply: {redact!r:.80}")
    return apply  # type: ignore[no-any-return]


def _logger(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name.strip() or "\0" in name):
        raise RegistrationError(f"logger is the name of a logger, such as 'hookline.audit', not {name!r:.80}")
    return name
