"""The open runs of callers that ask about single moments: one run at a time for each session."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from ..._kernel.points import ON_RUN_START
from ..._run.environment import make_id
from ...stores.callers import Caller
from ..concurrency import KeyedLocks
from ..errors import BusyError, ConflictError, IdempotencyError, ServiceError
from ..runs import RunService
from .answers import Answer
from .hosting import DecidedRun, Decision
from .questions import Asked

KEPT = 10_000
"""Number of questions whose answers are kept, so that they can be asked for again."""
SWEEP_SECONDS = 5.0
"""Interval in seconds at which sessions without questions are looked for."""


class UnknownDecisionError(ServiceError):
    """There is no such question: it was asked at another server, before a restart, or long ago. Treat it as blocked."""

    code = "unknown_decision"
    status = 404


class Sessions:
    """Answer questions, each in the open run of its session.

    Args:
        service: runs the agents.
    """

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._options = service.options
        self._runs: OrderedDict[tuple[str, str, str], DecidedRun] = OrderedDict()
        self._open: Counter[str] = Counter()
        """The number of open sessions of each caller."""
        self._opening = KeyedLocks()
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._keys: OrderedDict[tuple[str, str], tuple[bytes, asyncio.Future[Decision]]] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to end the runs of sessions without questions."""
        self._sweeping = asyncio.create_task(self._sweep(), name="hookline-decide")

    async def close(self) -> None:
        """Stop doing that."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    @property
    def count(self) -> int:
        """The number of open sessions."""
        return len(self._runs)

    async def ask(
        self, caller: Caller, asked: Asked, correlation_id: str, transport: str, *, key: str = "", body: bytes = b""
    ) -> Answer:
        """Judge a question, and return the answer.

        Args:
            caller: who asks.
            asked: the question.
            correlation_id: connects a run that begins with its cause.
            transport: the API that the question came through.
            key: an idempotency key: a question that is sent again gets the answer of the first.
            body: the question as it was sent, which must be the same whenever the key is used.

        Raises:
            ServiceError: the question cannot be judged now, or its key was used for another one.
            StoreError: a run that begins cannot be stored.
        """
        decision = await self._keyed(caller, key, body, lambda: self._begin(caller, asked, correlation_id, transport))
        return await decision.answer(asked.wait)

    async def again(self, id: str, caller: Caller, seconds: float) -> tuple[Asked, Answer]:
        """Return an earlier question and its answer, and wait for it at most ``seconds``.

        Raises:
            UnknownDecisionError: this caller asked no such question here.
        """
        decision = self._decisions.get(id)
        if decision is None or decision.owner != caller.id:
            raise UnknownDecisionError(
                f"there is no decision {id!r:.80}: treat it as blocked, and ask again if the action is still wanted"
            )
        decision.run.touch()
        return decision.asked, await decision.answer(seconds)

    async def _keyed(self, caller: Caller, key: str, body: bytes, begin: Callable[[], Awaitable[Decision]]) -> Decision:
        if not key:
            return await begin()
        digest, known = hashlib.sha256(body).digest(), self._keys.get((caller.id, key))
        if known is not None:
            if known[0] != digest:
                raise IdempotencyError("this Idempotency-Key was used for a different question: use a new key for each")
            return await asyncio.shield(known[1])
        begun: asyncio.Future[Decision] = asyncio.ensure_future(begin())
        self._keys[caller.id, key] = digest, begun
        if len(self._keys) > KEPT:
            self._keys.popitem(last=False)
        try:
            return await asyncio.shield(begun)
        except Exception:
            self._keys.pop((caller.id, key), None)  # nothing was judged: the question may be asked again
            raise

    async def _begin(self, caller: Caller, asked: Asked, correlation_id: str, transport: str) -> Decision:
        run = await self._run_of(caller, asked, correlation_id, transport)
        decision = Decision(make_id("decision"), caller.id, run, asked, self._options.decide_seconds)
        self._decisions[decision.id] = decision
        if len(self._decisions) > KEPT:
            self._decisions.popitem(last=False)
        return decision

    async def _run_of(self, caller: Caller, asked: Asked, correlation_id: str, transport: str) -> DecidedRun:
        """Return the open run of a session. A task begins a new one, and so does the first question.

        Raises:
            ConflictError: the caller believes to be in another run.
        """
        agent = self._service.agents.answerer(asked.agent).name
        session = caller.id, agent, asked.session
        async with self._opening.hold(session):
            run = self._runs.get(session)
            if run is not None and (run.is_left or (run.is_over and not run.is_ended_by_caller)):
                self._remove(session)
                run = None
            if asked.run and (run is None or run.id != asked.run):
                raise ConflictError(
                    f"the run {asked.run} is not open here: its server was restarted, or its session was idle for too "
                    "long. Begin a new one with on_run_start"
                )
            if run is not None and asked.point == ON_RUN_START:
                self._remove(session)
                await run.close()
                run = None
            if run is None:
                await self._make_room(caller)
                run = await DecidedRun.open(self._service, caller, asked, agent, correlation_id, transport)
                self._runs[session] = run
                self._open[caller.id] += 1
            run.touch()
            self._runs.move_to_end(session)
            return run

    async def _make_room(self, caller: Caller) -> None:
        """End the session of a program that never ends its sessions, if there are too many.

        Raises:
            BusyError: there is none.
        """
        most, in_all = self._options.max_sessions_per_caller, self._options.max_sessions
        if self._open[caller.id] < most and len(self._runs) < in_all:
            return
        for session in [session for session, run in self._runs.items() if run.is_left]:
            self._remove(session)
        own = self._open[caller.id] >= most
        if not own and len(self._runs) < in_all:
            return
        for session, run in self._runs.items():  # the one that was used least recently comes first
            if not run.is_ended_by_caller and run.is_idle(time.monotonic()) and (not own or session[0] == caller.id):
                self._remove(session)
                await run.close()
                return
        raise BusyError(f"too many sessions are open: the limit is {most} per caller and {in_all} in all")

    def _remove(self, session: tuple[str, str, str]) -> None:
        del self._runs[session]
        self._open[session[0]] -= 1

    async def _sweep(self) -> None:
        """End the runs of sessions in which nobody asks any more."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """End the runs of sessions whose last question came too long ago."""
        since = time.monotonic() - self._options.session_seconds
        for session, run in list(self._runs.items()):
            if run.is_idle(since):
                async with self._opening.hold(session):
                    if self._runs.get(session) is run and run.is_idle(since):
                        self._remove(session)
                        await run.close()
