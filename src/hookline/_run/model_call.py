"""One model call, with everything around it: hooks, streaming, retries, failures (DESIGN 4.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, cast

import msgspec

from .._base.frozen import json_text
from .._base.names import describe, words
from .._base.tasks import running_loop
from .._kernel.dispatch import PLAIN
from .._kernel.errors import CallRefused, HookError, HooklineError, ModelError
from .._kernel.payloads import Failure, ModelReply, ModelRequest, TokenDelta
from .._kernel.points import AFTER_LLM, BEFORE_LLM, ON_TOKEN
from .._kernel.results import HookAction, Verdict
from .._kernel.tally import How
from .._kernel.values import ErrorInfo, Message, ModelResponse, ToolCall, Usage
from ..models.errors import ProviderError
from ..models.protocol import Model
from .causes import Ended, Stopped
from .course import Course
from .events import Discarded, ModelCalled, ModelReplied, TextDelta, log
from .llm import GatedModel

MAX_RETRIES = 2

NOTHING = ModelResponse()

replace = msgspec.structs.replace


async def call_model(loop: Course, request: ModelRequest, model: Model) -> ModelReply | ModelResponse:
    """Ask the model, through ``before_llm``, ``on_token``, ``after_llm`` and ``on_error``.

    Gives what left ``after_llm``; the bare response where nobody listens there.

    Raises:
        Ended, Stopped: a hook said so.
        HookError: a hook failed closed; the reply is not used.
        ModelError: the model failed and no hook mended it.
    """
    attempt, inside_step = 1, request.purpose == "step"
    if loop.ctx.outside is not None:
        model = loop.ctx.outside.model(model)
    extra: tuple[Message, ...] = ()
    while True:
        base = request
        if attempt > 1:
            loop.checkpoint(inside_step=inside_step)
            base = replace(request, attempt=attempt, messages=(*request.messages, *extra))
        if inside_step and (note := loop.budget.note()):  # for this request only, never in the transcript
            base = replace(base, messages=(*base.messages, Message("user", note)))
        asked, answer = base, None
        if BEFORE_LLM in loop.heard:
            verdict = await loop.fire(BEFORE_LLM, base)
            loop.checkpoint(inside_step=inside_step)
            asked, answer = verdict.payload, verdict.answer
        generation = Generation(loop, asked, model, loop.ctx.clock.monotonic())
        how = PLAIN if attempt <= MAX_RETRIES else How(no_retry="retry_limit")
        if answer is not None:
            await generation.serve(answer.value, answer.hook)
        else:
            if loop.ctx.listening and loop.ctx.wants(ModelCalled):
                generation.announce()
            try:
                if loop.wrappers:
                    await loop.around(asked, generation.ask())
                elif ON_TOKEN in loop.heard:
                    await generation.stream()
                else:
                    generation.take(await model.complete(asked))
            except (Ended, HookError, CallRefused):
                raise
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and (loop.cancelling or loop.ctx.is_cancelled()):
                    raise
                mended = await _put_to_on_error(loop, error, asked, model, how)
                if generation.text:
                    loop.ctx.emit(Discarded, hop=asked.hop, attempt=attempt, purpose=asked.purpose)
                if mended.action is HookAction.RETRY:
                    attempt, extra = attempt + 1, _note(mended.value)
                    continue
                if mended.answer is None:
                    if isinstance(error, ModelError):
                        raise
                    raise ModelError(describe(error)) from error
                await generation.serve(mended.answer.value, mended.answer.hook)
        loop.listen()
        if AFTER_LLM not in loop.heard and inside_step:
            return generation.response
        received = generation.reply()
        verdict = await loop.fire(AFTER_LLM, received, how)
        reply: ModelReply = verdict.payload
        if verdict.action is not HookAction.RETRY:
            if reply.tool_calls is not received.tool_calls:
                reply = replace(reply, tool_calls=_distinct(loop, reply.tool_calls))
            _emit_reply(loop, reply)
            return reply
        loop.ctx.emit(Discarded, hop=asked.hop, attempt=attempt, purpose=asked.purpose)
        note = verdict.value or "That reply was rejected. Try again."
        attempt, extra = attempt + 1, (_rejected(reply), Message("user", note))


class Generation(msgspec.Struct):
    """One attempt at getting a reply."""

    loop: Course
    request: ModelRequest
    model: Model
    began: float
    number: int = 0
    response: ModelResponse = NOTHING
    source: str = "model"
    text: str = ""
    shown: str = ""

    def announce(self) -> None:
        """Tell those who listen that the request goes out."""
        request = self.request
        self.loop.ctx.emit(
            ModelCalled, model=request.model, hop=request.hop, attempt=request.attempt, purpose=request.purpose,
            messages=len(request.messages), tools=tuple([tool.name for tool in request.tools]),
            provider=self.model.provider,
        )  # fmt: skip

    async def ask(self) -> None:
        """Get the reply from the model, the way that somebody wants it."""
        if ON_TOKEN in self.loop.heard:
            await self.stream()
        else:
            self.take(await self.model.complete(self.request))

    async def stream(self) -> None:
        """Get the reply from the model piece by piece, each through ``on_token``."""
        request = self.request
        if not hasattr(self.model, "stream"):
            self.take(await self.model.complete(request))
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
            streamed = bool(self.text)
            self.take(complete if complete is not None else self._partial())
            await self._show("" if streamed else self.response.content, final=True)
        except (Ended, HookError, CallRefused):
            if complete is None:
                self.take(self._partial())
            await self._withdraw()
            raise
        except BaseException:
            await _close(pieces)  # the model stops first: counting may take a moment
            if self.text and complete is None:
                self._charge_partial()
            raise
        finally:
            await _close(pieces)

    async def serve(self, response: ModelResponse, hook: str) -> None:
        """Take a hook's answer for the reply."""
        self.response, self.source, self.text = response, hook, ""
        if response.cost is None:
            self.response = replace(response, cost=0.0)
        self.response = self._checked(self.response)
        if ON_TOKEN in self.loop.heard:
            try:
                await self._show(response.content, final=True)
            except (Ended, HookError):
                await self._withdraw()
                raise

    def reply(self) -> ModelReply:
        """The reply as ``after_llm`` sees it."""
        response, request, model = self.response, self.request, self.model
        return ModelReply(
            response.content, response.tool_calls, request.hop, request.attempt, request.purpose, response.usage,
            response.cost, response.finish_reason, response.model or model.name, response.provider or model.provider,
            response.organization_id, self.loop.ctx.clock.monotonic() - self.began, request, self.source, request.ids,
        )  # fmt: skip

    async def _show(self, delta: str, *, final: bool = False) -> None:
        request, text = self.request, self.text or (delta if final else "")
        if not self.number:
            self.loop.generations += 1
            self.number = self.loop.generations
        verdict = await self.loop.fire(
            ON_TOKEN, TokenDelta(delta, text, request.hop, final, request.purpose, request.ids, self.number)
        )
        if verdict.payload.delta:
            self.shown += verdict.payload.delta
            self.loop.ctx.emit(TextDelta, text=verdict.payload.delta, hop=request.hop, purpose=request.purpose)

    async def _withdraw(self) -> None:
        """Tell the observers of ``after_llm`` of a reply that ``on_token`` broke off: what was shown, and no more."""
        self.response = replace(self.response, content=self.shown, tool_calls=())
        await self.loop.fire(AFTER_LLM, self.reply(), How(start="observe"))

    def _charge_partial(self) -> None:
        try:
            partial = self._partial()
        except Exception:  # noqa: BLE001 - what broke the stream off is what counts
            log.exception("model %r cannot count a reply that was broken off", self.model.name)
        else:
            self.loop.ctx.charge(partial.usage, partial.cost)

    def _partial(self) -> ModelResponse:
        """What there is of a stream that was broken off, with an estimate of its usage."""
        usage = Usage(self.model.count_tokens(self.request.messages), self.model.count_tokens(self.text))
        price = getattr(self.model, "price", None)
        return ModelResponse(self.text, usage=usage, finish_reason="stop", cost=None if price is None else price(usage))

    def take(self, response: Any) -> None:
        """Take in a whole reply of the model and charge it."""
        self.response = checked = self._checked(response)
        self.loop.ctx.charge(checked.usage, checked.cost)

    def _checked(self, response: Any) -> ModelResponse:
        if not isinstance(response, ModelResponse):
            raise ModelError(f"model {self.model.name!r} returned {type(response).__name__}, not a ModelResponse")
        calls = _distinct(self.loop, response.tool_calls) if response.tool_calls else ()
        if calls is response.tool_calls and response.content is not None:
            return response
        return replace(response, content=response.content or "", tool_calls=calls)


