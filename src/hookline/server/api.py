"""Runs over plain HTTP: JSON, and server-sent events."""

from __future__ import annotations

import re

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..stores.runs import PAGE_SIZE, page_of
from .callers import RIGHTS
from .endpoints import Answer, ApiError, Endpoint, caller_of, correlation_of
from .reading import Reader
from .requests import answer, body_of, query_of
from .service import RunService
from .sse import HEADERS, MEDIA, events_of, preferred
from .views import (
    AgentsPage,
    AgentView,
    CancelRequest,
    EventsPage,
    EventsQuery,
    ListQuery,
    MessageRequest,
    OnceHeader,
    ResumeHeader,
    RunRequest,
    RunsPage,
    RunView,
    SentEvent,
    WaitQuery,
)  # fmt: skip

JSON = "application/json"
_ONCE = re.compile(r"[!-~]{1,255}")
_SEQ = re.compile(r"[0-9]{1,15}")


class RunsApi:
    """Start runs, look at them, follow their events, say something in between, and cancel them.

    Args:
        service: which runs them.
    """

    def __init__(self, service: RunService) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """What can be asked for."""
        read, run = ("read",), ("run",)
        again = Answer(204, "The run is over, and all of its events were read.")
        return [
            Endpoint("POST", "/runs", self._start, run, "start_run", "Start a run",
                body=RunRequest, answer=RunView, status=202, takes=OnceHeader, problems=(404, 409),
                more=(Answer(201, "The run, which is over already.", RunView),), about=_START),
            Endpoint("GET", "/runs", self._list, read, "list_runs", "List runs, the newest first",
                query=ListQuery, answer=RunsPage, problems=(404,)),
            Endpoint("GET", "/runs/{id}", self._get, read, "get_run", "Look at a run", query=WaitQuery, answer=RunView),
            Endpoint("POST", "/runs/{id}/cancel", self._cancel, run, "cancel_run", "Cancel a run",
                body=CancelRequest | None, answer=RunView, problems=(409,),
                more=(Answer(202, "The run, which is about to end.", RunView),)),
            Endpoint("POST", "/runs/{id}/messages", self._steer, run, "steer_run",
                "Say something to a run that goes on",
                body=MessageRequest, answer=RunView, status=202, problems=(409,)),
            Endpoint("GET", "/runs/{id}/events", self._events, read, "read_events", "Follow the events of a run",
                query=EventsQuery, answer=SentEvent, takes=ResumeHeader, media=MEDIA, problems=(406,), about=_EVENTS,
                more=(Answer(200, "Events, as JSON.", EventsPage), again)),
            Endpoint("HEAD", "/runs/{id}/events", self._events, read, "head_events", "See whether there are events",
                query=EventsQuery, takes=ResumeHeader, media=MEDIA, problems=(406,), more=(again,)),
            Endpoint("GET", "/agents", self._agents, RIGHTS, "list_agents", "List the agents", answer=AgentsPage),
        ]  # fmt: skip

    async def _start(self, request: Request) -> Response:
        asked, caller = await body_of(request, RunRequest), caller_of(request)
        once = request.headers.get("idempotency-key")
        if once is not None and not _ONCE.fullmatch(once):
            raise ApiError(400, "bad_key", "an Idempotency-Key has 1 to 255 printable ASCII characters, without spaces")
        run = await self._service.start(
            caller, asked.task, agent=asked.agent, session=asked.session, task_id=asked.task_id,
            correlation_id=asked.correlation_id or correlation_of(request), once=once or "",
            asked=msgspec.structs.replace(asked, wait=0.0),
        )  # fmt: skip
        if asked.wait and not run.is_over:
            run = await self._service.wait(run.id, caller, asked.wait)
        return answer(RunView.of(run, caller), 201 if run.is_over else 202, {"location": f"/runs/{run.id}"})

    async def _list(self, request: Request) -> Response:
        wanted, caller = query_of(request, ListQuery), caller_of(request)
        if wanted.before:
            await self._service.get(wanted.before, caller)
        found = await self._service.list(
            caller, agent=wanted.agent, session=wanted.session, states=(wanted.status,) if wanted.status else (),
            before=wanted.before, limit=wanted.limit + 1,
        )  # fmt: skip
        page = page_of(found, wanted.limit)
        runs = tuple(RunView.of(run, caller) for run in page)
        return answer(RunsPage(runs, page[-1].id if len(found) > len(page) else ""))

    async def _get(self, request: Request) -> Response:
        wait, id, caller = query_of(request, WaitQuery).wait, request.path_params["id"], caller_of(request)
        run = await (self._service.wait(id, caller, wait) if wait else self._service.get(id, caller))
        return answer(RunView.of(run, caller))

    async def _cancel(self, request: Request) -> Response:
        asked, caller = await body_of(request, CancelRequest, optional=True), caller_of(request)
        run = await self._service.cancel(request.path_params["id"], caller, asked.reason)
        return answer(RunView.of(run, caller), 200 if run.is_over else 202)

    async def _steer(self, request: Request) -> Response:
        asked, caller = await body_of(request, MessageRequest), caller_of(request)
        run = await self._service.steer(request.path_params["id"], caller, asked.text)
        return answer(RunView.of(run, caller), 202)

    async def _events(self, request: Request) -> Response:
        await request.body()  # what is sent along counts for nothing, but must not stay in the way
        wanted, id, caller = query_of(request, EventsQuery), request.path_params["id"], caller_of(request)
        media = preferred(request.headers.get("accept"), MEDIA, JSON)
        if not media:
            raise ApiError(406, "not_acceptable", f"events come as {MEDIA} or as {JSON}: accept one of them")
        after = _resumed(request.headers.get("last-event-id"), wanted.after)
        run = await self._service.get(id, caller)
        if media == MEDIA and run.is_over and after >= run.last_seq:
            return Response(status_code=204)  # which keeps a browser from coming back
        if request.method == "HEAD":
            return Response(headers=HEADERS if media == MEDIA else {"content-type": JSON})
        reader = await self._service.read(id, caller, after)
        if media == MEDIA:
            return events_of(reader, self._service.options.heartbeat)
        try:
            return await self._page(reader, wanted)
        finally:
            reader.close()

    async def _page(self, reader: Reader, wanted: EventsQuery) -> Response:
        first, events, size = reader.seq, list[msgspec.Raw](), 0
        found = await reader.more(wanted.wait)
        while found:
            events += [msgspec.Raw(each.data) for each in found]
            size += sum(len(each.data) for each in found)
            if len(events) >= wanted.limit or size > PAGE_SIZE:
                break
            found = await reader.more(0.0)
        del events[wanted.limit :]
        over = found is None
        return answer({"events": events, "last_seq": first + len(events), "over": over})

    async def _agents(self, request: Request) -> Response:
        found = (AgentView(each.name, each.description, each.tools) for each in self._service.agents.list())
        return answer(AgentsPage(tuple(found)))


def _resumed(header: str | None, after: int) -> int:
    """The number to go on after; a browser that comes back says it in a header, and asks for the same address."""
    if header is None or header == "":
        return after
    if not _SEQ.fullmatch(header):
        raise ApiError(400, "bad_event_id", f"Last-Event-ID is the number of an event, not {header!r:.80}")
    return int(header)


_START = """The run goes on whether or not anybody waits for it. With an `Idempotency-Key`, a request that is sent again
gets the run that it started the first time. What was said in it is shown to callers with the right `read` alone."""

_EVENTS = """As a stream of server-sent events, unless JSON is preferred: `id` is the number of the event (`seq`),
`event` its type, `data` the event as JSON. The last one is `run_closed`; a stream that ends before it was interrupted:
come back with `Last-Event-ID`, or `?after=`, and it goes on without loss or repeats. Lines that begin with a colon show
that the stream is alive."""
