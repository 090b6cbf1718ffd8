"""The run of one session: translates questions into what a hosted run is asked, and its decisions into answers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

import msgspec

from ..._base.frozen import plain
from ..._base.text import describe
from ..._kernel.errors import CallRefusedError, HookError
from ..._kernel.events import Event
from ..._kernel.payloads import ModelReply, RunStart
from ..._kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_ERROR, ON_RUN_END, ON_RUN_START
from ..._kernel.results import HookAction, HookAnswer, Verdict
from ..._kernel.state import AgentResult
from ..._kernel.values import ModelResponse, StopSignal, ToolCall
from ..._run.events import ApprovalAsked, ApprovalDecided, TaskTaken
from ..._run.hosted import HostedRun, ReportedError, question_of_host
from ..._run.hosted_model import HostedModelCalls
from ..._run.termination import signal_rank
from ...hooks.approvals import ApprovalPending
from ...stores.callers import Caller
from ..live_run import LiveRun
from ..runs import RunService
from .answers import Allow, Answer, Answered, Ask, Block, End, KeepGoing, PendingApproval, Retry, Stop
from .questions import Asked, is_changed

log = logging.getLogger("hookline")

replace = msgspec.structs.replace

LEFT = "nobody asks about this run any more"
"""Why a run is cancelled whose caller has left it, if a hook would keep it going."""
LITELLM = "litellm"
"""The ``transport`` of the runs of LiteLLM."""
REJECTED = "This was rejected. Try again."
"""The note of a hook that wants another attempt without one."""


class DecidedRun:
    """The open run of a session.

    Args:
        live: the run in the list of runs.
        hosted: the run, or the failure of a hook because of which it did not begin.
        opening: what the run said before it was open.
    """

    def __init__(self, live: LiveRun, hosted: HostedRun | Exception, opening: list[TaskTaken]) -> None:
        self._live = live
        self._failure = hosted if isinstance(hosted, Exception) else None
        self._run = hosted
        self._task = opening[0] if opening else TaskTaken()
        self._model = None if isinstance(hosted, Exception) else HostedModelCalls(hosted)
        self._open_questions = 0
        self._last = time.monotonic()
        self.is_left = False
        """Whether the caller has ended the run."""

    @classmethod
    async def open(
        cls, service: RunService, caller: Caller, asked: Asked, agent: str, correlation_id: str, transport: str
    ) -> DecidedRun:
        """Begin the run of a session with its first question.

        Raises:
            ServiceError: no runs are accepted now.
            StoreError: the run cannot be stored.
        """
        start: RunStart = asked.payload if asked.point == ON_RUN_START else RunStart("")
        opening = list[TaskTaken]()

        def on_event(event: Event) -> None:
            if isinstance(event, TaskTaken):
                opening.append(event)
            elif isinstance(decision := question_of_host(), Decision):
                decision.add_event(event)

        vars(on_event)["events"] = frozenset({TaskTaken, ApprovalAsked, ApprovalPending, ApprovalDecided})
        live, hosted = await service.host(
            caller,
            start.task,
            agent=agent,
            session=asked.session,
            attachments=start.attachments,
            correlation_id=correlation_id,
            transport=transport,
            sink=on_event,
        )
        return cls(live, hosted, opening)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._live.record.id

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, whoever ended it."""
        return self._failure is not None or self._hosted.done

    @property
    def is_ended_by_caller(self) -> bool:
        """Whether the caller says when the run is over. LiteLLM does not."""
        return self._live.record.transport != LITELLM

    @property
    def _hosted(self) -> HostedRun:
        assert isinstance(self._run, HostedRun)  # otherwise every question has the same answer
        return self._run

    def begin_question(self) -> None:
        """Note that a question is open."""
        self._open_questions += 1

    def end_question(self) -> None:
        """Note that it is answered."""
        self._open_questions -= 1
        self.touch()

    def touch(self) -> None:
        """Note that the caller still asks."""
        self._last = time.monotonic()

    def is_idle(self, since: float) -> bool:
        """Whether nobody has asked anything since this time, and no question is open."""
        return not self._open_questions and self._last < since

    async def close(self) -> None:
        """End the run, because its caller has left it."""
        if self._failure is None and not self._hosted.done:
            with suppress(HookError, CallRefusedError):  # it is in the errors of the run
                await self._hosted.end()
            await self._hosted.cancel(LEFT)
        await self._listed()

    async def _listed(self) -> None:
        """Wait until the list of runs says that the run is over."""
        assert self._live.task is not None  # the run has begun
        await asyncio.wait([self._live.task])

    # Questions.

    async def judge(self, decision: Decision) -> Answer:
        """Return the answer to a question.

        Raises:
            HookError, CallRefusedError: a hook failed closed.
            CancelledError: the run was cancelled.
        """
        asked, point = decision.asked, decision.asked.point
        if point == ON_RUN_END:
            return await self._end(asked)
        if (over := self.answer_if_over()) is not None:
            return over
        if point == ON_RUN_START:
            judged = RunStart(self._task.task, attachments=self._task.attachments)
            return self._allow(asked, judged, system_prompt=self._hosted.system_prompt)
        if point == BEFORE_TOOL:
            return await self._judge_call(asked, decision)
        if point == AFTER_TOOL:
            return await self._settle_call(asked, decision)
        if point == BEFORE_LLM:
            return await self._judge_request(asked)
        assert self._model is not None  # the run has begun
        if point == AFTER_LLM:
            return await self._answer(asked, await self._model.settle(asked.payload), is_done=True)
        if point == ON_ERROR and asked.payload.where == "model":
            return await self._answer(asked, await self._model.fail(asked.payload), is_done=False)
        verdict = await self._hosted.fire(point, replace(asked.payload, **self._ids(asked)), about=decision)
        return await self._answer(asked, verdict, is_done=str(point).startswith(("after", "on_token")))

    def _ids(self, asked: Asked) -> dict[str, Any]:
        """Return the ids for a payload that has ids."""
        return {"ids": self._hosted.run.ids} if "ids" in asked.payload.__struct_fields__ else {}

    def answer_if_over(self) -> Answer | None:
        """Return the answer to every question about a run that has ended; ``None`` if it goes on."""
        if self._failure is not None:
            return self.failed(self._failure)
        result = self._hosted.result if self._hosted.done else None
        if result is None:
            return Stop(run=self.id, reason="The run has ended.", kind="error") if self._hosted.done else None
        if result.status == "ended":
            return End(run=self.id, reply=result.reply, by=result.hook_ended or "")
        if result.status == "failed":
            return Block(run=self.id, reason="The run has failed.")
        signal = result.stop or StopSignal("completed", "The run has ended.")
        reason = self._live.stop_reason or signal.message or "The run was stopped."
        return Stop(run=self.id, reason=reason, kind=signal.kind, by=signal.hook)

    async def fail(self, error: HookError | CallRefusedError) -> Block:
        """End the run because a hook has failed closed, and return the answer."""
        log.error("%s", describe(error))
        self._failure = error
        await self._hosted.engine.note_cause(error)
        with suppress(HookError, CallRefusedError):  # this one
            await self._hosted.end()
        await self._listed()
        return self.failed(error)

    def failed(self, error: Exception) -> Block:
        """Return the answer to every question about a run that has failed because of a hook."""
        hook = getattr(error, "hook", "")
        return Block(run=self.id, reason=f"Hook {hook!r} failed." if hook else "A hook failed.", by=hook)

    def _allow(self, asked: Asked, payload: Any, system_prompt: str = "") -> Allow:
        changed = is_changed(asked.point, asked.payload, payload)
        return Allow(run=self.id, payload=payload, changed=changed, system_prompt=system_prompt)

    async def _answer(self, asked: Asked, verdict: Verdict, *, is_done: bool) -> Answer:
        """Return the answer for a verdict. ``is_done``: whether what the question is about has already happened."""
        if verdict.action is HookAction.RETRY:
            return self._stop(None) or Retry(run=self.id, note=verdict.value or REJECTED, by=verdict.hook)
        if (over := await self._over(verdict.payload if is_done else None)) is not None:
            return over
        if verdict.action is HookAction.BLOCK:
            return Block(run=self.id, reason=str(verdict.value), by=verdict.hook)
        if verdict.answer is not None:
            return self._answered(verdict.answer)
        return self._allow(asked, verdict.payload)

    async def _over(self, payload: Any) -> Answer | None:
        """Return the answer if a hook has ended or stopped the run."""
        if not self._hosted.is_ended:
            return self._stop(payload)
        await self._hosted.end()
        await self._listed()
        return self.answer_if_over()

    def _stop(self, payload: Any) -> Stop | None:
        if not self._hosted.over:
            return None
        signal = min(self._hosted.engine.run_state.signals, key=signal_rank)
        return Stop(run=self.id, reason=self._hosted.over, kind=signal.kind, by=signal.hook, payload=payload)

    def _answered(self, answer: HookAnswer) -> Answered:
        """Return the answer of a hook in place of a reply of the model."""
        response: ModelResponse = answer.value
        return self._reply(response.content, response.tool_calls, answer.hook, answer.reason)

    def _reply(self, content: str, calls: tuple[ToolCall, ...], by: str, reason: str) -> Answered:
        written = [{"id": call.id, "name": call.name, "arguments": plain(call.arguments)} for call in calls]
        return Answered(run=self.id, value={"content": content, "tool_calls": written}, by=by, reason=reason)

    # Model calls.

    async def _judge_request(self, asked: Asked) -> Answer:
        assert self._model is not None  # the run has begun
        self._hosted.tools.learn(asked.payload.tools)
        verdict = await self._model.judge(asked.payload)
        answer = verdict.answer
        if answer is None or self._hosted.over or self._hosted.is_ended:
            return await self._answer(asked, verdict, is_done=False)
        response: ModelResponse = answer.value  # judged like every reply
        reply = ModelReply(response.content, response.tool_calls, usage=response.usage, cost=0.0, source=answer.hook)
        settled = await self._model.settle(reply)
        allowed = await self._answer(asked._replace(point=AFTER_LLM, payload=reply), settled, is_done=True)
        if not isinstance(allowed, Allow):
            return allowed
        return self._reply(settled.payload.content, settled.payload.tool_calls, answer.hook, answer.reason)

    # Tool calls.

    async def _judge_call(self, asked: Asked, decision: Decision) -> Answer:
        given = asked.payload
        judged = await self._hosted.judge_call(
            ToolCall(given.id, given.name, given.arguments, given.raw), about=decision
        )
        if judged.outcome == "allowed":
            return self._allow(asked, replace(judged.request, id=given.id))
        if judged.failure is not None:
            raise judged.failure
        result = judged.result
        if result is not None and result.outcome == "blocked":
            return Block(run=self.id, reason=result.text, by=judged.by)
        if result is not None and result.outcome == "answered":
            return Answered(run=self.id, value=plain(result.result), by=judged.by)
        if (over := await self._over(None) or self.answer_if_over()) is not None:
            return over
        if self._live.stop_reason:
            return Stop(run=self.id, reason=self._live.stop_reason, kind="user_requested")
        reason = "The call was not allowed." if result is None else result.text
        return Block(run=self.id, reason=reason, by=judged.by)

    async def _settle_call(self, asked: Asked, decision: Decision) -> Answer:
        given = asked.payload
        settled = await self._hosted.settle_call(
            ToolCall(given.id, given.name, given.arguments),
            plain(given.result),
            error=given.error,
            seconds=given.duration or None,
            about=decision,
        )
        if settled.failure is not None:
            raise settled.failure
        result = replace(settled.result, id=given.id)
        if (over := await self._over(result)) is not None:
            return over
        if settled.retry is not None:
            return Retry(run=self.id, note=settled.retry)
        return self._allow(asked, result)

    # The end.

    async def _end(self, asked: Asked) -> Answer:
        if self._failure is not None:
            self.is_left = True
            return self.failed(self._failure)
        given: AgentResult[Any] = asked.payload
        self.is_left = True
        if not self._hosted.done:
            error = ReportedError(given.errors[0].message) if given.errors else None
            if (note := await self._hosted.end(given.reply, error=error)) is not None:
                self.is_left = False
                return KeepGoing(run=self.id, note=note)
        await self._listed()
        result = self._hosted.result
        if result is None or (result.status == "failed" and not given.errors):
            source = result.errors[-1].source if result is not None and result.errors else ""
            return Block(run=self.id, reason=f"Hook {source!r} failed." if source else "The run has failed.", by=source)
        return self._allow(asked, result)


