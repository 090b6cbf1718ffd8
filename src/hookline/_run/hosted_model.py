"""The model calls of a host, which it announces and reports (DESIGN 6.14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from .._kernel.payloads import ErrorReport, ModelReply, ModelRequest
from .._kernel.points import AFTER_LLM, BEFORE_LLM, ON_ERROR
from .._kernel.results import HookAction, Verdict
from .._kernel.values import Message, ModelResponse, Step, Usage
from ..providers.prices import cost_of
from .context import CALLED_MODEL
from .events import ModelCalled, StepStarted
from .hosted import HostedModel, HostedRun
from .loop import withdrawn
from .model_call import MAX_RETRIES, emit_reply
from .termination import RunEndedError, RunStoppedError

replace = msgspec.structs.replace


class CalledModel(HostedModel):
    """The model that a host is about to call, for hooks that count tokens or look for its price."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Refuse the call."""
        yield await self.complete(request)

    def price(self, usage: Usage) -> float | None:
        """Return the price of these tokens in USD, from the price list; ``None`` if it is unknown."""
        return cost_of(usage, self.name, url=None)


class HostedModelCalls:
    """The model calls of one run, one after another: each is judged before and after the host makes it, and counts.

    Args:
        run: the run.
    """

    def __init__(self, run: HostedRun) -> None:
        self._run, self._engine = run, run.engine
        self._steps = 0
        self._rejected = 0
        """How many replies hooks have rejected, one after another."""
        self._request = ModelRequest()
        self._call: asyncio.Task[None] | None = None
        """The call in flight, inside the context managers of the hooks."""
        self._used: asyncio.Future[tuple[Usage, float | None]] | None = None
        """What the call in flight has used, when the host says it."""

    async def judge(self, request: ModelRequest) -> Verdict:
        """Let the hooks judge a request that the host is about to send. If it must not, ``run.over`` says why.

        Raises:
            HookError, CallRefusedError: a hook failed closed.
        """
        if self._call is not None:  # its reply was never reported
            self._call.cancel()
            self._call = None
        verdict = await self._run.work(self._judge(request))
        if not self._run.over and not self._run.is_ended and verdict.answer is None:
            self._announce(verdict.payload)
            self._used = asyncio.get_running_loop().create_future()
            self._call = self._run.begin(self._make(verdict.payload, self._used))
        return verdict

    async def _judge(self, request: ModelRequest) -> Verdict:
        engine = self._engine
        CALLED_MODEL.set(CalledModel(request.model))
        request = replace(request, ids=engine.ids, attempt=self._rejected + 1)
        is_step = request.purpose == "step"
        if is_step:
            self._steps += not self._rejected
            engine.hop = self._steps - 1
            request = replace(request, hop=engine.hop)
        try:
            engine.checkpoint()
            if (limit := engine.limit_reached(steps=is_step and not self._rejected)) is not None:
                engine.signal(limit)
                return Verdict(request)
            if is_step and not self._rejected:
                engine.budget.count_step()
                if engine.has_consumers:
                    engine.emit(StepStarted, index=engine.hop)
            verdict = await engine.fire(BEFORE_LLM, request, fatal=False)
            engine.checkpoint()
        except RunEndedError as ended:
            await engine.note_cause(ended)
            return ended.verdict
        except RunStoppedError:
            return Verdict(request)
        self._request = verdict.payload
        if is_step:
            self._run.withdraw(withdrawn(request, verdict.payload))
        return verdict

    async def _make(self, request: ModelRequest, used: asyncio.Future[tuple[Usage, float | None]]) -> None:
        async def wait() -> None:
            self._engine.run_state.charge(*await used)

        CALLED_MODEL.set(CalledModel(request.model))
        await self._engine.wrap(request, wait())

    async def settle(self, reply: ModelReply) -> Verdict:
        """Let the hooks judge the reply to the last request. Its tokens and its cost count, whatever they decide.

        Raises:
            HookError, CallRefusedError: a hook failed closed, so the reply must not be used.
        """
        request, cost = self._request, reply.cost
        if cost is None and reply.usage.total_tokens:
            cost = cost_of(reply.usage, *filter(None, (reply.model, request.model)), url=None)
        if self._call is not None and self._used is not None and not self._used.done():
            self._used.set_result((reply.usage, cost))
            await self._call
        else:
            self._engine.run_state.charge(reply.usage, cost)
        self._call = None
        settled = replace(
            reply,
            ids=self._engine.ids,
            hop=request.hop,
            attempt=self._rejected + 1,
            purpose=request.purpose,
            request=request,
            cost=cost,
        )
        return await self._run.work(self._settle(settled))

    async def _settle(self, reply: ModelReply) -> Verdict:
        engine = self._engine
        CALLED_MODEL.set(CalledModel(reply.request.model))
        no_retry = "retry_limit" if reply.attempt > MAX_RETRIES else ""
        try:
            verdict = await engine.fire(AFTER_LLM, reply, no_retry=no_retry, fatal=False)
        except RunEndedError as ended:
            await engine.note_cause(ended)
            return ended.verdict
        except RunStoppedError:
            return Verdict(reply)
        if verdict.action is HookAction.RETRY:
            self._rejected += 1
            return verdict
        self._rejected = 0
        used: ModelReply = verdict.payload
        emit_reply(engine, used)
        if used.purpose == "step":
            names = tuple([call.name for call in used.tool_calls])
            engine.run_state.finish_step(
                Step(used.hop, used.content, names, (), used.usage, used.finish_reason, used.duration)
            )
            if used.content and used.tool_calls:  # the calls follow when they are made, the last reply at the end
                engine.run_state.append(Message("assistant", used.content))
        return verdict

    async def fail(self, report: ErrorReport) -> Verdict:
        """Let the hooks judge the failure of a model call: they may want another attempt, or answer in its place.

        Raises:
            HookError, CallRefusedError: a hook failed closed.
        """
        if self._call is not None:
            self._call.cancel()
            self._call = None
        return await self._run.work(self._fail(report))

    async def _fail(self, report: ErrorReport) -> Verdict:
        engine, request, attempt = self._engine, self._request, self._rejected + 1
        failure = replace(
            report, ids=engine.ids, hop=request.hop, attempt=attempt, request=request, purpose=request.purpose
        )
        no_retry = "retry_limit" if attempt > MAX_RETRIES else ""
        for error in failure.errors:
            engine.add_error(error)
        try:
            verdict = await engine.fire(ON_ERROR, failure, no_retry=no_retry, fatal=False)
        except RunEndedError as ended:
            await engine.note_cause(ended)
            return ended.verdict
        except RunStoppedError:
            return Verdict(failure)
        self._rejected = self._rejected + 1 if verdict.action is HookAction.RETRY else 0
        return verdict

    def _announce(self, request: ModelRequest) -> None:
        if self._engine.wants(ModelCalled):
            self._engine.emit(
                ModelCalled,
                model=request.model,
                hop=request.hop,
                attempt=request.attempt,
                purpose=request.purpose,
                messages=len(request.messages),
                tools=tuple([tool.name for tool in request.tools]),
            )
