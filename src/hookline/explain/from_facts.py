"""The view of a run from what its store has: its events, or else its facts.

Facts are names, numbers and times: which hooks each model call and tool call passed, what they decided, and how long it
took. There are no texts, arguments and results, and the view says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..stores.facts import Gate, RunFact
from ..stores.runs import RunRecord, RunStore
from .from_events import LIMIT, EventsView
from .view import (
    ChainHook,
    DecisionView,
    EventView,
    ModelCall,
    MomentView,
    NestedRun,
    RunView,
    StepView,
    ToolCallView,
    count_subagents,
    count_totals,
    waits_for,
    why_not_over,
    why_stopped,
)

_BEFORE_MODEL = ("before_step", "before_prompt_build", "before_llm", "on_token")
_KEPT = "Only names, numbers and times of this run are stored, not its texts, arguments and results"
RECORD_HINT = "A run that is recorded (record = true) can be read in full."


def stored_view(store: RunStore, run: RunRecord, *, limit: int = LIMIT) -> RunView:
    """Return the view of a run from its events if they are stored, else from its facts.

    Args:
        store: has the run.
        run: the record of the run.
        limit: the number of characters of each text that the view contains.

    Raises:
        StoreError: the store cannot be used.
    """
    built = EventsView(limit)
    while found := store.events(run.id, built.seq):
        for event in found:
            built.add(msgspec.json.decode(event.data))
    if built.seq:
        if built.view.status == "running":  # the events have no end
            count_totals(built.view)
            _take_numbers(built.view, run)
            built.view.status = run.status
            built.view.why = why_not_over(run.status, waits_for(built.view))
        built.view.rules = store.rules(run.id)
        return built.view
    return facts_view(run, store.tree_facts(run.id))


def facts_view(run: RunRecord, facts: Iterable[RunFact]) -> RunView:
    """Return the view of a run from its facts and those of the runs nested in it."""
    by_run: dict[str, list[RunFact]] = {}
    for fact in facts:
        by_run.setdefault(fact.run.run_id, []).append(fact)
    started = run.started or run.created
    builder = _Builder(run.id, run.agent, started, by_run)
    own = by_run.get(run.id, ())
    view = builder.build(own)
    view.rules = next((fact.run.rules for fact in own if fact.run.rules), "")
    view.time, view.task, view.session, view.reply = started, run.task, run.session_id, run.reply
    view.status, view.has_texts = run.status, False
    view.notes.append(_missing(run))
    _take_numbers(view, run)
    if run.is_over:
        view.elapsed = run.elapsed or view.until
        message = next((fact.reason for fact in own if fact.kind == "run"), "")
        view.why = run.reason or why_stopped(view.steps, run.status, run.stop, message)
        if run.status == "failed" and run.error:
            view.why = f"It failed: {run.error}"
        elif run.status == "interrupted":
            view.why = why_not_over(run.status, ())
    else:
        view.why = why_not_over(run.status, waits_for(view))
    count_subagents(view)
    return view


def _take_numbers(view: RunView, run: RunRecord) -> None:
    """Set the numbers of a view to those of the list of runs."""
    view.step_count, view.tool_calls, view.cost = run.steps, run.tool_calls, run.cost
    view.input_tokens, view.output_tokens, view.cached_tokens = run.input_tokens, run.output_tokens, run.cached_tokens


def _missing(run: RunRecord) -> str:
    """Say what the store does not have of a run, and why."""
    if run.parent_run_id:
        return f"{_KEPT}: the page of its outer run {run.parent_run_id} has them, if they are stored."
    if run.origin == "server":
        return f"{_KEPT}: the server has deleted them after the time for which it keeps them."
    if not run.observed:
        return "Nothing is stored of what happened in this run: only its journal recorded it, which is gone."
    return f"{_KEPT}: those are stored for runs of a server and for durable runs only. {RECORD_HINT}"


class _Builder:
    """Builds the view of one run. Times count from the start of the outermost run."""

    def __init__(self, id: str, agent: str, zero: float, by_run: dict[str, list[RunFact]]) -> None:
        self.view = RunView(id, agent, status="running", chains=[[]])
        self._zero = zero
        self._by_run = by_run
        self._calls: dict[str, ToolCallView] = {}
        self._before: list[MomentView] = []
        """What happened before a model call that has not ended yet."""

    def build(self, facts: Sequence[RunFact]) -> RunView:
        for fact in facts:
            self._add(fact)
        for moment in self._before:
            if moment.decisions:
                self._current.items.append(EventView(moment.at, "", [moment]))
        for id, inner in self._by_run.items():
            if inner[0].run.parent_run_id == self.view.id and id != self.view.id:
                self._nest(id, inner)
        return self.view

    def _add(self, fact: RunFact) -> None:
        at = max(0.0, fact.at - self._zero)
        if fact.kind == "run":  # its time is that of its beginning
            self.view.at, self.view.status, self.view.elapsed = at, fact.outcome, fact.duration or 0.0
            at += self.view.elapsed
        elif fact.kind == "model":
            self._model_call(fact, at)
        elif fact.kind == "tool":
            call = self._call(fact, at)
            call.outcome, call.duration = fact.outcome, fact.duration or 0.0
            call.attempts = max(call.attempts, fact.attempt)
            if fact.duration:
                call.began = max(0.0, at - fact.duration)
        elif fact.kind == "approval":
            call = self._call(fact, at)
            call.decision, call.decided_by = fact.outcome, fact.source
            asked = MomentView(fact.seq, "approval_requested", max(0.0, at - (fact.duration or 0.0)), fact.tool)
            call.moments += [asked, MomentView(fact.seq, "approval_decided", at, fact.tool)]
        elif fact.kind == "error":
            if fact.place != "hook" and fact.call_id not in self._calls:
                text = f"{fact.outcome} ({fact.place}{f' {fact.source}' if fact.source else ''})"
                moment = MomentView(fact.seq, "on_error", at)
                self._current.items.append(EventView(at, text, [moment], bad=True))
        elif fact.kind == "shadow":
            hook = fact.hook.removeprefix("shadow(").removesuffix(")")
            text = f"In shadow mode, {hook} would {fact.verb}{f': {fact.reason}' if fact.reason else ''}"
            self._current.items.append(EventView(at, text, [MomentView(fact.seq, "shadow_decided", at)]))
        else:
            self._fire(fact, at)
        self.view.events += 1
        self.view.until = max(self.view.until, at)
        if self.view.steps:
            self._current.until = max(self._current.until, at)

    @property
    def _current(self) -> StepView:
        if not self.view.steps:
            self.view.steps.append(StepView(-1, 0.0))
        return self.view.steps[-1]

    def _moment(self, fact: RunFact, at: float) -> MomentView:
        gates = fact.gates or ((Gate(fact.hook, fact.phase, fact.verb, 0, fact.reason),) if fact.hook else ())
        chain = [ChainHook(gate.hook, gate.phase) for gate in gates]
        if chain not in self.view.chains:
            self.view.chains.append(chain)
        decisions = [
            DecisionView(
                gate.hook, gate.phase, gate.verb, gate.reason, took=gate.microseconds / 1e6, refused=gate.refused
            )
            for gate in gates
            if gate.verb != "cont" or gate.reason
        ]
        took = fact.duration or 0.0 if fact.kind == "fire" else sum(gate.microseconds for gate in gates) / 1e6
        number = self.view.chains.index(chain)
        return MomentView(fact.seq, fact.point, at, fact.tool, took, number, decisions, by=fact.hook)

    def _model_call(self, fact: RunFact, at: float) -> None:
        began = max(0.0, at - (fact.duration or 0.0))
        if fact.purpose == "step" and (not self.view.steps or self._current.index < fact.hop):
            first = min((moment.at for moment in self._before), default=began)
            self.view.steps.append(StepView(fact.hop, min(first, began), at))
        call = ModelCall(
            began,
            fact.model,
            fact.purpose,
            fact.attempt,
            answered=True,
            finish_reason=fact.outcome,
            input_tokens=fact.input_tokens,
            output_tokens=fact.output_tokens,
            cached_tokens=fact.cached_tokens,
            cost=fact.cost,
            duration=fact.duration or 0.0,
            source=fact.source,
            moments=[*self._before, self._moment(fact, at)],
        )
        self._before = []
        self.view.model = self.view.model or fact.model
        self._current.items.append(call)

    def _call(self, fact: RunFact, at: float) -> ToolCallView:
        if fact.call_id not in self._calls:
            self._calls[fact.call_id] = ToolCallView(fact.call_id, fact.tool, max(0.0, at - (fact.duration or 0.0)))
            self._current.items.append(self._calls[fact.call_id])
        return self._calls[fact.call_id]

    def _fire(self, fact: RunFact, at: float) -> None:
        moment = self._moment(fact, at)
        if fact.call_id in self._calls or (fact.call_id and fact.tool):
            self._call(fact, at).moments.append(moment)
        elif fact.point in _BEFORE_MODEL:
            self._before.append(moment)
        elif moment.decisions:
            self._current.items.append(EventView(at, "", [moment]))

    def _nest(self, id: str, facts: Sequence[RunFact]) -> None:
        """Add a nested run to the call during which it ran."""
        inner = _Builder(id, facts[0].run.agent, self._zero, self._by_run)
        inner.view.chains = self.view.chains
        view = inner.build(facts)
        status, elapsed = view.status, view.elapsed
        count_totals(view)
        view.status, view.elapsed = status, elapsed
        self.view.events += view.events
        call = self._starter(facts, view)
        if call is not None:
            call.runs.append(view)
            return
        step = next((each for each in reversed(self.view.steps) if each.at <= view.at), self._current)
        step.items.append(NestedRun(view.at, view))

    def _starter(self, facts: Sequence[RunFact], nested: RunView) -> ToolCallView | None:
        """Return the call that started a nested run. Facts of earlier versions do not say it: a call that took as long,
        if it is the only one.
        """
        id = next((fact.call_id for fact in facts if fact.kind == "run"), "")
        if id in self._calls:
            return self._calls[id]
        until = nested.at + nested.elapsed
        around = [call for call in self._calls.values() if call.began is not None and call.began <= nested.at]
        around = [call for call in around if until <= (call.began or 0.0) + call.duration]
        return around[0] if len(around) == 1 else None
