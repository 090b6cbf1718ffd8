"""The records of served runs, and ``GET /runs/{id}/explain``: what happened in one, as a page or as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from .._base.files import file_name_for
from ..explain.find import find_run
from ..explain.from_facts import stored_view
from ..explain.html import page_policy
from ..explain.page import EXPLAIN_ASSETS, explain_html
from ..explain.view import TEXT_LIMIT, RunView, explain
from ..records.account import Account
from ..records.blocks import read_blocks, write_blocks
from ..records.catalog import Place, RunCatalog
from ..records.format import TAPE_SUFFIX, RecordError
from .errors import ApiError
from .routing import JSON, Endpoint, ResponseSpec, caller_of, json_response
from .runs import RunService
from .sse import preferred_media

HTML = "text/html"

_ABOUT = """Each step, what each hook decided and changed, and why the run stopped. The page contains what hooks hid
from the caller of the run and from the model, so only callers with the right `admin` may read it. The server should
record its runs (`record = true`) or keep tapes of them (`tapes`). A run without a record is shown from what is stored
about it, and a note says what is missing."""


class RunRecords:
    """The records and tapes of served runs.

    Args:
        folders: the folders of the records; empty if the server records nothing.
        tapes: the folder of the tapes; empty if there are none.
    """

    def __init__(self, folders: Sequence[Path], tapes: str = "") -> None:
        self._folders = folders
        self._tapes = Path(tapes).expanduser() if tapes else None
        self._catalog = RunCatalog(folders)
        self._reading = asyncio.Semaphore(1)  # a record may be large, and reading it needs the processor

    @property
    def is_on(self) -> bool:
        """Whether the server records its runs."""
        return bool(self._folders) or self._tapes is not None

    def tape(self, id: str) -> Path | None:
        """Return the tape of a run; ``None`` if it has none."""
        file = None if self._tapes is None else self._tapes / f"{file_name_for(id)}{TAPE_SUFFIX}"
        return file if file is not None and file.is_file() else None

    def places(self, ids: Iterable[str]) -> dict[str, Place]:
        """Return where runs are recorded: in a tape if there is one, because it has all values. It reads files."""
        recorded = self._catalog.runs()
        tapes = {id: tape for id in ids if (tape := self.tape(id)) is not None}
        return {id: Place(tapes[id], 0) if id in tapes else recorded[id] for id in ids if id in tapes or id in recorded}

    def record(self, id: str) -> bytes | None:
        """Return the record of a run as a file of moments; ``None`` if it has none. It reads files."""
        place, found = self._catalog.find(id), bytearray()
        if place is None:
            return None
        blocks = [block for block in read_blocks(place.file, Account()) if block.id == id]
        write_blocks(blocks[-1:], found.extend)
        return bytes(found)

    async def view(self, id: str, *, limit: int = TEXT_LIMIT) -> RunView:
        """Return what happened in a run, with what hooks hid from its caller: for callers with the right ``admin``.

        Args:
            id: the run.
            limit: the number of characters of each text that the view contains.

        Raises:
            ApiError: the run was not recorded.
        """
        if not self.is_on:
            raise ApiError(404, "not_recorded", "this server does not record its runs: set record = true")
        async with self._reading:
            return await asyncio.to_thread(self._view, id, limit)

    def _view(self, id: str, limit: int) -> RunView:
        sources: list[tuple[str, Sequence[Path]]] = [(id, self._folders)]
        if (tape := self.tape(id)) is not None:
            sources.append((str(tape), ()))
        problem = ""
        for name, folders in sources:
            try:
                found = find_run(name, folders)
                if found.run.id == id:
                    return explain(found.run, limit=limit)
            except RecordError as error:
                problem = f": {error}" if name != id else ""  # why the tape of the run cannot be read
        raise ApiError(404, "not_recorded", f"there is no record of the run {id}{problem}")


class ExplainApi:
    """The endpoint that explains a run from its record.

    Args:
        service: knows the runs and their owners.
        records: the records of the runs.
    """

    def __init__(self, service: RunService, records: RunRecords) -> None:
        self._service = service
        self._records = records

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
        try:
            view = await self._records.view(run.id)
        except ApiError as error:
            view = await asyncio.to_thread(stored_view, self._service.store, run)
            if run.is_served:  # otherwise, the view itself says what is missing
                view.notes.insert(0, f"No record: {error}")
        if media == JSON:
            return json_response(view)
        page = await asyncio.to_thread(explain_html, view)
        policy = f"{page_policy(EXPLAIN_ASSETS)}; frame-ancestors 'none'"
        return Response(page, media_type=HTML, headers={"Content-Security-Policy": policy})
