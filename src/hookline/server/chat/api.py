"""The endpoints ``/v1/models`` and ``/v1/chat/completions``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..._base.attachment import AttachmentError
from ..._base.text import error_text
from ..._base.workers import in_thread
from ...stores.errors import StoreError
from ...stores.runs import RunRecord, StoredEvent
from ..agents import ServedAgent
from ..errors import ApiError, ServiceError, UnavailableError, UnknownAgentError
from ..live_run import EventReader
from ..routing import Endpoint, caller_of, correlation_of, json_response, until_disconnect
from ..runs import RunService
from ..sse import SseResponse, escape_line_breaks
from .reply import ChatReply
from .request import ChatError, ChatRequest, ChatTask, parse_request

log = logging.getLogger("hookline")

RUN_HEADER = "X-Hookline-Run"
"""The response header with the id of the run."""

LARGE_BODY = 50_000
"""Size in bytes of a request body from which it is converted in a thread."""

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_NO_RETRY = {"x-should-retry": "false"}  # tools have already been called: a retry would repeat their effects
_FAILURES = {
    "failed": (500, "the run failed"),
    "cancelled": (500, "the run was cancelled"),
    "interrupted": (503, "the server stopped before the run was over"),
}
_HEARTBEAT = b": the run goes on\n\n"
_COMMENTS = {
    "tool_started": b": a tool runs\n\n",
    "approval_asked": b": a call waits for approval\n\n",
    "approval_decided": _HEARTBEAT,
    "tool_settled": _HEARTBEAT,
}


class Model(msgspec.Struct):
    """An agent, as chat clients list models."""

    id: str
    created: int
    description: str = ""
    object: str = "model"
    owned_by: str = "hookline"


class Models(msgspec.Struct):
    """The agents, as a list of models."""

    data: list[Model]
    object: str = "list"


class CompletionMessage(msgspec.Struct):
    """The reply of the agent."""

    content: str
    role: str = "assistant"
    refusal: str | None = None


class Choice(msgspec.Struct):
    """The reply, and why it ends there: ``stop``, ``length`` (a limit) or ``content_filter`` (a guard)."""

    message: CompletionMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class PromptDetails(msgspec.Struct):
    """The cached part of the prompts."""

    cached_tokens: int


class TokenUsage(msgspec.Struct):
    """The tokens of all model calls of the run."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Completion(msgspec.Struct):
    """The response of an agent. The id contains the id of the run."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: TokenUsage
    object: str = "chat.completion"


class ChatApi:
    """The endpoints of the chat completions API. See docs/guides/openai.md.

    Args:
        service: runs the agents.
    """

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._converting = asyncio.Lock()
        self._started = int(time.time())

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint(
                "GET",
                "/v1/models",
                self._models,
                ("read", "run"),
                "list_models",
                "List the agents as models (OpenAI API)",
                response=Models,
                error_body=openai_error,
                slash=True,
            ),
            Endpoint(
                "GET",
                "/v1/models/{model}",
                self._model,
                ("read", "run"),
                "get_model",
                "Get an agent as a model (OpenAI API)",
                response=Model,
                error_body=openai_error,
                slash=True,
                errors=(404,),
            ),
            Endpoint(
                "POST",
                "/v1/chat/completions",
                self._complete,
                ("run",),
                "chat_completions",
                "Run an agent as a chat completion (OpenAI API); with `stream`, the response is a stream of chunks",
                body=ChatRequest,
                response=Completion,
                error_body=openai_error,
                slash=True,
                errors=(400, 404, 500, 503),
            ),
        ]

    async def _models(self, request: Request) -> Response:
        return json_response(Models([self._describe(agent) for agent in self._service.agents.list()]))

    async def _model(self, request: Request) -> Response:
        try:
            agent = self._service.agents.find(request.path_params["model"])
        except UnknownAgentError as error:
            raise _unknown_model(error) from None
        return json_response(self._describe(agent))

    def _describe(self, agent: ServedAgent) -> Model:
        return Model(agent.name, self._started, agent.description)

    async def _complete(self, request: Request) -> Response:
        body = await request.body()
        if len(body) > LARGE_BODY:  # with thousands of messages: other requests must not wait until it is converted
            async with self._converting:  # several threads would take turns with the event loop, and delay it too
                task = await in_thread(parse_request, body)
        else:
            task = parse_request(body)
        run, reader = await self._start(request, task)
        if task.stream:
            return self._stream(run, reader, usage=task.usage)
        reply = ChatReply(live=False)
        try:
            await until_disconnect(request.receive, _read_all(reader, reply))
        except StoreError as error:
            raise _unreadable(run, error) from None
        finally:
            reader.close()
        if reply.status in _FAILURES:
            raise _failed(run, reply)
        choice = Choice(CompletionMessage(reply.text), reply.finish_reason)
        completion = Completion(_completion_id(run), int(run.created), run.agent, [choice], _usage(reply))
        return json_response(completion, headers={RUN_HEADER: run.id})

    async def _start(self, request: Request, task: ChatTask) -> tuple[RunRecord, EventReader]:
        caller = caller_of(request)
        try:
            run = await self._service.start(
                caller,
                task.task,
                agent=task.model,
                history=task.history,
                attachments=task.attachments,
                transport="openai",
                correlation_id=correlation_of(request),
            )
        except UnknownAgentError as error:
            raise _unknown_model(error) from None
        except AttachmentError as error:
            raise ChatError(400, "invalid_request", str(error), "messages") from None
        try:
            return run, await self._service.read(run.id, caller)
        except (ServiceError, StoreError):
            await self._service.cancel(run.id, caller, "the response could not be sent to the caller")
            raise

    def _stream(self, run: RunRecord, reader: EventReader, *, usage: bool) -> Response:
        chunks, heartbeat = self._chunks(run, reader, usage=usage), self._service.options.heartbeat
        response = SseResponse(lambda _: anext(chunks, None), reader.close, heartbeat=heartbeat, resumable=False)
        response.headers[RUN_HEADER] = run.id
        return response

    async def _chunks(self, run: RunRecord, reader: EventReader, *, usage: bool) -> AsyncGenerator[bytes, None]:
        head = {
            "id": _completion_id(run),
            "object": "chat.completion.chunk",
            "created": int(run.created),
            "model": run.agent,
        }
        no_usage = {"usage": None} if usage else {}

        def chunk(delta: Mapping[str, Any], finish: str | None = None, **extra: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return _data({**head, "choices": [choice], **no_usage, **extra})

        def content(events: Sequence[StoredEvent]) -> bytes:
            """Return the chunks for these events. A chunk with ``withdrawn`` withdraws text."""
            chunks, text = b"", ""
            for event in events:
                text += reply.add_event(event)
                if withdrawn := reply.take_withdrawn():
                    chunks += (chunk({"content": text}) if text else b"") + chunk({}, withdrawn=withdrawn)
                    text = ""
            return chunks + (chunk({"content": text}) if text else b"")

        yield chunk({"role": "assistant", "content": ""})
        reply, comment = ChatReply(live=self._service.options.chat_stream == "live"), _HEARTBEAT
        try:
            while (events := await reader.more(self._service.options.heartbeat)) is not None:
                chunks = content(events)
                comments = [_COMMENTS[event.type] for event in events if event.type in _COMMENTS]
                comment = comments[-1] if comments else comment
                yield chunks + (b"" if events and not comments else comment)
        except StoreError as error:
            yield _data(openai_error(_unreadable(run, error)))
            return
        if reply.status in _FAILURES:
            yield _data(openai_error(_failed(run, reply)))
            return
        yield chunk({}, reply.finish_reason)
        if usage:
            yield _data({**head, "choices": [], "usage": _usage(reply)})
        yield b"data: [DONE]\n\n"


def openai_error(error: ApiError) -> dict[str, Any]:
    """Return the body of an error in the format of OpenAI."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = getattr(error, "param", None)
    return {"error": {"message": str(error), "type": kind, "param": param, "code": error.code}}


