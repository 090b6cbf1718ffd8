"""A recorded run as people read it: steps, model calls, tool calls, and what each hook did at each point.

:func:`explain` builds the view from a record. The terminal, the HTML page and ``--json`` show the same view::

    run = next(read_runs(["records/"]))
    view = explain(run)
    print(view.why)
    for step in view.steps:
        for moment in step.moments():
            print(moment.point, [(hook.name, hook.state) for hook in view.hooks_at(moment)])
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from .._base.attachment import Attachment, is_digest, sha256_of, size_text
from .._base.attachment_files import ATTACHMENTS_SUFFIX
from .._base.frozen import json_text
from .._base.text import counted
from .._kernel.hook import matches
from .._kernel.payloads import WITHHELD
from ..records import format as fmt
from ..records.reading import RecordedMoment, RecordedRun
from .gates import APPROVAL, DECIDING, GateCall, decided, strongest
from .text_diff import Part, diff_text, fold
from .totals import SubagentTotals
from .words import STOPS, gate_of

TEXT_LIMIT = 4000
_CUT_OFF = re.compile(r"… \(([\d,]+) more characters?\)\Z")
"""Number of characters of a text that a view contains; longer texts are cut."""

MAX_IMAGE = 100_000
"""Largest image, in bytes, that a view contains."""
MAX_IMAGES = 20
"""Maximum number of images in a view."""

DISCARDED = "discarded"
"""The finish reason of a reply that was streamed and then withdrawn."""
_IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))  # no SVG, which may contain scripts
_SHOWN_DIGEST = 12

State = Literal["spoke", "passed", "skipped", "not selected"]


class View(msgspec.Struct, omit_defaults=True):
    """Base of all parts of a view."""


class Change(View):
    """A change by a hook: the field, and the difference by words."""

    field: str
    parts: list[Part]


class DecisionView(View):
    """The result of a hook at a point, or its failure."""

    hook: str
    phase: str
    verb: str
    reason: str = ""
    value: str = ""
    """The message, answer, question, note or reply, as text."""
    changes: list[Change] = []
    state: list[Change] = []
    """The changes that the hook made in the state of the run."""
    error: str = ""
    took: float = 0.0
    refused: bool = False
    """Whether the hook prevented something."""


class ChainHook(View):
    """A hook that is registered at a point."""

    name: str
    phase: str
    priority: float = 0
    tools: tuple[str, ...] = ()
    selected: bool = True
    """Whether its globs select the tool."""
    on_failure: str = "closed"
    plugin: str = ""


class HookOutcome(View):
    """The part of one hook in a moment. ``state`` is ``skipped`` if an earlier hook settled the point."""

    name: str
    phase: str
    state: State
    decision: DecisionView | None = None


class MomentView(View):
    """One fire of a point. ``chain`` is the number of its hooks in :attr:`RunView.chains`."""

    n: int
    point: str
    at: float
    tool: str = ""
    took: float = 0.0
    chain: int = 0
    decisions: list[DecisionView] = []
    skipped: list[int] = []
    """Positions in the chain of hooks that were not called, because an earlier hook settled the point."""
    verdict: str = ""
    by: str = ""
    """The hook that determined the verdict."""
    checked: list[Change] = []
    """How validation changed the arguments before the guards judged them."""
    notes: list[str] = []

    @property
    def verbs(self) -> list[str]:
        """The verbs of hooks that intervened; empty if the payload passed unchanged."""
        found = [decision.verb for decision in self.decisions if decision.verb != "cont"]
        return found or ([self.verdict] if self.verdict not in ("", "cont") else [])


class MessageView(View):
    """A message of a request. ``known`` is true if the page has already shown its text: a reply or a result."""

    role: str
    text: str = ""
    calls: list[str] = []
    name: str = ""
    known: bool = False


class ModelCall(View, tag_field="kind", tag="model"):
    """One attempt of a call of the model, with the hooks before and after it."""

    at: float = 0.0
    model: str = ""
    purpose: str = "step"
    attempt: int = 1
    kept: int = 0
    """Number of messages that the previous request contained."""
    messages: list[MessageView] = []
    tools: int = 0
    text: str = ""
    calls: list[str] = []
    answered: bool = False
    finish_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    duration: float = 0.0
    source: str = "model"
    """``model``, or the hook that answered instead."""
    error: str = ""
    moments: list[MomentView] = []


class ToolCallView(View, tag_field="kind", tag="call"):
    """A tool call, with the hooks before and after it, its approval, and the runs that it started."""

    id: str
    tool: str
    at: float = 0.0
    began: float | None = None
    """When the tool began, if the source of the view says it."""
    arguments: list[tuple[str, str]] = []
    """The arguments as the model sent them."""
    raw: str = ""
    outcome: str = ""
    result: str = ""
    """The text that the model read."""
    duration: float = 0.0
    attempts: int = 1
    questions: list[str] = []
    decision: str = ""
    """How the approval was decided; empty if no hook asked."""
    decided_by: str = ""
    message: str = ""
    labels: list[str] = []
    moments: list[MomentView] = []
    runs: list[RunView] = []


class EventView(View, tag_field="kind", tag="event"):
    """A moment that belongs to no model call and no tool call."""

    at: float
    text: str
    moments: list[MomentView]
    bad: bool = False


class NestedRun(View, tag_field="kind", tag="run"):
    """A run that was started by a hook or in another way outside a tool call."""

    at: float
    run: RunView


Item = ModelCall | ToolCallView | EventView | NestedRun


def is_refused(item: Item, hook: str | None = None) -> bool:
    """Whether something was prevented: by a hook or by who denied a call; only by this one, if one is given."""
    if isinstance(item, NestedRun):
        return False
    decisions = [each for moment in item.moments for each in moment.decisions if hook in (None, each.hook)]
    is_denied = isinstance(item, ToolCallView) and item.decision == "denied" and hook in (None, item.decided_by)
    return is_denied or any(each.refused for each in decisions)


def has_reply(step: StepView) -> bool:
    """Whether the model has replied in a step, and no hook prevented the reply."""
    calls = (item for item in step.items if isinstance(item, ModelCall))
    replies = (call for call in calls if call.answered and call.purpose == "step" and call.finish_reason != DISCARDED)
    return not all(map(is_refused, replies))


class StepView(View):
    """One step: the model calls and tool calls of one round of the loop. ``index`` is -1 before the first step."""

    index: int
    at: float
    until: float = 0.0
    items: list[Item] = []

    def moments(self) -> Iterator[MomentView]:
        """Yield the moments of the step, without those of nested runs."""
        for item in self.items:
            if not isinstance(item, NestedRun):
                yield from item.moments


class RunView(View):
    """A whole run. JSON always has ``status``, ``cost`` and ``steps``: a default made by a function is not left out."""

    id: str
    agent: str = ""
    task: str = ""
    system: str = ""
    model: str = ""
    time: float = 0.0
    file: str = ""
    session: str = ""
    status: str = msgspec.field(default_factory=lambda: "interrupted")
    why: str = ""
    """Why the run stopped, as a sentence."""
    reply: str = ""
    at: float = 0.0
    until: float = 0.0
    """The time of the last moment. Times count from the start of the outermost run, in seconds."""
    elapsed: float = 0.0
    """Seconds that the run took, without the time that it was queued or suspended."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = msgspec.field(default_factory=lambda: None)
    """Tokens and cost contain those of the subagents."""
    tool_calls: int = 0
    """Number of the run's own calls that have an outcome."""
    step_count: int = 0
    """Number of steps in which the model has replied, as in ``AgentResult.steps``: a step may end before that."""
    subagents: SubagentTotals = SubagentTotals()
    events: int = 0
    """Number of moments, with those of nested runs."""
    rules: str = ""
    """The digest of the rules in force at the start: of the hooks that decide, with their arguments."""
    steps: list[StepView] = msgspec.field(default_factory=lambda: [])
    chains: list[list[ChainHook]] = []
    """The hooks at a point, in firing order. Moments refer to them by position; nested runs share the list."""
    notes: list[str] = []
    has_texts: bool = True
    """Whether the texts of the run are known: those of the task, replies, arguments and results."""
    has_requests: bool = True
    """Whether the requests to the model and the values before the hooks are known: events do not have them."""
    images: dict[str, str] = {}
    """Small images among the attachments, as ``data:`` URLs by the beginning of their digest."""

    def all_steps(self) -> Iterator[tuple[RunView, StepView, int]]:
        """Yield all steps with their run and depth; the steps of nested runs follow the step that started them."""
        yield from _steps(self, 0)

    def moments(self) -> Iterator[MomentView]:
        """Yield all moments, with those of nested runs."""
        for _, step, _ in self.all_steps():
            yield from step.moments()

    def hooks_at(self, moment: MomentView) -> list[HookOutcome]:
        """Return what each hook did at a moment, in firing order."""
        return hook_outcomes(moment, self.chains[moment.chain])


