"""The runs of coding agents in the list of runs: a prompt and all that follows is one run."""

from __future__ import annotations

import logging
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from ..._base.text import error_text
from ..._base.workers import in_thread
from ..._kernel.events import Event, HookExecuted
from ..._kernel.fire_observers import FireEvents, FireObserver, FireObservers, FireReport
from ..._kernel.payloads import ApprovalAnswer, ApprovalRequest
from ..._kernel.points import APPROVAL_REQUESTED, BEFORE_TOOL
from ..._kernel.registry import HookRegistry
from ..._kernel.scope import scope_of
from ..._run.events import ApprovalDecided
from ..._run.run_hooks import clean_with
from ...hooks._facts import cleaned, fact_of_approval, fact_of_fire
from ...records.rules import rules_of
from ...stores.errors import StoreError
from ...stores.facts import NAME, Gate, ObservedRun, RunFact
from ...stores.runs import RunRecord, RunStore
from .events import AgentEvent, Answer

if TYPE_CHECKING:
    from ..._kernel.values import Ids
    from ..._run.context import AgentContext

log = logging.getLogger("hookline")

_AUDITED: frozenset[type[Event]] = frozenset({HookExecuted, ApprovalDecided})
COMMAND = "agent-hook"
"""The name under which the command itself prevents a call."""


