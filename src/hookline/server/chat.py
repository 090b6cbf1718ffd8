"""Agents for chat clients: the chat completions of OpenAI, where a model is an agent."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._base.text import error_text
from ..stores.errors import StoreError
from ..stores.runs import RunRecord
from .agents import ServedAgent
from .chat_request import Asked, ChatError, ChatRequest, read_request
from .chat_text import Said
from .endpoints import ApiError, Endpoint, caller_of, correlation_of
from .errors import ServiceError, UnavailableError, UnknownAgentError
from .leaving import unless_gone
from .reading import Reader
from .service import RunService
from .sse import SseResponse, in_lines

log = logging.getLogger("hookline")

RUN_HEADER = "X-Hookline-Run"
"""The header with the id of the run that an answer comes from."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_FINAL = {"x-should-retry": "false"}  # the run was, with all that its tools did: to ask again would do it twice
_ENDS = {
    "failed": (500, "the run failed"),
    "cancelled": (500, "the run was cancelled"),
    "interrupted": (503, "the server stopped before the run was over"),
}
_ALIVE = b": the run goes on\n\n"
_COMMENTS = {
    "tool_started": b": a tool runs\n\n",
    "approval_asked": b": a call waits for approval\n\n",
    "approval_decided": _ALIVE,
    "tool_settled": _ALIVE,
}


class Model(msgspec.Struct):
    """An agent, as chat clients list models."""

    id: str
    created: int
    description: str = ""
    object: str = "model"
    owned_by: str = "hookline"


class Models(msgspec.Struct):
    """All of them."""

    data: list[Model]
    object: str = "list"


class Answered(msgspec.Struct):
    """What the agent said."""

    content: str
    role: str = "assistant"
    refusal: str | None = None


class Choice(msgspec.Struct):
    """The answer, and why there is no more of it: ``stop``, ``length`` (a limit) or ``content_filter`` (a guard)."""

    message: Answered
    finish_reason: str
    index: int = 0
    logprobs: None = None


class PromptDetails(msgspec.Struct):
    """What of the prompts was cached."""

    cached_tokens: int


class TokenUsage(msgspec.Struct):
    """Tokens of all model calls of the run."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Completion(msgspec.Struct):
    """The answer of an agent; the id has that of the run."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: TokenUsage
    object: str = "chat.completion"


