"""``GET /runs/{id}/explain``: what happened in a recorded run, as a page or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from ..explain.find import find_run
from ..explain.html import page_policy
from ..explain.page import EXPLAIN_ASSETS, explain_html
from ..explain.view import RunView, explain
from ..records.format import RecordError
from .errors import ApiError
from .routing import JSON, Endpoint, ResponseSpec, caller_of, json_response
from .runs import RunService
from .sse import preferred_media

HTML = "text/html"

_ABOUT = """Each step, what each hook decided and changed, and why the run stopped. The page contains what hooks hid
from the caller of the run and from the model, so only callers with the right `admin` may read it. The server must
record its runs (`record = true`)."""


class ExplainApi:
    """The endpoint that explains a run from its record.

    Args:
        service: knows the runs and their owners.
        folders: the folders of the records; empty if the server records nothing.
    """

    def __init__(self, service: RunService, folders: Sequence[Path]) -> None:
        self._service = service
        self._folders = folders
        self._reading = asyncio.Semaphore(1)  # a record may be large, and reading it needs the processor

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint(
                "GET",
                "/runs/{id}/explain",
                self._explain,
                ("admin",),
                "explain_run",
                "Show what each hook did in a run",
                media=HTML,
                errors=(404, 406),
                responses=(ResponseSpec(200, "The same as JSON.", dict),),
                description=_ABOUT,
            )
        ]

    async def _explain(self, request: Request) -> Response:
        media = preferred_media(request.headers.get("accept"), HTML, JSON)
        if not media:
            raise ApiError(406, "not_acceptable", f"the page is available as {HTML} or {JSON}: accept one of them")
        run = await self._service.get(request.path_params["id"], caller_of(request))
        if not self._folders:
            raise ApiError(404, "not_recorded", "this server does not record its runs: set record = true")
        async with self._reading:
            view = await asyncio.to_thread(self._view, run.id)
            if media == JSON:
                return json_response(view)
            page = await asyncio.to_thread(explain_html, view)
        policy = f"{page_policy(EXPLAIN_ASSETS)}; frame-ancestors 'none'"
        return Response(page, media_type=HTML, headers={"Content-Security-Policy": policy})

    def _view(self, id: str) -> RunView:
        try:
            found = find_run(id, self._folders)
        except RecordError:
            raise ApiError(404, "not_recorded", f"there is no record of the run {id}") from None
        if found.run.id != id:
            raise ApiError(404, "not_recorded", f"there is no record of the run {id}")
        return explain(found.run)
