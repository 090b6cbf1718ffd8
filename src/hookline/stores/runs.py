"""The store of runs, which :class:`ObservabilityHook` and servers write and ``hookline stats`` reads.

Each run has one row in the table ``runs``. The hook adds what happened in the run (``stores/facts.py``): names, numbers
and times, never texts. A server stores its runs with the task, the reply and every event. A run that both of
them record has one row, which belongs to the server; the hook only marks it as observed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import msgspec

from .._base.text import is_number
from .._run.journal import Claim, EventRow
from .controls import SCHEMA as _CONTROLS
from .controls import ControlStore
from .database import open_database
from .errors import StoreError
from .facts import FILTERED as _FILTERED_FACTS
from .facts import NEW_SUMS as _NEW_SUMS
from .facts import SCHEMA as _FACTS
from .facts import UPGRADE as _FACTS_UPGRADE
from .facts import FactWriter, ObservedRun, RunFact, decided_by, facts_of, read_facts, within
from .group_commit import GroupCommit
from .halts import SCHEMA as _HALTS
from .halts import HaltStore
from .journal import SCHEMA as _JOURNAL
from .journal import Journal, count_new, create
from .leases import database_time
from .progress import Progress, progress_of
from .push_subscriptions import SCHEMA as _PUSHES
from .push_subscriptions import PushSubscriptionStore
from .retention import AT_ONCE, Forget, PeriodicWork, among, delete_runs, error_type, prune, prune_served
from .retention import SCHEMA as _PERIODIC
from .run_texts import SCHEMA as _TEXTS
from .run_texts import add_text, find_text, forget_words
from .sql import LAST_CHARACTER, Connection, Leases, Schema, Statement, insert, storable, storable_value, upsert
from .task_messages import SCHEMA as _TASK_MESSAGES
from .task_messages import TaskMessageStore
from .verdicts import HAS_VERDICTS, Verdict, decisions_of, verdict_of
from .workers import SCHEMA as _WORKERS
from .workers import SLOTS as _SLOTS
from .workers import WorkerStore

if TYPE_CHECKING:
    from .approvals import ApprovalStore

DURABLE = "durable"
"""The ``host`` of a durable run of a server, which belongs to no process."""

OPEN_STATES = ("queued", "running", "waiting")
"""The states of a run that has not ended: queued, running, or waiting for the approval of a tool call."""

HOSTED_TRANSPORTS = ("decide", "litellm")
"""The ``transport`` of runs that a program executes, which asks a server about their moments."""

IN_TURN = f"""(SELECT o.run_id FROM runs o WHERE o.session_id = r.session_id AND o.transport != ''
    AND o.host = r.host AND o.status IN ({", ".join(f"'{each}'" for each in OPEN_STATES)})
    AND (o.created, o.run_id) < (r.created, r.run_id) LIMIT 1) IS NULL"""
"""The condition that no earlier run of the conversation of the durable run ``r`` has yet to end.

