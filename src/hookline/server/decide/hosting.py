"""The run of one session: translates questions into what a hosted run is asked, and its decisions into answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from ..._base.frozen import plain
from ..._kernel.errors import CallRefusedError, HookError
from ..._kernel.events import Event
from ..._kernel.payloads import ToolCallRequest
from ..._kernel.points import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
)
from ..._kernel.results import HookAction, Verdict
from ..._kernel.values import ModelResponse, ToolCall
from ..._run.events import ApprovalAsked, ApprovalDecided, TaskTaken
from ..._run.hosted import HostedRun, Judged, Settled
from ..._run.hosted_model import HostedModelCalls
from ...hooks.approvals import ApprovalPending
from ...stores.callers import Caller
from ..approvals import QuestionView
from ..live_run import LiveRun
from ..runs import RunService
from .answers import Allow, Answer, Answered, Ask, Block, End, KeepGoing, PendingApproval, Retry, Stop
from .questions import Asked

_NO_ANSWER = "The model has no answer."


class Waiting(msgspec.Struct):
    """A call that approvers are asked about. ``approval`` is there if it waits in the store."""

    digest: str
    questions: tuple[str, ...]
    approval: str = ""
    expires: float = 0.0


class DecidedRun:
    """The open run of a session."""

    def __init__(self) -> None:
        self._live: LiveRun
        self._hosted: HostedRun
        self._model: HostedModelCalls
        self._taken = TaskTaken()
        self._waiting: dict[str, Waiting] = {}
        self._changed = asyncio.Event()
        self._busy = 0
        self._last = time.monotonic()
        self.is_over = False
        """Whether the caller has ended the run."""

    @classmethod
    async def open(
        cls, service: RunService, caller: Caller, asked: Asked, agent: str, correlation_id: str, transport: str
    ) -> DecidedRun:
        """Begin the run of a session with its first question.

        Raises:
            ServiceError: no runs are accepted now.
            StoreError: the run cannot be stored.
            HookError, CallRefusedError: a hook failed closed at the start of the run.
        """
        run = cls()
        task = asked.payload if asked.point == ON_RUN_START else None
        run._live, run._hosted = await service.host(
            caller,
            None if task is None else task.task,
            agent=agent,
            session=asked.session,
            attachments=() if task is None else task.attachments,
            correlation_id=correlation_id,
            transport=transport,
            sink=run._on_event,
        )
        run._model = HostedModelCalls(run._hosted)
        return run

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._live.record.id

    def touch(self) -> None:
        """Note that the caller still asks."""
        self._last = time.monotonic()

    def is_idle(self, since: float) -> bool:
        """Whether nobody has asked anything since this time, and no question is open."""
        return not self._busy and self._last < since

    def start(self, work: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        """Judge a question in a task of its own: it goes on if the caller disconnects."""
        self._busy += 1
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, _: object) -> None:
        self._busy -= 1
        self._last = time.monotonic()
        self._changed.set()

    async def close(self, reply: str = "") -> None:
        """End the run, because its session goes on without it."""
        if not self._hosted.done:
            await self._hosted.end(reply)
        if not self._hosted.done:  # a hook keeps it going, but there is nobody who would go on
            await self._hosted.cancel("nobody asks about this run any more")

    # What the run says while it judges.

    def _on_event(self, event: Event) -> None:
        match event:
            case TaskTaken():
                self._taken = event
            case ApprovalAsked():
                self._waiting[event.call_id] = Waiting(event.digest, event.questions)
            case ApprovalPending():
                if (waiting := self._waiting.get(event.call_id)) is not None:
                    waiting.approval, waiting.expires = event.approval, event.expires
            case ApprovalDecided():
                self._waiting.pop(event.call_id, None)
            case _:
                return
        self._changed.set()

    vars(_on_event)["events"] = frozenset({TaskTaken, ApprovalAsked, ApprovalPending, ApprovalDecided})

    async def until_asked(self, work: asyncio.Task[Any], seconds: float) -> bool:
        """Wait until a task is done, or waits for people. Return whether it waits for people.

        Raises:
            TimeoutError: neither happens within ``seconds``.
        """
        ...
