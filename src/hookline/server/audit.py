"""The audit log over HTTP: list its records, get one, and verify the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from socket import gethostname
from typing import Annotated, Any, Self

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._base.workers import in_thread
from ..stores.audit.describe import Record, describe, is_failure
from ..stores.audit.format import timestamp
from ..stores.audit.index import AuditIndex, IndexedRecord
from ..stores.audit.log import AuditLog
from ..stores.audit.reading import LogLine, LogReader, RecordFilter
from ..stores.audit.verify import AuditReport
from .errors import ApiError
from .jobs import Job, Jobs, JobStatus
from .routing import Endpoint, caller_of, json_response, query_of
from .views import END, Name, Time

RECORDS = "/audit/records"
VERIFICATIONS = "/audit/verifications"
PROCESS = "hookline.server.verify_process"

RecordId = Annotated[str, msgspec.Meta(pattern=rf"^([0-9]{{1,12}}(-[0-9]{{1,15}})?)?{END}")]
"""The id of a record: its number in the index, or the number of its file and its position there."""

_RECORDS = """With an index of audit logs (`audit_index`, or a database), the list has the records of all machines. What
the index does not have, `caller` and `text`, is looked for in the log of this server. Without an index, all filters
are. Such a search looks through a limited part of the log for each page: `complete` is false if it ended for that
reason, so a page may have fewer records, or none, and still a `next`."""

_VERIFY = """It says what `hookline audit verify` says. The log is read in the background, by a process of its own. The
result is kept in the memory of this server."""


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A filter for records, and the position of a page.

    ``type`` may be given several times. ``run`` is the id of a run, with those nested in it, or its beginning.
    ``caller`` is the id or the name of a caller. ``text`` may stand anywhere in the record. ``views=false`` leaves out
    records that only say that somebody looked at a page of the console.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    before: Annotated[RecordId, msgspec.Meta(description="`next` of the page before.")] = ""
    run: Name = ""
    type: tuple[Name, ...] = ()
    agent: Name = ""
    tool: Name = ""
    hook: Name = ""
    verb: Name = ""
    caller: Name = ""
    text: Name = ""
    since: Time = 0.0
    until: Time = 0.0
    views: bool = True

    def chosen(self) -> RecordFilter:
        """Return the filter."""
        names = ("run", "agent", "tool", "hook", "verb", "caller", "text", "views")
        return record_filter(self.type, self.since, self.until, **{name: getattr(self, name) for name in names})


def record_filter(types: tuple[str, ...], since: float, until: float, **names: Any) -> RecordFilter:
    """Return a filter for records between two Unix times; 0 for no limit."""
    begin, end = (timestamp(at).decode() if at else "" for at in (since, until))
    return RecordFilter(types=tuple(filter(None, types)), since=begin, until=end, **names)


class AuditRecordView(msgspec.Struct, frozen=True):
    """A record of an audit log.

    ``record`` is the record as it is in the log; ``null`` if the log is on another machine. ``changed`` is true if the
    line is not the one that the index has. ``what`` describes the record in one line. ``verb`` is that of a hook, and
    ``decision`` the decision of an approval or a request, the outcome of a tool call, or the status of a run.
    """

    id: str
    host: str
    seq: int
    time: str
    type: str
    run_id: str
    verb: str
    decision: str
    what: str
    failed: bool
    changed: bool
    record: Record | None


class AuditRecordsPage(msgspec.Struct, frozen=True):
    """Records, the newest first. ``next`` is the ``before`` of the next page; empty if there is none.

    ``complete`` is false if the page ended because the search has looked through enough of the log.
    """

    records: tuple[AuditRecordView, ...]
    next: str
    complete: bool = True


class VerificationView(msgspec.Struct, frozen=True):
    """A verification of the audit log. ``progress`` is from 0 to 1. ``report`` is there when it is ``done``.

    ``report.ok`` is true if the log is unchanged and its end is proven.
    """

    id: str
    status: JobStatus
    by: str
    created: float
    ended: float | None
    progress: float
    error: str
    report: dict[str, Any] | None

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the view of a job."""
        return cls(job.id, job.status, job.by, job.created, job.ended, job.share, job.error, _report(job))


def _report(job: Job) -> dict[str, Any] | None:
    found = report_of(job)
    if found is None:
        return None
    return {"ok": found.ok, "unchanged": found.unchanged, "summary": found.summary, **msgspec.to_builtins(found)}