def _steps(run: RunView, depth: int) -> Iterator[tuple[RunView, StepView, int]]:
    for step in run.steps:
        yield run, step, depth
        for nested in nested_runs(step):
            yield from _steps(nested, depth + 1)


def nested_runs(step: StepView) -> Iterator[RunView]:
    """Yield the runs that were started in a step."""
    for item in step.items:
        if isinstance(item, NestedRun):
            yield item.run
        elif isinstance(item, ToolCallView):
            yield from item.runs


def count_totals(run: RunView) -> None:
    """Set the totals of a run that has no result, from its steps, its calls and its subagents."""
    own = [item for step in run.steps for item in step.items]
    nested = [each for step in run.steps for each in nested_runs(step)]
    for each in nested:
        if each.status == "running":
            count_totals(each)
    models = [item for item in own if isinstance(item, ModelCall) and item.answered]
    used: list[ModelCall | RunView] = [*models, *nested]
    costs = [each.cost for each in used if each.input_tokens or each.output_tokens]
    run.step_count = sum(map(has_reply, run.steps))
    run.tool_calls = sum(isinstance(item, ToolCallView) and item.outcome != "" for item in own)
    run.input_tokens = sum(each.input_tokens for each in used)
    run.output_tokens = sum(each.output_tokens for each in used)
    run.cached_tokens = sum(each.cached_tokens for each in used)
    run.cost = None if None in costs else sum(cost for cost in costs if cost is not None)
    count_subagents(run)


