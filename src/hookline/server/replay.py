"""Recorded runs over HTTP: list them, download a tape or a record, and try other rules on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from .._base.text import counted
from .._base.workers import in_thread
from ..config.errors import ConfigError
from ..config.sources import parse_reference
from ..plugins.trust import digest, files_in_use
from ..records.format import SUFFIX, TAPE_SUFFIX
from ..stores.callers import Caller
from ..stores.runs import OPEN_STATES, STATES, RunFilter, RunRecord
from .errors import ApiError, ServiceError
from .explain import RunRecords
from .jobs import Job, Jobs, JobStatus
from .replayed import Replayed
from .routing import Endpoint, body_of, caller_of, json_response, query_of
from .runs import RunService
from .views import ListQuery, Name

RECORDINGS = "/recordings"
REPLAYS = "/replays"
RULES = "/rules"
PROCESS = "hookline.server.replay_process"
MAX_RUNS = 100
"""Number of runs that rules can be tried on at once."""
LOOKED_AT = 200
"""Number of runs that are looked at for a page of recorded ones."""
ENDED = tuple(state for state in STATES if state not in OPEN_STATES)

_LIST = """A server records its runs with `record = true`, or keeps tapes of them with `tapes`. The list has runs that
have ended. Each page looks at a limited number of runs, so it may have fewer recorded ones, or none, and still a
`next`."""

_TRY = """The rules take the place of the recorded hooks with the same names; the others keep their recorded decisions.
Nothing is executed: no tool, no model. The work is done in the background, by a process of its own. The result is kept
in the memory of this server."""


class UnknownRulesError(ServiceError):
    """The server knows no rules of this name."""

    code = "unknown_rules"
    status = 404


class RulesFile(msgspec.Struct, frozen=True):
    """A file of hooks that can be tried. ``digest`` is the SHA-256 of its content now; empty if it cannot be read."""

    name: str
    file: str
    digest: str


class ReplayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The rules to try, by a name from ``/rules``, and the ids of the runs."""

    rules: Name
    runs: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]


