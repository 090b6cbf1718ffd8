"""The run service behind every API: start, get, list, read, steer and cancel runs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakSet

import msgspec

from .._base.attachment import MAX_SIZE, Attachment, check_size
from .._base.attachment_files import available_data
from .._base.frozen import EMPTY
from .._base.tasks import defer_cancellation, uninterrupted
from .._base.text import error_text
from .._kernel.errors import CallRefusedError, HookError
from .._kernel.events import Event
from .._kernel.values import Message
from .._run.context import AgentContext, obey
from .._run.environment import make_id
from .._run.hosted import HostedRun
from .._run.session import Session
from ..config.hook_order import HookPlace, hook_order
from ..hooks.approvals import Notifier
from ..stores.approvals import ApprovalStore
from ..stores.callers import Caller, DepsFactory
from ..stores.errors import StoreError
from ..stores.run_queries import pulse
from ..stores.runs import (
    DURABLE,
    HOSTED_TRANSPORTS,
    OPEN_STATES,
    Accepted,
    IdempotencyKey,
    NewRun,
    RunFilter,
    RunRecord,
    RunSearch,
    RunStore,
    StoredEvent,
)
from ..stores.sessions import SessionStore
from ..stores.sql import Owner
from .admission import Admission
from .agents import Agents
from .control import ControlReceiver, ControlSender
from .errors import BusyError, ConflictError, HaltedError, UnavailableError, UnknownAttachmentError, UnknownRunError
from .events import RunAccepted
from .executor import RunExecutor
from .feed import FeedReader
from .idempotency import IdempotencyKeys, run_of
from .live_run import EventReader, LiveRun, RunRecorder, RunWatch, closing_event, not_running
from .logs import cleaned_for, log_approval_request
from .options import ServerOptions

if TYPE_CHECKING:
    from .durable import DurableRuns

log = logging.getLogger("hookline")

ORIGIN = "server"
"""Where served runs come from, for the list of runs."""
CANCEL_SECONDS = 10.0
"""Seconds that a cancellation waits for the run to finish."""
TURN_SECONDS = 1.0
"""Interval in seconds at which a run looks whether the run before it, at another server, has lost its process."""
STORE_SECONDS = 5.0
"""Seconds that a shutdown without a grace period waits until the last events are stored."""
TIDY_CHECK_SECONDS = 60.0
"""Interval in seconds at which a process looks whether old runs are to be deleted."""
IDLE_SECONDS = 1.0
"""Seconds after the last new run after which a process without runs deletes old ones with short rests only."""
REST_SECONDS = 0.05
"""Such a rest in seconds: other processes can write to the file then."""


class RunService:
    """Run agents for callers. Runs and their events are stored, and a run continues even if no client reads its events.

    Runs of one session are executed one after another, also by several servers on one PostgreSQL database. The number
    of concurrent runs is limited; the others are queued.
    The service belongs to one event loop. A caller sees its own runs only, unless it has the right ``admin``. Callers
    with this right also see the runs that other programs stored in the same database.

    Args:
        agents: the served agents.
        store: the store of runs and events.
        approvals: the store of calls that wait for approval.
        sessions: the store of conversations.
        options: limits and time limits.
        context: makes the context of a run, with its budget.
        metadata: metadata for the hooks of every run.
        notify: announces calls that wait for approval; by default in the log.
        required: whether runs fail at their next step while they cannot be stored. Durable runs are suspended then.
        deps: creates the ``deps`` of a run for its caller.
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
        notify: Notifier = log_approval_request,
        required: bool = False,
        deps: DepsFactory | None = None,
    ) -> None:
        self.agents = agents
        self.approvals = approvals
        approvals.clean = agents.clean_for_all
        self.options = options
        self._store = store
        make_context = context or (lambda session: AgentContext(session=session))

        def with_switch(session: Session) -> AgentContext:
            ctx = make_context(session)
            obey(ctx, store.halts)
            return ctx

        self._sessions = sessions
        self._recorder = RunRecorder(store, self._on_stored, self._on_lost, self._on_store_error)
        self._executor = RunExecutor(
            approvals,
            sessions,
            options,
            with_switch,
            metadata,
            notify,
            self._wait_for_turn,
            store.db,
            (lambda: self._recorder.problem) if required else None,
            store.halts,
            deps,
        )
        self._keys = IdempotencyKeys(store)
        # The runs of a file are those of this process, which are counted.
        self._admission = Admission(store, options.max_runs_per_caller if store.db.is_shared else None)
        self._hosting = Admission(store)  # how many sessions may be open is checked where questions arrive
        self._control_sender = ControlSender(store.controls)
        self._control_receiver = ControlReceiver(store.controls, lambda: list(self._live.values()))
        self._live: dict[str, LiveRun] = {}
        self._durable = self._durable_runs() if options.durable else None
        self._readers: Counter[str] = Counter()
        self._watches: WeakSet[RunWatch] = WeakSet()
        self._accepting = self._stopping = False
        self._being_stored: list[str] = []
        self._last_accepted = float("-inf")
        """The owners of the runs that are being stored."""
        self._tidying: asyncio.Task[None] | None = None
        self._until_closed = ExitStack()

    def _durable_runs(self) -> DurableRuns:
        from .durable import DurableRuns, open_queue

        queue = open_queue(self._store, self.options.max_runs)
        return DurableRuns(
            self._executor,
            self.agents,
            self._store,
            self.approvals,
            queue,
            self._live,
            self._control_receiver,
            self._on_executing,
            self.options,
        )

    # Start and stop

    async def open(self) -> None:
        """Start accepting runs, and mark the runs of processes that died as interrupted.

        Raises:
            StoreError: the file cannot be used.
        """
        self._until_closed.enter_context(cleaned_for(self.agents.redactions))
        await self._close_all_abandoned()
        if self._durable is not None:
            await self._durable.open(execute=self.options.execute)
        if self._store.db.is_shared or self._durable is not None:
            self._control_receiver.open()
        await self._store.halts.current_async()  # the first callers need not wait for it
        self._accepting = True

    def start_tidying(self) -> None:
        """Delete old runs from now on. Call it last: what comes before does not wait for a step of this then."""
        self._tidying = asyncio.create_task(self._keep_tidying(), name="hookline-tidy")

    async def drain(self) -> None:
        """Accept no more runs, interrupt queued runs, and wait until running runs have finished."""
        self._accepting, self._stopping = False, True
        if self._tidying is not None:
            self._tidying.cancel()
        for watch in list(self._watches):
            watch.wake()
        for live in list(self._live.values()):
            if (live.run is None or live.is_hosted) and not live.closed and live.durable is None:
                live.interrupt()
        if self._durable is not None:
            await self._durable.suspend(self.options.grace)
        if tasks := self._tasks():
            await asyncio.wait(tasks)

    async def close(self, grace: float | None = None) -> None:
        """Drain for at most ``grace`` seconds, then interrupt the runs that are left and store everything."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.grace if grace is None else grace):
                await self.drain()
        if self._durable is not None:
            await self._durable.close()
        for live in list(self._live.values()):
            if not live.closed and live.durable is None:
                live.interrupt()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for live in list(self._live.values()):
            if not live.closed and live.task is not None and live.durable is None:
                live.finish("interrupted", reason="the server stopped")  # the run ignored its cancellation
                live.task.cancel()
        await self._control_receiver.close()
        if self._tidying is not None:
            await asyncio.wait([self._tidying])
        await self._recorder.close(max(self.options.grace, STORE_SECONDS))
        self._until_closed.close()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [live.task for live in self._live.values() if live.task is not None and not live.task.done()]

    @property
    def problem(self) -> str:
        """Why no runs are accepted now; empty if runs are accepted."""
        return self._recorder.problem if self._accepting else "the server is starting or stopping"

    @property
    def store(self) -> RunStore:
        """The store of the runs."""
        return self._store

    async def stored(self) -> None:
        """Wait until everything that has happened in the runs of this process is stored, unless that is impossible."""
        with suppress(UnavailableError):
            await self._recorder.flushed()

    async def pulse(self) -> object:
        """Return a value that differs after every change of runs, approvals and halts, in any process.

        Raises:
            StoreError: a file cannot be used.
        """
        halts = self._store.halts
        return await asyncio.to_thread(lambda: (halts.current(), pulse(self._store), self.approvals.pulse()))

    @property
    def is_shared(self) -> bool:
        """Whether processes on other machines can execute the runs."""
        return self._store.db.is_shared

    @property
    def where(self) -> str:
        """The file or the database of the runs."""
        return self._store.path

    @property
    def max_runs(self) -> int:
        """How many runs this process executes at once."""
        return self.options.max_runs

    def counts(self) -> dict[str, int]:
        """Return the number of unfinished runs of this process by state, and the number of readers."""
        states = Counter(live.record.status for live in self._live.values() if not live.closed)
        return {**{state: states[state] for state in OPEN_STATES}, "readers": self._readers.total()}

    def unfinished(self) -> list[tuple[RunRecord, str]]:
        """Return the unfinished runs of this process, in the order of their start, each with its current activity."""
        return [(live.record, live.activity) for live in self._live.values() if not live.closed]

    def hook_orders(self) -> dict[str, list[HookPlace]]:
        """Return the hooks of a run of each served agent by name, in firing order, with those that the server adds."""
        added = [entry for layer in self._executor.hooks.layers for entry in layer]
        return {name: hook_order(stack, added) for name, stack in self.agents.hooks().items()}

    # Operations of callers

    async def start(
        self,
        caller: Caller,
        task: str,
        *,
        agent: str = "",
        session: str = "",
        history: Iterable[Message] | None = None,
        attachments: Sequence[Attachment] = (),
        task_id: str = "",
        correlation_id: str = "",
        transport: str = "api",
        idempotency_key: str = "",
        request: Any = None,
    ) -> RunRecord:
        """Start a run. It is stored when this returns.

        Args:
            caller: the owner of the run.
            task: the task, in the words of the caller.
            agent: the name of the agent; the first one if left out.
            session: the caller's name of a conversation to continue; a new one if left out.
            history: the messages before the task, if the caller keeps the conversation; it is not stored then.
            attachments: files for the model.
            task_id: an id of the task; the id of the run if left out.
            correlation_id: connects the run with its cause.
            transport: the API that the run came through.
            idempotency_key: a key chosen by the caller. A second start with it returns the run of the first.
            request: with an idempotency key, the request as JSON; it must be the same whenever the key is used.

        Raises:
            UnknownAgentError: there is no agent with this name.
            BusyError: too many runs are running or queued.
            IdempotencyError: the idempotency key was used for a different request.
            UnavailableError: the server is stopping, or runs cannot be stored.
            HaltedError: all runs are halted.
            AttachmentError: a file in the history is larger than the agent's limit.
            StoreError: this run cannot be stored.
        """
        id = make_id("run")

        async def accept() -> RunRecord:
            async with self._keys.key_for(caller.id, idempotency_key, request, id) as (key, known):
                if known:
                    return await self.get(known, caller)
                return await self._accept(
                    id, key, caller, task, agent, session, history, attachments, task_id, correlation_id, transport
                )

        return await uninterrupted(accept())

    async def _accept(
        self,
        id: str,
        key: IdempotencyKey | None,
        caller: Caller,
        task: str,
        agent: str,
        session: str,
        history: Iterable[Message] | None,
        attachments: Sequence[Attachment],
        task_id: str,
        correlation_id: str,
        transport: str,
    ) -> RunRecord:
        await self._check_accepting()
        served, answerer, personality = self.agents.answerer(agent)
        name = session or make_id("session")
        conversation = _digest(caller.id, served, name)
        owner = Owner(DURABLE, 0, None) if self._durable is not None else await self._this_process()
        record, event = self._new_run(
            id, owner, served, caller, name, conversation, task_id, correlation_id, transport, task
        )
        found = None
        if history is not None:  # checked before the run is stored
            found = Session(record.session_id, history, platform=transport, personality_id=personality)
            _check_files(found, answerer)

        async def store() -> Accepted:
            if self._durable is None:
                return await self._admission.accept(NewRun(record, event, key=key))
            return await self._durable.accept(
                record, task, event, caller, personality, found, attachments, key, is_first=not session
            )

        self._last_accepted = time.monotonic()
        with self._within_limits(caller):
            known = await self._store_new(store, key)
        if known:
            return await self.get(known, caller)
        if self._durable is not None:
            return self._latest(record)
        live = self._live[id] = self._new_live(record, event, task, served)
        live.attachments = tuple(attachments)
        work = self._executor.execute(live, caller, answerer, personality, found, is_new=not session)
        live.task = asyncio.create_task(work, name=f"hookline-{id}")
        if not self._accepting:
            live.interrupt()
        return live.record

    async def host(
        self,
        caller: Caller,
        task: str,
        *,
        agent: str,
        session: str,
        attachments: Sequence[Attachment] = (),
        correlation_id: str = "",
        transport: str = "decide",
        sink: Callable[[Event], object],
    ) -> tuple[LiveRun, HostedRun | HookError | CallRefusedError]:
        """Begin a run that a program executes, which asks about its moments. It is stored when this returns.

        Instead of the run, a failure is returned if a hook failed closed at its start: then it has failed.
        Hosted runs have limits of their own. They are never durable: the process that answers keeps their state.

        Args:
            caller: the owner of the run.
            task: the task; empty if the program did not say it.
            agent: the name of the agent whose hooks decide; the first one if empty.
            session: the caller's name of the conversation.
            attachments: files for the model.
            correlation_id: connects the run with its cause.
            transport: the API that the questions come through.
            sink: gets the events of the run.

        Raises:
            UnknownAgentError: there is no agent with this name.
            UnavailableError: the server is stopping, or runs cannot be stored.
            HaltedError: all runs are halted.
            StoreError: this run cannot be stored.
        """
        return await uninterrupted(
            self._host(caller, task, agent, session, attachments, correlation_id, transport, sink)
        )

    async def _host(
        self,
        caller: Caller,
        task: str,
        agent: str,
        session: str,
        attachments: Sequence[Attachment],
        correlation_id: str,
        transport: str,
        sink: Callable[[Event], object],
    ) -> tuple[LiveRun, HostedRun | HookError | CallRefusedError]:
        await self._check_accepting()
        served, _, personality = self.agents.answerer(agent)
        hosted, tools = self.agents.hosted(served)
        id = make_id("run")
        conversation = _digest(HOSTED_TRANSPORTS[0], caller.id, served, session)
        owner = await self._this_process()
        record, event = self._new_run(
            id, owner, served, caller, session, conversation, "", correlation_id, transport, task
        )
        await self._store_new(lambda: self._hosting.accept(NewRun(record, event)), None)
        live = self._live[id] = self._new_live(record, event, task, served, is_hosted=True)
        live.attachments = tuple(attachments)
        live.update(status="running", started=record.created)
        opened: asyncio.Future[HostedRun] = asyncio.get_running_loop().create_future()
        work = self._executor.host(live, caller, hosted, tools, personality, sink, opened)
        live.task = asyncio.create_task(work, name=f"hookline-{id}")
        try:
            async with asyncio.timeout(self.options.decide_seconds):
                return live, await opened
        except TimeoutError:
            live.stop("the hooks did not judge the task in time")
            raise UnavailableError("the hooks did not judge the start of the run in time") from None
        except (HookError, CallRefusedError) as error:
            return live, error
        except asyncio.CancelledError:
            raise UnavailableError("the run was interrupted before it began") from None

    async def _check_accepting(self) -> None:
        """Check that runs are accepted.

        Raises:
            UnavailableError: the server is stopping, or runs cannot be stored.
            HaltedError: all runs are halted.
        """
        if self.problem:
            # The problem of the store names files, so callers do not see it; it is in the log.
            reason = "they cannot be stored" if self._accepting else self.problem
            raise UnavailableError(f"no runs are accepted now: {reason}")
        if (halt := await self._store.halts.current_async()) is not None:
            raise HaltedError(f"no runs are accepted now: {halt.text}")

    async def _this_process(self) -> Owner:
        leases = self._store.db.leases
        return await asyncio.to_thread(leases.owner) if self._store.db.is_shared else leases.owner()

    def _new_run(
        self,
        id: str,
        owner: Owner,
        served: str,
        caller: Caller,
        session: str,
        conversation: str,
        task_id: str,
        correlation_id: str,
        transport: str,
        task: str,
    ) -> tuple[RunRecord, StoredEvent]:
        """Return a new run and its first event."""
        record = RunRecord(
            id,
            served,
            caller.id,
            session,
            f"served-{conversation}",
            task_id or id,
            correlation_id or task_id or id,
            transport,
            self.agents.clean(served, task),
            origin=ORIGIN,
            created=time.time(),
            last_seq=1,
            host=owner.host,
            pid=owner.pid,
            born=owner.born,
            observed=True,
        )
        first = RunAccepted(
            at=record.created,
            seq=1,
            run_id=id,
            agent=served,
            session=session,
            task_id=record.task_id,
            correlation_id=record.correlation_id,
        )
        return record, StoredEvent(id, 1, "run_accepted", first.at, first.to_json())

    def _new_live(
        self, record: RunRecord, event: StoredEvent, task: str, served: str, *, is_hosted: bool = False
    ) -> LiveRun:
        return LiveRun(
            record,
            self._recorder.put,
            lambda: bool(self._recorder.problem),
            [event],
            task=task,
            clean=partial(self.agents.clean, served),
            is_hosted=is_hosted,
        )

    async def _store_new(self, store: Callable[[], Awaitable[Accepted]], key: IdempotencyKey | None) -> str:
        """Store a new run, and return an empty text; or return the id of the run that has its idempotency key.

        Raises:
            BusyError: its caller has too many runs, also at other replicas, or too many durable runs are queued there.
            StoreError: the file cannot be used.
        """
        try:
            accepted = await self._try_to_store(store)
        except StoreError as error:
            self._recorder.report(error_text(error))
            raise
        if accepted.stored:
            return ""
        if accepted.key is None or key is None:
            raise _too_many_runs(accepted.own)
        return run_of(accepted.key, key)

    async def _try_to_store(self, store: Callable[[], Awaitable[Accepted]]) -> Accepted:
        accepted = await store()
        if accepted.is_queue_full:
            raise _full_queue()
        if not accepted.stored and accepted.key is None:
            await self._close_all_abandoned()  # runs of replicas that were killed do not count
            accepted = await store()
        return accepted

    async def get(self, id: str, caller: Caller) -> RunRecord:
        """Return the current record of a run, of this server or of any other program with the same database.

        Raises:
            UnknownRunError: there is no such run, or it belongs to another caller.
            StoreError: the file cannot be read.
        """
        run = await self._find(id, caller)
        if run.is_over or id not in self._live:
            return run
        stored = await asyncio.to_thread(self._store.get, id)
        return run if stored is None else self._latest(stored)

    async def _find(self, id: str, caller: Caller) -> RunRecord:
        """Return a run like :meth:`get`, but without the numbers so far of one that this process executes."""
        run = await self._load(id)
        if caller.owner not in (None, run.owner):
            raise _unknown(id)
        return run

    async def attachment(self, id: str, caller: Caller, digest: str) -> Attachment:
        """Return an attachment of a run with its content.

        Raises:
            UnknownRunError: there is no such run, or it belongs to another caller.
            UnknownAttachmentError: its conversation has no attachment with this digest, or its content is gone.
            StoreError: the conversation cannot be read.
        """
        run, live = await self._find(id, caller), self._live.get(id)
        found = list(() if live is None else live.attachments)
        session = await asyncio.to_thread(self._sessions.load, run.session_id)
        if session is not None:
            found += [each for message in session.messages for each in message.attachments]
        for each in found:
            if each.digest == digest and await asyncio.to_thread(available_data, each) is not None:
                return each
        raise UnknownAttachmentError(f"the run {id!r:.80} has no stored attachment {digest!r:.80}")

    async def list(
        self, caller: Caller, *, limit: int = 50, before: str = "", **filters: Unpack[RunFilter]
    ) -> list[RunRecord]:
        """Return the runs that a caller may see, the newest first. Arguments are those of :meth:`RunStore.runs`.

        Raises:
            StoreError: the file cannot be read.
        """
        if not await self._prepare(caller, filters):
            return []
        found = await asyncio.to_thread(self._store.runs, limit, before=before, **filters)
        return [self._latest(run) for run in found]

    async def search(
        self, caller: Caller, *, limit: int = 50, before: str = "", **filters: Unpack[RunFilter]
    ) -> RunSearch:
        """Return the runs that a caller may see, as far as a short search finds them: see :meth:`RunStore.search`.

        Raises:
            StoreError: the file cannot be read.
        """
        if not await self._prepare(caller, filters):
            return RunSearch([])
        found = await asyncio.to_thread(self._store.search, limit, before=before, **filters)
        return msgspec.structs.replace(found, runs=[self._latest(run) for run in found.runs])

    async def _prepare(self, caller: Caller, filters: RunFilter) -> bool:
        """Store what is not stored yet, and restrict filters; return whether a caller may see such runs."""
        if self._recorder.problem == "":
            await self._recorder.flushed()
        await self._close_all_abandoned()
        return _restrict(filters, caller)

    async def count(self, caller: Caller, **filters: Unpack[RunFilter]) -> int:
        """Return the number of runs that a caller may see. Arguments are those of :meth:`RunStore.count`.

        Raises:
            StoreError: the file cannot be read.
        """
        await self._close_all_abandoned()
        if not _restrict(filters, caller):
            return 0
        return await asyncio.to_thread(self._store.count, **filters)

    async def state_counts(self, caller: Caller, most: int, **filters: Unpack[RunFilter]) -> dict[str, int]:
        """Return the number of runs that a caller may see in each state: see :meth:`RunStore.counts`.

        Raises:
            StoreError: the file cannot be read.
        """
        if not await self._prepare(caller, filters):
            return {}
        return await asyncio.to_thread(self._store.counts, most, **filters)

    async def read(self, id: str, caller: Caller, after: int = 0) -> EventReader:
        """Open a reader of the events of a run after the event number ``after``. The caller must close it.

        Raises:
            UnknownRunError: there is no such run, or it belongs to another caller.
            BusyError: too many readers are open.
            StoreError: the file cannot be read.
        """
        run = await self._find(id, caller)
        close, watch = self._open_stream(caller), self._watch(id)
        return EventReader(run, after, self._store, self._live.get, self._load, close, lambda: self._stopping, watch)

    def follow(self, caller: Caller, after: float = 0.0, types: Iterable[str] = ()) -> FeedReader:
        """Open a reader of the events of all runs that a caller may see. The caller must close it.

        Args:
            caller: the caller.
            after: the Unix time after which events are wanted; 0 for those from now on.
            types: only events of these types; all if empty.

        Raises:
            BusyError: too many readers are open.
        """
        close = self._open_stream(caller)
        return FeedReader(self._store, caller.owner, frozenset(types), after, lambda: self._stopping, close)

    def _open_stream(self, caller: Caller) -> Callable[[], None]:
        """Count a stream, and return the function that ends it."""
        per_caller, total = self.options.max_streams_per_caller, self.options.max_streams
        if self._readers[caller.id] >= per_caller or self._readers.total() >= total:
            raise BusyError(f"too many streams are open: the limit is {per_caller} per caller and {total} in all")
        self._readers[caller.id] += 1

        def close() -> None:
            self._readers[caller.id] -= 1
            if not self._readers[caller.id]:
                del self._readers[caller.id]

        return close

    async def wait(self, id: str, caller: Caller, timeout: float | None = None) -> RunRecord:
        """Wait until a run has finished, for at most ``timeout`` seconds, and return its record.

        Raises:
            UnknownRunError: there is no such run, or it belongs to another caller.
            StoreError: the file cannot be read.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        run, live = await self._find(id, caller), self._live.get(id)
        if live is not None and live.task is not None:
            await asyncio.wait([live.task], timeout=timeout)
            run = live.record
        if not run.is_over and (live is None or live.detached):
            run = await self._wait_elsewhere(id, deadline)
        if run.is_over:
            with suppress(UnavailableError):  # a result that was returned must survive a crash
                await self._recorder.flushed()
            return run
        return await self.get(id, caller)

    async def _wait_elsewhere(self, id: str, deadline: float | None) -> RunRecord:
        """Wait for the end of a run that another process executes, or that this process does not execute yet."""
        watch = self._watch(id)
        try:
            while not (run := await self._load(id)).is_over and not self._stopping:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                await watch.changed(left)
        finally:
            watch.close()
        return run

    async def _wait_for_turn(self, run: RunRecord) -> None:
        """Wait until other servers have no run in this conversation that comes first. A file has one server."""
        while self._store.db.is_shared and (first := await asyncio.to_thread(self._store.begin, run)) is not None:
            with suppress(UnknownRunError):  # it was deleted
                await self._wait_elsewhere(first, time.monotonic() + TURN_SECONDS)

    def _watch(self, id: str) -> RunWatch:
        watch = RunWatch(self._store, id)
        self._watches.add(watch)
        return watch

    def _on_executing(self, id: str) -> None:
        """Wake the readers of a durable run that this process begins or ceases to execute."""
        for watch in list(self._watches):
            if watch.run_id == id:
                watch.wake()

    async def cancel(self, id: str, caller: Caller, reason: str = "") -> RunRecord:
        """Cancel a run and return its record. A finished run is not changed.

        On PostgreSQL, another process may execute the run. The returned run may not have ended if that takes long.

        Raises:
            UnknownRunError: there is no such run, or it belongs to another caller.
            ConflictError: the run belongs to another process that uses the same SQLite file, or to no server.
            StoreError: the file cannot be used.
        """
        run, live = await self._find(id, caller), self._live.get(id)
        _check_served(run)
        reason = reason or f"cancelled by {caller.name}"
        if live is None or live.closed:
            if run.is_over:
                return run
            if self._durable is not None and run.is_durable:
                if await self._durable.cancel(id, reason):  # this process may be storing the end still
                    return await self.wait(id, caller, timeout=CANCEL_SECONDS)
                live = self._live.get(id)  # this process has just begun to execute it
                if live is None and (run := await self._find(id, caller)).is_over:
                    return run
        if live is not None:
            if not live.closed:
                live.stop(reason)
            if live.durable is not None:  # if this process loses the run, the next one cancels it
                await self._control_sender.cancel(id, reason)
        elif not self._store.db.is_shared:
            raise ConflictError(f"the run {id} belongs to another process: cancel it there")
        else:
            await self._control_sender.cancel(id, reason)
        return await self.wait(id, caller, timeout=CANCEL_SECONDS)

    async def steer(self, id: str, caller: Caller, text: str, attachments: Sequence[Attachment] = ()) -> RunRecord:
        """Send a message to a running run, with files for the model.

        On PostgreSQL, another process may execute it. A durable run that no process executes now, because it was
        suspended or interrupted, gets the message when it goes on.

        Raises:
            AttachmentError: a file is larger than the agent's limit.
            UnknownRunError: there is no such run, or it belongs to another caller.
            ConflictError: the run has not begun, or has ended.
            BusyError: too many messages wait for the run.
            StoreError: the file cannot be read.
        """
        run, live = await self._find(id, caller), self._live.get(id)
        _check_served(run)
        durable = None if live is None else live.durable
        may_wait = durable is not None or self._store.db.is_shared
        is_next = not may_wait or not await self._control_sender.has_waiting(id)
        if live is not None and is_next and live.takes_messages:
            live.steer(text, attachments)
            if durable is None or await durable.stored():
                return live.record
            # This process lost the run before the message was stored: the next one gets it.
        goes_on = self._durable is not None and run.is_durable and run.started is not None and not run.is_over
        if not goes_on and (not self._store.db.is_shared or run.status not in ("running", "waiting")):
            raise not_running(run)

        async def is_over() -> bool:
            return (await self._load(id)).is_over

        await self._control_sender.steer(id, text, attachments, is_over)
        return run

    # Storage

    def _on_stored(self, events: Sequence[StoredEvent]) -> None:
        last = {event.run_id: event.seq for event in events}
        for run_id, seq in last.items():
            live = self._live.get(run_id)
            if live is None:
                continue
            live.mark_stored(seq)
            if live.closed and seq == live.last_seq:
                del self._live[run_id]  # readers now read the file

    def _on_lost(self, ids: set[str]) -> None:
        """Stop the runs that another process has ended, because the lease of this process had expired."""
        for id in ids:
            live = self._live.pop(id, None)
            if live is not None and not live.closed:
                log.error("the run %s is stopped: another process has ended it", id)
                live.discard()

    def _on_store_error(self) -> None:
        for live in self._live.values():
            live.wake_readers()

    async def _load(self, id: str) -> RunRecord:
        live = self._live.get(id)
        if live is not None:
            return live.record
        run = await asyncio.to_thread(self._store.get, id)
        if run is None:
            raise _unknown(id)
        run = self._latest(run)
        return await self._close_abandoned(id) if run.is_served and run.is_abandoned else run

    def _latest(self, run: RunRecord) -> RunRecord:
        """Return a run with what this process knows about it; its numbers so far are those that are stored."""
        live = self._live.get(run.id)
        return run if live is None else live.record if live.closed else live.record.with_numbers(run)

    async def _close_all_abandoned(self) -> None:
        for run in await asyncio.to_thread(self._store.abandoned):
            await asyncio.to_thread(self._store.close_abandoned, run.id, _interrupted)

    async def _close_abandoned(self, id: str) -> RunRecord:
        """Finish a run whose process died, and add its last event."""
        run = await asyncio.to_thread(self._store.close_abandoned, id, _interrupted)
        if run is None:
            raise _unknown(id)
        return run

    @contextmanager
    def _within_limits(self, caller: Caller) -> Iterator[None]:
        """Check the limits of this process. Inside the block, the new run counts, although it is not executed yet.

        Raises:
            BusyError: the caller, or all callers together, have too many runs.
        """
        owners = [live.record.owner for live in self._live.values() if not live.closed and not live.is_hosted]
        if self._durable is None:  # those of durable runs are counted in the database
            owners += self._being_stored
        own = owners.count(caller.id)
        if own >= self.options.max_runs_per_caller:
            raise _too_many_runs(own)
        if len(owners) >= self.options.max_runs + self.options.max_queued:
            raise _full_queue()
        self._being_stored.append(caller.id)
        try:
            yield
        finally:
            self._being_stored.remove(caller.id)

    def _forget(self, run_ids: Sequence[str], sessions: Sequence[str]) -> None:
        """Delete the calls that old runs asked about, and conversations that have no newer run."""
        self.approvals.forget(run_ids)
        for id in sessions:
            self._sessions.delete(id)

    async def _keep_tidying(self) -> None:
        """Delete old runs from time to time, in steps, between which others can write."""
        while not self._stopping:
            try:
                steps = self._store.tidy(self.options.keep_days, self._forget)
                try:
                    began = time.monotonic()
                    while await defer_cancellation(asyncio.to_thread(next, steps, None)) is not None:
                        now = time.monotonic()
                        is_idle = not self._live and now > self._last_accepted + IDLE_SECONDS
                        await asyncio.sleep(REST_SECONDS if is_idle else now - began)
                        began = time.monotonic()
                finally:
                    await defer_cancellation(asyncio.to_thread(steps.close))
            except StoreError as error:
                log.error("old runs could not be deleted: %s", error_text(error))
            except Exception:
                log.exception("old runs could not be deleted")
            if not self._stopping:  # such an error may take the place of the cancellation
                await asyncio.sleep(TIDY_CHECK_SECONDS)