def count_subagents(run: RunView) -> None:
    """Set the totals of the subagents of a run."""
    found = SubagentTotals()
    for step in run.steps:
        for each in nested_runs(step):
            found += SubagentTotals(1, each.step_count, each.tool_calls) + each.subagents
    run.subagents = found


def hook_outcomes(moment: MomentView, chain: Sequence[ChainHook]) -> list[HookOutcome]:
    """Return what each hook of a chain did at a moment."""
    spoken = list(moment.decisions)
    found: list[HookOutcome] = []
    for position, hook in enumerate(chain):
        decision = _decision_of(hook, spoken)
        if decision is not None:
            spoken.remove(decision)
        skipped = position in moment.skipped
        state: State = "passed" if hook.selected else "not selected"
        found.append(
            HookOutcome(hook.name, hook.phase, "spoke" if decision else "skipped" if skipped else state, decision)
        )
    # Hooks that the record does not list, such as those of an imported run.
    return [*found, *(HookOutcome(decision.hook, decision.phase, "spoke", decision) for decision in spoken)]


def _decision_of(hook: ChainHook, decisions: Sequence[DecisionView]) -> DecisionView | None:
    return next((each for each in decisions if each.hook == hook.name and each.phase == hook.phase), None)


def gates_at(moments: Iterable[MomentView], chains: Sequence[Sequence[ChainHook]]) -> list[GateCall]:
    """Return the gates of the moments of a call, as a record or events say them."""
    found = []
    for moment in moments:
        if moment.point in APPROVAL:
            continue
        chain = chains[moment.chain] if chains else []
        for outcome in hook_outcomes(moment, chain):
            decision = outcome.decision
            if outcome.state == "not selected" or (outcome.phase not in DECIDING and decision is None):
                continue
            if decision is None:
                state = "skipped" if outcome.state == "skipped" else "passed"
                found.append(GateCall(moment.point, outcome.name, state, phase=outcome.phase))
                continue
            reason = decision.error or decision.reason or decision.value
            found.append(
                GateCall(
                    moment.point,
                    outcome.name,
                    gate_of(decision.verb),
                    decision.verb,
                    reason,
                    decision.took,
                    outcome.phase,
                    decision.refused,
                )
            )
    return found


def call_gates(
    call: ToolCallView, chains: Sequence[Sequence[ChainHook]], fired: Iterable[GateCall] = (), *, is_open: bool
) -> list[GateCall]:
    """Return the gates of a call with what became of its approval, one for each hook on a side of the call.

    Args:
        call: the call.
        chains: the chains of hooks of its run.
        fired: gates that are known from facts.
        is_open: whether the run has not ended: only then, a person can still answer.
    """
    gates = strongest([*fired, *gates_at(call.moments, chains)])
    return decided(gates, call.decision, waits=is_open and is_waiting(call), ran=ran(call))


def is_open(run: RunView) -> bool:
    """Whether a run has not ended, so that a person can still answer for its calls."""
    return run.status in ("queued", "running", "waiting")


def unanswered_signs(run: RunView) -> dict[int, str]:
    """Return how the hook line draws hooks that asked and got no answer, by the numbers of their moments."""
    found: dict[int, str] = {}
    calls = (item for _, step, _ in run.all_steps() for item in step.items if isinstance(item, ToolCallView))
    for call in calls:
        states = {gate.state for gate in call_gates(call, run.chains, is_open=is_open(run))}
        state = next((each for each in ("waits", "unanswered") if each in states), "")
        if state:
            found |= {each.n: state for each in call.moments if any(one.verb == "ask" for one in each.decisions)}
    return found


def is_waiting(call: ToolCallView) -> bool:
    """Whether a call asked a person, and has neither an answer nor a result. Its run may have ended since."""
    return not call.decision and not call.outcome and any(map(_asks, call.moments))


def ran(call: ToolCallView) -> bool:
    """Whether the tool of a call ran, or a hook answered in its place."""
    return call.outcome in ("ok", "answered") or (call.began is not None and call.outcome != "blocked")


def _skipped(moment: MomentView, chain: Sequence[ChainHook]) -> list[int]:
    """Return the positions of the hooks that were not called: DESIGN 4.3 says which hooks a verb skips."""
    if not moment.decisions and moment.verdict != "invalid":
        return []
    found: list[int] = []
    skips: set[str] = {"guard"} if moment.verdict == "invalid" else set()
    for position, hook in enumerate(chain):
        decision = _decision_of(hook, moment.decisions)
        if decision is not None:
            skips |= _skipped_phases(decision, hook, moment)
        elif hook.selected and hook.phase in skips:
            found.append(position)
    return found


def _skipped_phases(decision: DecisionView, hook: ChainHook, moment: MomentView) -> set[str]:
    verb = decision.verb
    if verb == "answer":
        return {"rewrite"} if hook.phase == "rewrite" else set()
    settles = verb in ("block", "end", "claim") or (verb == "retry" and moment.verdict == "retry")
    if verb == "failed":
        settles = hook.on_failure in ("closed", "block") and moment.point != "on_run_end"
    return {"rewrite", "guard"} if settles and hook.phase != "observe" else set()


