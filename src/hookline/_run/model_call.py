"""One model call with its hooks, streaming, retries and failures (DESIGN 4.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from .._base.frozen import History, json_text, private_copy
from .._base.tasks import running_loop
from .._base.text import describe, error_text
from .._kernel.errors import CallRefusedError, HookError, HooklineError, ModelError, OutputError
from .._kernel.payloads import ErrorReport, ModelReply, ModelRequest, TokenDelta
from .._kernel.points import AFTER_LLM, BEFORE_LLM, ON_TOKEN
from .._kernel.results import HookAction, HookAnswer, Verdict
from .._kernel.scope import is_being_closed, is_in_sync_hook
from .._kernel.values import ErrorInfo, Message, ModelResponse, ToolCall, Usage
from ..models.attachments import check_attachments
from ..models.errors import ProviderError
from ..models.protocol import Model
from .boundary import close_stream
from .context import CALLED_MODEL, GatedModel
from .engine import Engine
from .events import Discarded, ModelCalled, ModelReplied, OutputChecked, TextDelta, log
from .output import RunOutput, retry_note
from .termination import RunEndedError, RunStoppedError

MAX_RETRIES = 2

NOTHING = ModelResponse()

_REJECTIONS = (RunEndedError, RunStoppedError, HookError, CallRefusedError)
"""Decisions of hooks about a reply. They are not failures of the model."""

replace = msgspec.structs.replace


async def call_model(engine: Engine, request: ModelRequest, model: Model) -> ModelReply:
    """Call the model and fire ``before_llm``, ``on_token``, ``after_llm`` and ``on_error``. Return the final reply.

    Raises:
        RunEndedError, RunStoppedError: a hook ended or stopped the run, or a guard rejected the last attempt.
        HookError: a hook failed closed; the reply is not used.
        ModelError: the model failed, and no hook retried or answered.
        OutputError: the final reply does not match the output type, and no retries are left.
    """
    outer = CALLED_MODEL.get()
    CALLED_MODEL.set(model)
    try:
        return await _call_model(engine, request, engine.boundary.model(model))
    finally:
        CALLED_MODEL.set(outer)


async def _call_model(engine: Engine, request: ModelRequest, model: Model) -> ModelReply:
    inside_step = request.purpose == "step"
    attempt = 1
    extra: tuple[Message, ...] = ()
    rejected = 0  # replies that did not match the output type, which have a separate limit
    while True:
        base = request
        if attempt > 1:
            engine.checkpoint(inside_step=inside_step)
            base = replace(request, attempt=attempt, messages=(*request.messages, *extra))
        if engine.services.halts and not engine.boundary.is_direct:
            await engine.boundary.wait_while_halted(engine)
        if inside_step and (note := engine.budget.note()):  # only in this request, not in the transcript
            base = replace(base, messages=(*base.messages, Message("user", note)))
        answer: HookAnswer | None = None
        if engine.has_listeners(BEFORE_LLM):
            verdict = await engine.fire(BEFORE_LLM, base)
            base, answer = verdict.payload, verdict.answer
        engine.checkpoint(inside_step=inside_step)
        generation = Generation(engine, base, model, engine.environment.clock.monotonic())
        no_retry = "" if attempt - rejected <= MAX_RETRIES else "retry_limit"
        complete = False
        try:
            if answer is not None:
                await generation.use_answer(answer)
            elif (retry := await _get_reply(generation, no_retry)) is not None:
                attempt, extra = attempt + 1, retry
                continue
            complete = True
            judged: Verdict | None = None
            if engine.has_listeners(AFTER_LLM):
                received = generation.reply(for_hooks=True)
                judged = await engine.fire(AFTER_LLM, received, no_retry=no_retry)
                reply: ModelReply = judged.payload
            else:
                received = reply = generation.reply(for_hooks=False)
            if judged is None or judged.action is not HookAction.RETRY:
                if reply.tool_calls is not received.tool_calls:
                    reply = replace(reply, tool_calls=_with_unique_ids(engine, reply.tool_calls))
                elif reply.tool_calls is not generation.response.tool_calls:  # hooks got copies
                    reply = replace(reply, tool_calls=generation.response.tool_calls)
                problem = ""
                if inside_step and engine.output is not None:
                    problem = await _output_problem(generation, engine.output, reply, rejected)
                if not problem:
                    changed = reply.content != received.content
                    if (changed or generation.held) and engine.has_listeners(ON_TOKEN):
                        await generation.settle(reply.content, changed=changed)
                    if inside_step:
                        engine.shown = (reply.hop, reply.attempt) if generation.shown else None
                    if engine.has_consumers:
                        emit_reply(engine, reply)
                    return reply
                rejected += 1
                note = retry_note(problem)
            elif no_retry:  # a guard rejected the last attempt; the signal to stop is set
                raise RunStoppedError
            else:
                generation.discard("retry")
                note = judged.value or "That reply was rejected. Try again."
        except BaseException as cause:
            if generation.shown:
                generation.discard("rejected" if complete and isinstance(cause, _REJECTIONS) else "interrupted")
            raise
        attempt, extra = attempt + 1, (_as_text(reply), Message("user", note))


def _server_of(model: Model | None) -> str:
    """Return the base URL of a model's API without a password; empty if it has none."""
    try:
        parts = urlsplit(str(getattr(model, "base_url", "") or ""))
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else ""