def report_of(job: Job) -> AuditReport | None:
    """Return the report of a verification; ``None`` if it has none."""
    return None if job.result is None else msgspec.convert(job.result, AuditReport)


class AuditService:
    """Reads and verifies the audit log of this server.

    Args:
        log: the log; ``None`` if there is none.
        address: the file or the address of the database of the index; empty if there is none.
        nested_ids: returns the ids of the runs nested in a run.
    """

    def __init__(self, log: AuditLog | None, address: str, nested_ids: Callable[[str], Sequence[str]]) -> None:
        self._nested_ids = nested_ids
        self._reader = None if log is None or log.path is None else LogReader(log.path)
        self._index: AuditIndex | None = None if log is None else log.index
        self._address = address
        self.verifications = Jobs(PROCESS)

    @property
    def is_on(self) -> bool:
        """Whether there is a log."""
        return self._reader is not None

    @property
    def path(self) -> str:
        """The path of the log."""
        return str(self._log().path)

    @property
    def is_indexed(self) -> bool:
        """Whether the lists have the records of all machines."""
        return self._index is not None

    def _log(self) -> LogReader:
        if self._reader is None:
            raise ApiError(404, "no_audit_log", "this server writes no audit log to a file: set audit")
        return self._reader

    def page(self, wanted: RecordFilter, limit: int, before: str = "") -> AuditRecordsPage:
        """Return records, the newest first.

        Raises:
            ApiError: there is no log, or ``before`` belongs to another list.
            StoreError: the log or the index cannot be read.
        """
        log = self._log()
        if wanted.run:
            wanted = msgspec.structs.replace(wanted, nested=tuple(self._nested_ids(wanted.run)))
        in_log = self._index is None or self.is_search(wanted)
        if before and in_log is not ("-" in before):
            raise ApiError(422, "bad_field", "before belongs to another list: begin with the newest records again")
        if self._index is None or in_log:
            page = log.page(limit, wanted, before=before)
            return AuditRecordsPage(tuple(map(_line_view, page.lines)), page.more, not page.is_cut)
        found = self._index.records(
            limit + 1,
            before=int(before or 0),
            run=wanted.run,
            nested=wanted.nested,
            types=wanted.types,
            agent=wanted.agent,
            tool=wanted.tool,
            hook=wanted.hook,
            verb=wanted.verb,
            since=wanted.since,
            until=wanted.until,
            views=wanted.views,
        )
        more = str(found[limit - 1].number) if len(found) > limit else ""
        return AuditRecordsPage(tuple(map(self._indexed_view, found[:limit])), more)

    def is_search(self, wanted: RecordFilter) -> bool:
        """Whether a filter looks through the log, because there is no index or it does not have what is wanted."""
        if self._index is not None:
            return bool(wanted.text or wanted.caller)
        return wanted not in (RecordFilter(), RecordFilter(views=False))

    def record(self, id: str) -> tuple[AuditRecordView, str]:
        """Return a record, and in words how it fits into its log.

        Raises:
            ApiError: there is no such record.
            StoreError: the log or the index cannot be read.
        """
        log = self._log()
        if "-" in id:
            found = log.at(id)
            if found is not None:
                return _line_view(found[0]), _chain(*found)
        elif id and self._index is not None and (row := self._index.record(int(id))) is not None:
            view = self._indexed_view(row)
            if view.changed:
                return view, "The line differs from the one that the index has: it was changed after it was written."
            where = "is on another machine" if view.record is None else "is the one that the index has"
            return view, f"The line {where}."
        raise ApiError(404, "unknown_record", "the audit log has no such record; old files may have been deleted")

    def line(self, name: str, line: int) -> str:
        """Return the id of the record in a line of a file, as the findings of a verification name it.

        Raises:
            ApiError: there is no such line.
            StoreError: the log cannot be read.
        """
        found = self._log().position_of(name, line)
        if found is None:
            raise ApiError(404, "unknown_record", "the audit log has no such line any more")
        return found

    def verify(self, by: str) -> Job:
        """Start to verify the log.

        Raises:
            ApiError: there is no log.
            BusyError: others wait already.
        """
        index = self._address if self._index is not None else ""
        return self.verifications.start({"path": self.path, "index": index}, by)

    def version(self) -> object:
        """Return a value that differs after every new record and every step of a verification."""
        newest = None if self._index is None else [row.number for row in self._index.records(1)]
        return None if self._reader is None else self._reader.version(), newest, self.verifications.version

    def _indexed_view(self, row: IndexedRecord) -> AuditRecordView:
        is_own = row.host == gethostname() and row.file == str(self._log().path.absolute())
        line = self._log().find(row.seq) if is_own else None
        record = None if line is None else line.record
        return AuditRecordView(
            str(row.number),
            row.host,
            row.seq,
            row.time,
            row.type,
            row.run_id,
            row.verb,
            row.decision,
            row.what if record is None else describe(record),
            is_failure({"type": row.type, "verb": row.verb, "decision": row.decision}),
            is_own and (line is None or line.hash != row.hash),
            record,
        )