It is not a NOT EXISTS, because PostgreSQL would join for it, and read many runs for the few that are wanted.
"""

STATES = (*OPEN_STATES, "completed", "stopped", "ended", "failed", "cancelled", "interrupted")

PAGE_SIZE = 2_000_000
"""Maximum size of a page: characters of runs, or bytes of events. A page has at least one run or event."""

SEARCH_SECONDS = 0.1
"""Seconds after which :meth:`RunStore.search` stops to look at runs."""
SEARCHED_AT_ONCE = 2_000
"""Runs that a search looks at before it looks at the clock."""

TIDY_SECONDS = 3600.0
"""Interval in seconds at which old records are deleted."""
WORDS_SECONDS = 24 * 3600.0
"""Interval in seconds at which the words of deleted runs are removed from the index: it is written anew."""
WRITER_TIDY_SECONDS = 1.0
"""Seconds for which :meth:`RunStore.add` deletes old records. What is left is deleted by the next calls."""

POLL_SECONDS, WATCHED_POLL_SECONDS = 0.5, 5.0
"""Polling intervals for changes by other processes: in a SQLite file, and where the database announces changes."""

_RUNS = """CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, session TEXT NOT NULL, session_id TEXT NOT NULL,
    task_id TEXT NOT NULL, correlation_id TEXT NOT NULL, transport TEXT NOT NULL, task TEXT NOT NULL,
    status TEXT NOT NULL, reply TEXT NOT NULL, error TEXT NOT NULL, reason TEXT NOT NULL, stop TEXT NOT NULL,
    steps INTEGER NOT NULL, tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL, cost REAL, created REAL NOT NULL, started REAL, ended REAL, elapsed REAL,
    last_seq INTEGER NOT NULL, parent_run_id TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL,
    observed INTEGER NOT NULL
)"""
_INDEXES = (
    "CREATE INDEX runs_by_time ON runs (created, run_id)",
    "CREATE INDEX served_by_time ON runs (created, run_id) WHERE transport != ''",
    "CREATE INDEX served_by_owner ON runs (owner, created, run_id) WHERE transport != ''",
    "CREATE INDEX served_by_agent ON runs (agent, created, run_id) WHERE transport != ''",
    "CREATE INDEX served_by_session ON runs (session_id, created, run_id) WHERE transport != ''",
    "CREATE INDEX ended_by_status ON runs (status, created, run_id) WHERE ended IS NOT NULL",
    "CREATE INDEX open_runs ON runs (created, run_id) WHERE ended IS NULL",
)
_MORE_INDEXES = (
    "CREATE INDEX open_by_status ON runs (status, created, run_id) WHERE ended IS NULL",
    "CREATE INDEX served_by_correlation ON runs (correlation_id, created, run_id) WHERE transport != ''",
    "CREATE INDEX served_by_end ON runs (ended) WHERE transport != '' AND ended IS NOT NULL",
)
_MARKS = (
    *(f"ALTER TABLE events ADD COLUMN {name} TEXT NOT NULL DEFAULT ''" for name in ("tool", "hook", "verb")),
    "ALTER TABLE events ADD COLUMN refused INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX events_by_tool ON events (tool, run_id) WHERE tool != ''",
    "CREATE INDEX events_by_verdict ON events (run_id, hook, verb) WHERE verb != ''",
    "CREATE INDEX refusals ON events (at, run_id, seq) WHERE refused = 1",
)
"""What an event says about a tool call or a verdict, as columns: in formats 4 and 5."""
_ORIGINS = (
    "ALTER TABLE runs ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
    "UPDATE runs SET origin = 'server' WHERE transport != ''",
    """INSERT INTO runs SELECT run_id, agent, '', '', '', run_id, run_id, '', '',
        CASE WHEN status = 'new' THEN 'queued' ELSE status END, '', '', '', '', 0, 0, 0, 0, 0, NULL, created, created,
        CASE WHEN status IN ('new', 'running', 'waiting', 'interrupted') THEN NULL ELSE changed END, NULL, 0, '', '', 0,
        NULL, 0, '' FROM durable_runs WHERE run_id NOT IN (SELECT run_id FROM runs)""",
    *(f"DROP INDEX served_by_{name}" for name in ("time", "owner", "agent", "session", "correlation")),
    "CREATE INDEX runs_by_owner ON runs (owner, created, run_id)",
    "CREATE INDEX runs_by_agent ON runs (agent, created, run_id)",
    "CREATE INDEX runs_by_session ON runs (session_id, created, run_id)",
    "CREATE INDEX runs_by_correlation ON runs (correlation_id, created, run_id)",
    "CREATE INDEX unserved_open_runs ON runs (created, run_id) WHERE ended IS NULL AND transport = ''",
)
"""Where each run came from. All of them are in one list, so its indexes contain all of them."""
_STATISTICS = (
    "CREATE INDEX observed_by_time ON runs (created, run_id) WHERE observed = 1",
    "CREATE INDEX nested_runs ON runs (parent_run_id) WHERE parent_run_id != ''",
)
_FILTERED = (
    # With everything that a filter of outermost runs looks at, so that only the rows of a page are read.
    "DROP INDEX runs_by_time",
    "CREATE INDEX runs_by_time ON runs (created, run_id, parent_run_id)",
    *(
        f"CREATE INDEX ended_by_{name} ON runs ({name}, status, created, run_id) WHERE ended IS NOT NULL"
        for name in ("owner", "agent")
    ),
    "CREATE INDEX runs_by_origin ON runs (origin, created, run_id)",
    "CREATE INDEX durable_runs_by_digest ON durable_runs (digest, status)",
    *_FILTERED_FACTS,
)
_FORMAT_9 = _TASK_MESSAGES
_FORMAT_8 = (
    # The waiting runs of a caller, in order.
    "CREATE INDEX open_by_owner ON runs (status, owner, created, run_id) WHERE ended IS NULL AND transport != ''",
    *_NEW_SUMS,
)
_REFUSED = (
    "ALTER TABLE verdicts ADD COLUMN refused INTEGER NOT NULL DEFAULT 0",
    """UPDATE verdicts SET refused = 1 WHERE verb = 'block' OR verb = 'claim' AND point = 'before_ticket_complete'
        OR verb = 'end' AND point NOT IN ('after_tool', 'on_error') OR verb = 'retry' AND point = 'after_llm'
        OR verb = 'stop' AND point IN ('on_run_start', 'before_step', 'before_llm', 'before_tool')
        OR verb = 'failed' AND ((run_id, call_id) IN (SELECT run_id, call_id FROM tool_calls WHERE outcome = 'blocked')
            OR (run_id, hook) IN (SELECT run_id, source FROM errors WHERE place = 'hook' AND fatal = 1))""",
)
"""Whether a hook prevented something. Of rows of format 4, it is derived from what else is known about the run."""
_SERVED = (
    """CREATE TABLE events (
        run_id TEXT NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE idempotency_keys (
        owner TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, run_id TEXT NOT NULL, at REAL NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL, PRIMARY KEY (owner, key)
    ) WITHOUT ROWID""",
    "CREATE INDEX idempotency_keys_by_run ON idempotency_keys (run_id)",
    _PUSHES,
)

_APPLICATION_ID = 0x486B4C52
_FORMAT_1 = (  # the hook's records, before servers stored their runs in the same file
    "ALTER TABLE runs RENAME TO runs_1",
    _RUNS,
    """INSERT INTO runs SELECT run_id, coalesce(agent, ''), '', '', coalesce(session_id, ''), coalesce(task_id, ''),
        coalesce(correlation_id, ''), '', '', coalesce(status, 'running'), '', coalesce(error, ''), '',
        coalesce(stop, ''), coalesce(steps, 0), coalesce(tool_calls, 0), coalesce(input_tokens, 0),
        coalesce(output_tokens, 0), coalesce(cached_tokens, 0), cost, coalesce(started, 0), started, ended, elapsed, 0,
        coalesce(parent_run_id, ''), coalesce(host, ''), coalesce(pid, 0), NULL, 1 FROM runs_1 WHERE run_id NOT NULL""",
    "DROP TABLE runs_1",
    *_INDEXES,
    *_SERVED,
)
_SERVED_APPLICATION_ID = 0x486B4C4F
_SERVED_FORMAT: tuple[Statement, ...] = (  # a separate file of a server
    "ALTER TABLE runs RENAME TO runs_1",
    *(f"DROP INDEX {name}" for name in ("runs_by_time", "runs_by_owner", "runs_by_session", "runs_open")),
    _RUNS,
    """INSERT INTO runs SELECT id, agent, owner, session, session_id, task_id, correlation_id, transport, task, status,
        reply, error, reason, '', steps, tool_calls, input_tokens, output_tokens, cached_tokens, cost, created, started,
        ended, ended - started, last_seq, '', host, pid, born, 0 FROM runs_1""",
    "DROP TABLE runs_1",
    "ALTER TABLE once RENAME TO idempotency_keys",
    "DROP INDEX once_by_run",
    "CREATE INDEX idempotency_keys_by_run ON idempotency_keys (run_id)",
    *_INDEXES,
    *_JOURNAL,
    *_WORKERS,
    *_CONTROLS,
    *_MORE_INDEXES,
    *_STATISTICS,
    *_FACTS,
    *_HALTS,
    *_ORIGINS,
    *_PERIODIC,
    *_SLOTS,
    *_FILTERED,
    *_TEXTS,
    *_FORMAT_8,
    *_FORMAT_9,
)

SCHEMA = Schema(
    "runs",
    contents="runs",
    application_id=_APPLICATION_ID,
    version=9,
    statements=(
        *(_RUNS, *_INDEXES, *_SERVED, *_JOURNAL, *_WORKERS, *_CONTROLS),
        *(*_MORE_INDEXES, *_STATISTICS, *_FACTS, *_HALTS, *_ORIGINS, *_PERIODIC, *_SLOTS, *_FILTERED, *_TEXTS),
        *_FORMAT_8,
        *_FORMAT_9,
    ),
    upgrades={
        1: _FORMAT_1,
        2: (*_JOURNAL, *_WORKERS, *_CONTROLS),
        3: (*_MORE_INDEXES, *_MARKS, *_STATISTICS),
        4: _REFUSED,
        5: (*_FACTS_UPGRADE, *_HALTS, *_ORIGINS),
        6: (*_PERIODIC, *_SLOTS, *_FILTERED, *_TEXTS),
        7: _FORMAT_8,
        8: _FORMAT_9,
    },
    conversions={_SERVED_APPLICATION_ID: _SERVED_FORMAT},
    min_writer=7,
)

_NAMED = 5
"""Number of ids that a message lists."""


class RunRecord(msgspec.Struct, frozen=True):
    """A run, as one row of the table ``runs``.

    ``owner``, ``session``, ``transport``, ``task``, ``reply`` and ``reason`` are set for runs of a server only:
    ``session`` is the caller's name of the conversation and ``session_id`` the id in the session store; ``reason`` says
    what stopped or ended the run. ``stop`` is the kind of stop signal. ``error`` is the type of the error that the run
    failed with, followed by the message if a server stored it. ``steps`` are those in which the model has replied, as
    in ``AgentResult.steps``. The numbers of a run that has not ended are those so far. ``created`` is when the run was
    accepted and ``started`` when it left the queue; without a server they are the same.
    ``last_seq`` is the number of the last stored event. ``host``, ``pid`` and ``born`` identify the process.
    ``observed`` says whether an :class:`ObservabilityHook` recorded the run. ``origin`` says where the run came from:
    ``command line``, ``library``, ``server``, ``channel NAME``, or the name of a framework or a coding agent.

    ``status`` is one of ``STATES``. A run without an end whose process has ended is ``interrupted``.
    """

    id: str = msgspec.field(name="run_id")
    agent: str
    owner: str = ""
    session: str = ""
    session_id: str = ""
    task_id: str = ""
    correlation_id: str = ""
    transport: str = ""
    task: str = ""
    status: str = "queued"
    reply: str = ""
    error: str = ""
    reason: str = ""
    stop: str = ""
    steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    elapsed: float | None = None
    last_seq: int = 0
    parent_run_id: str = ""
    host: str = ""
    pid: int = 0
    born: float | None = None
    observed: bool = False
    origin: str = ""

    @property
    def is_served(self) -> bool:
        """Whether a server stored this run."""
        return self.transport != ""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, or its process has ended."""
        return self.status not in OPEN_STATES

    @property
    def is_durable(self) -> bool:
        """Whether the run survives the end of its process: it is open until its journal says otherwise."""
        return self.host == DURABLE and self.pid == 0

    @property
    def error_type(self) -> str:
        """The type of the error that the run failed with, without its message; empty if it is not known."""
        return error_type(self.error)

    @property
    def is_abandoned(self) -> bool:
        """Whether the process of the run has ended, and the end of the run is not stored yet."""
        return self.ended is None and self.status == "interrupted"

    def with_numbers(self, other: Progress | RunRecord) -> RunRecord:
        """Return the run with other numbers."""
        return msgspec.structs.replace(self, **{name: getattr(other, name) for name in _PROGRESS})


_PROGRESS = ("steps", "tool_calls", "input_tokens", "output_tokens", "cached_tokens", "cost")
_COLUMNS = ("run_id", *RunRecord.__struct_fields__[1:])
_ROW = ", ".join(_COLUMNS)
_TURN = f"""SELECT {_ROW}, {IN_TURN}, EXISTS (SELECT 1 FROM controls c WHERE c.run_id = r.run_id AND c.answer IS NULL)
    FROM runs r WHERE r.run_id = ?"""


_TREE = """WITH RECURSIVE tree (run_id) AS (SELECT run_id FROM runs WHERE run_id = ? UNION
    SELECT inner_run.run_id FROM runs AS inner_run JOIN tree ON inner_run.parent_run_id = tree.run_id
    WHERE inner_run.parent_run_id != '') SELECT run_id FROM tree"""
"""A run and the runs nested in it."""


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of a served run: its number, its type, its time, and the whole event as JSON."""

    run_id: str
    seq: int
    type: str
    at: float
    data: bytes

    @property
    def row(self) -> EventRow:
        """The values for a journal, which knows the run."""
        return self.seq, self.type, self.at, self.data


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A key that identifies one run, even if a caller sends it several times. ``digest`` is that of the request."""

    owner: str
    key: str
    digest: str
    run_id: str
    at: float


class NewRun(msgspec.Struct, frozen=True):
    """A new run of a server: its row, its first event, the input of a durable run, and the idempotency key."""

    run: RunRecord
    event: StoredEvent
    start: bytes = b""
    key: IdempotencyKey | None = None


class Accepted(msgspec.Struct, frozen=True):
    """Whether :meth:`RunStore.accept` stored a run.

    Otherwise ``key`` is the idempotency key, which belongs to another run, or too many runs are queued, or the owner
    had ``own`` unfinished runs.
    """

    stored: bool
    own: int = 0
    key: IdempotencyKey | None = None
    is_queue_full: bool = False


class Turn(msgspec.Struct, frozen=True):
    """What :meth:`RunStore.take_turn` found.

    Of the run ``record``: whether it is the first of its conversation that has not ended, whether messages wait for it
    (:class:`ControlStore`), and the claim.
    """

    record: RunRecord | None
    is_first: bool = False
    has_messages: bool = False
    claim: Claim | None = None


class QueuedRun(msgspec.Struct, frozen=True):
    """A durable run of a server that should be executed.

    ``session_id`` is its conversation, whose runs are executed one after another. With a ``digest``, only a process
    with this version of the agent can execute it. ``begun`` runs go on, and come before others.
    """

    run_id: str
    session_id: str
    owner: str
    digest: str = ""
    begun: bool = False


class CallRow(msgspec.Struct, frozen=True):
    """A model call or tool call of a run, or of one nested in it: when it began, how long it took, and its outcome.

    ``run_id`` and ``agent`` are those of the run that made it.
    """

    run_id: str
    agent: str
    kind: str
    name: str
    began: float
    duration: float
    outcome: str
    attempt: int
    purpose: str = ""
    tokens: int = 0


class RunFilter(TypedDict, total=False):
    """Filter of :meth:`RunStore.runs` and :meth:`RunStore.count`; an empty filter selects all runs.

    ``served=True``: only runs of a server. ``outermost=True``: only runs that are not nested in others. ``owner``,
    ``agent``, ``session`` (the caller's name), ``session_id``: only runs with this value. ``states``: only runs in one
    of these states. ``since``: only runs that began or ended at this Unix time or later. ``created_from``,
    ``created_to``: only runs that were accepted at this Unix time or later, and before this one. ``correlation_id``:
    only runs with this cause. ``text``: only runs with all of these words in the task or the reply, in upper or lower
    case; ``*`` at the end of a word stands for more letters.

    ``tool``: only runs that called this tool, or tried to. ``hook``, ``verb``: only runs with a verdict of this hook,
    or of this person who denied a call, with this verb, or both. ``model``: only runs that called this model. All of
    these also find what happened in nested runs. ``origin``: only runs that came from there.
    """

    served: bool
    outermost: bool
    owner: str | None
    agent: str
    session: str
    session_id: str
    states: Sequence[str]
    since: float
    created_from: float
    created_to: float
    correlation_id: str
    text: str
    tool: str
    hook: str
    verb: str
    model: str
    origin: str


_SEARCHED = ("text", "tool", "hook", "verb", "model")
"""Filters without an index of runs by time: unless few runs have what is wanted, each run has to be looked at."""
_MATCHES = 200
"""Runs with a text that are read at once."""
_FEW = 5_000
"""Number of facts up to which the runs that have them are read, instead of the facts of one run after another."""


class RunSearch(msgspec.Struct, frozen=True):
    """The runs that a search found.

    If it stopped before it had looked at all runs, ``stopped_at`` is the id of the last one that it looked at,
    ``back_to`` is when that was created, and ``looked_at`` is the number of runs that it looked at.
    """

    runs: list[RunRecord]
    stopped_at: str = ""
    back_to: float = 0.0
    looked_at: int = 0


class RunStore:
    """Store runs in one SQLite file, which threads and processes may share; see docs/reference/database.md.

    :class:`ObservabilityHook` and ``hookline serve`` write it, ``hookline stats`` shows it. All methods block until
    the file is read or written, and raise :class:`StoreError` if the file cannot be used.

    Files of earlier formats, of statistics or of served runs, are converted when they are opened.

    Args:
        path: the file, created when it is first needed; ``:memory:`` keeps everything in memory; or the
            address of a PostgreSQL database.
        keep_days: how long to keep records of :class:`ObservabilityHook`; see :meth:`prune`. :meth:`add` deletes older
            ones once an hour. ``None`` keeps everything.
        pinned: if the file is moved or deleted while it is open, refuse to write until it is back. Otherwise a new
            file is started at the path.
        synced: sync each commit to disk, so that it survives a power loss. Otherwise a power loss may undo the last
            commits; the end of a process never does.
        lease_seconds: how long a process may execute a durable run without renewing its lease; see
            docs/guides/durable.md.
        approvals: the store of the calls that wait for approval: those of a run that is deleted are cancelled.

    Raises:
        StoreError: the path, or the number of days, cannot be used.

    Example::

        store = RunStore("runs.db")
        for run in store.runs(limit=10):
            print(run.id, run.status, run.cost)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_days: float | None = None,
        pinned: bool = False,
        synced: bool = False,
        lease_seconds: float = 15.0,
        approvals: ApprovalStore | None = None,
    ) -> None:
        if keep_days is not None:
            _check_days(keep_days)
        self.db = open_database(path, SCHEMA, durable=synced, pinned=pinned)
        self._facts = FactWriter(self.db)
        self.group = GroupCommit(self.db, self._adding)
        self.journal = Journal(self.db, lease_seconds, self.group)
        self.workers = WorkerStore(self.db)
        self.controls = ControlStore(self.db)
        self.halts = HaltStore(self.db)
        self.push_subscriptions = PushSubscriptionStore(self.db)
        self.task_messages = TaskMessageStore(self.db)
        self.begun_with: dict[str, Any] | None = None
        """Settings of the program, stored with the durable runs that it begins, for the program that continues them."""
        self.keep_days = keep_days
        self.approvals = approvals
        self._tidied = float("-inf")

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.db.path

    def open(self) -> None:
        """Make sure that the file exists and can be written.

        Raises:
            StoreError: the file cannot be used; the message says why, and what to do.
        """
        with self.db.transaction(write=True):
            pass

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    # Writing.

    def add(self, runs: Iterable[RunRecord], facts: Iterable[RunFact] = ()) -> None:
        """Store runs and what happened in them, in one transaction.

        The row of an existing run is replaced; the row of a served run is only marked as observed.

        Args:
            runs: the runs. Those without a process belong to this one.
            facts: what happened in runs.

        Raises:
            StoreError: the file cannot be used.
        """
        write = self._adding([*runs, *facts])
        with self.db.transaction(write=True, lock=None) as db:
            write(db)
        if time.monotonic() > self._tidied + TIDY_SECONDS:
            until = time.monotonic() + WRITER_TIDY_SECONDS
            with closing(self.tidy()) as steps:
                if all(time.monotonic() < until for _ in steps):
                    self._tidied = time.monotonic()

    def tidy(self, served_days: float | None = None, forget: Forget | None = None) -> Generator[int]:
        """Delete what is old, a step at a time, if no process has done so within the last hour. Yield after each step.

        Only one process does this at a time. It deletes records of :class:`ObservabilityHook` after ``keep_days``, and
        statistics of short times.

        Args:
            served_days: after how many days to delete the events and texts of served runs.
            forget: deletes what other stores have about these runs: it gets their ids, and the ids of the
                conversations that have no newer run.

        Raises:
            StoreError: the number of days, or the file, cannot be used.
        """
        yield from self._in_turn("records", self._tidy_records())
        if served_days is not None:
            steps = prune_served(self.db, _days_ago(served_days), forget)
            words = self._in_turn("deleted words", forget_words(self.db), WORDS_SECONDS)
            yield from self._in_turn("served runs", chain(steps, words))

    def _tidy_records(self) -> Iterator[int]:
        yield from self._facts.tidy()
        if self.keep_days is not None:
            yield from prune(self.db, _days_ago(self.keep_days), self._cancel_calls)

    def _in_turn(self, name: str, steps: Iterator[int], seconds: float | None = None) -> Iterator[int]:
        """Yield from the steps of periodic work while this process has its lease."""
        work = PeriodicWork(self.db, name, TIDY_SECONDS if seconds is None else seconds)
        if not work.claim():
            return
        is_done = False
        try:
            for deleted in steps:
                yield deleted
                if not work.renew():
                    return
            is_done = True
        finally:
            work.release(done=is_done)

    def _adding(self, records: Iterable[RunRecord | RunFact]) -> Callable[[Connection], None]:
        """Return what stores runs and facts inside a transaction."""
        host, pid, born = self.db.leases.owner()
        runs, facts = dict[str, tuple[Any, ...]](), list[RunFact]()
        for each in records:
            if isinstance(each, RunFact):
                facts.append(each)
            else:  # if a run started and ended meanwhile, only its last state is written
                owner = {} if each.host else {"host": host, "pid": pid, "born": born}
                runs[each.id] = msgspec.structs.astuple(msgspec.structs.replace(each, observed=True, **owner))
        rows = [runs[id] for id in sorted(runs)]  # in one order in all processes, so that none waits for another

        def write(db: Connection) -> None:
            insert(db, "runs", _COLUMNS, rows, _OBSERVED_ROW)
            known = _since_first_start(db, facts)
            self._facts.write(db, known)
            _count_earlier_calls(db, [new.run.run_id for new, old in zip(known, facts, strict=True) if new.at < old.at])

        return write

    def write(
        self, runs: Iterable[RunRecord], events: Sequence[StoredEvent], records: Sequence[RunRecord | RunFact] = ()
    ) -> set[str]:
        """Store runs of a server, their events, and what happened in them, in one transaction.

        Runs and events that exist are replaced. ``records`` are those of :meth:`add`.

        On PostgreSQL, runs that have ended are left alone: another process may have ended a run because the lease of
        this process had expired. Returns the ids of these runs.

        Raises:
            StoreError: the file cannot be used.
        """
        if not self.db.is_shared:
            add = self._adding(records)
            with self.db.transaction(write=True) as db:
                _write(db, runs, events)
                add(db)
            return set()
        rows = list(runs)
        ids = {run.id for run in rows} | {event.run_id for event in events}
        with self.db.transaction(write=True, lock=None) as db:  # a run is written by one process only
            ended = _lock_and_find_ended(db, ids)
            if ended:
                rows = [run for run in rows if run.id not in ended]
                events = [event for event in events if event.run_id not in ended]
                records = [each for each in records if not (isinstance(each, RunFact) and each.run.run_id in ended)]
            _write(db, rows, events)
            self._adding(records)(db)
        self.db.announce(*ids - ended)
        return ended

    def watch(self, run_id: str, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """Inside the ``with`` block, call ``callback`` in another thread after a process has changed a run.

        That works on PostgreSQL only, and may fail there too, so the caller polls as well: see :attr:`poll_seconds`.
        """
        return self.db.listen(run_id, callback)

    @property
    def poll_seconds(self) -> float:
        """Interval in seconds at which to look for changes by other processes, in addition to :meth:`watch`."""
        return WATCHED_POLL_SECONDS if self.db.is_shared else POLL_SECONDS

    def accept(
        self,
        new: Sequence[NewRun],
        *,
        limit: int | None = None,
        max_queued: int | None = None,
        also: Callable[[Connection, Sequence[RunRecord]], object] | None = None,
    ) -> list[Accepted]:
        """Store new runs of a server with everything that belongs to them, in one transaction: all of it or nothing.

        A run whose idempotency key belongs to another run, or that exceeds a limit, is not stored.

        Args:
            new: the runs.
            limit: maximum number of runs of an owner that have not ended, in all processes that share the database.
                Two processes do not store the last allowed run at once.
            max_queued: maximum number of durable runs that no process has begun. Two processes may exceed it by the
                runs of one call.
            also: called with the runs that are stored, as the last part of the transaction.

        Returns:
            For each run, whether it was stored.

        Raises:
            StoreError: the file cannot be used.
        """
        owners = sorted({each.run.owner for each in new})
        with self.db.transaction(write=True, lock=[f"admission {owner}" for owner in owners]) as db:
            own = dict.fromkeys(owners, 0) if limit is None else _open_runs(db, owners, limit)
            queued = 0 if max_queued is None else count_new(db)
            answers, stored = list[Accepted](), list[NewRun]()
            keys: dict[tuple[str, str], IdempotencyKey] = {}
            for each in new:
                owner, key = each.run.owner, each.key
                held = None if key is None else keys.get((key.owner, key.key)) or _held_key(db, key.owner, key.key)
                if held is not None:
                    answers.append(Accepted(False, key=held))
                elif max_queued is not None and queued >= max_queued:
                    answers.append(Accepted(False, is_queue_full=True))
                elif limit is not None and own[owner] >= limit:
                    answers.append(Accepted(False, own[owner]))
                else:
                    answers.append(Accepted(True, own[owner]))
                    stored.append(each)
                    own[owner] += 1
                    queued += 1
                    if key is not None:
                        keys[key.owner, key.key] = key
            runs = [each.run for each in stored]
            _write(db, runs, [each.event for each in stored])
            for key in keys.values():
                db.execute(_KEY_ROW, tuple(map(storable_value, (*msgspec.structs.astuple(key), "", 0))))
            create(db, [(each.run.id, each.run.agent, each.start, each.run.created) for each in stored if each.start])
            if also is not None and runs:
                also(db, runs)
        self.db.announce(*(run.id for run in runs))
        return answers

    def key(self, owner: str, key: str) -> IdempotencyKey | None:
        """Return the idempotency key of an owner's run, or ``None`` if no run has it.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            return _held_key(db, owner, key)

    def take_turn(self, run_id: str, digest_of: Callable[[str], str | None]) -> Turn:
        """Claim a durable run of a server if it has not ended and it is its turn, in one transaction.

        Args:
            run_id: the run.
            digest_of: returns the digest of an agent by name; ``None`` if this process does not have it.

        Raises:
            RunHeldError: another process executes the run.
            JournalFormatError: the journal has another format.
            RunPinnedError: the run has another digest.
            StoreError: the file cannot be used.
        """
        owner = self.db.leases.owner()

        def work(db: Connection) -> Turn:
            found = db.execute(_TURN, (storable(run_id),)).fetchone()
            if found is None:
                return Turn(None)
            *row, is_first, has_messages = found
            record = _record(row, self.db.leases)
            if record.is_over or not is_first or (digest := digest_of(record.agent)) is None:
                return Turn(record, is_first=bool(is_first) and not record.is_over)
            claim = self.journal.claim_in(db, owner, run_id, digest)
            return Turn(record, is_first=True, has_messages=bool(has_messages), claim=claim)

        turn = self.group.do(run_id, work)
        if turn.claim is not None:
            self.journal.claimed(turn.claim)
        return turn

    def begin(self, run: RunRecord) -> str | None:
        """Mark a run of a server as running, unless a run of another process in the same conversation comes first.

        That is one that is running, or was queued before. Of two processes, only one marks its run. A process puts its
        own runs in order itself.

        Returns:
            The id of the run that comes first, or ``None``.

        Raises:
            StoreError: the file cannot be used.
        """
        query = """SELECT run_id FROM runs WHERE session_id = ? AND transport != '' AND ended IS NULL
            AND NOT (host = ? AND pid = ?) AND (status != 'queued' OR created < ? OR (created = ? AND run_id < ?))
            ORDER BY created, run_id LIMIT 1"""
        session_id, created = storable(run.session_id), run.created
        with self.db.transaction(write=True, lock=f"session {session_id}") as db:
            row = db.execute(query, (session_id, run.host, run.pid, created, created, run.id)).fetchone()
            if row is None:
                db.execute("UPDATE runs SET status = 'running' WHERE run_id = ? AND ended IS NULL", (run.id,))
        return None if row is None else str(row[0])

    def to_execute(self, *, begun: bool, limit: int = 1000) -> list[QueuedRun]:
        """Return the durable runs of servers that no process executes, the oldest first.

        Runs that wait for an approval, or for another run of their conversation, are not among them.

        Args:
            begun: return the runs that have begun; otherwise those that have not.
            limit: maximum number of runs.

        Raises:
            StoreError: the file cannot be used.
        """
        states = "('running', 'interrupted')" if begun else "('new')"
        query = f"""SELECT d.run_id, r.session_id, r.owner, d.digest, d.changed, d.status, d.host, d.pid, d.born,
            d.lease FROM durable_runs d JOIN runs r ON r.run_id = d.run_id
            WHERE r.host = ? AND d.status IN {states} AND {IN_TURN} ORDER BY d.created, d.run_id"""
        found: list[QueuedRun] = []
        with self.db.transaction() as db:
            now = database_time(self.db, db)
            for id, session_id, owner, digest, changed, status, host, pid, born, lease in db.execute(query, (DURABLE,)):
                if status != "running" or lease <= now or not self.db.leases.is_held(host, pid, changed, born):
                    found.append(QueuedRun(id, session_id, owner, digest, begun))
                    if len(found) == limit:
                        break
        return found

    def close_abandoned(
        self, id: str, last: Callable[[RunRecord, int], tuple[RunRecord, StoredEvent]]
    ) -> RunRecord | None:
        """End a served run whose process has ended, unless it has ended meanwhile; return the stored run.

        Args:
            id: the id of the run.
            last: returns the ended run and its last event, given the run and the number of that event.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            row = db.execute(
                f"SELECT {_ROW} FROM runs WHERE run_id = ? AND transport != ''", (storable(id),)
            ).fetchone()
            run = None if row is None else _record(row, self.db.leases)
            if run is None or run.ended is not None:
                return run
            (seq,) = db.execute("SELECT max(seq) FROM events WHERE run_id = ?", (run.id,)).fetchone()
            over, event = last(_counted(db, [run])[0], (seq or 0) + 1)
            _write(db, [over], [event])
            self._facts.write(db, [ended_run(over)])
        self.db.announce(over.id)
        return over

    def prune(self, days: float) -> int:
        """Delete everything about runs that ended more than ``days`` days ago.

        Sums by day stay, except those with the reasons of hooks. Of runs that a server stored, only the facts are
        deleted: :meth:`prune_served` deletes the rest. Returns the number of runs.

        Raises:
            StoreError: ``days`` is not a positive number, or the file cannot be used.
        """
        return sum(prune(self.db, _days_ago(days), self._cancel_calls))

    def prune_served(self, days: float) -> int:
        """Delete the events and texts of served runs that ended more than ``days`` days ago; returns their number.

        If an :class:`ObservabilityHook` recorded such a run too, its row and its facts stay until :meth:`prune` deletes
        them. It has no owner then, so only callers who see everything see it.

        Raises:
            StoreError: ``days`` is not a positive number, or the file cannot be used.
        """
        return sum(prune_served(self.db, _days_ago(days)))

    def delete(self, id: str) -> bool:
        """Delete a run, the runs nested in it, and everything that is stored about them. Sums of statistics stay.

        Its calls that wait for approval are cancelled, if the store knows the :attr:`approvals`.

        Returns false if there is no such run, or if it is being executed: a run of a server has to end first.

        Raises:
            StoreError: the file cannot be used.
        """
        run = self.get(id)
        if run is None or run.status in ("queued", "running") or (run.is_served and not run.is_over):
            return False
        if self.journal.get(run.id) is not None and not self.journal.delete(run.id):
            return False
        with self.db.transaction(write=True) as db:
            ids = [id for (id,) in db.execute(_TREE, (run.id,)).fetchall()]
            delete_runs(db, ids)
        self._cancel_calls(ids)
        return True

    def _cancel_calls(self, run_ids: Sequence[str]) -> None:
        """Cancel the calls of deleted runs that wait for approval."""
        if run_ids and self.approvals is not None and self.approvals.db.exists():
            self.approvals.cancel_run(*run_ids)

    # Reading.

    def get(self, id: str) -> RunRecord | None:
        """Return the run with this id, or ``None``.

        Raises:
            StoreError: the file cannot be used.
        """
        rows = self.db.execute(f"SELECT {_ROW} FROM runs WHERE run_id = ?", (storable(id),))
        found = list(_records(rows, self.db.leases))
        if found and (found[0].ended is None or not found[0].is_served):
            with self.db.transaction() as db:
                found = _counted(db, self._current(db, found))
        return found[0] if found else None

    def find(self, run_id: str) -> RunRecord:
        """Return the run with this id or an unambiguous prefix of it, with or without ``run_``.

        ``last`` is the newest run of the list: a run nested in it began later, but is not in the list.

        Raises:
            StoreError: no run, or more than one, has such an id; or the file cannot be used.
        """
        found = self.ids_of(run_id)
        if not found:
            ids = ", ".join(run.id for run in self.runs(_NAMED, outermost=True))
            known = f"the newest are {ids}; hookline runs shows all" if ids else "it has no runs"
            raise StoreError(f"there is no run {run_id!r} in {self.path}: {known}")
        if len(found) > 1:
            raise StoreError(f"more than one run begins with {run_id!r}: {', '.join(found)}")
        run = self.get(found[0])
        assert run is not None  # it was just found
        return run

    def ids_of(self, name: str) -> list[str]:
        """Return the ids that a name stands for: see :meth:`find`. There are a few at most.

        Raises:
            StoreError: the file cannot be used.
        """
        if name == "last":
            return [run.id for run in self.runs(1, outermost=True)]
        beginnings = [storable_value(name), f"run_{storable_value(name)}"]
        condition = " OR ".join(["run_id >= ? AND run_id < ?"] * len(beginnings))
        values = [value for start in beginnings for value in (start, f"{start}{LAST_CHARACTER}")]
        rows = self.db.execute(f"SELECT run_id FROM runs WHERE {condition} ORDER BY run_id LIMIT ?", (*values, _NAMED))
        found = [id for (id,) in rows]
        return found[:1] if found[:1] == [name] else found

    def nested_ids(self, run_id: str) -> list[str]:
        """Return the ids of the runs nested in a run, also those in nested ones.

        Raises:
            StoreError: the file cannot be used.
        """
        return [id for (id,) in self.db.execute(_TREE, (storable(run_id),)) if id != run_id]

    def runs(self, limit: int = 20, *, before: str = "", **chosen: Unpack[RunFilter]) -> list[RunRecord]:
        """Return runs, newest first.

        Args:
            limit: the maximum number of runs. There are fewer if their texts are long: see :func:`page_of`.
            before: the id of a run: only runs that come after it in the list.
            chosen: which runs: see :class:`RunFilter`.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            few = _few_runs(db, chosen)
            if chosen.get("text"):
                return self._with_text(db, limit, before, chosen, few, math.inf).runs
            return self._listed(db, limit, before, chosen, few)

    def _with_text(
        self, db: Connection, limit: int, before: str, chosen: RunFilter, few: Sequence[str] | None, until: float
    ) -> RunSearch:
        """Return runs with a text like :meth:`search`. If ``few`` runs are given, the runs are among them."""
        found, looked_at, states = list[RunRecord](), 0, chosen.get("states")
        allowed = None if few is None else {*few}
        while True:
            matches = self._matches(db, chosen, before)
            ids = [id for _, id in matches if allowed is None or id in allowed]
            page = {run.id: run for run in self._page(db, *_ordered(chosen, "", ids, len(ids)))} if ids else {}
            found += [page[id] for id in ids if id in page and (not states or page[id].status in states)]
            if len(matches) < _MATCHES or len(found) >= limit or sum(map(_size, found)) > PAGE_SIZE:
                return RunSearch(found[:limit])
            looked_at += len(matches)
            created, before = matches[-1]
            if time.monotonic() > until:
                return RunSearch(found, before, created, looked_at)

    def _matches(self, db: Connection, chosen: RunFilter, before: str) -> list[tuple[float, str]]:
        """Return the next runs that have a text."""
        scope = {"owner": chosen.get("owner") or "", "agent": chosen.get("agent", "")}
        return find_text(self.db, db, chosen.get("text", ""), _MATCHES, before=storable(before), **scope)

    def _listed(
        self, db: Connection, limit: int, before: str, chosen: RunFilter, ids: Sequence[str] | None
    ) -> list[RunRecord]:
        """Return runs like :meth:`runs`. If ``ids`` are given, the runs are among them."""
        found, states = list[RunRecord](), chosen.get("states")
        while True:
            wanted = limit - len(found)
            page = self._page(db, *_ordered(chosen, before, ids, wanted))
            # The rows of runs without a server do not say that their process has ended.
            found += [run for run in page if not states or run.status in states]
            if len(page) < wanted or len(found) == limit or sum(map(_size, found)) > PAGE_SIZE:
                return found
            before = page[-1].id

    def _page(self, db: Connection, query: str, values: Sequence[Any]) -> list[RunRecord]:
        found, size = list[RunRecord](), 0
        for run in _records(db.execute(query, values), self.db.leases):
            found.append(run)
            size += _size(run)
            if size > PAGE_SIZE and len(found) > 1:
                break
        return _counted(db, self._current(db, found))

    def _current(self, db: Connection, runs: Iterable[RunRecord]) -> list[RunRecord]:
        """Return runs with the states and last events of durable runs without a server: only their journals know."""
        found = list(runs)
        ids = [run.id for run in found if not run.is_served]
        if not ids:
            return found
        last_event = "SELECT seq FROM events e WHERE e.run_id = d.run_id ORDER BY seq DESC LIMIT 1"
        columns = f"run_id, ({last_event}), status, lease, host, pid, changed, born"
        known, now = dict[str, tuple[int, str]](), database_time(self.db, db)
        for first in range(0, len(ids), AT_ONCE):
            part = ids[first : first + AT_ONCE]
            rows = db.execute(f"SELECT {columns} FROM durable_runs d WHERE {among(part)}", part)
            known.update({id: (last or 0, self._state(now, *state)) for id, last, *state in rows})
        for place, run in enumerate(found):
            if run.id in known:
                last, state = known[run.id]
                # While a process executes a run, a hook that observes it knows whether it waits for a person.
                status = (
                    run.status if run.ended is not None or (state == "running" and run.status == "waiting") else state
                )
                found[place] = msgspec.structs.replace(run, last_seq=last, status=status)
        return found

    def _state(self, now: float, status: str, lease: float, *process: Any) -> str:
        """Return the state of a durable run. One that no process has begun is not listed before its first claim."""
        is_executed = lease > now and self.db.leases.is_held(*process)
        return "interrupted" if status in ("new", "running") and not is_executed else status

    def _open(self, db: Connection, condition: str, values: Any) -> list[RunRecord]:
        """Return the runs without an end that meet a condition, inside a transaction."""
        # Without this hint, SQLite would read all runs of the time.
        query = f"SELECT {_ROW} FROM runs INDEXED BY open_runs WHERE {condition} AND ended IS NULL"
        return self._current(db, _records(db.execute(query, values), self.db.leases))

    def search(
        self, limit: int, *, before: str = "", seconds: float = SEARCH_SECONDS, **chosen: Unpack[RunFilter]
    ) -> RunSearch:
        """Return runs like :meth:`runs`, but stop after a while: a text, a tool or a verdict may be in few runs.

        Continue with ``before=found.stopped_at``. At least ``SEARCHED_AT_ONCE`` runs are looked at.

        Args:
            limit: the maximum number of runs.
            before: the id of a run: only runs that come after it in the list.
            seconds: how long to look at runs.
            chosen: which runs: see :class:`RunFilter`.

        Raises:
            StoreError: the file cannot be used.
        """
        if not any(chosen.get(name) for name in _SEARCHED):
            return RunSearch(self.runs(limit, before=before, **chosen))
        with self.db.transaction() as db:
            few = _few_runs(db, chosen)
            if chosen.get("text"):
                return self._with_text(db, limit, before, chosen, few, time.monotonic() + seconds)
            if few is not None:
                return RunSearch(self._listed(db, limit, before, chosen, few))
        quick = cast("RunFilter", {name: value for name, value in chosen.items() if name not in _SEARCHED})
        found, looked_at, until = list[RunRecord](), 0, time.monotonic() + seconds
        with self.db.transaction() as db:
            while True:
                source, values = _chosen(quick, before)
                query = f"SELECT created, run_id FROM {source} {_NEWEST} LIMIT 1 OFFSET ?"
                last = db.execute(query, (*values, SEARCHED_AT_ONCE - 1)).fetchone()
                source, values = _chosen(chosen, before)
                if last is not None:
                    source += " AND (created, run_id) >= (?, ?)"
                    values += last
                query = f"SELECT {_ROW} FROM {source} {_NEWEST} LIMIT ?"
                states, page = chosen.get("states"), self._page(db, query, (*values, limit - len(found)))
                found += [run for run in page if not states or run.status in states]
                if last is None or len(found) == limit or sum(map(_size, found)) > PAGE_SIZE:
                    return RunSearch(found)
                looked_at += SEARCHED_AT_ONCE
                created, before = last
                if time.monotonic() > until:
                    return RunSearch(found, before, created, looked_at)

    def count(self, **chosen: Unpack[RunFilter]) -> int:
        """Return the number of runs.

        Args:
            chosen: which runs: see :class:`RunFilter`.

        Raises:
            StoreError: the file cannot be used.
        """
        count, before = 0, ""
        with self.db.transaction() as db:
            while True:
                matches = self._matches(db, chosen, before) if chosen.get("text") else []
                source, values = _chosen(chosen, ids=[id for _, id in matches] if chosen.get("text") else None)
                count += int(db.execute(f"SELECT count(*) FROM {source}", values).fetchone()[0])
                if len(matches) < _MATCHES:
                    return count
                before = matches[-1][1]

    def counts(self, most: int, **chosen: Unpack[RunFilter]) -> dict[str, int]:
        """Return the number of runs in each state; up to ``most`` of a state, so that it takes no longer for more.

        Args:
            most: where counting stops.
            chosen: which runs: see :class:`RunFilter`. Their words, tools, hooks, verbs and models are not looked at.

        Raises:
            StoreError: the file cannot be used.
        """
        found: dict[str, int] = dict.fromkeys(map(str, STATES), 0)
        rest = cast("RunFilter", {name: value for name, value in chosen.items() if name not in (*_SEARCHED, "states")})
        source, values = _chosen(rest)
        with self.db.transaction() as db:
            for state in STATES:
                if state in OPEN_STATES:
                    part, given = _chosen({**rest, "served": True, "states": (state,)})
                else:
                    part, given = f"{source} AND status = ? AND ended IS NOT NULL", [*values, state]
                query = f"SELECT count(*) FROM (SELECT 1 FROM {part} LIMIT ?) AS counted"
                found[state] = int(db.execute(query, (*given, most)).fetchone()[0])
            # The rows of these runs do not say that their process has ended, or that they are suspended.
            query = f"SELECT {_ROW} FROM ({_UNSERVED}) AS runs WHERE {source.partition(' WHERE ')[2]} LIMIT ?"
            for run in self._current(db, _records(db.execute(query, (*values, most)), self.db.leases)):
                found[run.status] += 1
        return found

    def oldest(self, *states: str) -> float | None:
        """Return when the oldest served run in one of these open states was created; ``None`` if there is none.

        Raises:
            StoreError: the file cannot be used.
        """
        source, values = _chosen({"served": True, "states": states})
        ((found,),) = self.db.execute(f"SELECT min(created) FROM {source}", values)
        return None if found is None else float(found)

    def abandoned(self) -> list[RunRecord]:
        """Return the served runs that have not ended, but whose process has.

        Raises:
            StoreError: the file cannot be used.
        """
        source, values = _chosen({"served": True, "states": OPEN_STATES})
        rows = self.db.execute(f"SELECT {_ROW} FROM {source}", values)
        return [run for run in _records(rows, self.db.leases) if run.is_abandoned]

    def events(self, run_id: str, after: int = 0, limit: int = 500, size: int = PAGE_SIZE) -> list[StoredEvent]:
        """Return at most ``limit`` events and ``size`` bytes of a served run, after the number ``after``.

        The first event is always returned, even if it is larger than ``size``.

        Raises:
            StoreError: the file cannot be used.
        """
        query = "SELECT run_id, seq, type, at, data FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
        with self.db.transaction() as db:
            return limit_bytes((StoredEvent(*row) for row in db.execute(query, (storable(run_id), after, limit))), size)

    def calls(self, run_id: str) -> list[CallRow]:
        """Return the model calls and tool calls of a run and its nested runs, in the order in which they began.

        Raises:
            StoreError: the file cannot be used.
        """
        calls = []
        for fact in self.tree_facts(run_id):
            began, took = fact.at - (fact.duration or 0.0), fact.duration or 0.0
            about = fact.run.run_id, fact.run.agent
            if fact.kind == "model":
                outcome = fact.verb if fact.verb in ("retry", "end", "failed") else fact.outcome
                tokens = fact.input_tokens + fact.output_tokens
                call = CallRow(*about, "model", fact.model, began, took, outcome, fact.attempt, fact.purpose, tokens)
                calls.append(call)
            elif fact.kind == "tool":
                calls.append(CallRow(*about, "tool", fact.tool, began, took, fact.outcome, fact.attempt))
        return sorted(calls, key=lambda call: call.began)

    def verdicts(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Verdict]:
        """Return the verdicts of hooks and denials of people in a run and its nested runs, in order.

        Args:
            run_id: the id of the run.
            after: only those after the one with this number.
            limit: the maximum number; ``None`` for all.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            condition, values = within(db, storable(run_id))
            found = read_facts(db, f"{condition} AND {HAS_VERDICTS} ORDER BY id", values)
            spoken = ((fact, *each) for _, fact in found for each in decisions_of(fact))
            page = islice(enumerate(spoken, 1), after, None if limit is None else after + limit)
            return [verdict_of(seq, *each) for seq, each in page]

    def facts(self, run_id: str) -> list[RunFact]:
        """Return what an :class:`ObservabilityHook` recorded about a run, in order.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            return facts_of(db, "run_id = ?", (storable(run_id),))

    def rules(self, run_id: str) -> str:
        """Return the digest of the rules under which a run began; empty if it has none, or no facts yet.

        Raises:
            StoreError: the file cannot be used.
        """
        query = "SELECT rules FROM facts WHERE run_id = ? AND rules != '' ORDER BY at, id LIMIT 1"
        return next((str(rules) for (rules,) in self.db.execute(query, (storable(run_id),))), "")

    def tree_facts(self, run_id: str) -> list[RunFact]:
        """Return what was recorded about a run and the runs nested in it, in order.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            return facts_of(db, *within(db, storable(run_id)))


def _counted(db: Connection, runs: list[RunRecord]) -> list[RunRecord]:
    """Return runs with the numbers so far of those that have not ended."""
    ids = [run.id for run in runs if run.ended is None]
    numbers = progress_of(db, ids)
    for run in runs:
        if (found := numbers.get(run.id)) is not None and not found.calls and run.cost is None:
            found.cost = None  # a coding agent does not say what its calls cost
    return [run.with_numbers(numbers[run.id]) if run.id in numbers else run for run in runs]


def _since_first_start(db: Connection, facts: Sequence[RunFact]) -> list[RunFact]:
    """Return facts in which each run that ended began when its first process began it: see ``_OBSERVED_ROW``."""
    ids = sorted({storable(fact.run.run_id) for fact in facts if fact.kind == "run"})
    if not ids:
        return [*facts]
    query = f"SELECT run_id, started FROM runs WHERE {among(ids)} AND started IS NOT NULL"
    starts = dict(db.execute(query, ids).fetchall())
    return [
        msgspec.structs.replace(fact, at=min(fact.at, starts.get(fact.run.run_id, fact.at)))
        if fact.kind == "run"
        else fact
        for fact in facts
    ]


def _count_earlier_calls(db: Connection, run_ids: Sequence[str]) -> None:
    """Count the tool calls of runs that have ended in another process than they began in, which knows only its own."""
    for id, numbers in progress_of(db, map(storable, run_ids)).items():
        db.execute(
            "UPDATE runs SET tool_calls = ? WHERE run_id = ? AND transport = '' AND tool_calls < ?",
            (numbers.tool_calls, id, numbers.tool_calls),
        )


def ended_run(run: RunRecord) -> RunFact:
    """Return the fact that a served run has ended."""
    observed = ObservedRun(run.id, run.agent, root_run_id=run.id, asked=run.agent, owner=run.owner)
    return RunFact(observed, run.started or run.created, "run", outcome=run.status, duration=run.elapsed)


def limit_bytes(events: Iterable[StoredEvent], size: int) -> list[StoredEvent]:
    """Return the first events up to a total of ``size`` bytes, and at least one event."""
    found: list[StoredEvent] = []
    for event in events:
        found.append(event)
        size -= len(event.data)
        if size <= 0:
            break
    return found


def page_of(found: Sequence[RunRecord], limit: int) -> Sequence[RunRecord]:
    """Return the runs of one page.

    ``found`` is the result of :meth:`RunStore.runs` with ``limit + 1``. If the page is shorter than ``found``, further
    runs exist.
    """
    is_long = len(found) > 1 and sum(map(_size, found)) > PAGE_SIZE
    return found[: min(limit, len(found) - 1) if is_long else limit]


def _size(run: RunRecord) -> int:
    return len(run.task) + len(run.reply) + len(run.error) + len(run.reason)


def _record(row: Sequence[Any], leases: Leases) -> RunRecord:
    return next(_records([row], leases))


def _records(rows: Iterable[Sequence[Any]], leases: Leases) -> Iterator[RunRecord]:
    """Decode rows of the table. Unfinished runs whose process has ended become ``interrupted``."""
    known: dict[tuple[Any, ...], bool] = {}  # many open runs may belong to one process: check it once
    for row in rows:
        fields: list[Any] = [*row[:-2], bool(row[-2]), row[-1]]
        run = RunRecord(*fields)
        if run.status in OPEN_STATES and not run.is_durable:
            process = (run.host, run.pid, run.born, run.created if run.born is None else None)
            if process not in known:
                known[process] = leases.is_held(run.host, run.pid, run.created, run.born)
            if not known[process]:
                run = msgspec.structs.replace(run, status="interrupted")
        yield run


_OUTERMOST = """(parent_run_id = ''
    OR NOT EXISTS (SELECT 1 FROM runs AS outer_run WHERE outer_run.run_id = runs.parent_run_id))"""
"""The condition that a run is not a part of another one in the list."""


_UNSERVED = f"SELECT {_ROW} FROM runs INDEXED BY unserved_open_runs WHERE ended IS NULL AND transport = ''"
_IN_STATE = {
    "interrupted": f"""(SELECT {_ROW} FROM runs WHERE status = 'interrupted' AND ended IS NOT NULL
        UNION ALL {_UNSERVED}) AS runs""",
    **{
        state: f"""(SELECT {_ROW} FROM runs INDEXED BY open_by_status WHERE status = '{state}' AND ended IS NULL
            AND transport != '' UNION ALL {_UNSERVED}) AS runs"""
        for state in OPEN_STATES
    },
}
"""The runs that may be in a state. The rows of runs without a server do not say that their process has ended, or that
they are suspended."""


_NEWEST = "ORDER BY created DESC, run_id DESC"


def _ordered(chosen: RunFilter, before: str, ids: Sequence[str] | None, limit: int) -> tuple[str, list[Any]]:
    """Return the query for the newest runs, and its values.

    Each state has its part of an index in the order of the list. So several states are read one by one, because the
    database would sort all runs that are in one of them.
    """
    states = chosen.get("states", ())
    alone = [(state,) for state in states] if len(states) > 1 and not {*states} & _IN_STATE.keys() else [states]
    parts = [_chosen(cast("RunFilter", {**chosen, "states": each}), before, ids) for each in alone]
    newest = [f"SELECT {_ROW} FROM {source} {_NEWEST} LIMIT ?" for source, _ in parts]
    values = [value for _, given in parts for value in (*given, limit)]
    if len(newest) == 1:
        return newest[0], values
    together = " UNION ALL ".join(f"SELECT {_ROW} FROM ({each}) AS part" for each in newest)
    return f"SELECT {_ROW} FROM ({together}) AS runs {_NEWEST} LIMIT ?", [*values, limit]


def _chosen(chosen: RunFilter, before: str = "", ids: Sequence[str] | None = None) -> tuple[str, list[Any]]:
    """Return SQL for the table and the condition of a query, and its values."""
    table = "runs"
    states, since = chosen.get("states", ()), chosen.get("since", 0.0)
    wanted: list[tuple[str, Sequence[Any]]] = [("transport != ''" if chosen.get("served") else "1 = 1", ())]
    if chosen.get("outermost"):
        wanted.append((_OUTERMOST, ()))
    if (owner := chosen.get("owner")) is not None:
        wanted.append(("owner = ?", (storable(owner),)))
    columns = {
        "agent": chosen.get("agent"),
        "session": chosen.get("session"),
        "session_id": chosen.get("session_id"),
        "correlation_id": chosen.get("correlation_id"),
        "origin": chosen.get("origin"),
    }
    wanted += [(f"{column} = ?", (storable(value),)) for column, value in columns.items() if value]
    if len(states) == 1 and states[0] in _IN_STATE and not chosen.get("served"):
        table = _IN_STATE[states[0]]
    elif states:
        named = f"status IN ({','.join('?' * len(states))})" if len(states) > 1 else "status = ?"
        is_sure = chosen.get("served") or not {*states} & _IN_STATE.keys()
        wanted.append((named if is_sure else f"({named} OR ended IS NULL AND transport = '')", states))
        if len(states) == 1 and states[0] in OPEN_STATES:
            table = "runs INDEXED BY open_by_status"
            wanted.append(("ended IS NULL", ()))
        elif set(states) <= {*OPEN_STATES}:
            # Few runs are open at any time. Without this hint, SQLite would scan all runs of an owner.
            table = "runs INDEXED BY open_runs"
            wanted.append(("ended IS NULL", ()))
        elif not {*states} & _IN_STATE.keys():
            wanted.append(("ended IS NOT NULL", ()))
    if since:
        wanted.append(("coalesce(ended, started, created) >= ?", (since,)))
    if created_from := chosen.get("created_from"):
        wanted.append(("created >= ?", (created_from,)))
    if created_to := chosen.get("created_to"):
        wanted.append(("created < ?", (created_to,)))
    # One run after another, so that a page of the newest runs ends the search. PostgreSQL would join for EXISTS.
    has_fact = "(SELECT 1 FROM facts f WHERE f.root_run_id = runs.run_id AND {} LIMIT 1) IS NOT NULL"
    for alternatives in _about_facts(chosen):
        told = " OR ".join(has_fact.format(condition) for condition, _ in alternatives)
        wanted.append((f"({told})", [value for _, values in alternatives for value in values]))
    if ids is not None:
        wanted.append((among(ids) if ids else "1 = 0", ids))
    if before:
        later = "(created, run_id) < (SELECT created, run_id FROM runs WHERE run_id = ?)"
        wanted.append((later, (storable(before),)))
    condition = " AND ".join(each for each, _ in wanted)
    return f"{table} WHERE {condition}", [value for _, given in wanted for value in given]


_Condition = tuple[str, Sequence[Any]]


def _about_facts(chosen: RunFilter) -> Iterator[list[_Condition]]:
    """Yield the conditions about what happened in a run, each as a list of alternatives with their values."""
    if tool := storable(chosen.get("tool", "")):
        yield [("f.tool != '' AND f.tool = ?", (tool,))]
    hook, verb = storable(chosen.get("hook", "")), storable(chosen.get("verb", ""))
    if hook or verb:
        yield [*decided_by(hook, verb)]
    if model := storable(chosen.get("model", "")):
        yield [("f.kind = 'model' AND f.model = ?", (model,))]


def _few_runs(db: Connection, chosen: RunFilter) -> list[str] | None:
    """Return the ids of the runs that meet a condition about facts, if they are few; otherwise ``None``.

    If something is rare, its runs are found by an index of the facts. If it is frequent, it is soon found in the newest
    runs.
    """
    for alternatives in _about_facts(chosen):
        each = "SELECT root_run_id FROM (SELECT f.root_run_id FROM facts f WHERE {} LIMIT ?) AS part"
        query = " UNION ALL ".join(each.format(condition) for condition, _ in alternatives)
        values = [value for _, given in alternatives for value in (*given, _FEW + 1)]
        found = db.execute(query, values).fetchall()
        if len(found) <= _FEW:
            return sorted({id for (id,) in found})
    return None


def first_open(db: Connection, session_id: str) -> QueuedRun | None:
    """Return the first durable run of a conversation that has not ended: the others wait for it."""
    query = f"""SELECT run_id, session_id, owner FROM runs WHERE session_id = ? AND transport != '' AND host = ?
        AND status IN ({",".join("?" * len(OPEN_STATES))}) ORDER BY created, run_id LIMIT 1"""
    row = db.execute(query, (storable(session_id), DURABLE, *OPEN_STATES)).fetchone()
    return None if row is None else QueuedRun(*row)


def _lock_and_find_ended(db: Connection, ids: set[str]) -> set[str]:
    """Lock runs on PostgreSQL until the end of the transaction, and return those that have ended."""
    query = f"SELECT run_id, ended FROM runs WHERE run_id IN ({','.join('?' * len(ids))}) ORDER BY run_id FOR UPDATE"
    return {run_id for run_id, ended in db.execute(query, [*ids]).fetchall() if ended is not None} if ids else set()


def _open_runs(db: Connection, owners: Sequence[str], limit: int) -> dict[str, int]:
    """Return the number of runs that servers execute and that have not ended, by owner; at most ``limit`` of each."""
    states, hosted = ",".join("?" * len(OPEN_STATES)), ",".join("?" * len(HOSTED_TRANSPORTS))
    query = f"""SELECT count(*) FROM (SELECT 1 FROM runs INDEXED BY open_by_owner WHERE ended IS NULL
        AND transport != '' AND transport NOT IN ({hosted}) AND status IN ({states})
        AND owner = ? LIMIT ?) AS counted"""
    given = *HOSTED_TRANSPORTS, *OPEN_STATES
    return {owner: db.execute(query, (*given, storable(owner), limit)).fetchone()[0] for owner in owners}


def _held_key(db: Connection, owner: str, key: str) -> IdempotencyKey | None:
    """Return an idempotency key with a run. One without a run was reserved by a process that ended."""
    row = db.execute(
        """SELECT k.owner, k.key, k.digest, k.run_id, k.at FROM idempotency_keys k JOIN runs r ON r.run_id = k.run_id
        WHERE k.owner = ? AND k.key = ?""",
        (storable_value(owner), storable_value(key)),
    ).fetchone()
    return None if row is None else IdempotencyKey(*row)


def _write(db: Connection, runs: Iterable[RunRecord], events: Sequence[StoredEvent]) -> None:
    records = list(runs)
    insert(db, "runs", _COLUMNS, list(map(msgspec.structs.astuple, records)), _ON_CONFLICT)
    for run in records:
        if run.started is None or run.ended is not None:  # the texts of a run change when it ends
            index_texts(run, db)
    rows = sorted(map(msgspec.structs.astuple, events), key=_RUN_OF_ROW)  # the rows of a run are beside each other
    insert(db, "events", StoredEvent.__struct_fields__, rows, _NEW_EVENT)


def run_row(run: RunRecord) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that writes the row of a served run, and its values: see :meth:`Journal.append`."""
    return _SERVED_ROW, tuple(map(storable_value, msgspec.structs.astuple(run)))


def index_texts(run: RunRecord, db: Connection) -> None:
    """Make the texts of a run searchable, inside the transaction that stores its row."""
    add_text(db, run.id, run.created, run.owner, run.agent, run.task, run.reply, replace=run.ended is not None)


_RUN_OF_ROW = itemgetter(StoredEvent.__struct_fields__.index("run_id"))
_NEW_EVENT = """ON CONFLICT (run_id, seq) DO UPDATE SET
    type = excluded.type, at = excluded.at, data = excluded.data"""
_KEY_ROW = upsert("idempotency_keys", (*IdempotencyKey.__struct_fields__, "host", "pid"), ("owner", "key"))
"""``host`` and ``pid`` are those of a process in earlier versions, which reserved a key before they stored its run."""
_CHANGING = [column for column in _COLUMNS if column not in ("run_id", "transport", "observed", "origin")]
_FIXED = ("agent", "owner", "session_id", "correlation_id", "created", "parent_run_id")
"""What a run of a server is found by, which is known from the beginning. SQLite would write its indexes again."""
_ON_CONFLICT = f"""ON CONFLICT (run_id) DO UPDATE SET
    {", ".join(f"{column} = excluded.{column}" for column in _CHANGING if column not in _FIXED)}"""
_SERVED_ROW = f"""INSERT INTO runs ({_ROW}) SELECT {",".join("?" * len(_COLUMNS))} {{source}} WHERE true
    {_ON_CONFLICT}"""
_OBSERVED = [column for column in _CHANGING if column not in ("task", "reply", "created", "started")]
_OBSERVED_ROW = f"""ON CONFLICT (run_id) DO UPDATE SET observed = 1,
    {", ".join(f"{c} = CASE WHEN runs.transport = '' THEN excluded.{c} ELSE runs.{c} END" for c in _OBSERVED)}"""
"""A hook knows neither the texts of a durable run nor when its first process began it."""


def _days_ago(days: float) -> float:
    """Return the Unix time a number of days ago.

    Raises:
        StoreError: it is not a positive number.
    """
    _check_days(days)
    return time.time() - days * 24 * 3600


def _check_days(days: object) -> None:
    if not is_number(days) or not 0 < days < 1e6:  # type: ignore[operator]
        raise StoreError(f"the number of days must be positive and below a million, not {days!r:.80}")