async def _get_reply(generation: Generation, no_retry: str) -> tuple[Message, ...] | None:
    """Get a reply from the model. On a failure, fire ``on_error``, where a hook may answer or retry.

    Return the messages to add to the next attempt, or ``None`` if there is a reply.
    """
    engine, request = generation.engine, generation.request
    if engine.has_consumers:
        generation.announce()
    try:
        await engine.wrap(request, generation.ask())
    except _REJECTIONS:
        raise
    except (Exception, asyncio.CancelledError, GeneratorExit) as error:
        if isinstance(error, asyncio.CancelledError) and engine.cancellation.is_cancelling():
            raise
        if isinstance(error, GeneratorExit) and is_being_closed(engine):
            raise
        verdict = await _fire_on_error(engine, error, request, generation.model, no_retry)
        if generation.shown:
            generation.discard("interrupted")
        if verdict.action is HookAction.RETRY:
            return (Message("user", verdict.value),) if verdict.value else ()
        if verdict.answer is None:
            if isinstance(error, ModelError):
                raise
            raise ModelError(describe(error)) from error
        await generation.use_answer(verdict.answer)
    return None


class Generation(msgspec.Struct):
    """One attempt to get a reply.

    ``text`` is what the model wrote, ``passed`` the part that ``on_token`` let through, and ``shown`` the part that
    consumers of the stream got. They differ while ``held`` is true: a hook may still reject the reply.
    """

    engine: Engine
    request: ModelRequest
    model: Model
    began: float
    number: int = 0
    response: ModelResponse = NOTHING
    source: str = "model"
    text: str = ""
    passed: str = ""
    shown: str = ""
    held: bool = False

    def announce(self) -> None:
        """Emit an event for the request."""
        request = self.request
        if not self.engine.wants(ModelCalled):  # do not collect the names of all tools for nothing
            return
        self.engine.emit(
            ModelCalled,
            model=request.model,
            hop=request.hop,
            attempt=request.attempt,
            purpose=request.purpose,
            messages=len(request.messages),
            tools=tuple([tool.name for tool in request.tools]),
            provider=self.model.provider,
            server=_server_of(CALLED_MODEL.get()),
        )

    def discard(self, reason: Literal["retry", "replaced", "rejected", "interrupted"]) -> None:
        """Emit an event that the streamed text is void."""
        request, self.shown = self.request, ""
        self.engine.emit(Discarded, hop=request.hop, attempt=request.attempt, purpose=request.purpose, reason=reason)

    async def ask(self) -> None:
        """Get the reply from the model, streamed if a hook or a consumer wants the pieces."""
        self._check_attachments()
        if self.engine.has_listeners(ON_TOKEN):
            await self.stream()
        else:
            self.store(await self.model.complete(self.request))

    def _check_attachments(self) -> None:
        """Check that the model takes the attachments of the request, before anything is sent.

        Only messages that the last request did not have are searched for attachments: a search of the whole history in
        each step would grow with the square of its length.
        """
        engine, messages = self.engine, self.request.messages
        new = messages.tail_after(engine.without_attachments) if type(messages) is History else None
        for message in messages if new is None else new:
            if message.attachments:
                check_attachments(self.model, messages)
                return
        engine.without_attachments = messages

    async def stream(self) -> None:
        """Stream the reply and fire ``on_token`` for each piece."""
        request = self.request
        if not hasattr(self.model, "stream"):
            self.store(await self.model.complete(request))
            await self._show(self.response.content, final=True)
            return
        pieces = self.model.stream(request)
        complete: ModelResponse | None = None
        try:
            async for piece in pieces:
                if isinstance(piece, ModelResponse):
                    complete = piece
                    break
                self.text += piece
                await self._show(piece)
            if complete is None:
                raise ModelError(f"the stream of model {self.model.name!r} ended without its final response")
            streamed = bool(self.text)
            self.store(complete)
            await self._show("" if streamed else self.response.content, final=True)
        except _REJECTIONS:
            if complete is None:
                self.store(self._partial())
            await self._observe_shown()
            raise
        except BaseException:
            await close_stream(pieces)  # stop the model before counting, which may take a moment
            if self.text and complete is None:
                self._charge_partial()
            raise
        finally:
            await close_stream(pieces)

    async def use_answer(self, answer: HookAnswer) -> None:
        """Use the answer of a hook as the reply."""
        response: ModelResponse = answer.value
        self.source, self.text, self.passed = answer.hook, "", ""
        self.number = 0  # hooks at on_token must not continue the text of a model that failed
        self.response = self._checked(response if response.cost is not None else replace(response, cost=0.0))
        if self.engine.has_listeners(ON_TOKEN):
            try:
                await self._show(response.content, final=True)
            except _REJECTIONS:
                await self._observe_shown()
                raise

    def reply(self, *, for_hooks: bool = True) -> ModelReply:
        """Return the payload of ``after_llm``. Hooks get copies of the arguments."""
        response, request, model = self.response, self.request, self.model
        calls = response.tool_calls
        if for_hooks and calls:
            calls = tuple([replace(call, arguments=private_copy(call.arguments)) for call in calls])
        duration = self.engine.environment.clock.monotonic() - self.began
        return ModelReply(
            response.content,
            calls,
            request.hop,
            request.attempt,
            request.purpose,
            response.usage,
            response.cost,
            response.finish_reason,
            response.model or model.name,
            response.provider or model.provider,
            response.organization_id,
            duration,
            request,
            self.source,
            request.ids,
            response.id,
        )

    async def _show(self, delta: str, *, final: bool = False) -> None:
        engine = self.engine
        self.held = self.held or engine.holds_text()
        if self.held or engine.fires(ON_TOKEN):
            token = self._token(delta, self.text or (delta if final else ""), final=final)
            if self.held:
                self.passed += (await engine.judge(ON_TOKEN, token)).delta
                return
            delta = (await engine.fire(ON_TOKEN, token)).payload.delta
        self.passed += delta
        self._emit_text(delta)

    async def settle(self, content: str, *, changed: bool) -> None:
        """Show the text of a reply that no hook can reject any more, as far as it was not shown.

        Args:
            content: the text after ``after_llm``.
            changed: whether a hook changed it there. Then it passes ``on_token`` like every other text that is shown.
        """
        if not changed:
            if self.held:
                token = self._token(self.passed, self.text or self.passed, final=True)
                await self.engine.observe(ON_TOKEN, token, published=True)
                self._emit_text(self.passed[len(self.shown) :])
            return
        if content == self.shown:
            return
        if not content.startswith(self.shown):
            self.discard("replaced")
        self.number = 0
        rest = content[len(self.shown) :]
        verdict = await self.engine.fire(ON_TOKEN, self._token(rest, content, final=True))
        self._emit_text(verdict.payload.delta)

    def _token(self, delta: str, text: str, *, final: bool) -> TokenDelta:
        request = self.request
        if not self.number:
            self.engine.generations += 1
            self.number = self.engine.generations
        return TokenDelta(delta, text, request.hop, final, request.purpose, request.ids, self.number)

    def _emit_text(self, text: str) -> None:
        if text:
            request = self.request
            self.shown += text
            self.engine.emit(TextDelta, text=text, hop=request.hop, purpose=request.purpose)

    async def _observe_shown(self) -> None:
        """Call the observers of ``after_llm`` with the part of an interrupted reply that ``on_token`` let through."""
        self.response = replace(self.response, content=self.passed, tool_calls=())
        await self.engine.observe(AFTER_LLM, self.reply())

    def _charge_partial(self) -> None:
        try:
            partial = self._partial()
        except Exception:  # noqa: BLE001 - the error that interrupted the stream is raised
            log.exception("model %r failed to count the tokens of an interrupted reply", self.model.name)
        else:
            self.engine.run_state.charge(partial.usage, partial.cost)

    def _partial(self) -> ModelResponse:
        """Return the received part of an interrupted stream, with an estimate of its usage."""
        usage = Usage(self.model.count_tokens(self.request.messages), self.model.count_tokens(self.text))
        price = getattr(self.model, "price", None)
        return ModelResponse(self.text, usage=usage, finish_reason="stop", cost=None if price is None else price(usage))

    def store(self, response: Any) -> None:
        """Store a whole reply of the model, and count its usage."""
        self.response = checked = self._checked(response)
        self.engine.run_state.charge(checked.usage, checked.cost)

    def _checked(self, response: Any) -> ModelResponse:
        if not isinstance(response, ModelResponse):
            raise ModelError(f"model {self.model.name!r} returned {type(response).__name__}, not a ModelResponse")
        calls = _with_unique_ids(self.engine, response.tool_calls) if response.tool_calls else ()
        if calls is response.tool_calls and response.content is not None:
            return response
        return replace(response, content=response.content or "", tool_calls=calls)