def _line_view(line: LogLine) -> AuditRecordView:
    record = line.record
    seq = record.get("seq")
    time, type, run_id, verb = (str(record.get(name) or "") for name in ("time", "type", "run_id", "verb"))
    decision = next((str(record[name]) for name in ("decision", "outcome", "status") if record.get(name)), "")
    number, bad = seq if isinstance(seq, int) else 0, is_failure(record)
    return AuditRecordView(
        line.position, gethostname(), number, time, type, run_id, verb, decision, describe(record), bad, False, record
    )


def _chain(line: LogLine, following: LogLine | None) -> str:
    if following is None:
        return "It is the last line of its file."
    if following.record.get("prev") == line.hash:
        return "The next line contains the hash of this one."
    return "The next line does not contain the hash of this one: one of the two was changed."


class AuditApi:
    """The endpoints of the audit log, for callers with the right ``admin``.

    Args:
        service: reads and verifies the log.
    """

    def __init__(self, service: AuditService) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        admin = ("admin",)
        return [
            Endpoint(
                "GET",
                RECORDS,
                self._list,
                admin,
                "list_audit_records",
                "List audit records, the newest first",
                query=AuditQuery,
                response=AuditRecordsPage,
                errors=(404,),
                description=_RECORDS,
            ),
            Endpoint(
                "GET",
                RECORDS + "/{id}",
                self._get,
                admin,
                "get_audit_record",
                "Get an audit record",
                response=AuditRecordView,
                errors=(404,),
            ),
            Endpoint(
                "POST",
                VERIFICATIONS,
                self._verify,
                admin,
                "verify_audit_log",
                "Verify the audit log",
                response=VerificationView,
                status=202,
                errors=(404,),
                description=_VERIFY,
            ),
            Endpoint(
                "GET",
                VERIFICATIONS + "/{id}",
                self._verification,
                admin,
                "get_verification",
                "Get the result of a verification",
                response=VerificationView,
                errors=(404,),
            ),
            Endpoint(
                "POST",
                VERIFICATIONS + "/{id}/cancel",
                self._cancel,
                admin,
                "cancel_verification",
                "Cancel a verification",
                response=VerificationView,
                errors=(404, 409),
            ),
        ]

    async def close(self) -> None:
        """Stop verifications."""
        await self._service.verifications.close()

    async def open(self) -> None:
        """Do nothing: a log is read when a caller asks."""

    async def _list(self, request: Request) -> Response:
        query = query_of(request, AuditQuery)
        return json_response(await in_thread(self._service.page, query.chosen(), query.limit, query.before))

    async def _get(self, request: Request) -> Response:
        view, _ = await in_thread(self._service.record, record_id(request))
        return json_response(view)

    async def _verify(self, request: Request) -> Response:
        return json_response(VerificationView.of(self._service.verify(caller_of(request).name)), 202)

    async def _verification(self, request: Request) -> Response:
        return json_response(VerificationView.of(self._service.verifications.get(request.path_params["id"])))

    async def _cancel(self, request: Request) -> Response:
        return json_response(VerificationView.of(await self._service.verifications.cancel(request.path_params["id"])))


def record_id(request: Request) -> str:
    """Return the id of a record in the path of a request.

    Raises:
        ApiError: it is not one.
    """
    try:
        return msgspec.convert(request.path_params["id"], RecordId)
    except msgspec.ValidationError:
        raise ApiError(404, "unknown_record", "this is not the id of an audit record, such as 1-4096") from None