class Decision:
    """A question that is being judged, or was.

    Args:
        id: its id.
        owner: the id of the caller.
        run: its run.
        asked: the question.
        seconds: how long the hooks may take. The time that a call waits for people does not count.
    """

    def __init__(self, id: str, owner: str, run: DecidedRun, asked: Asked, seconds: float) -> None:
        self.id = id
        self.owner = owner
        self.run = run
        self.asked = asked
        self._seconds = seconds
        self._limit: asyncio.Timeout | None = None
        self._left = 0.0
        self._pending: PendingApproval | None = None
        self._waiters: list[asyncio.Future[None]] = []
        run.begin_question()
        self._work = asyncio.create_task(self._judge())
        self._work.add_done_callback(self._wake)

    def add_event(self, event: Event) -> None:
        """Note whether the call waits for people: their time is not that of the hooks."""
        loop, limit = asyncio.get_running_loop(), self._limit
        match event:
            case ApprovalAsked():
                self._pending = PendingApproval("", event.digest, 0.0, event.questions)
                if limit is not None and (when := limit.when()) is not None:
                    self._left = when - loop.time()
                    limit.reschedule(None)
            case ApprovalPending() if self._pending is not None:
                self._pending = replace(self._pending, id=event.approval, expires=event.expires)
            case ApprovalDecided() if self._pending is not None:
                self._pending = None
                if limit is not None:
                    limit.reschedule(loop.time() + self._left)
        self._wake()

    async def answer(self, seconds: float) -> Answer:
        """Return the answer; ``ask`` if the call still waits for people after ``seconds``."""
        until = time.monotonic() + seconds
        while not self._work.done():
            left = until - time.monotonic()
            pending = self._pending
            if pending is not None and left <= 0 and pending.id:
                return Ask(run=self.run.id, decision=self.id, approval=pending)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await asyncio.wait((waiter,), timeout=None if pending is None or not pending.id else left)
        return self._work.result()

    def _wake(self, _: object = None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _judge(self) -> Answer:
        """Judge the question. Whatever goes wrong, the answer lets nothing happen."""
        run = self.run
        try:
            async with asyncio.timeout(self._seconds) as self._limit:
                return await run.judge(self)
        except TimeoutError:
            return Block(run=run.id, reason=f"The hooks did not answer within {self._seconds:g} s.")
        except (HookError, CallRefusedError) as error:
            return await run.fail(error)
        except asyncio.CancelledError:  # of the run
            return run.answer_if_over() or Stop(run=run.id, reason="The run was cancelled.", kind="user_requested")
        except Exception as error:  # whatever it is, nothing may happen because of it
            log.exception("a question about %s could not be judged", self.asked.point)
            return Block(run=run.id, reason=f"The question could not be judged: {type(error).__name__}.")
        finally:
            run.end_question()