class ChatApi:
    """``/v1/models`` and ``/v1/chat/completions``. See docs/guides/openai.md.

    Args:
        service: runs the agents.
    """

    def __init__(self, service: RunService) -> None:
        self._service, self._since = service, int(time.time())

    def endpoints(self) -> list[Endpoint]:
        """What can be asked for."""
        return [
            Endpoint(
                "GET", "/v1/models", self._models, ("read", "run"), "list_models", "The agents, as models of OpenAI.",
                answer=Models, told=openai_error,
            ),
            Endpoint(
                "GET", "/v1/models/{model}", self._model, ("read", "run"), "get_model", "An agent, as a model.",
                answer=Model, told=openai_error, problems=(404,),
            ),
            Endpoint(
                "POST", "/v1/chat/completions", self._complete, ("run",), "chat_completions",
                "Run an agent, as a chat completion of OpenAI; with `stream`, the answer is a stream of chunks.",
                body=ChatRequest, answer=Completion, told=openai_error, problems=(400, 404, 500, 503),
            ),
        ]  # fmt: skip

    async def _models(self, request: Request) -> Response:
        return _json(Models([self._described(agent) for agent in self._service.agents.list()]))

    async def _model(self, request: Request) -> Response:
        try:
            agent, _, _ = self._service.agents.find(request.path_params["model"])
        except UnknownAgentError as error:
            raise _unknown(error) from None
        return _json(self._described(agent))

    def _described(self, agent: ServedAgent) -> Model:
        return Model(agent.name, self._since, agent.description)

    async def _complete(self, request: Request) -> Response:
        asked = read_request(await request.body())
        run, reader = await self._begin(request, asked)
        if asked.stream:
            return self._stream(run, reader, usage=asked.usage)
        said = Said(live=False)
        try:
            await unless_gone(request.receive, _read(reader, said))
        except StoreError as error:
            raise _unreadable(run, error) from None
        finally:
            reader.close()
        if said.status in _ENDS:
            raise _failed(run, said)
        choice = Choice(Answered(said.text), said.finish_reason)
        return _json(Completion(_id(run), int(run.created), run.agent, [choice], _usage(said)), run)

    async def _begin(self, request: Request, asked: Asked) -> tuple[RunRecord, Reader]:
        caller = caller_of(request)
        try:
            run = await self._service.start(
                caller, asked.task, agent=asked.model, history=asked.history, transport="openai",
                correlation_id=correlation_of(request),
            )  # fmt: skip
        except UnknownAgentError as error:
            raise _unknown(error) from None
        try:
            return run, await self._service.read(run.id, caller)
        except (ServiceError, StoreError):
            await self._service.cancel(run.id, caller, "its caller could not be answered")
            raise

    def _stream(self, run: RunRecord, reader: Reader, *, usage: bool) -> Response:
        chunks, heartbeat = self._chunks(run, reader, usage=usage), self._service.options.heartbeat
        response = SseResponse(lambda _: anext(chunks, None), reader.close, heartbeat=heartbeat, resumes=False)
        response.headers[RUN_HEADER] = run.id
        return response

    async def _chunks(self, run: RunRecord, reader: Reader, *, usage: bool) -> AsyncGenerator[bytes, None]:
        about = {"created": int(run.created), "model": run.agent}
        head = {"id": _id(run), "object": "chat.completion.chunk", **about}
        unknown = {"usage": None} if usage else {}

        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return _data({**head, "choices": [choice], **unknown})

        yield chunk({"role": "assistant", "content": ""})
        said, comment = Said(live=self._service.options.chat_stream == "live"), _ALIVE
        try:
            while (events := await reader.more(self._service.options.heartbeat)) is not None:
                text = "".join(map(said.take, events))
                told = [_COMMENTS[event.type] for event in events if event.type in _COMMENTS]
                comment = told[-1] if told else comment
                yield (chunk({"content": text}) if text else b"") + (b"" if events and not told else comment)
        except StoreError as error:
            yield _data(openai_error(_unreadable(run, error)))
            return
        if said.status in _ENDS:
            yield _data(openai_error(_failed(run, said)))
            return
        yield chunk({}, said.finish_reason)
        if usage:
            yield _data({**head, "choices": [], "usage": _usage(said)})
        yield b"data: [DONE]\n\n"


def openai_error(error: ApiError) -> dict[str, Any]:
    """An error as clients of OpenAI read it."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = getattr(error, "param", None)
    return {"error": {"message": str(error), "type": kind, "param": param, "code": error.code}}


async def _read(reader: Reader, said: Said) -> None:
    async for event in reader:
        said.take(event)


def _unknown(error: UnknownAgentError) -> ChatError:
    return ChatError(404, "model_not_found", str(error), "model")


def _failed(run: RunRecord, said: Said) -> ChatError:
    status, what = _ENDS[said.status]
    message = f"{what}: {said.error}" if said.error else what
    return ChatError(status, f"run_{said.status}", message, headers={RUN_HEADER: run.id, **_FINAL})


def _unreadable(run: RunRecord, error: StoreError) -> ChatError:
    log.error("the events of the run %s cannot be read: %s", run.id, error_text(error))
    message = f"the run {run.id} goes on, but its events cannot be read now"
    return ChatError(503, UnavailableError.code, message, headers={RUN_HEADER: run.id, **_FINAL})


def _id(run: RunRecord) -> str:
    return f"chatcmpl-{run.id}"


def _usage(said: Said) -> TokenUsage:
    used = said.usage
    cached = PromptDetails(used.cached_tokens)
    return TokenUsage(used.input_tokens, used.output_tokens, used.total_tokens, cached)


def _data(value: Any) -> bytes:
    return b"data: " + in_lines(msgspec.json.encode(value)) + b"\n\n"


def _json(value: Any, run: RunRecord | None = None) -> Response:
    headers = {RUN_HEADER: run.id} if run is not None else None
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")