def _failed_closed(moment: MomentView, chain: Sequence[ChainHook]) -> bool:
    """Whether a hook failed closed at a moment."""
    return any(
        decision.verb == "failed" and hook.on_failure == "closed"
        for hook in chain
        if (decision := _decision_of(hook, moment.decisions)) is not None
    )


def explain(run: RecordedRun, *, limit: int = TEXT_LIMIT) -> RunView:
    """Return the view of a recorded run and its nested runs.

    Args:
        run: a run from :func:`hookline.records.read_runs`.
        limit: the number of characters of each text that the view contains.
    """
    view = _RunBuilder(run, _Chains(), limit, _start(run)).build()
    view.images = dict(_images(run.file))
    return view


def _images(record: Path) -> Iterator[tuple[str, str]]:
    """Yield the small images that a tape has beside it. Other records have no contents."""
    folder = Path(f"{record}{ATTACHMENTS_SUFFIX}")
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    small = (file for file in files if is_digest(file.name) and file.stat().st_size <= MAX_IMAGE)
    for content in islice(small, MAX_IMAGES):
        data = content.read_bytes()
        kind = Attachment.of(data, max_size=None).media_type if data else ""
        if kind in _IMAGES and sha256_of(data) == content.name:
            yield content.name[:_SHOWN_DIGEST], f"data:{kind};base64,{b64encode(data).decode()}"


class _Chains:
    """The hooks at each point, each list once."""

    def __init__(self) -> None:
        self.lists: list[list[ChainHook]] = [[]]
        self._known: dict[tuple[str, str, str], int] = {}

    def of(self, run: RecordedRun, point: str, tool: str) -> int:
        key = run.info.hooks, point, tool
        if key not in self._known:
            hooks = sorted(
                ((hook.points[point], hook) for hook in run.hooks if point in hook.points),
                key=lambda pair: pair[0].order,
            )
            chain = [
                ChainHook(
                    hook.name,
                    at.phase,
                    at.priority,
                    at.tools,
                    not (at.tools and tool) or matches(tool, at.tools),
                    at.on_failure,
                    hook.plugin,
                )
                for at, hook in hooks
            ]
            if chain in self.lists:
                self._known[key] = self.lists.index(chain)
            else:
                self._known[key] = len(self.lists)
                self.lists.append(chain)
        return self._known[key]


