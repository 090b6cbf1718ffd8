"""The page to talk with an agent. The chat component shows it; the parts of a conversation are made here."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from ..._base.attachment import Attachment, AttachmentError, attachment_of_base64
from ..._base.text import visible_json
from ..._base.workers import in_thread
from ..._web.chat.page import chat_markup
from ..._web.chat.protocol import (
    SUGGESTIONS,
    Asked,
    Chat,
    Chats,
    Draft,
    Message,
    NewDecision,
    NewFile,
    NewMessage,
    NewStop,
    Part,
    Prompt,
    Ready,
    Settings,
    Speaker,
    StepCard,
    Verdict,
    Work,
    chat_of,
    is_id,
)
from ...explain.from_events import EventsView
from ...explain.view import ModelCall, ToolCallView, is_waiting
from ...explain.words import DECISIONS, OUTCOMES, gate_of, verb_words
from ...stores.approvals import ApprovalRow, exact_pattern
from ...stores.callers import Caller
from ...stores.errors import StoreError
from ...stores.run_queries import conversations
from ...stores.runs import RunRecord
from ..approvals import ApprovalService
from ..errors import ApiError
from ..routing import Endpoint, body_of, caller_of, correlation_of
from ..runs import RunService
from .approvals import decision_of
from .live import LiveViews
from .login import page_endpoint
from .render import base_of, page, static_url
from .sections import Sections, add_event

log = logging.getLogger("hookline")

T = TypeVar("T")

PATH = "/console/chat"
TRANSPORT = "console"
"""How runs that begin here are marked. The page lists the conversations with such runs."""
MAX_RUNS = 20
"""Number of messages of a conversation that the page shows, with their answers."""
MAX_CONVERSATIONS = 40
MAX_TEXT = 100_000
NOT_SHOWN = "This part of the conversation could not be shown. The log of the server says why."

_APPROVAL_POINTS = ("approval_requested", "approval_decided")
_FAILED = ("failed", "interrupted")
_STATES: Mapping[str, tuple[str, str]] = {
    "ok": ("done", "grey"),
    "running": ("running", "blue"),
    "waits for approval": ("waits for approval", "violet"),
}


class ChatPage:
    """The page at ``/console/chat``.

    Args:
        service: runs the agents.
        approvals: decides about calls.
        live: keeps open pages up to date.
    """

    def __init__(self, service: RunService, approvals: ApprovalService, live: LiveViews) -> None:
        self._service = service
        self._approvals = approvals
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = (
            ("GET", PATH, self._show, ("read",), "console_chat"),
            ("GET", f"{PATH}/stream", self._stream, ("read",), "console_chat_stream"),
            ("POST", f"{PATH}/messages", self._send, ("run",), "console_chat_send"),
            ("POST", f"{PATH}/decisions", self._decide, ("approve",), "console_chat_decide"),
            ("POST", f"{PATH}/stop", self._stop, ("run",), "console_chat_stop"),
        )
        return [page_endpoint(method, path, handler, scopes, name) for method, path, handler, scopes, name in pages]

    async def _show(self, request: Request) -> Response:
        chat = self._conversation(request, request.query_params.get("session", ""))
        sections = await self._live.show(request, chat.key, chat.parts)
        parts = {name: part for name, part in sections.items() if isinstance(part, Part) and name != "ready"}
        caller, agent = caller_of(request), self._service.agents.find(chat.agent)
        settings = Settings(
            title=agent.name,
            root=f"{base_of(request)}{PATH}/",
            renderer=static_url(request, "text.js"),
            page=f"{base_of(request)}{PATH}",
            owner=caller.id,
            chat=chat.session,
            speakers=tuple(
                Speaker(each.name, each.name, each.description, each.suggestions)
                for each in self._service.agents.list()
            ),
            speaker=agent.name,
            suggestions=SUGGESTIONS,
            max_text=MAX_TEXT,
            max_file=max(0, (self._service.options.max_body - 4 * MAX_TEXT) * 3 // 4),
            may_write=caller.may("run"),
            parts_now=parts,
        )
        markup = Markup(chat_markup(settings))
        return page(request, "chat.html", title="Chat", chat=markup)

    async def _stream(self, request: Request) -> Response:
        chat = self._conversation(request, chat_of(request))
        return await self._live.stream(request, chat.key, chat.parts)

    def _conversation(self, request: Request, session: str) -> _Conversation:
        agent = self._service.agents.find(request.query_params.get("agent", ""))
        caller = caller_of(request)
        return _Conversation(self._service, self._approvals, caller, base_of(request), agent.name, session)

    async def _send(self, request: Request) -> Response:
        given, chat = await body_of(request, NewMessage), self._conversation(request, _named_chat(request))
        if not is_id(given.id):
            raise ApiError(422, "bad_id", "the id of a message has 20 to 64 letters, digits, - and _")
        text, files = given.text.strip(), _attachments(given.files)
        if not text and not files:
            raise ApiError(422, "empty", "write a message first")
        if len(text) > MAX_TEXT:
            raise ApiError(422, "too_long", f"a message has at most {MAX_TEXT:,} characters")
        await self._service.start(
            caller_of(request),
            text or "See the attached files.",
            agent=chat.agent,
            session=chat.session,
            attachments=files,
            task_id=given.id,
            correlation_id=correlation_of(request),
            transport=TRANSPORT,
            idempotency_key=f"chat {given.id}",
            request=[chat.agent, chat.session, hashlib.sha256(msgspec.json.encode(given)).hexdigest()],
        )
        return Response(status_code=204)

    async def _decide(self, request: Request) -> Response:
        given, caller = await body_of(request, NewDecision), caller_of(request)
        row = await self._approvals.find(given.key, caller)
        fields = {name: getattr(given, name) for name in ("decision", "digest", "message", "arguments", "remember")}
        fields |= {f"pattern.{name}": glob for name, glob in (given.pattern or {}).items()}
        await self._approvals.decide(row.id, decision_of(fields, row), caller, correlation_of(request))
        return Response(status_code=204)

    async def _stop(self, request: Request) -> Response:
        await body_of(request, NewStop)
        chat = self._conversation(request, _named_chat(request))
        if (run := next_run(await chat.runs())) is not None:
            await self._service.cancel(run.id, caller_of(request))
        return Response(status_code=204)


def _named_chat(request: Request) -> str:
    if not (session := chat_of(request)):
        raise ApiError(400, "no_chat", "name the conversation in the header X-Chat")
    return session


def _attachments(files: Sequence[NewFile]) -> list[Attachment]:
    try:
        return [
            attachment_of_base64(each.data, "", each.name, each.name or "the file", max_size=None) for each in files
        ]
    except (TypeError, AttachmentError) as error:
        raise ApiError(422, "bad_attachment", str(error)) from None


class _Conversation:
    """A conversation of a caller. Each call reads the events that are new, and makes the parts that changed."""

    def __init__(
        self, service: RunService, approvals: ApprovalService, caller: Caller, base: str, agent: str, session: str
    ) -> None:
        self._service = service
        self._approvals = approvals
        self._caller = caller
        self._base = base
        self.agent = agent
        self.session = session
        self._exchanges: dict[str, _Exchange] = {}

    @property
    def key(self) -> object:
        """Pages with the same key show the same."""
        return "chat", self._caller.id, self._caller.scopes, self.agent, self.session, self._base

    async def runs(self) -> Sequence[RunRecord]:
        """Return the newest runs of the conversation, the oldest first."""
        if not self.session:
            return ()
        # Also an admin sees only its own: nobody speaks in the conversation of somebody else.
        found = await self._service.list(
            self._caller, limit=MAX_RUNS, agent=self.agent, session=self.session, owner=self._caller.id
        )
        return found[::-1]

    async def parts(self) -> Sections:
        """Return the parts of the conversation."""
        runs = await self.runs()
        parts: Sections = await in_thread(self._parts, runs)
        return parts

    def _parts(self, runs: Sequence[RunRecord]) -> Sections:
        made: dict[str, str | msgspec.Struct] = {"ready": Ready()}
        draft, unfinished = Draft(), [run for run in runs if not run.is_over]
        for run in runs:
            exchange = self._exchanges.setdefault(run.id, _Exchange(f"{self._base}/console/runs/{quote(run.id)}"))
            broken: tuple[Message, ...] = (Message(_seq(run), "out", run.created, problem=NOT_SHOWN),)
            messages = _guarded(f"chat-{run.id}", partial(exchange.messages, self._service, run), broken)
            made |= {f"message:{each.seq}": each for each in messages}
            if unfinished and run is unfinished[0]:
                draft = Draft(_id(run), run.agent, exchange.draft)
        waiting = unfinished[0] if unfinished else None
        work = Work() if waiting is None else Work(_id(waiting), len(unfinished) - 1)
        asked = Asked(tuple(self._prompts(runs)))
        chats = _guarded("chat-chats", self._chats, Chats(problem=NOT_SHOWN))
        return {**made, "draft": draft, "work": work, "asked": asked, "chats": chats}

    def _chats(self) -> Chats:
        known = conversations(self._service.store, self._caller.id, TRANSPORT, MAX_CONVERSATIONS)
        return Chats(tuple(Chat(each.session, each.task[:120], each.agent, each.last) for each in known))

    def _prompts(self, runs: Sequence[RunRecord]) -> Sequence[Prompt]:
        store = self._approvals.store
        rows = [
            row
            for run in runs
            if run.status == "waiting"
            for row in reversed(store.rows(status="pending", root_id=run.id))
        ]
        return [_prompt(row, self._caller, self._base) for row in rows]


def _guarded(id: str, make: Callable[[], T], otherwise: T) -> T:
    """Make a part. If that fails, return another one, and log the error: one part must not take the page down."""
    try:
        return make()
    except (StoreError, ApiError):
        raise
    except Exception:
        log.exception("the section %s of a page of the console could not be drawn", id)
        return otherwise


def _prompt(row: ApprovalRow, caller: Caller, base: str) -> Prompt:
    single = row.needed + len(row.approved_by) == 1  # two people approve a call as it is, and once
    scopes = ("once", *(("session",) if row.session_id else ()), "always")
    return Prompt(
        key=row.id,
        agent=row.agent,
        tool=row.tool,
        arguments=visible_json(row.arguments),
        digest=row.digest,
        expires=row.expires,
        questions=tuple(
            f"{each.hook or 'A hook'} asks: {each.text}{f' ({each.reason})' if each.reason else ''}"
            for each in row.questions
        ),
        remember=scopes if single else ("once",),
        pattern=exact_pattern(row.arguments) if single else None,
        objection=row.objection(caller.id),
        needed=row.who_is_needed,
        exact=not single,
        readonly=not caller.may("approve"),
        link=f"{base}/console/runs/{quote(row.root_id)}",
    )


def next_run(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that is being executed; of several, the first."""
    return next((run for run in runs if not run.is_over), None)


