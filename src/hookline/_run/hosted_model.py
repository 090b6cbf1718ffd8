"""The model calls of a host, which it announces and reports (DESIGN 6.14)."""

from __future__ import annotations

import msgspec

from .._kernel.payloads import ModelReply, ModelRequest
from .._kernel.points import AFTER_LLM, BEFORE_LLM
from .._kernel.results import HookAction, Verdict
from .._kernel.values import Message, Step
from ..providers.prices import cost_of
from .engine import Engine
from .events import ModelCalled, StepStarted
from .hosted import HostedRun
from .model_call import MAX_RETRIES, emit_reply
from .termination import RunEndedError, RunStoppedError

replace = msgspec.structs.replace


class HostedModelCalls:
    """The model calls of one run: each is judged before and after the host makes it, and counts in the limits.

    Args:
        run: the run.
    """

    def __init__(self, run: HostedRun) -> None:
        self._run = run
        self._steps = 0
        self._rejected: list[str] = []
        """The purposes of the last replies that a hook rejected, one after another."""
        self._request = ModelRequest()

    async def judge(self, request: ModelRequest) -> Verdict:
        """Let the hooks judge a request that the host is about to send. Why it must not is in ``run.over``, if so.

        Raises:
            HookError, CallRefusedError: a hook failed closed.
        """
        return await self._run.work(self._judge(request))

    async def _judge(self, request: ModelRequest) -> Verdict:
        engine = self._run.engine
        request = replace(request, ids=engine.ids, attempt=len(self._rejected) + 1)
        if request.purpose == "step":
            if not self._rejected:
                self._steps += 1
            engine.hop = self._steps - 1
            request = replace(request, hop=engine.hop)
        try:
            engine.checkpoint()
            if (limit := engine.limit_reached()) is not None:
                engine.signal(limit)
                return Verdict(request)
            if request.purpose == "step" and not self._rejected:
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
        if verdict.answer is None:
            _announce(engine, verdict.payload)
        return verdict

    async def settle(self, reply: ModelReply) -> Verdict:
        """Let the hooks judge the reply to the last request. Its tokens and its cost count, whatever they decide.

        Raises:
            HookError, CallRefusedError: a hook failed closed, so the reply must not be used.
        """
        return await self._run.work(self._settle(reply))

    async def _settle(self, reply: ModelReply) -> Verdict:
        engine, request = self._run.engine, self._request
        attempt = len(self._rejected) + 1
        cost = reply.cost
        if cost is None and reply.usage.total_tokens:
            cost = cost_of(reply.usage, *filter(None, (reply.model, request.model)), url=None)
        reply = replace(
            reply, ids=engine.ids, hop=request.hop, attempt=attempt, purpose=request.purpose, request=request, cost=cost
        )
        engine.run_state.charge(reply.usage, cost)
        no_retry = "retry_limit" if attempt > MAX_RETRIES else ""
        try:
            verdict = await engine.fire(AFTER_LLM, reply, no_retry=no_retry, fatal=False)
        except RunEndedError as ended:
            await engine.note_cause(ended)
            return ended.verdict
        except RunStoppedError:
            return Verdict(reply)
        if verdict.action is HookAction.RETRY:
            self._rejected.append(request.purpose)
            return verdict
        self._rejected.clear()
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


def _announce(engine: Engine, request: ModelRequest) -> None:
    if engine.wants(ModelCalled):
        engine.emit(
            ModelCalled,
            model=request.model,
            hop=request.hop,
            attempt=request.attempt,
            purpose=request.purpose,
            messages=len(request.messages),
            tools=tuple([tool.name for tool in request.tools]),
        )