class _RunBuilder:
    """Builds the view of one run."""

    def __init__(self, run: RecordedRun, chains: _Chains, limit: int, zero: float) -> None:
        self.run = run
        self.chains = chains
        self.limit = limit
        self.zero = zero
        """The time in the record at which the outermost run of the view starts."""
        info = run.info
        start = _start(run) - zero
        self.view = RunView(
            info.ids.run_id,
            info.ids.agent,
            self.cut(info.task),
            self.cut(info.system),
            info.model,
            info.time,
            str(run.file),
            info.ids.session_id,
            at=start,
            rules=info.rules,
        )
        self.steps: list[StepView] = self.view.steps
        self.calls: dict[str, ToolCallView] = {}
        self.request: ModelCall | None = None
        self.messages: list[Any] = []
        """The messages of the last request, as it arrived at ``before_llm``."""
        self.tools = 0
        self.replies: set[str] = set()
        """Texts of replies and results that the view already contains."""
        self.failure = "\0"
        """The last failure of a hook."""
        self.last = start

    def build(self) -> RunView:
        waiting = sorted(((_first_position(run), run) for run in self.run.nested), key=lambda pair: pair[0])
        for moment in self.run.moments:
            while waiting and waiting[0][0] < moment.position:
                self.nest(waiting.pop(0)[1])
            self.add(moment)
        for _, run in waiting:
            self.nest(run)
        for label in self.run.labels:
            self.label(label)
        self.finish()
        return self.view

    # The parts of a run

    def step(self, index: int, at: float) -> StepView:
        """Return the step with this index, which is the current one or a new one."""
        if not self.steps or self.steps[-1].index < index:
            self.steps.append(StepView(index, at, at))
            self.request = None
        return self.steps[-1]

    @property
    def current(self) -> StepView:
        return self.steps[-1] if self.steps else self.step(-1, self.view.at)

    def add(self, recorded: RecordedMoment) -> None:
        point, fields = recorded.point, recorded.fields
        moment = self.moment(recorded, fields)
        self.view.events += 1
        self.last = max(self.last, moment.at)
        if point in ("before_step", "after_step"):
            self.step(_whole(fields.get("index")), moment.at)
        if point == "before_llm":
            self.asked(recorded, fields, moment)
        elif point == "after_llm":
            self.replied(recorded, fields, moment)
        elif point in ("before_tool", "after_tool"):
            self.called(recorded, fields, moment)
        elif point == "approval_requested" and isinstance(fields.get("call"), dict):
            call = self.call(fields["call"], moment)
            call.questions = [str(as_mapping(one).get("text", "")) for one in as_items(fields.get("questions"))]
            call.moments.append(moment)
        elif point in ("approval_decided", "on_progress", "tool_end_with_path") and _called(fields) in self.calls:
            call = self.calls[_called(fields)]
            if point == "approval_decided":
                call.decision, call.decided_by = str(fields.get("decision", "")), str(fields.get("by", ""))
                call.message = self.cut(str(fields.get("message", "")))
            call.moments.append(moment)
        elif point == "on_error" and self.failed(fields, moment):
            pass
        elif point == "on_token" and self.request is not None:
            self.request.moments.append(moment)
        else:
            text, bad = self.event_text(point, fields)
            if point == "on_error" and fields.get("where") == "hook" and self.failure in text:
                text = ""  # the decision of the hook that failed says it
            self.current.items.append(EventView(moment.at, text, [moment], bad))
        self.current.until = max(self.current.until, moment.at)

    def moment(self, recorded: RecordedMoment, fields: Mapping[str, Any]) -> MomentView:
        line = recorded.line
        chain = self.chains.of(self.run, line.point, line.tool)
        moment = MomentView(line.n, line.point, max(0.0, line.at - self.zero), line.tool, line.took, chain)
        if line.verdict is not None:
            moment.verdict, moment.by = line.verdict.verb, line.verdict.hook
        current = dict(fields)
        if line.point == "before_llm":
            current["messages"] = self.continued(recorded, fields)
        moment.decisions = [self.decision(decision, current) for decision in line.decisions or ()]
        moment.skipped = _skipped(moment, self.chains.lists[chain])
        notes = line.notes
        if notes is not None:
            if notes.checked is not None:
                moment.checked = self.field_changes("arguments", current.get("arguments"), notes.checked)
            if notes.inexact == "redacted":
                moment.notes.append("sensitive values were replaced in the record")
            elif notes.inexact == "cut":
                moment.notes.append("long texts were cut in the record")
            elif notes.inexact == "partial" and not notes.missing:
                moment.notes.append("the record does not contain everything that the hooks saw")
            if notes.missing:
                moment.notes.append(f"not recorded: {', '.join(notes.missing)}")
        return moment

    def decision(self, decision: fmt.Decision, current: dict[str, Any]) -> DecisionView:
        """Return a decision, and apply its changes to the fields of the payload."""
        changes: list[Change] = []
        for field, value in (decision.changed or {}).items():
            if field == "messages" and isinstance(value, Mapping):
                old = current.get("messages") or []
                kept, new = _whole(value.get("kept")), list(as_items(value.get("new")))
                changes += self.message_changes(old[kept:], new, kept)
                current["messages"] = [*old[:kept], *new]
            else:
                changes += self.field_changes(field, current.get(field), value)
                current[field] = value
        state = [
            change for field, value in (decision.state or {}).items() for change in self.state_changes(field, value)
        ]
        self.failure = decision.error or self.failure
        value = decision.value
        if isinstance(value, Mapping) and decision.verb == "stop":
            value = value.get("message") or value.get("kind")
        elif isinstance(value, Mapping) and decision.verb == "answer" and "tool_calls" in value:
            value = _message_text(value)  # the reply of a model
        elif isinstance(value, Mapping) and decision.verb in ("claim", "merge"):
            value = ", ".join(
                f"{name}: {as_text(item)}" for name, item in value.items() if item not in (None, "", False)
            )
        return DecisionView(
            decision.hook,
            decision.phase,
            decision.verb,
            self.cut(decision.reason),
            "" if value is None else self.cut(as_text(value)),
            changes,
            state,
            self.cut(decision.error or ""),
            decision.took,
            refused=decision.is_refusal,
        )

    # Model calls

    def continued(self, recorded: RecordedMoment, fields: Mapping[str, Any]) -> list[Any]:
        """Return all messages of a request: those that the previous one contained, and its own."""
        del self.messages[recorded.notes.kept :]
        self.messages += as_items(fields.get("messages"))
        return self.messages if not recorded.decisions else list(self.messages)

    def asked(self, recorded: RecordedMoment, fields: Mapping[str, Any], moment: MomentView) -> None:
        purpose = str(fields.get("purpose", "step"))
        if purpose == "step":
            self.step(_whole(fields.get("hop")), moment.at)
        if "tools" in fields or not recorded.notes.tools_kept:
            self.tools = len(as_items(fields.get("tools")))
        self.request = ModelCall(
            moment.at,
            str(fields.get("model", "")) or self.run.info.model,
            purpose,
            _whole(fields.get("attempt"), 1),
            recorded.notes.kept,
            [self.message(message) for message in as_items(fields.get("messages"))],
            self.tools,
            moments=[moment],
        )
        self.current.items.append(self.request)

    def message(self, message: Any) -> MessageView:
        if not isinstance(message, Mapping):
            return MessageView("", self.cut(as_text(message)))
        text = as_text(message.get("content", ""))
        known = text in self.replies
        return MessageView(
            str(message.get("role", "")),
            "\n".join(filter(None, ("" if known else self.cut(text), attached_text(message)))),
            _call_names(message.get("tool_calls")),
            str(message.get("name") or ""),
            known,
        )

    def replied(self, recorded: RecordedMoment, fields: dict[str, Any], moment: MomentView) -> None:
        purpose, attempt = str(fields.get("purpose", "step")), _whole(fields.get("attempt"), 1)
        if purpose == "step":
            self.step(_whole(fields.get("hop")), moment.at)
        call = self.request
        if call is None or call.answered or (call.purpose, call.attempt) != (purpose, attempt):
            call = ModelCall(moment.at, purpose=purpose, attempt=attempt)
            self.current.items.append(call)
        final = _after_changes(recorded, fields, "content")
        usage = as_mapping(fields.get("usage"))
        call.answered = True
        call.text = self.cut(as_text(fields.get("content", "")))
        call.calls = _call_names(fields.get("tool_calls"))
        call.finish_reason = str(fields.get("finish_reason", "stop"))
        call.input_tokens = _whole(usage.get("input_tokens"))
        call.output_tokens = _whole(usage.get("output_tokens"))
        call.cached_tokens = _whole(usage.get("cached_tokens"))
        call.cost = None if fields.get("cost") is None else _number(fields["cost"])
        call.duration = _number(fields.get("duration"))
        call.source = str(fields.get("source", "model"))
        call.model = str(fields.get("model", "")) or call.model
        call.moments.append(moment)
        self.replies.add(as_text(final))
        self.request = call

    def failed(self, fields: Mapping[str, Any], moment: MomentView) -> bool:
        """Add a failure to the model call or tool call that failed. Return whether there is one."""
        if fields.get("where") == "model" and self.request is not None and not self.request.answered:
            self.request.error = self.cut(_errors_text(fields))
            self.request.moments.append(moment)
            return True
        ids = [str(as_mapping(error).get("call_id", "")) for error in as_items(fields.get("errors"))]
        call = next((self.calls[id] for id in ids if id in self.calls), None)
        if call is not None:
            call.moments.append(moment)
        return call is not None

    # Tool calls

    def call(self, fields: Mapping[str, Any], moment: MomentView) -> ToolCallView:
        id = str(fields.get("id", ""))
        if id not in self.calls:
            self.step(_whole(fields.get("hop")), moment.at)
            call = self.calls[id] = ToolCallView(id, str(fields.get("name", "")) or moment.tool, moment.at)
            arguments = fields.get("arguments")
            if isinstance(arguments, Mapping):
                call.arguments = [(str(name), self.cut(as_text(value))) for name, value in arguments.items()]
            call.raw = self.cut(str(fields.get("raw") or ""))
            self.current.items.append(call)
        return self.calls[id]

    def called(self, recorded: RecordedMoment, fields: dict[str, Any], moment: MomentView) -> None:
        call = self.call(fields, moment)
        call.attempts = max(call.attempts, _whole(fields.get("attempt"), 1))
        call.moments.append(moment)
        if moment.point == "before_tool":
            return
        call.outcome = str(fields.get("outcome", "ok"))
        call.duration = _number(fields.get("duration"))
        result = _after_changes(recorded, fields, "result")
        error = _after_changes(recorded, fields, "error")
        if _failed_closed(moment, self.chains.lists[moment.chain]):
            error = WITHHELD
        text = as_text(error if error is not None else result)
        attached = (
            "" if error is not None else attached_text({"attachments": _after_changes(recorded, fields, "attachments")})
        )
        call.result = "\n".join(filter(None, (self.cut(text), attached)))
        self.replies.add(text)

    def nest(self, run: RecordedRun) -> None:
        """Add a nested run to the call that started it."""
        builder = _RunBuilder(run, self.chains, self.limit, self.zero)
        view = builder.build()
        self.view.events += view.events
        self.last = max(self.last, builder.last)
        call = self.calls.get(run.info.call_id) if run.info.call_id else self.starter(view)
        if call is not None:
            call.runs.append(view)
        else:
            self.current.items.append(NestedRun(view.at, view))

    def starter(self, nested: RunView) -> ToolCallView | None:
        """Return the call that probably started a nested run, where the record does not say it: a call without a result
        whose arguments contain the task, else the last one.
        """
        waiting = [call for call in self.calls.values() if not call.outcome]
        with_task = [call for call in waiting if any(value == nested.task for _, value in call.arguments)]
        return next((call for call in with_task if not call.runs), waiting[-1] if waiting else None)

    def label(self, line: fmt.LabelLine) -> None:
        label = line.label
        call = self.calls.get(label.call_id)
        if call is None:
            call = next((c for c in self.calls.values() if any(m.n == line.n for m in c.moments)), None)
        said_already = call is not None and (label.label, label.by) == (call.decision, call.decided_by)
        if call is not None and not said_already:
            by = f" by {label.by}" if label.by else ""
            call.labels.append(self.cut(f"{label.label}{by}{f': {label.note}' if label.note else ''}"))

    # Everything else

    def event_text(self, point: str, fields: Mapping[str, Any]) -> tuple[str, bool]:
        """Describe a moment in a line. The second value is whether it is bad news."""
        if point == "on_error":
            return self.cut(_errors_text(fields)), True
        if point == "on_run_start":
            return "\n".join(filter(None, (self.cut(str(fields.get("task", ""))), attached_text(fields)))), False
        if point == "on_stop":
            signals = [signal for signal in as_items(fields.get("signals")) if isinstance(signal, Mapping)]
            texts = [f"{s.get('kind', 'stop_requested')}: {s.get('message', '')}".strip(": ") for s in signals]
            return self.cut("; ".join(texts)), False
        if point == "on_run_end":
            return f"{fields.get('status', 'completed')}", fields.get("status") == "failed"
        if point in ("before_step", "after_step"):
            return "", False
        shown = {name: value for name, value in fields.items() if name not in ("messages", "history")}
        return self.cut(", ".join(f"{name}: {as_text(value)}" for name, value in shown.items())), False

    def finish(self) -> None:
        view, end = self.view, self.run.end
        view.until = self.last
        view.chains = self.chains.lists
        view.status = self.run.status
        if end is None or not end.status:
            view.why = why_not_over(view.status, self.run.waits_for)
            if end is None and view.status == "interrupted":
                view.why = "The record ends before the run does: the program was stopped, or is still running."
            view.elapsed = max(0.0, self.last - view.at)
            count_totals(view)
            return
        view.reply = self.cut(end.reply)
        view.elapsed, view.tool_calls, view.cost = end.elapsed, end.tool_calls or len(self.calls), end.cost
        view.step_count = end.steps
        view.input_tokens, view.output_tokens = end.usage.input_tokens, end.usage.output_tokens
        view.cached_tokens = end.usage.cached_tokens
        count_subagents(view)
        view.why = why_stopped(self.steps, end.status, end.stop, self.cut(end.stop_message))

    def cut(self, text: str) -> str:
        return cut(text, self.limit)

    # Differences

    def field_changes(self, field: str, old: Any, new: Any) -> list[Change]:
        return field_changes(field, old, new, self.limit)

    def message_changes(self, old: Sequence[Any], new: Sequence[Any], start: int) -> list[Change]:
        """Return how a list of messages changed, by message."""
        changes = []
        same_end = 0
        while same_end < min(len(old), len(new)) and old[-1 - same_end] == new[-1 - same_end]:
            same_end += 1
        before, after = old[: len(old) - same_end], new[: len(new) - same_end]
        for position in range(max(len(before), len(after))):
            one = before[position] if position < len(before) else None
            other = after[position] if position < len(after) else None
            if one == other:
                continue
            shown = one if other is None else other
            role = str(shown.get("role", "")) if isinstance(shown, Mapping) else ""
            parts = fold(diff_text(_message_text(one), _message_text(other)), longest=self.limit)
            what = "removed" if other is None else "added" if one is None else "changed"
            changes.append(Change(f"message {start + position + 1} ({role}), {what}", parts))
        return changes

    def state_changes(self, field: str, value: Any) -> list[Change]:
        if field == "messages" and isinstance(value, Mapping):
            new = as_items(value.get("new"))
            text = "\n".join(f"{_message_text(message)}" for message in new)
            kept = counted(_whole(value.get("kept")), "message")
            return [Change("messages", fold([("~", f"{kept} kept"), ("+", text)], longest=self.limit))]
        return [Change(field, fold([("+", as_text(value))], longest=self.limit))]