def _digest(*parts: str) -> str:
    """Return the digest that names a conversation in the store."""
    return hashlib.sha256(msgspec.json.encode(list(parts))).hexdigest()[:40]


def _restrict(filters: RunFilter, caller: Caller) -> bool:
    """Restrict a filter to the runs that a caller may see. Return false if there are none."""
    wanted = filters.get("owner") or None
    owner = wanted if caller.owner is None else caller.owner
    filters.update({"outermost": True, "owner": owner})
    return wanted is None or wanted == owner


def _check_served(run: RunRecord) -> None:
    """Check that a run can be controlled here.

    Raises:
        ConflictError: no server executes the run, and it has not ended.
    """
    if not run.is_served and not run.is_over:
        raise ConflictError(
            f"the run {run.id} was started by another program ({run.origin or 'unknown'}): control it there"
        )


def _too_many_runs(own: int) -> BusyError:
    return BusyError(f"{own} of your runs are running or queued, which is the limit: wait for one or cancel it")


def _full_queue() -> BusyError:
    return BusyError("too many runs are queued: try again later")


def _unknown(id: str) -> UnknownRunError:
    return UnknownRunError(f"there is no run {id!r:.80}")


def _interrupted(run: RunRecord, seq: int) -> tuple[RunRecord, StoredEvent]:
    """Return the final record and the last event of a run whose process died."""
    closed = msgspec.structs.replace(
        run, status="interrupted", ended=time.time(), reason="its process ended", last_seq=seq
    )
    event = closing_event(closed).replace(seq=seq)
    return closed, StoredEvent(run.id, seq, "run_closed", event.at, event.to_json())


def _check_files(session: Session, answerer: Any) -> None:
    """Check the files in the messages of a caller, as a run checks those of its task.

    Raises:
        AttachmentError: a file is larger than the agent's limit.
    """
    agent = answerer.agent_for(session) if hasattr(answerer, "agent_for") else answerer
    limit = getattr(agent, "max_attachment", MAX_SIZE)
    for message in session.messages:
        for each in message.attachments:
            check_size(each.size, str(each), limit)
