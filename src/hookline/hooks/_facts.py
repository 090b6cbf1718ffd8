"""The facts of runs: made by a fire observer of each run, of its fires and some of its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from .._kernel.events import Event
from .._kernel.fire_observers import CallReport, FireReport
from .._kernel.hook import tool_of
from .._kernel.payloads import ApprovalAnswer
from .._kernel.points import AFTER_LLM, APPROVAL_REQUESTED, ON_RUN_END
from .._kernel.values import Ids
from .._run.events import ApprovalAsked, ApprovalDecided, Failed, RunFinished, RunStarted, ToolEnded
from .._run.new_fires import NewFireObserver
from .._run.run_hooks import clean_with
from ..records.rules import rules_of
from ..stores.callers import CALLER
from ..stores.facts import NAME, Gate, ObservedRun, RunFact, deciding_gate
from ..stores.runs import RunRecord
from ..stores.sql import Database, is_same
from .shadow_mode import ShadowDecided

if TYPE_CHECKING:
    from .._run.engine import Engine

EVENTS: frozenset[type[Event]] = frozenset(
    {RunStarted, ToolEnded, Failed, ApprovalAsked, ApprovalDecided, ShadowDecided, RunFinished}
)
"""The events that facts are made of, besides fires."""
PutRecord = Callable[[RunFact | RunRecord], None]


class FactRecorder:
    """The base class of hooks that record the facts of runs.

    Of several such hooks in one run with the same database, only the last one records: a server adds its own.

    Args:
        db: the database.
    """

    points: frozenset[str] = frozenset({ON_RUN_END})
    phase = "observe"
    priority = 0
    events = EVENTS

    def __init__(self, db: Database) -> None:
        self.db = db
        self._open: WeakValueDictionary[str, FactObserver] = WeakValueDictionary()

    def observe_fires(self, engine: Engine) -> FactObserver | None:
        """Return the fire observer that records a run."""
        recorders = [hook for hook in engine.hooks.allowed.watchers if isinstance(hook, FactRecorder)]
        if next(hook for hook in reversed(recorders) if is_same(hook.db, self.db)) is not self:
            return None
        ids = engine.ids
        outer = self._open.get(ids.parent_run_id)
        put = outer.put if outer is not None else self.storage_of(engine)
        if put is None:
            return None
        run = self.describe(engine, outer)
        facts = self._open[ids.run_id] = FactObserver(engine, self, run, put, outer)
        return facts

    def describe(self, engine: Engine, outer: FactObserver | None) -> ObservedRun:
        """Return what facts say about a run. ``outer`` is the run that it is part of."""
        ids = engine.ids
        asked, owner = ids.agent, str(engine.run_state.metadata.get(CALLER, ""))[:NAME]
        root = engine.services.origin.root_id or ids.run_id
        parent = ids.parent_run_id or ("" if root == ids.run_id else root)
        if outer is not None:
            parent, root, asked, owner = outer.run.run_id, outer.run.root_run_id, outer.run.asked, outer.run.owner
        return ObservedRun(ids.run_id, ids.agent, parent, root, asked, owner, rules_of(engine.hooks.stack))

    def on_event(self, event: Event) -> None:
        """Record one event."""
        facts = self._open.get(event.run_id)
        if facts is not None:
            facts.take(event)

    def storage_of(self, engine: Engine) -> PutRecord | None:
        """Return the function that stores the records of an outermost run; ``None`` if it is not recorded.

        It is called in the thread of the run. Records of a durable run are stored with its journal instead.
        """
        raise NotImplementedError

    def counts_run(self, facts: FactObserver) -> bool:
        """Whether the run itself is recorded, too."""
        return True


class FactObserver(NewFireObserver):
    """Makes the facts of a run, and puts them where they are stored.

    Args:
        engine: the run.
        recorder: the hook that observes the run: its own calls are no facts.
        run: the run, for its facts.
        put: stores a record.
        outer: the observer of the run that it is part of.
    """

    points = frozenset({AFTER_LLM})

    def __init__(
        self, engine: Engine, recorder: FactRecorder, run: ObservedRun, put: PutRecord, outer: FactObserver | None
    ) -> None:
        super().__init__(engine)
        clock = engine.environment.clock
        self._run, self.put, self._outer = run, put, outer
        self._origin = engine.services.origin.name
        self._stack, self._recorder = engine.hooks.stack, recorder
        self._now: Callable[[], float] = getattr(clock, "stamp", clock.time)
        self._numbers = count(1)
        self._asked: dict[str, float] = {}
        self._waiting: set[tuple[str, str]] = set()
        """The calls of the run and its nested runs that wait for approval: the id of the run, and that of the call."""
        self._started = 0.0

    @property
    def is_outermost(self) -> bool:
        """Whether the run is not part of another one."""
        return self._outer is None

    def _put(self, record: RunFact | RunRecord) -> None:
        if isinstance(record, RunFact):
            record = cleaned(record, self._engine.hooks.allowed.redactions)
        boundary = self._engine.boundary
        if boundary.is_direct or not boundary.put_record(self._recorder.db, record):
            self.put(record)

    @property
    def run(self) -> ObservedRun:
        """The run, with the rules in force now: hooks may come and go while it runs."""
        if (stack := self._engine.hooks.stack) is not self._stack:
            self._stack, self._run = stack, msgspec.structs.replace(self._run, rules=rules_of(stack))
        return self._run

    def new_fire(self, fire: FireReport) -> None:
        """Make a fact of a fire with hooks, or of a model call."""
        point = fire.point
        gates: tuple[Gate, ...] = ()
        decided = _NONE
        if fire.calls:
            counted = [call for call in fire.calls if call.entry.hook is not self._recorder and not call.is_postponed]
            gates = tuple(map(_gate, counted))
            decided = deciding_gate(gates) or _NONE
        if point is AFTER_LLM:
            reply = fire.verdict.payload
            usage = reply.usage
            self._put(
                RunFact(
                    self.run,
                    self._now(),
                    "model",
                    next(self._numbers),
                    point="after_llm",
                    model=reply.model[:NAME],
                    hook=decided.hook,
                    phase=decided.phase,
                    verb=fire.verdict.action.value,
                    refused=decided.refused,
                    reason=decided.reason,
                    outcome=reply.finish_reason,
                    source=reply.source[:NAME],
                    hop=reply.hop,
                    attempt=reply.attempt,
                    purpose=reply.purpose[:NAME],
                    provider=reply.provider[:NAME],
                    organization_id=reply.organization_id[:NAME],
                    input_tokens=usage.input_tokens,
                    output_tokens=usage.output_tokens,
                    cached_tokens=usage.cached_tokens,
                    cost=reply.cost,
                    duration=reply.duration,
                    gates=gates,
                )
            )
        if isinstance(answer := fire.verdict.value, ApprovalAnswer) and answer.asked_at is not None:
            self._asked.setdefault(fire.payload.call.id, answer.asked_at)
        if gates and point is not AFTER_LLM:
            self._put(_fact_of_fire(self.run, self._now(), next(self._numbers), fire, gates, decided))

    def take(self, event: Event) -> None:
        """Make a fact of an event."""
        at, number = event.at, next(self._numbers)
        match event:
            case ToolEnded():
                self._put(
                    RunFact(
                        self.run,
                        at,
                        "tool",
                        number,
                        call_id=event.call_id[:NAME],
                        tool=event.tool[:NAME],
                        outcome=event.outcome,
                        attempt=event.attempt,
                        duration=event.duration,
                    )
                )
            case Failed(error=error):
                self._put(
                    RunFact(
                        self.run,
                        at,
                        "error",
                        number,
                        call_id=error.call_id[:NAME],
                        outcome=error.type[:NAME],
                        source=error.source[:NAME],
                        place=error.where,
                        fatal=error.fatal,
                    )
                )
            case ApprovalAsked():
                self._asked[event.call_id] = at
                self._note_waiting(event, waits=True)
            case ApprovalDecided():
                self._note_waiting(event, waits=False)
                took = max(0.0, at - self._asked.pop(event.call_id, at))
                self._put(_fact_of_approval(self.run, at, number, event, took))
            case ShadowDecided():
                self._put(
                    RunFact(
                        self.run,
                        at,
                        "shadow",
                        number,
                        event.point,
                        hook=f"shadow({event.hook})"[:NAME],
                        verb=event.verb,
                        reason=event.reason or event.text,
                    )
                )
            case RunStarted():
                self._started = at
                if self._recorder.counts_run(self):
                    self._put(self._record(event.ids, at, status="running"))
            case RunFinished():
                if self._recorder.counts_run(self):
                    self._end(event, number)

    def _note_waiting(self, event: ApprovalAsked | ApprovalDecided, *, waits: bool) -> None:
        """Note that a call begins to wait for approval, or no longer does, and so do the run and those around it."""
        before = bool(self._waiting)
        (self._waiting.add if waits else self._waiting.discard)((event.run_id, event.call_id))
        if before is not bool(self._waiting) and self._recorder.counts_run(self):
            status = "waiting" if self._waiting else "running"
            self._put(self._record(self._engine.ids, self._started, status=status))
        if self._outer is not None:
            self._outer._note_waiting(event, waits=waits)

    def _end(self, event: RunFinished, number: int) -> None:
        result, usage = event.result, event.result.usage
        error = next((error.type for error in reversed(result.errors) if error.fatal), "")
        started = self._started or event.at - result.elapsed
        call = self._engine.services.call_id[:NAME]
        why = "" if result.stop is None else result.stop.message
        took = result.elapsed
        self._put(
            RunFact(self.run, started, "run", number, call_id=call, outcome=result.status, reason=why, duration=took)
        )
        self._put(
            self._record(
                result.ids,
                started,
                status=result.status,
                stop="" if result.stop is None else result.stop.kind,
                error=error if result.status == "failed" else "",
                steps=len(result.steps),
                tool_calls=result.tool_calls,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens,
                cost=result.cost,
                ended=event.at,
                elapsed=result.elapsed,
            )
        )

    def _record(self, ids: Ids, started: float, **known: Any) -> RunRecord:
        return RunRecord(
            id=ids.run_id,
            agent=ids.agent,
            owner=self.run.owner,
            session_id=ids.session_id,
            task_id=ids.task_id,
            correlation_id=ids.correlation_id,
            parent_run_id=self.run.parent_run_id,
            origin=self._origin,
            created=started,
            started=started,
            **known,
        )


_NONE = Gate("", "")


def cleaned(fact: RunFact, redactions: Sequence[Any]) -> RunFact:
    """Return a fact without what hooks replace in everything that is stored."""
    if not redactions:
        return fact
    gates = tuple([gate.with_reason(clean_with(redactions, gate.reason)) for gate in fact.gates])
    return msgspec.structs.replace(fact, reason=clean_with(redactions, fact.reason), gates=gates)


def _fact_of_approval(run: ObservedRun, at: float, number: int, event: ApprovalDecided, took: float) -> RunFact:
    """Return the fact of a decision about a call."""
    is_denied = event.decision == "denied"
    return RunFact(
        run,
        at,
        "approval",
        number,
        str(APPROVAL_REQUESTED),
        event.call_id[:NAME],
        event.tool[:NAME],
        verb="denied" if is_denied else "",
        refused=is_denied,
        outcome=event.decision,
        source=event.by[:NAME],
        reason=event.message,
        duration=took,
    )


def _fact_of_fire(
    run: ObservedRun, at: float, number: int, fire: FireReport, gates: tuple[Gate, ...], decided: Gate
) -> RunFact:
    payload = fire.payload
    about = getattr(payload, "call", payload)  # a question about a call has the call
    return RunFact(
        run,
        at,
        "fire",
        number,
        str(fire.point),
        str(getattr(about, "id", getattr(about, "call_id", "")))[:NAME],
        tool_of(payload)[:NAME] if fire.point.tool else "",
        hook=decided.hook,
        phase=decided.phase,
        verb=decided.verb,
        refused=decided.refused,
        reason=decided.reason,
        duration=fire.took,
        gates=gates,
    )


def _gate(call: CallReport) -> Gate:
    entry, result = call.entry, call.result
    took = int(call.took * 1e6)
    if result is None:
        verb = "cont" if call.error is None else "failed"
        return Gate(entry.name[:NAME], entry.phase, verb, took, call.error or "", call.refused)
    reason = str(result.reason)
    if call.refused and not reason and isinstance(result.value, str):  # a hook need not give another reason
        reason = result.value
    return Gate(entry.name[:NAME], entry.phase, result.action.value, took, reason, call.refused)
