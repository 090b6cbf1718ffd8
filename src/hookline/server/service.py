"""The one service of runs, which every transport uses: start, look, read, steer, cancel."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from socket import gethostname
from typing import Any, Unpack

import msgspec

from .._base.frozen import EMPTY
from .._base.text import error_text
from .._kernel.values import Message
from .._run.context import AgentContext
from .._run.environment import make_id
from .._run.session import Session
from ..stores.approvals import ApprovalStore
from ..stores.errors import StoreError
from ..stores.processes import born
from ..stores.runs import OPEN, RunFilter, RunRecord, RunStore, StoredEvent
from ..stores.sessions import SessionStore
from .agents import Agents
from .callers import Caller
from .errors import Busy, ConflictError, UnavailableError, UnknownRunError
from .idempotency import IdempotencyKeys
from .live import Live
from .options import ServerOptions
from .outcome import closing
from .performing import Performer
from .reading import Reader
from .recorder import Recorder
from .records import RunAccepted

log = logging.getLogger("hookline")

CANCEL_SECONDS = 10.0
"""How long a cancellation waits for the run to be over."""
MAX_UNREAD = 100
"""How many messages may wait until a run takes them in."""
HOUR = 3600.0


class RunService:
    """Runs agents for callers. Runs and their events are stored, and go on whoever reads them or leaves.

    Those of one conversation follow one another; so many go on at once, others wait for their turn. Everything here is
    for one event loop. A caller sees its own runs only, unless it is an admin.

    Args:
        agents: who is served.
        store: stores runs and events.
        approvals: where calls wait for approval.
        sessions: where conversations are kept.
        options: limits, and how long things take.
        context: makes the context of a run, with its budget.
        metadata: what hooks are told in every run.
    """

    def __init__(
        self,
        agents: Agents,
        store: RunStore,
        *,
        approvals: ApprovalStore,
        sessions: SessionStore,
        options: ServerOptions,
        context: Callable[[Session], AgentContext] | None = None,
        metadata: Mapping[str, Any] = EMPTY,
    ) -> None:
        self.agents, self.approvals, self.options = agents, approvals, options
        self._store = store
        context = context or (lambda session: AgentContext(session=session))
        self._performer = Performer(approvals, sessions, options, context, metadata)
        self._recorder = Recorder(store, self._committed, self._stuck)
        self._keys = IdempotencyKeys(store)
        self._live: dict[str, Live] = {}
        self._readers: Counter[str] = Counter()
        self._accepting = self._closing = False
        self._pruned = 0.0
        self._me = gethostname(), os.getpid(), born(os.getpid())

    # Coming and going.

    async def open(self) -> None:
        """Begin: runs that were going on when their program ended are shown as interrupted from now on.

        Raises:
            StoreError: the file cannot be used.
        """
        await self._adopt_all()
        self._accepting = True

    async def drain(self) -> None:
        """Accept no more runs, interrupt those that have not begun, and wait until the others have finished."""
        self._accepting, self._closing = False, True
        for live in list(self._live.values()):
            if live.run is None and not live.closed:
                live.break_off()
        if tasks := self._tasks():
            await asyncio.wait(tasks)

    async def close(self, grace: float | None = None) -> None:
        """Drain for at most ``grace`` seconds, then interrupt the runs that are left and store everything."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.grace if grace is None else grace):
                await self.drain()
        for live in list(self._live.values()):
            if not live.closed:
                live.break_off()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for live in list(self._live.values()):
            if not live.closed and live.task is not None:  # it ignored its cancellation
                live.finish("interrupted", reason="the server stopped")
                live.task.cancel()
        await self._recorder.close(self.options.grace)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [live.task for live in self._live.values() if live.task is not None and not live.task.done()]

    @property
    def problem(self) -> str:
        """Why no runs are taken now; empty if they are."""
        return self._recorder.problem if self._accepting else "the server starts or stops"

    def counts(self) -> dict[str, int]:
        """How many runs of this program are in which state, and how many readers there are."""
        states = Counter(live.record.status for live in self._live.values() if not live.closed)
        return {**{state: states[state] for state in OPEN}, "readers": self._readers.total()}

    def under_way(self) -> list[tuple[RunRecord, str]]:
        """The runs of this program that are not over, in the order in which they came, and what each does now."""
        return [(live.record, live.doing) for live in self._live.values() if not live.closed]

    # What callers do.

    async def start(
        self,
        caller: Caller,
        task: str,
        *,
        agent: str = "",
        session: str = "",
        history: Iterable[Message] | None = None,
        task_id: str = "",
        correlation_id: str = "",
        transport: str = "api",
        once: str = "",
        asked: Any = None,
    ) -> RunRecord:
        """Start a run; it is stored when this returns.

        Args:
            caller: whose it is.
            task: what the caller says.
            agent: the agent; the first one if left out.
            session: the caller's name of a conversation to go on with; a new one if left out.
            history: what was said before, if the caller keeps the conversation itself: then it is not stored here.
            task_id: an id of the task; the run's own if left out.
            correlation_id: ties the run to what caused it.
            transport: the way it came.
            once: a key of the caller's: who starts with it again, gets the run that it started then.
            asked: with ``once``, what was asked for, as JSON: with one key always the same.

        Raises:
            UnknownAgentError: there is none of that name.
            Busy: too many runs go on, or wait.
            IdempotencyError: something else was asked for with that key.
            ConflictError: another program is about to start the run of that key.
            UnavailableError: the server stops, or cannot store the run.
            StoreError: the file of keys cannot be used.
        """
        fresh = make_id("run")
        async with self._keys.run_of(caller.id, once, asked, fresh) as id:
            if id != fresh:
                return await self.get(id, caller)
            run = await self._accept(id, caller, task, agent, session, history, task_id, correlation_id, transport)
        await self._tidy()
        return run

    async def _accept(
        self, id: str, caller: Caller, task: str, agent: str, session: str, history: Iterable[Message] | None,
        task_id: str, correlation_id: str, transport: str,
    ) -> RunRecord:  # fmt: skip
        if self.problem:
            why = "they cannot be stored" if self._accepting else self.problem  # more is in the log: it tells of paths
            raise UnavailableError(f"no runs are taken now: {why}")
        served, answerer, personality = self.agents.find(agent)
        self._check_room(caller)
        name = session or make_id("session")
        key = hashlib.sha256(msgspec.json.encode([caller.id, served.name, name])).hexdigest()[:40]
        record = RunRecord(
            id, served.name, caller.id, name, f"served-{key}", task_id or id, correlation_id or task_id or id,
            transport, task, created=time.time(), host=self._me[0], pid=self._me[1], born=self._me[2],
        )  # fmt: skip
        found = None
        if history is not None:
            found = Session(record.session_id, history, platform=transport, personality_id=personality)
        live = self._live[id] = Live(record, self._recorder.put, lambda: bool(self._recorder.problem))
        live.change()
        live.take(RunAccepted(
            at=record.created, run_id=id, agent=served.name, session=name, task_id=record.task_id,
            correlation_id=record.correlation_id,
        ))  # fmt: skip
        try:
            await self._recorder.flushed()
        except BaseException:
            live.finish("interrupted", error="the run could not be stored")
            raise
        work = self._performer.perform(live, caller, answerer, personality, found)
        live.task = asyncio.create_task(work, name=f"hookline-{id}")
        if not self._accepting:
            live.break_off()
        return live.record

    async def get(self, id: str, caller: Caller) -> RunRecord:
        """A run as it is now.

        Raises:
            UnknownRunError: there is none, or it is somebody else's.
            StoreError: the file cannot be read.
        """
        run = await self._look(id)
        if caller.owner not in (None, run.owner):
            raise _unknown(id)
        return run

    async def list(
        self, caller: Caller, *, limit: int = 50, before: str = "", **chosen: Unpack[RunFilter]
    ) -> list[RunRecord]:
        """The runs that a caller may see, the newest first; arguments as for :meth:`RunStore.runs`.

        Raises:
            StoreError: the file cannot be read.
        """
        if self._recorder.problem == "":
            await self._recorder.flushed()
        await self._adopt_all()
        chosen.update({"served": True, "owner": caller.owner})
        found = await asyncio.to_thread(self._store.runs, limit, before=before, **chosen)
        return [self._now(run) for run in found]

    async def count(self, caller: Caller, **chosen: Unpack[RunFilter]) -> int:
        """The number of runs that a caller may see; arguments as for :meth:`RunStore.count`.

        Raises:
            StoreError: the file cannot be read.
        """
        await self._adopt_all()
        chosen.update({"served": True, "owner": caller.owner})
        return await asyncio.to_thread(self._store.count, **chosen)

    async def read(self, id: str, caller: Caller, after: int = 0) -> Reader:
        """A reader of the events of a run, from the one after that number on. It must be closed.

        Raises:
            UnknownRunError: there is none, or it is somebody else's.
            Busy: there are too many readers.
            StoreError: the file cannot be read.
        """
        run = await self.get(id, caller)
        most = self.options.max_streams_per_caller
        if self._readers[caller.id] >= most or self._readers.total() >= self.options.max_streams:
            raise Busy(f"too many streams are open: {most} of one caller, {self.options.max_streams} in all")
        self._readers[caller.id] += 1

        def close() -> None:
            self._readers[caller.id] -= 1
            if not self._readers[caller.id]:
                del self._readers[caller.id]

        return Reader(run, after, self._store, self._live.get, self._look, close, lambda: self._closing)

    async def wait(self, id: str, caller: Caller, timeout: float | None = None) -> RunRecord:
        """A run, as soon as it is over, or time ran out.

        Raises:
            UnknownRunError: there is none, or it is somebody else's.
            StoreError: the file cannot be read.
        """
        run, live = await self.get(id, caller), self._live.get(id)
        if live is not None and live.task is not None:
            await asyncio.wait([live.task], timeout=timeout)
            run = live.record
        if run.is_over:
            with suppress(UnavailableError):  # what was told must not be gone with the program
                await self._recorder.flushed()
        return run

    async def cancel(self, id: str, caller: Caller, reason: str = "") -> RunRecord:
        """Cancel a run, and give it as it is then; one that is over stays as it is.

        Raises:
            UnknownRunError: there is none, or it is somebody else's.
            ConflictError: it goes on in another program.
            StoreError: the file cannot be read.
        """
        run, live = await self.get(id, caller), self._live.get(id)
        if live is None or live.closed:
            if run.is_over:
                return run
            raise ConflictError(f"the run {id} goes on in another program: cancel it there")
        live.stop(reason or f"cancelled by {caller.name}")
        return await self.wait(id, caller, timeout=CANCEL_SECONDS)

    async def steer(self, id: str, caller: Caller, text: str) -> RunRecord:
        """Put a message into a run.

        Raises:
            UnknownRunError: there is none, or it is somebody else's.
            ConflictError: it is not going on.
            Busy: it has not taken in too many others.
            StoreError: the file cannot be read.
        """
        run, live = await self.get(id, caller), self._live.get(id)
        if live is not None and live.unread >= MAX_UNREAD:
            raise Busy(f"the run {id} has not taken in {live.unread} messages yet: wait until it has")
        if live is None or live.run is None or live.stopping or not live.run.steer(text):
            raise ConflictError(f"the run {id} is {run.status}: it takes no messages now")
        live.unread += 1
        return live.record

    # What is stored.

    def _committed(self, events: Sequence[StoredEvent]) -> None:
        last = {event.run_id: event.seq for event in events}
        for run_id, seq in last.items():
            live = self._live.get(run_id)
            if live is None:
                continue
            live.committed(seq)
            if live.closed and seq == live.record.last_seq:
                del self._live[run_id]  # from now on it is read from the file

    def _stuck(self) -> None:
        for live in self._live.values():
            live.wake()

    async def _look(self, id: str) -> RunRecord:
        live = self._live.get(id)
        if live is not None:
            return live.record
        run = await asyncio.to_thread(self._store.get, id)
        if run is None or not run.is_served:
            raise _unknown(id)
        run = self._now(run)
        return await self._adopt(id) if run.is_abandoned else run

    def _now(self, run: RunRecord) -> RunRecord:
        live = self._live.get(run.id)
        return run if live is None else live.record

    async def _adopt_all(self) -> None:
        for run in await asyncio.to_thread(self._store.abandoned):
            await asyncio.to_thread(self._store.close_abandoned, run.id, _interrupted)

    async def _adopt(self, id: str) -> RunRecord:
        """See to a run whose program is gone: it has a last event, and is over."""
        run = await asyncio.to_thread(self._store.close_abandoned, id, _interrupted)
        if run is None:
            raise _unknown(id)
        return run

    def _check_room(self, caller: Caller) -> None:
        going = [live for live in self._live.values() if not live.closed]
        own = sum(live.record.owner == caller.id for live in going)
        if own >= self.options.max_runs_per_caller:
            raise Busy(f"{own} runs of yours go on or wait, which is the limit: wait for one, or cancel it")
        if len(going) >= self.options.max_runs + self.options.max_queued:
            raise Busy("too many runs wait for their turn: try again later")

    async def _tidy(self) -> None:
        if time.monotonic() > self._pruned + HOUR:
            self._pruned = time.monotonic()
            try:
                await asyncio.to_thread(self._store.prune_served, self.options.keep_days)
            except StoreError as error:
                log.error("old runs stay: %s", error_text(error))


def _unknown(id: str) -> UnknownRunError:
    return UnknownRunError(f"there is no run {id!r:.80}")


def _interrupted(run: RunRecord, seq: int) -> tuple[RunRecord, StoredEvent]:
    """A run whose program is gone, as it is from now on, and its last event."""
    over = msgspec.structs.replace(
        run, status="interrupted", ended=time.time(), reason="its program ended", last_seq=seq
    )  # fmt: skip
    event = closing(over).replace(seq=seq)
    return over, StoredEvent(run.id, seq, "run_closed", event.at, event.to_json())
