"""The runs API over HTTP: start, list, follow, steer and cancel runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._base.attachment import Attachment, AttachmentError, attachment_of_base64
from ..stores.runs import PAGE_SIZE, page_of
from .auth import RIGHTS
from .errors import ApiError
from .live_run import EventReader
from .routing import JSON, Endpoint, ResponseSpec, body_of, caller_of, correlation_of, json_response, query_of
from .runs import RunService
from .sse import EVENT_STREAM, HEADERS, event_stream, feed_stream, preferred_media
from .views import (
    AgentsPage,
    AgentView,
    AttachmentInput,
    CancelRequest,
    EventsPage,
    EventsQuery,
    FeedEvent,
    FeedHeader,
    FeedQuery,
    IdempotencyHeader,
    ListQuery,
    MessageRequest,
    ResumeHeader,
    RunRequest,
    RunsPage,
    RunView,
    SentEvent,
    WaitQuery,
)

_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")
_EVENT_ID = re.compile(r"[0-9]{1,15}")
_FEED_ID = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")

_START = """The run continues whether or not a client waits for it. With an `Idempotency-Key`, a repeated request
returns the run that the first one started. The texts of the run are shown to callers with the right `read` only."""

_EVENTS = """A stream of server-sent events, unless the client prefers JSON: `id` is the number of the event (`seq`),
`event` its type, `data` the event as JSON. The last event is `run_closed`. If the stream ends before it, reconnect with
`Last-Event-ID`, or `?after=`, to continue without loss or repetition. Lines that begin with a colon are heartbeats."""


_FEED = """A stream of server-sent events of all runs that the caller may see, also of those that begin later: `event`
is the type, `data` has the id of the run and the event as JSON. The events of one run come in their order. If the
stream ends, reconnect with `Last-Event-ID`, or with `?after=` a Unix time. None is lost then, but those of the last
seconds come again: ignore events of a run whose `seq` you have."""

_ATTACHMENT = """The digest is in the events of the run. The content is available while the run is active, and as long
as its conversation is stored."""


class RunsApi:
    """The endpoints for runs and agents.

    Args:
        service: runs the agents.
        public_url: the URL of the server for clients; empty if it is that of the request.
    """

    def __init__(self, service: RunService, public_url: str = "") -> None:
        self._service = service
        self._public_path = urlsplit(public_url).path.rstrip("/") if public_url else None

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        read, run = ("read",), ("run",)
        all_read = ResponseSpec(204, "The run is over, and the client has read all of its events.")
        return [
            Endpoint(
                "POST",
                "/runs",
                self._start,
                run,
                "start_run",
                "Start a run",
                body=RunRequest,
                response=RunView,
                status=202,
                headers=IdempotencyHeader,
                errors=(404, 409),
                responses=(ResponseSpec(201, "The run, which has already finished.", RunView),),
                description=_START,
            ),
            Endpoint(
                "GET",
                "/runs",
                self._list,
                read,
                "list_runs",
                "List runs, the newest first",
                query=ListQuery,
                response=RunsPage,
                errors=(404,),
            ),
            Endpoint("GET", "/runs/{id}", self._get, read, "get_run", "Get a run", query=WaitQuery, response=RunView),
            Endpoint(
                "POST",
                "/runs/{id}/cancel",
                self._cancel,
                run,
                "cancel_run",
                "Cancel a run",
                body=CancelRequest | None,
                response=RunView,
                errors=(409,),
                responses=(ResponseSpec(202, "The run, which is about to end.", RunView),),
            ),
            Endpoint(
                "POST",
                "/runs/{id}/messages",
                self._steer,
                run,
                "steer_run",
                "Send a message to a running run",
                body=MessageRequest,
                response=RunView,
                status=202,
                errors=(409,),
            ),
            Endpoint(
                "GET",
                "/runs/{id}/events",
                self._events,
                read,
                "read_events",
                "Follow the events of a run",
                query=EventsQuery,
                response=SentEvent,
                headers=ResumeHeader,
                media=EVENT_STREAM,
                errors=(406,),
                description=_EVENTS,
                responses=(ResponseSpec(200, "Events, as JSON.", EventsPage), all_read),
            ),
            Endpoint(
                "GET",
                "/events",
                self._feed,
                read,
                "follow_runs",
                "Follow the events of all your runs",
                query=FeedQuery,
                response=FeedEvent,
                headers=FeedHeader,
                media=EVENT_STREAM,
                description=_FEED,
            ),
            Endpoint(
                "HEAD",
                "/runs/{id}/events",
                self._events,
                read,
                "head_events",
                "Check whether there are events",
                query=EventsQuery,
                headers=ResumeHeader,
                media=EVENT_STREAM,
                errors=(406,),
                responses=(all_read,),
            ),
            Endpoint(
                "GET",
                "/runs/{id}/attachments/{digest}",
                self._attachment,
                read,
                "get_attachment",
                "Get the content of an attachment of a run",
                media="application/octet-stream",
                errors=(404,),
                description=_ATTACHMENT,
            ),
            Endpoint("GET", "/agents", self._agents, RIGHTS, "list_agents", "List the agents", response=AgentsPage),
        ]

    async def _start(self, request: Request) -> Response:
        body, caller = await body_of(request, RunRequest), caller_of(request)
        key = idempotency_key_of(request)
        attachments = attachments_of(body.attachments)
        run = await self._service.start(
            caller,
            body.task,
            attachments=attachments,
            agent=body.agent,
            session=body.session,
            task_id=body.task_id,
            correlation_id=body.correlation_id or correlation_of(request),
            idempotency_key=key,
            request=msgspec.structs.replace(body, wait=0.0),
        )
        if body.wait and not run.is_over:
            run = await self._service.wait(run.id, caller, body.wait)
        prefix = request.scope.get("root_path", "") if self._public_path is None else self._public_path
        location = f"{prefix}/runs/{run.id}"
        return json_response(RunView.of(run, caller), 201 if run.is_over else 202, {"location": location})

    async def _list(self, request: Request) -> Response:
        query, caller = query_of(request, ListQuery), caller_of(request)
        if query.before:
            await self._service.get(query.before, caller)
        found = await self._service.list(caller, before=query.before, limit=query.limit + 1, **query.chosen())
        page = page_of(found, query.limit)
        runs = tuple(RunView.of(run, caller) for run in page)
        return json_response(RunsPage(runs, page[-1].id if len(found) > len(page) else ""))

    async def _feed(self, request: Request) -> Response:
        await request.body()  # ignored, as in _events
        query, caller = query_of(request, FeedQuery), caller_of(request)
        last = request.headers.get("last-event-id") or ""
        if last and not _FEED_ID.fullmatch(last):
            raise ApiError(400, "bad_event_id", f"Last-Event-ID must be the id of an event, not {last!r:.80}")
        reader = self._service.follow(caller, float(last or query.after), query.type)
        return feed_stream(reader, self._service.options.heartbeat)

    async def _get(self, request: Request) -> Response:
        wait, id, caller = query_of(request, WaitQuery).wait, request.path_params["id"], caller_of(request)
        run = await (self._service.wait(id, caller, wait) if wait else self._service.get(id, caller))
        return json_response(RunView.of(run, caller))

    async def _cancel(self, request: Request) -> Response:
        body, caller = await body_of(request, CancelRequest, optional=True), caller_of(request)
        run = await self._service.cancel(request.path_params["id"], caller, body.reason)
        return json_response(RunView.of(run, caller), 200 if run.is_over else 202)

    async def _steer(self, request: Request) -> Response:
        body, caller = await body_of(request, MessageRequest), caller_of(request)
        attachments = attachments_of(body.attachments)
        try:
            run = await self._service.steer(request.path_params["id"], caller, body.text, attachments)
        except AttachmentError as error:
            raise ApiError(400, "bad_attachment", str(error)) from None
        return json_response(RunView.of(run, caller), 202)

    async def _events(self, request: Request) -> Response:
        await request.body()  # a body is ignored, but must be read, or it would block the detection of a disconnect
        query, id, caller = query_of(request, EventsQuery), request.path_params["id"], caller_of(request)
        media = preferred_media(request.headers.get("accept"), EVENT_STREAM, JSON)
        if not media:
            raise ApiError(
                406, "not_acceptable", f"events are available as {EVENT_STREAM} or {JSON}: accept one of them"
            )
        after = _resume_after(request.headers.get("last-event-id"), query.after)
        run = await self._service.get(id, caller)
        if media == EVENT_STREAM and run.is_over and after >= run.last_seq:
            return Response(status_code=204)  # this status stops browsers from reconnecting
        if request.method == "HEAD":
            return Response(headers=HEADERS if media == EVENT_STREAM else {"content-type": JSON})
        reader = await self._service.read(id, caller, after)
        if media == EVENT_STREAM:
            return event_stream(reader, self._service.options.heartbeat)
        try:
            return await self._events_page(reader, query)
        finally:
            reader.close()

    async def _events_page(self, reader: EventReader, query: EventsQuery) -> Response:
        first, events, size = reader.seq, list[msgspec.Raw](), 0
        found = await reader.more(query.wait)
        while found:
            events += [msgspec.Raw(each.data) for each in found]
            size += sum(len(each.data) for each in found)
            if len(events) >= query.limit or size > PAGE_SIZE:
                break
            found = await reader.more(0.0)
        del events[query.limit :]
        return json_response({"events": events, "last_seq": first + len(events), "over": found is None})

    async def _attachment(self, request: Request) -> Response:
        digest = request.path_params["digest"]
        found = await self._service.attachment(request.path_params["id"], caller_of(request), digest)
        # The content comes from a caller or a tool: a browser must save it and never show it as a page of this server.
        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(found.name or digest, safe='')}",
            "x-content-type-options": "nosniff",
            "content-security-policy": "sandbox; default-src 'none'",
            "cache-control": "private, no-store",
        }
        return Response(found.data, media_type=found.media_type, headers=headers)

    async def _agents(self, request: Request) -> Response:
        found = (AgentView(each.name, each.description, each.tools) for each in self._service.agents.list())
        return json_response(AgentsPage(tuple(found)))


def idempotency_key_of(request: Request) -> str:
    """Return the idempotency key of a request; empty if it has none.

    Raises:
        ApiError: it is not valid.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise ApiError(
            400, "bad_key", "an Idempotency-Key must have 1 to 255 printable ASCII characters, without spaces"
        )
    return key or ""