def _seq(run: RunRecord) -> int:
    """Return the place of the message that a run answers. Those of its steps and its reply follow."""
    return int(run.created * 1_000_000) * 3


def _id(run: RunRecord) -> str:
    return run.task_id or run.id


class _Exchange:
    """A message and its answer, built from the events of the run."""

    def __init__(self, link: str) -> None:
        self._built = EventsView()
        self._link = link
        self._files: list[str] = []
        self._shown: tuple[Any, ...] = ()
        self._messages: tuple[Message, ...] = ()
        self.draft = ""
        """The text that the model is writing; empty if it called tools instead."""

    def messages(self, service: RunService, run: RunRecord) -> tuple[Message, ...]:
        """Return the message, the steps and the reply, as far as there are any."""
        while found := service.store.events(run.id, self._built.seq):
            for event in found:
                fields = add_event(self._built, event)
                if event.type == "task_taken":
                    files = fields.get("attachments", ())
                    self._files = [each.get("name") or each.get("media_type", "") for each in files]
        shown = self._built.seq, run.status
        if shown != self._shown:
            items = [item for step in self._built.view.steps for item in step.items]
            last = items[-1] if items and not run.is_over else None
            self.draft = last.text if isinstance(last, ModelCall) and not last.calls else ""
            self._messages = tuple(self._made(run, items))
            self._shown = shown
        return self._messages

    def _made(self, run: RunRecord, items: Sequence[Any]) -> list[Message]:
        seq, id = _seq(run), _id(run)
        text = " ".join([*(f"[{name}]" for name in self._files), run.task])
        made = [Message(seq, "in", run.created, text, id=id)]
        calls = [item for item in items if isinstance(item, ToolCallView)]
        if calls:
            steps = tuple(_step(call, is_over=run.is_over) for call in calls)
            made.append(Message(seq + 1, "out", run.created, to=id, speaker=run.agent, link=self._link, steps=steps))
        if run.is_over:
            why = ": ".join(filter(None, (run.status, run.error or run.reason)))
            failed, at = run.status in _FAILED, run.ended or run.created
            made.append(
                Message(
                    seq + 2,
                    "out",
                    at,
                    run.reply,
                    to=id,
                    speaker=run.agent,
                    link=self._link,
                    problem=why if failed else "",
                    note="" if failed or run.status == "completed" else why,
                )
            )
        return made