async def _close(pieces: Any) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


def _note(text: str) -> tuple[Message, ...]:
    return (Message("user", text),) if text else ()


def _rejected(reply: ModelReply) -> Message:
    """A rejected reply for the next request: its calls as text, never as open calls."""
    calls = [f"{call.name}({json_text(call.arguments)})" for call in reply.tool_calls]
    return Message("assistant", "\n".join(part for part in (reply.content, *calls) if part))


def _distinct(loop: Course, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Calls with ids that no other call of this transcript has."""
    if len(calls) == 1 and type(calls) is tuple and calls[0].id and calls[0].id not in loop.ctx.call_ids:
        return calls
    distinct: dict[str, ToolCall] = {}
    for call in calls:
        fresh = bool(call.id) and call.id not in loop.ctx.call_ids and call.id not in distinct
        kept = call if fresh else replace(call, id=loop.ctx.new_id("call"))
        distinct[kept.id] = kept
    return tuple(distinct.values())


async def _put_to_on_error(
    loop: Course, error: BaseException, request: ModelRequest, model: Model, how: How
) -> Verdict:
    wait = error.retry_after if isinstance(error, ProviderError) else None
    info = ErrorInfo("model", type(error).__name__, words(error), model.name, fatal=True, retry_after=wait)
    failure = Failure((info,), "model", True, request.purpose, request.hop, request.attempt, request, request.ids)
    try:
        verdict = await loop.report(info, failure=failure, how=how)
    except (HookError, CallRefused):  # it is reported; the model's own failure stands
        verdict = None
    return verdict or Verdict(failure)


def _emit_reply(loop: Course, reply: ModelReply) -> None:
    if loop.ctx.listening and loop.ctx.wants(ModelReplied):
        loop.ctx.emit(
            ModelReplied, content=reply.content, tool_calls=reply.tool_calls, hop=reply.hop, attempt=reply.attempt,
            purpose=reply.purpose, usage=reply.usage, cost=reply.cost, finish_reason=reply.finish_reason,
            model=reply.model, provider=reply.provider, organization_id=reply.organization_id,
            duration=reply.duration, source=reply.source,
        )  # fmt: skip


def gated(loop: Course, model: Model) -> GatedModel:
    """``ctx.llm`` for a run: its calls pass the hooks and the budget (DESIGN 4.8)."""
    return GatedModel(model, partial(_begin_gated, loop), loop.ctx)


def _begin_gated(loop: Course, model: Model, request: ModelRequest) -> Awaitable[ModelReply]:
    if running_loop() is None or loop.ctx.entry is not None:
        raise HooklineError("ctx.llm is async: write this hook or tool as 'async def' and await ctx.llm.complete()")
    return _ask_gated(loop, model, replace(request, hop=loop.hop, ids=loop.ctx.ids))


async def _ask_gated(loop: Course, model: Model, request: ModelRequest) -> ModelReply:
    loop.listen()  # the hook or tool that asks may have registered one
    try:
        loop.checkpoint(inside_step=False)
        return cast(ModelReply, await call_model(loop, request, model))
    except Ended as ended:
        message = f"the call was ended by hook {ended.hook!r}"
        raise CallRefused(message, status="ended", reply=ended.reply, hook=ended.hook, reason=ended.reason) from ended
    except Stopped as stopped:
        raise CallRefused("the run is stopping", status="stopped") from stopped
    except HookError as error:
        raise CallRefused(str(error), status="failed", hook=error.hook) from error
    except ModelError as error:
        raise CallRefused(str(error), status="failed") from error