def attachments_of(given: Sequence[AttachmentInput]) -> list[Attachment]:
    """Return the files of a request.

    Raises:
        ApiError: one of them cannot be used.
    """
    return [attachment_of(each, f"attachments[{at}]") for at, each in enumerate(given)]


def attachment_of(given: AttachmentInput, where: str) -> Attachment:
    """Return a file of a request, whose place there is ``where``.

    Raises:
        ApiError: it cannot be used.
    """
    if bool(given.data) == bool(given.url):
        raise ApiError(400, "bad_attachment", f"{where}: give either data or url")
    try:
        if given.data:
            return attachment_of_base64(given.data, given.media_type, given.name, f"{where}.data", max_size=None)
        if not given.url.lower().startswith(("http://", "https://")):
            raise TypeError("url must begin with https:// or http://")
        return Attachment.of(given.url, given.media_type or None, given.name or None)
    except (TypeError, AttachmentError) as error:
        message = str(error) if str(error).startswith(where) else f"{where}: {error}"
        raise ApiError(400, "bad_attachment", message) from None


def _resume_after(header: str | None, after: int) -> int:
    """Return the number of the last event that the client has. A reconnecting browser sends it in a header."""
    if header is None or header == "":
        return after
    if not _EVENT_ID.fullmatch(header):
        raise ApiError(400, "bad_event_id", f"Last-Event-ID must be the number of an event, not {header!r:.80}")
    return int(header)
