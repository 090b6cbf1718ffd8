"""The page to talk with an agent: conversations, replies as they are written, tool calls with verdicts, approvals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.attachment import Attachment, AttachmentError, attachment_of_base64
from ..._base.workers import in_thread
from ..._run.environment import make_id
from ...explain.from_events import EventsView
from ...explain.view import ModelCall, ToolCallView
from ...stores.callers import Caller
from ...stores.run_queries import conversations
from ...stores.runs import RunRecord
from ..errors import ApiError
from ..routing import Endpoint, caller_of, correlation_of, json_response
from ..runs import RunService
from .approvals import approval_card, card_id
from .live import LiveViews
from .login import form, page_endpoint, wants_sections
from .render import base_of, fragment, page
from .sections import Sections, add_event, draw, draw_all, draw_together

PATH = "/console/chat"
TRANSPORT = "console"
"""How runs that begin here are marked. The page lists the conversations with such runs."""
MAX_RUNS = 20
"""Number of messages of a conversation that the page shows, with their answers."""
MAX_CONVERSATIONS = 40
MAX_FILES = 10
TEMPLATE = "chat_sections.html"


class ChatPage:
    """The page at ``/console/chat``.

    Args:
        service: runs the agents.
        live: keeps open pages up to date.
        tickets: whether there is a page of a ticket board to link to.
    """

    def __init__(self, service: RunService, live: LiveViews, *, tickets: bool = False) -> None:
        self._service = service
        self._live = live
        self._tickets = tickets

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = (
            ("GET", PATH, self._show, ("read",), "console_chat"),
            ("GET", f"{PATH}/live", self._stream, ("read",), "console_chat_live"),
            ("POST", PATH, self._send, ("run",), "console_send"),
        )
        return [page_endpoint(method, path, handler, scopes, name) for method, path, handler, scopes, name in pages]

    async def _show(self, request: Request) -> Response:
        chat = self._sections(request)
        sections = await self._live.show(request, chat.key, chat.render)
        return page(
            request,
            "chat.html",
            title=f"Chat with {chat.agent}",
            sections=sections,
            agents=self._service.agents.list(),
            agent=chat.agent,
            session=chat.session,
            tickets=self._tickets,
            live=f"{PATH}/live?{chat.query}",
        )

    async def _stream(self, request: Request) -> Response:
        chat = self._sections(request)
        return await self._live.stream(request, chat.key, chat.render)

    def _sections(self, request: Request) -> _ChatSections:
        given = request.query_params
        agent = self._service.agents.find(given.get("agent", ""))
        return _ChatSections(self._service, caller_of(request), base_of(request), agent.name, given.get("session", ""))

    async def _send(self, request: Request) -> Response:
        caller, fields = caller_of(request), await form(request, self._service.options.max_body)
        text = fields.get("text", "").strip()
        files = _attachments(fields)
        if not text and not files:
            raise ApiError(400, "empty", "write a message first")
        session = fields.get("session", "")
        run = await self._service.start(
            caller,
            text or "See the attached files.",
            agent=fields.get("agent", ""),
            session=session or make_id("chat"),
            attachments=files,
            correlation_id=correlation_of(request),
            transport=TRANSPORT,
        )
        chat = _ChatSections(self._service, caller, base_of(request), run.agent, run.session)
        if session and wants_sections(request):
            return json_response(await chat.render())
        return RedirectResponse(f"{base_of(request)}{PATH}?{chat.query}", 303)


def _attachments(fields: Mapping[str, str]) -> list[Attachment]:
    """Return the files of a form. The script of the page puts each into a field, with its name in another."""
    found = [(fields.get(f"file_name.{n}", ""), fields[f"file.{n}"]) for n in range(MAX_FILES) if f"file.{n}" in fields]
    try:
        return [attachment_of_base64(data, "", name, name or "the file", max_size=None) for name, data in found]
    except (TypeError, AttachmentError) as error:
        raise ApiError(400, "bad_attachment", str(error)) from None


class _ChatSections:
    """The sections of a conversation. Each call reads the events that are new, and renders the runs that changed."""

    def __init__(self, service: RunService, caller: Caller, base: str, agent: str, session: str) -> None:
        self._service = service
        self._caller = caller
        self._base = base
        self.agent = agent
        self.session = session
        self._exchanges: dict[str, _Exchange] = {}

    @property
    def key(self) -> object:
        """Pages with the same key show the same."""
        return "chat", self._caller.id, self._caller.scopes, self.agent, self.session, self._base

    @property
    def query(self) -> str:
        """The query of the address of this conversation."""
        return urlencode({"agent": self.agent, "session": self.session})

    async def render(self) -> Sections:
        """Render the sections."""
        return await draw_together(("chat-sessions", "chat-state"), self._sections())

    async def _sections(self) -> Sections:
        runs: Sequence[RunRecord] = ()
        if self.session:  # also an admin sees only its own: nobody speaks in the conversation of somebody else
            runs = await self._service.list(
                self._caller, limit=MAX_RUNS, agent=self.agent, session=self.session, owner=self._caller.id
            )
        sections: Sections = await in_thread(self._render, runs[::-1])
        return sections

    def _render(self, runs: Sequence[RunRecord]) -> Sections:
        store, part = self._service.store, partial(draw_all, TEMPLATE, self._base, "chat")
        known = conversations(store, self._caller.id, TRANSPORT, MAX_CONVERSATIONS)
        made = part(("sessions",), known=known, agent=self.agent, session=self.session)
        for run in runs:
            exchange, id = self._exchanges.setdefault(run.id, _Exchange()), f"chat-{run.id}"
            made[id] = draw(
                id, partial(exchange.render, self._service, run, self._base), tag="article", into="chat-log"
            )
            if run.status == "waiting":
                for row in reversed(self._service.approvals.rows(status="pending", root_id=run.id)):
                    next = f"{PATH}?{self.query}"
                    made[card_id(row.id)] = approval_card(row, self._caller, {}, self._base, next, "chat-asks")
        unfinished = next_run(runs)
        return made | part(("state",), run=unfinished, agent=self.agent, caller=self._caller)


def next_run(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that is being executed; of several, the first."""
    return next((run for run in runs if not run.is_over), None)


class _Exchange:
    """A message and its answer, built from the events of the run."""

    def __init__(self) -> None:
        self._built = EventsView()
        self._files: list[str] = []
        self._shown: tuple[Any, ...] = ()
        self._html = ""

    def render(self, service: RunService, run: RunRecord, base: str) -> str:
        """Return the HTML of the exchange."""
        while found := service.store.events(run.id, self._built.seq):
            for event in found:
                fields = add_event(self._built, event)
                if event.type == "task_taken":
                    files = fields.get("attachments", ())
                    self._files = [each.get("name") or each.get("media_type", "") for each in files]
        shown = self._built.seq, run.status
        if shown != self._shown:
            items = [item for step in self._built.view.steps for item in step.items]
            self._html = fragment(
                TEMPLATE,
                base,
                section="exchange",
                run=run,
                files=self._files,
                calls=[item for item in items if isinstance(item, ToolCallView)],
                draft="" if run.is_over else _draft(items),
                approval_points=("approval_requested", "approval_decided"),
            )
            self._shown = shown
        return self._html


def _draft(items: Sequence[Any]) -> str:
    """Return the text that the model is writing; empty if it called tools instead."""
    last = items[-1] if items else None
    return last.text if isinstance(last, ModelCall) and not last.calls else ""