class ReplayView(msgspec.Struct, frozen=True):
    """A try of rules. ``progress`` is from 0 to 1. ``result`` is there when it is ``done``."""

    id: str
    status: JobStatus
    by: str
    created: float
    ended: float | None
    progress: float
    error: str
    rules: str
    run_count: int
    result: Replayed | None

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the view of a job."""
        given = job.given
        rules, runs = given["name"], len(given["runs"])
        return cls(
            job.id,
            job.status,
            job.by,
            job.created,
            job.ended,
            job.share,
            job.error,
            rules,
            runs,
            None if job.result is None else msgspec.convert(job.result, Replayed),
        )


class ReplaysPage(msgspec.Struct, frozen=True):
    """Tries of rules at this server, the newest first."""

    replays: tuple[ReplayView, ...]


class RulesPage(msgspec.Struct, frozen=True):
    """The rules that the server knows."""

    rules: tuple[RulesFile, ...]


class RecordingView(msgspec.Struct, frozen=True):
    """A recorded run. ``tape`` says whether there is a tape of it; otherwise there is a record."""

    run_id: str
    agent: str
    task: str
    status: str
    created: float
    tape: bool


class RecordingsPage(msgspec.Struct, frozen=True):
    """Recorded runs, the newest first. ``next`` is the ``before`` of the next page; empty if there is none."""

    recordings: tuple[RecordingView, ...]
    next: str


class ReplayService:
    """Tries rules on recorded runs.

    Args:
        service: knows the runs.
        records: the records of the runs.
        rules: references to files of hooks.
        home: the folder for relative paths.

    Raises:
        ConfigError: two rules have the same name.
    """

    def __init__(self, service: RunService, records: RunRecords, rules: Sequence[str], home: Path) -> None:
        self._service = service
        self._records = records
        self._home = home
        self._rules = _by_name(rules, home)
        self.jobs = Jobs(PROCESS)

    @property
    def records(self) -> RunRecords:
        """The records of the runs."""
        return self._records

    def rules(self) -> list[RulesFile]:
        """Return the rules that can be tried. It reads their files."""
        return [RulesFile(name, str(file), _digest(file)) for name, (_, file) in self._rules.items()]

    async def recorded(
        self, caller: Caller, limit: int, before: str = "", **chosen: Unpack[RunFilter]
    ) -> tuple[list[tuple[RunRecord, bool]], str]:
        """Return runs that have ended and are recorded, each with whether there is a tape, and where older ones follow.

        Raises:
            UnknownRunError: there is no run ``before``.
            StoreError: a file cannot be read.
        """
        if before:
            await self._service.get(before, caller)
        states = tuple(state for state in chosen.get("states") or ENDED if state in ENDED)
        filters: RunFilter = {**chosen, "states": states}
        runs = await self._service.list(caller, limit=LOOKED_AT, before=before, **filters) if states else []
        places = await in_thread(self._records.places, [run.id for run in runs])
        found = [(run, places[run.id].file.suffix == TAPE_SUFFIX) for run in runs if run.id in places]
        if len(found) > limit:
            return found[:limit], found[limit - 1][0].id
        return found, runs[-1].id if len(runs) == LOOKED_AT else ""

    async def start(self, rules: str, ids: Sequence[str], caller: Caller) -> Job:
        """Start to try rules on runs.

        Raises:
            UnknownRulesError: the server does not know the rules.
            UnknownRunError: there is no such run.
            ApiError: no run is given, there are too many, or one is not recorded.
            BusyError: too many others wait.
        """
        if rules not in self._rules:
            raise UnknownRulesError(f"this server knows no rules {rules!r:.80}: name their file in the setting rules")
        ids = list(dict.fromkeys(ids))
        if not 1 <= len(ids) <= MAX_RUNS:
            raise ApiError(422, "bad_field", f"choose 1 to {MAX_RUNS} runs, not {len(ids)}")
        for id in ids:
            await self._service.get(id, caller)
        places = await in_thread(self._records.places, ids)
        if missing := [id for id in ids if id not in places]:
            raise ApiError(404, "not_recorded", f"{counted(len(missing), 'run')} not recorded, such as {missing[0]}")
        reference, _ = self._rules[rules]
        files = files_in_use()
        given: dict[str, Any] = {
            "name": rules,
            "rules": reference,
            "home": str(self._home),
            "runs": [(id, str(places[id].file), places[id].position) for id in ids],
            "trust": None
            if files is None
            else {"folders": [*map(str, files.folders)], "named": [*map(str, files.named)]},
        }
        return self.jobs.start(given, caller.name)


def _by_name(references: Sequence[str], home: Path) -> dict[str, tuple[str, Path]]:
    """Return references with absolute paths, and their files, by short names."""
    found: dict[str, tuple[str, Path]] = {}
    for reference in references:
        parsed = parse_reference(reference)
        assert parsed.file is not None  # the options check it
        path = (home / parsed.file).absolute()
        name = str(path.relative_to(home) if path.is_relative_to(home) else path.name)
        suffix = f":{parsed.name}" if parsed.name else ""
        if name + suffix in found and found[name + suffix][1] != path:
            raise ConfigError(f"server.rules: two files have the name {name}: rename one of them")
        found[name + suffix] = f"{path}{suffix}", path
    return found


def _digest(file: Path) -> str:
    try:
        return digest(file.read_bytes())
    except OSError:
        return ""


class ReplayApi:
    """The endpoints for recorded runs and rules, for callers with the right ``admin``.

    Args:
        service: tries rules.
        runs: knows the runs.
    """

    def __init__(self, service: ReplayService, runs: RunService) -> None:
        self._service = service
        self._runs = runs

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        admin, binary = ("admin",), "application/octet-stream"
        return [
            Endpoint(
                "GET",
                RECORDINGS,
                self._recordings,
                admin,
                "list_recordings",
                "List recorded runs, the newest first",
                query=ListQuery,
                response=RecordingsPage,
                errors=(404,),
                description=_LIST,
            ),
            Endpoint(
                "GET",
                "/runs/{id}/tape",
                self._tape,
                admin,
                "get_tape",
                "Download the tape of a run",
                media=binary,
                errors=(404,),
            ),
            Endpoint(
                "GET",
                "/runs/{id}/record",
                self._record,
                admin,
                "get_record",
                "Download the record of a run",
                media=binary,
                errors=(404,),
            ),
            Endpoint(
                "GET", RULES, self._rules, admin, "list_rules", "List rules that can be tried", response=RulesPage
            ),
            Endpoint(
                "POST",
                REPLAYS,
                self._start,
                admin,
                "start_replay",
                "Try rules on recorded runs",
                body=ReplayRequest,
                response=ReplayView,
                status=202,
                errors=(404,),
                description=_TRY,
            ),
            Endpoint(
                "GET",
                REPLAYS,
                self._list,
                admin,
                "list_replays",
                "List tries of rules, the newest first",
                response=ReplaysPage,
            ),
            Endpoint(
                "GET",
                REPLAYS + "/{id}",
                self._get,
                admin,
                "get_replay",
                "Get what would differ",
                response=ReplayView,
                errors=(404,),
            ),
            Endpoint(
                "POST",
                REPLAYS + "/{id}/cancel",
                self._cancel,
                admin,
                "cancel_replay",
                "Cancel a try of rules",
                response=ReplayView,
                errors=(404, 409),
            ),
        ]

    async def open(self) -> None:
        """Do nothing: rules are loaded when a caller tries them."""

    async def close(self) -> None:
        """Stop tries."""
        await self._service.jobs.close()

    async def _recordings(self, request: Request) -> Response:
        query, caller = query_of(request, ListQuery), caller_of(request)
        found, more = await self._service.recorded(caller, query.limit, query.before, **query.chosen())
        views = tuple(
            RecordingView(run.id, run.agent, run.task, run.status, run.created, is_tape) for run, is_tape in found
        )
        return json_response(RecordingsPage(views, more))

    async def _tape(self, request: Request) -> Response:
        run = await self._runs.get(request.path_params["id"], caller_of(request))
        return tape_response(self._service.records, run.id)

    async def _record(self, request: Request) -> Response:
        run = await self._runs.get(request.path_params["id"], caller_of(request))
        data = await in_thread(self._service.records.record, run.id)
        if data is None:
            raise ApiError(404, "not_recorded", f"there is no record of the run {run.id}")
        headers = {"content-disposition": f'attachment; filename="{run.id}{SUFFIX}"'}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def _rules(self, request: Request) -> Response:
        return json_response(RulesPage(tuple(await in_thread(self._service.rules))))

    async def _start(self, request: Request) -> Response:
        given = await body_of(request, ReplayRequest)
        job = await self._service.start(given.rules, given.runs, caller_of(request))
        return json_response(ReplayView.of(job), 202)

    async def _list(self, request: Request) -> Response:
        return json_response(ReplaysPage(tuple(map(ReplayView.of, self._service.jobs.list()))))

    async def _get(self, request: Request) -> Response:
        return json_response(ReplayView.of(self._service.jobs.get(request.path_params["id"])))

    async def _cancel(self, request: Request) -> Response:
        return json_response(ReplayView.of(await self._service.jobs.cancel(request.path_params["id"])))


def tape_response(records: RunRecords, id: str) -> FileResponse:
    """Return the tape of a run as a download.

    Raises:
        ApiError: there is none.
    """
    tape = records.tape(id)
    if tape is None:
        raise ApiError(404, "no_tape", f"there is no tape of the run {id}")
    return FileResponse(tape, media_type="application/octet-stream", filename=tape.name)
