"""The audit log: its records, one of them whole, and the button that verifies the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.workers import in_thread
from ...explain.words import DECISIONS, OUTCOMES, STATUSES, gate_of, verb_words
from ...stores.audit.records import RECORD_TYPES
from ...stores.keys import KeyStore
from ..audit import AuditRecordView, AuditService, record_id, report_of
from ..jobs import Job
from ..routing import Endpoint, caller_of, json_response, query_of
from .filters import CHOICES, RANGES, AuditFilter
from .live import LiveViews, Render, Version
from .login import page_endpoint, wants_sections
from .render import base_of, page
from .sections import Sections, draw_all, draw_together

PAGE = "/console/audit"
LIVE = "/console/live/audit"
RECORD = "/console/audit/records/{id}"
LINE = "/console/audit/lines/{name}/{line}"
VERIFY = "/console/audit/verify"
CANCEL = "/console/audit/verify/{id}/cancel"
ROWS = 50
SEARCH_DELAY = 2.0
"""Seconds between a new record and the next search for records that match a filter."""
TYPES = tuple(kind.type for kind in RECORD_TYPES if kind.type != "checkpoint")  # it is not in the log


class AuditPages:
    """The pages at ``/console/audit``. The log has the records of all callers, so they need the right ``admin``.

    Args:
        service: reads and verifies the log.
        keys: the API keys, for the names of callers; ``None`` if the host application knows the callers.
        live: keeps open pages up to date.
    """

    def __init__(self, service: AuditService, keys: KeyStore | None, live: LiveViews) -> None:
        self._service = service
        self._keys = keys
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages: tuple[tuple[str, str, Callable[[Request], Any], str], ...] = (
            ("GET", PAGE, self._show, "console_audit"),
            ("GET", LIVE, self._stream, "console_audit_live"),
            ("GET", RECORD, self._record, "console_audit_record"),
            ("GET", LINE, self._line, "console_audit_line"),
            ("POST", VERIFY, self._verify, "console_audit_verify"),
            ("POST", CANCEL, self._cancel, "console_audit_cancel"),
        )
        return [page_endpoint(method, path, handler, ("admin",), name) for method, path, handler, name in pages]

    async def _show(self, request: Request) -> Response:
        query, service = query_of(request, AuditFilter), self._service
        sections = (
            await self._live.show(request, *self._view(request, query), delay=self._delay(query))
            if service.is_on
            else {}
        )
        given = query.query()
        values: dict[str, Any] = {"live": f"{LIVE}?{given}" if given else LIVE} if service.is_on else {}
        return page(
            request,
            "audit.html",
            title="Audit",
            query=query,
            sections=sections,
            types=TYPES,
            callers=await in_thread(self._names),
            ranges=RANGES,
            choices=CHOICES,
            path_of_log=service.path if service.is_on else "",
            is_indexed=service.is_indexed,
            **values,
        )

    async def _stream(self, request: Request) -> Response:
        query = query_of(request, AuditFilter)
        return await self._live.stream(request, *self._view(request, query), delay=self._delay(query))

    def _view(self, request: Request, query: AuditFilter) -> tuple[object, Render, Version]:
        base = base_of(request)
        render = partial(self._sections, query, base)
        return ("audit", query.query(), base), render, partial(in_thread, self._service.version)

    async def _sections(self, query: AuditFilter, base: str) -> Sections:
        ids = ("audit-verify", *(f"audit-{name}" for name in _LISTED))
        return await draw_together(ids, in_thread(self._render, query, base))

    def _delay(self, query: AuditFilter) -> float:
        return SEARCH_DELAY if self._service.is_search(query.chosen()) else 0.0

    async def _record(self, request: Request) -> Response:
        await self._live.add_frame(request)
        view, chain = await in_thread(self._service.record, record_id(request))
        return page(
            request,
            "audit_record.html",
            title=f"Audit record {view.seq:,}",
            view=view,
            chain=chain,
            verdict=verdict_of(view),
        )

    async def _line(self, request: Request) -> Response:
        name, line = request.path_params["name"], request.path_params["line"]
        number = int(line) if line.isascii() and line.isdigit() and len(line) < 16 else 0
        id = await in_thread(self._service.line, name, number)
        return RedirectResponse(base_of(request) + RECORD.format(id=id), 303)

    async def _verify(self, request: Request) -> Response:
        self._service.verify(caller_of(request).name)
        return self._changed(request)

    async def _cancel(self, request: Request) -> Response:
        await self._service.verifications.cancel(request.path_params["id"])
        return self._changed(request)

    def _changed(self, request: Request) -> Response:
        if wants_sections(request):
            return json_response(self._verification(base_of(request)))
        return RedirectResponse(base_of(request) + PAGE, 303)

    def _render(self, query: AuditFilter, base: str) -> Sections:
        found = self._service.page(query.chosen(), ROWS, query.before)
        values: dict[str, Any] = {
            "rows": found.records,
            "is_complete": found.complete,
            "more": query.query(before=found.next) if found.next else "",
            "hosts": len({view.host for view in found.records}) > 1,
            "query": query,
            "verdict_of": verdict_of,
        }
        return {**self._verification(base), **draw_all("audit_sections.html", base, "audit", _LISTED, **values)}

    def _verification(self, base: str) -> dict[str, str]:
        jobs = self._service.verifications.list()
        job: Job | None = jobs[0] if jobs else None
        report = None if job is None else report_of(job)
        return draw_all("audit_sections.html", base, "audit", ("verify",), job=job, report=report)

    def _names(self) -> dict[str, str]:
        """Return the names of callers by their ids."""
        return {} if self._keys is None else {key.id: key.name for key in self._keys.keys()}  # noqa: SIM118 - no dict


class Verdict(NamedTuple):
    """A decision or an ending: a word, its colour, and its gate in the hook line, if it has one."""

    word: str
    tone: str
    gate: str = ""


def verdict_of(view: AuditRecordView) -> Verdict | None:
    """Return the verdict of a record; ``None`` if it has none."""
    if view.verb == "cont" or view.decision == "granted" or not (view.verb or view.decision):
        return None
    if view.verb:
        return Verdict(*verb_words(view.verb), gate_of(view.verb))
    word = view.decision
    if view.type == "approval":
        return Verdict(word, DECISIONS.get(word, "grey"), gate_of(word))
    return Verdict(word, {**OUTCOMES, **STATUSES}.get(word, "red" if view.failed else "grey"))


_LISTED = ("rows", "pages")