def _step(call: ToolCallView, *, is_over: bool) -> StepCard:
    """Return a tool call with its verdicts."""
    decisions = [each for moment in call.moments if moment.point not in _APPROVAL_POINTS for each in moment.decisions]
    spoken = [each for each in decisions if each.error or each.verb not in ("", "cont")]
    verdicts = []
    for each in spoken:
        verb = "failed" if each.error else each.verb
        word, tone = verb_words(verb)
        gate = "waits" if verb == "ask" and is_waiting(call) else gate_of(verb)
        verdicts.append(Verdict(word, tone, gate, each.hook, each.reason))
    if call.decision:
        by = f"by {call.decided_by}" if call.decided_by else ""
        tone = DECISIONS.get(call.decision, "grey")
        verdicts.append(Verdict(call.decision, tone, gate_of(call.decision), reason=by))
    state = call.outcome
    if not state and any(each.verb == "block" for each in spoken):
        state = "blocked"
    elif not state and call.questions and not call.decision and not is_over:
        state = "waits for approval"
    elif not state:
        state = "not run" if is_over else "next" if call.began is None else "running"
    word, tone = _STATES.get(state) or (state, OUTCOMES.get(state, "grey"))
    arguments = "\n".join(f"{name}: {value}" for name, value in call.arguments)
    return StepCard(call.tool, word, tone, arguments=arguments, verdicts=tuple(verdicts))