class PromptRecord(FireObserver):
    """Records what follows one prompt: the fires of hooks, and the tool calls.

    A coding agent does not say which models it calls, so the record has no model calls, tokens and cost. Verdicts and
    approvals are also events of audit logs, which record the results of tools themselves.

    Args:
        store: the store of runs, or ``None`` if the rules have none.
        registry: the rules.
        ctx: the context of the run, whose fires are recorded.
        ids: the ids of the run.
        outer: the run that started this subagent.
    """

    wants_hooked_fires = True
    wants_calls = "all"

    def __init__(
        self,
        store: RunStore | None,
        registry: HookRegistry,
        ctx: AgentContext,
        ids: Ids,
        outer: PromptRecord | None,
    ) -> None:
        now = time.time()
        self._store, self._registry = store, registry
        root = ids.run_id if outer is None else outer.run.root_run_id
        parent = "" if outer is None else outer.run.run_id
        self.run: ObservedRun = ObservedRun(ids.run_id, ids.agent, parent, root, ids.agent)
        self._row = RunRecord(
            id=ids.run_id,
            agent=ids.agent,
            session_id=ids.session_id,
            task_id=ids.run_id,
            correlation_id=ids.run_id,
            status="running",
            cost=None,
            created=now,
            started=now,
            parent_run_id=parent,
            origin=ids.agent,
        )
        self._facts: list[RunFact] = []
        self._numbers = count(1)
        scope_of(ctx).fire_observers = FireObservers(self).joined_by(FireEvents(self._emit))

    def fire_ended(self, fire: FireReport) -> None:
        """Make a fact of a fire."""
        self.run = msgspec.structs.replace(self.run, rules=rules_of(self._registry.stack))
        fact = fact_of_fire(self.run, time.time(), next(self._numbers), fire)
        if fact is not None:
            self._add(fact)
        answer = fire.verdict.value
        if isinstance(answer, ApprovalAnswer) and not answer.wait:
            decision = "approved" if answer.approve else "denied" if answer.edit is None else "edited"
            asked: ApprovalRequest = fire.payload
            by, why = answer.by or fire.verdict.hook, answer.deny or ""
            self._approval(decision, asked.call.id, asked.call.name, by, why, fire.took)

    async def store(self, event: AgentEvent, tool: str, answer: Answer) -> None:
        """Store what has happened up to the answer to an event. A failure is logged and changes no answer.

        Args:
            event: the event.
            tool: the tool of the event, under our name.
            answer: the answer that the agent gets.
        """
        self._take(event, tool, answer)
        facts, self._facts = self._facts, []
        if self._store is None:
            return
        try:
            await in_thread(self._store.add, [self._row], facts)
        except StoreError as error:
            log.error("records of runs were lost: %s", error_text(error))

    def _emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Make an event for the audit logs among the hooks."""
        if kind in _AUDITED:
            self._audit(kind(at=time.time(), run_id=self.run.run_id, **fields))

    def _audit(self, event: Event) -> None:
        stack = self._registry.stack
        event = clean_with(stack.redactions, event)
        for hook in stack.listeners:
            if not getattr(hook, "wants_events_outside_runs", False):
                continue
            try:
                hook.on_event(event)
            except Exception:
                log.exception("the audit log cannot record an event of run %s", self.run.run_id)

    def _add(self, fact: RunFact) -> None:
        self._facts.append(cleaned(fact, self._registry.stack.redactions))

    def _take(self, event: AgentEvent, tool: str, answer: Answer) -> None:
        now = time.time()
        if event.kind == "before_tool":
            self._row = msgspec.structs.replace(self._row, tool_calls=self._row.tool_calls + 1)
            if answer.deny is not None:
                self._refuse(event, tool, answer.deny)
                self._tool_call(event, tool, "blocked", now)
        elif event.kind == "after_tool":
            self._tool_call(event, tool, "ok" if event.error is None else "error", now)
        elif event.kind == "stop" and answer.go_on is None:
            self._end("completed", now)
        elif event.kind == "prompt" and answer.deny is not None:
            self._end("ended", now)

    def _refuse(self, event: AgentEvent, tool: str, why: str) -> None:
        """Record who prevented a call, unless a hook or an approver did: nobody who could approve it, or this command.

        The command prevents calls that no guard can judge, and decisions that the coding agent cannot carry out.
        """
        if any(fact.refused for fact in self._facts):
            return
        call_id = event.call_id
        if any(gate.verb == "ask" for fact in self._facts for gate in fact.gates):
            asked = [fact for fact in self._facts if fact.point == APPROVAL_REQUESTED]
            failed = [gate.hook for fact in asked for gate in fact.gates if gate.verb == "failed"]
            self._approval("denied", call_id, tool, failed[-1] if failed else "", why, 0.0)
            return
        fact = RunFact(
            self.run,
            time.time(),
            "fire",
            next(self._numbers),
            str(BEFORE_TOOL),
            call_id[:NAME],
            tool[:NAME],
            hook=COMMAND,
            phase="guard",
            verb="block",
            refused=True,
            reason=why,
            gates=(Gate(COMMAND, "guard", "block", 0, why, refused=True),),
        )
        self._add(fact)
        about = {"point": fact.point, "call_id": fact.call_id, "tool": fact.tool}
        self._emit(HookExecuted, hook=COMMAND, phase="guard", verb="block", reason=why, refused=True, **about)

    def _approval(self, decision: str, call_id: str, tool: str, by: str, why: str, took: float) -> None:
        event = ApprovalDecided(
            at=time.time(),
            run_id=self.run.run_id,
            call_id=call_id,
            decision=decision,
            by=by,
            message=why,
            tool=tool,
        )
        self._add(fact_of_approval(self.run, event.at, next(self._numbers), event, took))
        self._audit(event)

    def _tool_call(self, event: AgentEvent, tool: str, outcome: str, now: float) -> None:
        fact = RunFact(
            self.run,
            now,
            "tool",
            next(self._numbers),
            call_id=event.call_id[:NAME],
            tool=tool[:NAME],
            outcome=outcome,
            attempt=1,
            duration=event.seconds,
        )
        self._facts.append(fact)

    def _end(self, status: str, now: float) -> None:
        if self._row.ended is not None:
            return
        took = now - self._row.created
        self._row = msgspec.structs.replace(self._row, status=status, ended=now, elapsed=took)
        fact = RunFact(self.run, self._row.created, "run", next(self._numbers), outcome=status, duration=took)
        self._facts.append(fact)