def _as_text(reply: ModelReply) -> Message:
    """Return a rejected reply as a message for the next request, with its tool calls as text."""
    calls = [f"{call.name}({json_text(call.arguments)})" for call in reply.tool_calls]
    return Message("assistant", "\n".join(part for part in (reply.content, *calls) if part))


def _with_unique_ids(engine: Engine, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Return calls with ids that are unique in this transcript."""
    if len(calls) == 1 and type(calls) is tuple and calls[0].id and calls[0].id not in engine.run_state.call_ids:
        return calls
    unique: dict[str, ToolCall] = {}
    for call in calls:
        fresh = bool(call.id) and call.id not in engine.run_state.call_ids and call.id not in unique
        kept = call if fresh else replace(call, id=engine.environment.new_id("call"))
        unique[kept.id] = kept
    return tuple(unique.values())


async def _fire_on_error(
    engine: Engine, error: BaseException, request: ModelRequest, model: Model, no_retry: str
) -> Verdict:
    wait = error.retry_after if isinstance(error, ProviderError) else None
    info = ErrorInfo("model", type(error).__name__, error_text(error), model.name, fatal=True, retry_after=wait)
    failure = ErrorReport((info,), "model", True, request.purpose, request.hop, request.attempt, request, request.ids)
    try:
        verdict = await engine.report(info, failure=failure, no_retry=no_retry)
    except (HookError, CallRefusedError):  # already reported; the failure of the model is raised
        verdict = None
    return verdict or Verdict(failure)


async def _output_problem(generation: Generation, output: RunOutput, reply: ModelReply, rejected: int) -> str:
    """Return why a final reply does not match the output type; empty if it matches or is not final.

    Raises:
        OutputError: it does not match, and no retries are left.
    """
    if reply.tool_calls:
        output.accepted = None
        return ""
    engine, left = generation.engine, output.retries - rejected
    failure: OutputError | None = None
    try:
        problem = output.check(reply.content)
        if problem and left <= 0:
            failure = OutputError(output.spec.name, reply.content, problem)
    except OutputError as error:
        problem, failure, left = error.problem, error, 0
    engine.emit(
        OutputChecked,
        output_type=output.spec.name,
        content=reply.content,
        problem=problem,
        output=output.accepted and output.accepted.json,
        retries_left=left,
        hop=reply.hop,
        attempt=reply.attempt,
    )
    if problem:
        generation.discard("retry" if failure is None else "rejected")
    if failure is not None:
        with suppress(HookError, CallRefusedError):  # already reported; the failure of the output is raised
            await engine.report(ErrorInfo("output", "OutputError", error_text(failure), reply.model, fatal=True))
        raise failure
    return problem


def emit_reply(engine: Engine, reply: ModelReply) -> None:
    """Emit an event for a reply that is used."""
    if not engine.wants(ModelReplied):  # do not collect the fields for nothing
        return
    engine.emit(
        ModelReplied,
        content=reply.content,
        tool_calls=reply.tool_calls,
        hop=reply.hop,
        attempt=reply.attempt,
        purpose=reply.purpose,
        usage=reply.usage,
        cost=reply.cost,
        finish_reason=reply.finish_reason,
        model=reply.model,
        provider=reply.provider,
        organization_id=reply.organization_id,
        duration=reply.duration,
        source=reply.source,
    )


def make_gated_model(engine: Engine, model: Model) -> GatedModel:
    """Create ``ctx.llm`` for a run (DESIGN 4.8)."""
    return GatedModel(model, partial(_start_gated, engine), engine.environment)


def _start_gated(engine: Engine, model: Model, request: ModelRequest) -> Awaitable[ModelReply]:
    if running_loop() is None or is_in_sync_hook():
        raise HooklineError("ctx.llm is async: define this hook or tool with 'async def' and await ctx.llm.complete()")
    return _call_gated(engine, model, replace(request, hop=engine.hop, ids=engine.ids))


async def _call_gated(engine: Engine, model: Model, request: ModelRequest) -> ModelReply:
    try:
        engine.checkpoint(inside_step=False)
        return await call_model(engine, request, model)
    except RunEndedError as ended:
        message = f"the call was ended by hook {ended.hook!r}"
        raise CallRefusedError(
            message, status="ended", reply=ended.reply, hook=ended.hook, reason=ended.reason
        ) from ended
    except RunStoppedError as stopped:
        raise CallRefusedError("the run is stopping", status="stopped") from stopped
    except HookError as error:
        raise CallRefusedError(str(error), status="failed", hook=error.hook) from error
    except ModelError as error:
        raise CallRefusedError(str(error), status="failed") from error