def cut(text: str, limit: int) -> str:
    """Return a text with at most ``limit`` characters, and how many are missing."""
    return text if len(text) <= limit else f"{text[:limit]}… ({counted(len(text) - limit, 'more character')})"


def whole_length(text: str) -> int:
    """Return the length of a text before :func:`cut`."""
    cut_off = _CUT_OFF.search(text)
    return len(text) if cut_off is None else cut_off.start() + int(cut_off[1].replace(",", ""))


def field_changes(field: str, old: Any, new: Any, limit: int) -> list[Change]:
    """Return how a field changed; a field with several values, such as arguments, by value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            change
            for name in dict.fromkeys((*old, *new))
            for change in field_changes(f"{field}.{name}", old.get(name), new.get(name), limit)
        ]
    if old == new:
        return []
    tools, new_tools = _by_name(old), _by_name(new)
    if tools and new_tools:  # their schemas are long, so only those that differ are shown
        names = [Change(field, diff_text(", ".join(tools), ", ".join(new_tools)))]
        same = {name: tool for name, tool in new_tools.items() if name in tools}
        changed = field_changes(field, {name: tools[name] for name in same}, same, limit)
        return changed if list(tools) == list(new_tools) else names + changed
    before, after = as_text(old), as_text(new)
    if before == after:  # the text "7" and the number 7
        before, after = json_text(old), json_text(new)
    return [Change(field, fold(diff_text(before, after), longest=limit))]


def why_stopped(steps: Sequence[StepView], status: str, stop: str, message: str) -> str:
    """Say why a run stopped.

    Args:
        steps: the steps of the run.
        status: how it ended.
        stop: the kind of its stop signal.
        message: the message of the stop signal.
    """
    own = [m for step in steps for m in step.moments()]
    verb = {"ended": "end", "stopped": "stop", "failed": "failed"}.get(status, "")
    decision = next((d for m in reversed(own) for d in m.decisions if d.verb == verb), None) if verb else None
    point = next((m.point for m in reversed(own) if decision in m.decisions), "") if decision else ""
    if status == "ended" and decision is not None:
        return f"The hook {decision.hook} ended the run at {point}{_because(decision.reason)}."
    if status == "failed":
        if decision is not None and not message:
            return f"The hook {decision.hook} failed at {point}: {decision.error}"
        errors = _failures(steps)
        return f"It failed: {errors[-1]}" if errors else "It failed."
    if stop == "halted" and message:
        return f"The run was {message.rstrip('.')}."
    sentence = STOPS.get(stop, "")
    if stop == "stop_requested" and decision is not None:
        sentence = f"The hook {decision.hook} asked the run to stop at {point}."
    if message and message.rstrip(".") not in sentence and stop != "completed":
        detail = message.partition(" limit reached: ")[2] or message  # "Step limit reached: 2/2"
        sentence = f"{sentence.rstrip('.')}: {detail.rstrip('.')}." if sentence else message
    return sentence or f"The record says only that the run is {status}."


def _failures(steps: Sequence[StepView]) -> list[str]:
    """Return what failed outside tools, in order."""
    found = []
    for item in (item for step in steps for item in step.items):
        if isinstance(item, EventView) and item.bad and item.text not in ("", "failed"):
            found.append(item.text)
        elif isinstance(item, ModelCall) and item.error:
            found.append(item.error)
    return found


def waits_for(run: RunView) -> list[str]:
    """Return the tools of the calls of a run and its nested runs that wait for an approval."""
    found = [item for _, step, _ in run.all_steps() for item in step.items if isinstance(item, ToolCallView)]
    return [call.tool for call in found if is_waiting(call)]


def _asks(moment: MomentView) -> bool:
    """Whether a call waits for approval since this moment. Facts have only the hook that asked."""
    return moment.point == "approval_requested" or any(each.verb == "ask" for each in moment.decisions)


def why_not_over(status: str, waits_for: Sequence[str]) -> str:
    """Say why a run has no end.

    Args:
        status: its status.
        waits_for: the tools whose approval it waits for.
    """
    if status == "waiting":
        names = list(dict.fromkeys(name for name in waits_for if name))
        return f"It waits for a decision about {', '.join(names)}." if names else "It waits for a decision."
    if status == "interrupted":
        return "It was interrupted: its process ended, or its end was not stored."
    return ""


def _start(run: RecordedRun) -> float:
    """Return the time in the record at which a run starts."""
    return run.info.at if run.info.at or not run.moments else run.moments[0].at


def _first_position(run: RecordedRun) -> int:
    """Return the position of the first moment of a run and its nested runs."""
    return min((moment.position for each in run.tree() for moment in each.moments[:1]), default=0)


def _after_changes(recorded: RecordedMoment, fields: Mapping[str, Any], field: str) -> Any:
    """Return a field of a payload after all rewriters."""
    value = fields.get(field)
    for decision in recorded.decisions:
        if decision.changed and field in decision.changed:
            value = decision.changed[field]
    return value


def _called(fields: Mapping[str, Any]) -> str:
    """Return the id of the call that a payload is about."""
    return str(fields.get("call_id", ""))


def _whole(value: Any, default: int = 0) -> int:
    """Return a whole number; a damaged record may contain anything."""
    return value if isinstance(value, int) else default


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping; an empty one instead of anything else."""
    return value if isinstance(value, Mapping) else {}