async def _read_all(reader: EventReader, reply: ChatReply) -> None:
    async for event in reader:
        reply.add_event(event)


def _unknown_model(error: UnknownAgentError) -> ChatError:
    return ChatError(404, "model_not_found", str(error), "model")


def _failed(run: RunRecord, reply: ChatReply) -> ChatError:
    status, failure = _FAILURES[reply.status]
    message = f"{failure}: {reply.error}" if reply.error else failure
    return ChatError(status, f"run_{reply.status}", message, headers={RUN_HEADER: run.id, **_NO_RETRY})


def _unreadable(run: RunRecord, error: StoreError) -> ChatError:
    log.error("the events of the run %s cannot be read: %s", run.id, error_text(error))
    message = f"the run {run.id} goes on, but its events cannot be read now"
    return ChatError(503, UnavailableError.code, message, headers={RUN_HEADER: run.id, **_NO_RETRY})


def _completion_id(run: RunRecord) -> str:
    return f"chatcmpl-{run.id}"


def _usage(reply: ChatReply) -> TokenUsage:
    usage = reply.usage
    return TokenUsage(usage.input_tokens, usage.output_tokens, usage.total_tokens, PromptDetails(usage.cached_tokens))


def _data(value: Any) -> bytes:
    return b"data: " + escape_line_breaks(msgspec.json.encode(value)) + b"\n\n"
