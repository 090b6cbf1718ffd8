"""ObservabilityHook: records runs in the :class:`RunStore` that ``hookline stats`` reads."""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import Any, TypeVar

import msgspec

from .._base.background_writer import BackgroundWriter
from .._base.text import error_text
from .._kernel.errors import RegistrationError
from .._kernel.events import Event, HookExecuted
from .._kernel.payloads import ModelReply
from .._kernel.points import AFTER_LLM, ON_RUN_END
from .._kernel.results import Verdict
from .._kernel.validation import check_bool, check_path
from .._kernel.values import Ids
from .._run.events import ApprovalAsked, ApprovalDecided, Failed, RunFinished, RunStarted, ToolEnded, is_silent
from ..stores.errors import StoreError
from ..stores.runs import PARTS, RunRecord, RunStore

log = logging.getLogger("hookline")

LIMIT = 50_000
"""Maximum number of unwritten records of one kind. Further ones are lost, and the loss is reported."""
LINGER = 0.1
"""Seconds to collect records before they are written, because one transaction costs as much as many rows."""

_NAME, _REASON = 200, 200

Row = tuple[Any, ...]
T = TypeVar("T")


class ObservabilityHook:
    """Records every run, model call, tool call, verdict, approval and error in a SQLite file.

    ``hookline stats`` shows them. Only names, numbers and times are recorded, and the beginning of the reasons of
    hooks: no texts, arguments or results. A thread writes the file, so that runs do not wait for it. If records cannot
    be written, they are lost; the loss is logged and reported in the ``errors`` of the next run that ends.

    A run that ``hookline serve`` stores in the same file has one row: see :class:`RunStore`.

    Example:
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", hooks=[ObservabilityHook("runs.db", keep_days=90)])

    Args:
        path: the file, or a :class:`RunStore`.
        keep_days: the number of days to keep records; by default they are kept for ever.
        every_call: whether to record every hook call with its duration. That makes runs slower.

    Raises:
        RegistrationError: the path is not a path, or ``keep_days`` is not a positive number.
    """

    points = frozenset({AFTER_LLM, ON_RUN_END})
    phase = "observe"
    priority = 0
    events = frozenset({RunStarted, ToolEnded, HookExecuted, Failed, ApprovalAsked, ApprovalDecided, RunFinished})

    def __init__(
        self, path: str | os.PathLike[str] | RunStore, *, keep_days: float | None = None, every_call: bool = False
    ) -> None:
        self.every_call = check_bool(every_call, "every_call")
        if not isinstance(path, RunStore):
            try:
                path = RunStore(check_path(path, "path must be a SQLite file, such as 'runs.db'"), keep_days=keep_days)
            except StoreError as error:
                raise RegistrationError(str(error)) from error
        elif keep_days is not None:
            raise RegistrationError("keep_days belongs to the store: RunStore(path, keep_days=...)")
        self.store = path
        self._writer: BackgroundWriter[None] = BackgroundWriter(self._write, self._failed, linger=LINGER)
        self._begin()

    def _begin(self) -> None:
        """Start without records, also after a fork: the parent process writes its own records."""
        self._pid = os.getpid()
        self._runs: deque[RunRecord] = deque()
        self._waiting: dict[str, deque[Row]] = {table: deque() for table in PARTS}
        self._started: dict[str, float] = {}
        self._asked: dict[tuple[str, str], float] = {}
        self._awake = False
        self._writing = self._lost = 0
        self._problem = self._logged = ""

    def __call__(self, point: str, ctx: Any, payload: Any, verdict: Verdict) -> None:
        """Record a model call. At the end of a run, report records that were lost since the last run."""
        if point == AFTER_LLM:
            self._reply(payload, ctx.clock.time(), verdict)
        elif (problem := self.problem()) is not None:
            raise StoreError(problem)

    def on_event(self, event: Event) -> None:
        """Record one event."""
        values: Row
        run_id, at = event.run_id, event.at
        if isinstance(event, ToolEnded):
            values = (run_id, at, event.call_id[:_NAME], event.attempt, event.tool[:_NAME], event.outcome)
            self._put(self._waiting["tool_calls"], (*values, event.duration))
        elif isinstance(event, HookExecuted):
            if is_silent(event) and not self.every_call:
                return  # emitted because another hook asked for every call
            values = (run_id, at, str(event.point), event.call_id[:_NAME], event.hook, event.phase, str(event.verb))
            self._put(self._waiting["verdicts"], (*values, event.reason[:_REASON], event.duration, int(event.refused)))
        elif isinstance(event, RunStarted):
            if self._pid != os.getpid():
                self._begin()
            self._started[run_id] = at
            self._put(self._runs, self._record(event.ids, at, status="running"))
        elif isinstance(event, RunFinished):
            self._end(event)
        elif isinstance(event, Failed):
            error = event.error
            place = (error.where, error.type[:_NAME], error.source[:_NAME], error.call_id[:_NAME], int(error.fatal))
            self._put(self._waiting["errors"], (run_id, at, *place))
        elif isinstance(event, ApprovalAsked):
            self._asked[run_id, event.call_id] = at
        elif isinstance(event, ApprovalDecided):
            asked = self._asked.pop((run_id, event.call_id), at)
            values = (run_id, at, event.call_id[:_NAME], event.tool[:_NAME], event.decision, event.by[:_NAME])
            self._put(self._waiting["approvals"], (*values, at - asked))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all records are written or lost. Return false after ``timeout`` seconds."""
        return self._writer.flush(timeout)

    def problem(self) -> str | None:
        """Return a message about records lost since the last call; ``None`` if none were lost."""
        if not self._problem:
            return None
        lost, problem = self._lost, self._problem
        self._lost, self._problem = 0, ""
        return f"{lost:,} records of runs were lost: {problem}"

    def _reply(self, reply: ModelReply, at: float, verdict: Verdict) -> None:
        usage = reply.usage
        self._put(
            self._waiting["model_calls"],
            (
                reply.ids.run_id,
                at,
                reply.hop,
                reply.attempt,
                reply.purpose,
                reply.model,
                reply.provider,
                reply.organization_id,
                reply.source,
                str(verdict.action),
                reply.finish_reason,
                usage.input_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                reply.cost,
                reply.duration,
            ),
        )

    def _end(self, event: RunFinished) -> None:
        result, usage = event.result, event.result.usage
        error = next((error.type for error in reversed(result.errors) if error.fatal), "")
        started = self._started.pop(event.run_id, event.at - result.elapsed)
        self._put(
            self._runs,
            self._record(
                result.ids,
                started,
                status=result.status,
                stop="" if result.stop is None else result.stop.kind,
                error=error if result.status == "failed" else "",
                steps=len(result.steps),
                tool_calls=result.tool_calls,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
                cost=result.cost,
                ended=event.at,
                elapsed=result.elapsed,
            ),
        )

    def _record(self, ids: Ids, started: float, **known: Any) -> RunRecord:
        return RunRecord(
            id=ids.run_id,
            agent=ids.agent,
            owner="",
            session="",
            session_id=ids.session_id,
            task_id=ids.task_id,
            correlation_id=ids.correlation_id,
            transport="",
            task="",
            parent_run_id=ids.parent_run_id,
            created=started,
            started=started,
            **known,
        )

    def _put(self, waiting: deque[T], row: T) -> None:
        if len(waiting) >= LIMIT:
            self._lose(1, f"more than {LIMIT:,} records wait to be written to {self.store.path}")
            return
        waiting.append(row)
        if not self._awake:  # the writer is woken once for all records that wait
            self._awake = True
            self._writer.put(None)

    def _write(self, _: list[None]) -> None:
        self._awake = False
        runs = _taken(self._runs)
        parts = {table: _taken(rows) for table, rows in self._waiting.items()}
        self._writing = len(runs) + sum(map(len, parts.values()))
        process = self.store.db.leases.owner()._asdict()
        # If a run started and ended meanwhile, only its last state is written.
        latest = {run.id: msgspec.structs.replace(run, **process) for run in runs}
        self.store.add(latest.values(), parts)
        self._logged = ""

    def _failed(self, error: Exception, _: list[None]) -> None:
        self._lose(self._writing, error_text(error) or type(error).__name__)

    def _lose(self, records: int, problem: str) -> None:
        self._lost += records
        self._problem = problem
        if problem != self._logged:
            self._logged = problem
            log.error("records of runs were lost: %s", problem)


def _taken(rows: deque[T]) -> list[T]:
    return [rows.popleft() for _ in range(len(rows))]