def as_items(value: Any) -> Sequence[Any]:
    """Return a list; an empty one instead of anything else."""
    return value if isinstance(value, (list, tuple)) else ()


def as_text(value: Any) -> str:
    """Return a value as text: JSON, unless it is a text."""
    return "" if value is None else value if isinstance(value, str) else json_text(value)


def _by_name(value: Any) -> dict[str, Any]:
    """Return the tools of a request by name; nothing if the value is not a list of things with names."""
    named = {str(item["name"]): item for item in as_items(value) if isinstance(item, Mapping) and "name" in item}
    return named if len(named) == len(as_items(value)) else {}


def _message_text(message: Any) -> str:
    if not isinstance(message, Mapping):
        return as_text(message)
    calls = [f"calls {name}" for name in _call_names(message.get("tool_calls"))]
    return "\n".join(filter(None, (as_text(message.get("content", "")), *calls)))


def attached_text(fields: Mapping[str, Any]) -> str:
    """Describe the attachments of a payload or a message, one line each. A record does not contain their content."""
    lines = []
    for each in as_items(fields.get("attachments")):
        about = as_mapping(each)
        size = _whole(about.get("size"))
        parts = (about.get("name"), about.get("media_type"), size_text(size) if size else "", about.get("url"))
        known = ", ".join(str(part) for part in parts if part)
        lines.append(f"[attached: {known}, SHA-256 {str(about.get('digest', ''))[:_SHOWN_DIGEST]}]")
    return "\n".join(lines)


def _call_names(calls: Any) -> list[str]:
    return [str(call.get("name", "")) for call in as_items(calls) if isinstance(call, Mapping)]


def _errors_text(fields: Mapping[str, Any]) -> str:
    errors = [error for error in as_items(fields.get("errors")) if isinstance(error, Mapping)]
    texts = [f"{error.get('type', '')}: {error.get('message', '')}".strip(": ") for error in errors]
    return "; ".join(texts) or "an error"


def _because(reason: str) -> str:
    return f": {reason.rstrip('.')}" if reason else ""
