"""The view of a run from its events, as far as they have arrived.

Events are what the caller of a run may read: values after the hooks, and which hook decided what and why. A view from a
record (:func:`hookline.explain.explain`) has the values before the hooks too, and the hooks that let everything pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .view import (
    DISCARDED,
    DecisionView,
    EventView,
    Item,
    ModelCall,
    MomentView,
    NestedRun,
    RunView,
    StepView,
    ToolCallView,
    as_items,
    as_mapping,
    as_text,
    attached_text,
    count_subagents,
    count_totals,
    cut,
    field_changes,
    has_reply,
    why_stopped,
)

LIMIT = 8000
"""Number of characters of a text that the view contains."""

_AT_MODEL = ("before_llm", "after_llm", "on_token")
_AT_APPROVAL = ("approval_requested", "approval_decided")

_Fields = Mapping[str, Any]


class EventsView:
    """Builds the view of a run event by event.

    Example::

        built = EventsView()
        for event in store.events(run_id):
            built.add(msgspec.json.decode(event.data))
        print(built.view.why)

    Args:
        limit: the number of characters of each text that the view contains.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.view = RunView("", status="running", chains=[[]], has_requests=False)
        self.seq = 0
        """The number of the last event."""
        self.changed: set[int] = set()
        """The positions of the steps that have changed since the set was cleared."""
        self._zero: float | None = None
        self._root = _Builder(self, self.view, limit, self.changed.add)
        self._builders: dict[str, _Builder] = {}

    def add(self, event: _Fields) -> None:
        """Add an event, as a dict."""
        self.seq = int(event.get("seq", self.seq + 1))
        if event.get("type") != "subagent_event":
            self._builders.setdefault(str(event.get("run_id", "")), self._root)
            self._builders.setdefault(str(as_mapping(event.get("ids")).get("run_id", "")), self._root)
            self._root.add(event, self.seq)
            return
        ids = as_mapping(event.get("ids"))
        id = str(ids.get("run_id", ""))
        if id not in self._builders:
            outer = self._builders.get(str(ids.get("parent_run_id", "")), self._root)
            self._builders[id] = outer.nested(id, str(ids.get("agent", "")))
        self._builders[id].add(as_mapping(event.get("event")), self.seq)

    def time_of(self, event: _Fields) -> float:
        """Return the time of an event in seconds since the run started."""
        at = float(event.get("at", 0.0))
        if self._zero is None and event.get("type") == "run_started":
            self._zero = self.view.time = at
        return 0.0 if self._zero is None else max(0.0, at - self._zero)


class _Builder:
    """Builds the view of one run: the served one, with those that it handed over to, or a nested one."""

    def __init__(self, whole: EventsView, view: RunView, limit: int, touch: Callable[[int], object]) -> None:
        self.whole = whole
        self.view = view
        self.limit = limit
        self.touch = touch
        """Called with the position of a step that changes."""
        self.calls: dict[str, ToolCallView] = {}
        self.arguments: dict[str, Any] = {}
        """The arguments of calls, as the model sent them."""
        self.place: dict[str, int] = {}
        """The position of the step of each call."""
        self.request: ModelCall | None = None
        self.asking: ToolCallView | None = None
        self.began = 0
        """Number of runs: more than one if the served run was handed over."""
        self.results: list[_Fields] = []
        self.attach: Callable[[], object] | None = None
        """Adds a nested run to the run that started it, as soon as its task is known."""
        self.at = 0.0
        self.n = 0

    def add(self, event: _Fields, n: int) -> None:
        self.at, self.n = self.whole.time_of(event), n
        self.view.until = max(self.view.until, self.at)
        self.view.events += 1
        handler = getattr(self, f"on_{event.get('type', '')}", None)
        if handler is not None:
            handler(event)
        self.current.until = max(self.current.until, self.at)
        self.touch(len(self.view.steps) - 1)

    @property
    def current(self) -> StepView:
        if not self.view.steps:
            self.view.steps.append(StepView(-1, self.at, self.at))
        return self.view.steps[-1]

    def put(self, item: Item) -> None:
        self.current.items.append(item)

    def note(self, text: str, point: str, *, bad: bool = False) -> None:
        self.put(EventView(self.at, cut(text, self.limit), [MomentView(self.n, point, self.at)], bad))

    # The run

    def on_run_started(self, event: _Fields) -> None:
        ids = as_mapping(event.get("ids"))
        agent = str(ids.get("agent", ""))
        if self.began:  # the served run was handed over
            self.view.steps.append(StepView(-1, self.at, self.at))
            self.note(f"Handed over to {agent}", "run_started")
        else:
            self.view.id, self.view.agent, self.view.at = str(ids.get("run_id", "")), agent, self.at
        self.began += 1

    def on_task_taken(self, event: _Fields) -> None:
        self.view.task = self.view.task or cut(str(event.get("task", "")), self.limit)
        self.attach_now()

    def on_step_started(self, event: _Fields) -> None:
        self.attach_now()
        self.view.steps.append(StepView(int(event.get("index", 0)), self.at, self.at))
        self.request = None

    def on_step_finished(self, event: _Fields) -> None:
        """Give a rejected reply its tokens: only the total of the step contains them."""
        calls = [item for item in self.current.items if isinstance(item, ModelCall)]
        rejected = [call for call in calls if call.finish_reason == DISCARDED or not call.answered]
        if not rejected:
            return
        usage = as_mapping(event.get("usage"))
        for name in ("input_tokens", "output_tokens", "cached_tokens"):
            missing = int(usage.get(name, 0)) - sum(getattr(call, name) for call in calls)
            setattr(rejected[-1], name, max(0, missing))

    def on_run_finished(self, event: _Fields) -> None:
        self.attach_now()
        result = as_mapping(event.get("result"))
        stop = as_mapping(result.get("stop"))
        self.view.reply = cut(str(result.get("reply", "")), self.limit)
        self.results.append(result)
        self.finish(str(result.get("status", "completed")), str(stop.get("kind", "")), str(stop.get("message", "")))
        fatal = [each for each in map(as_mapping, as_items(result.get("errors"))) if each.get("fatal")]
        if self.view.status == "failed" and fatal:
            self.view.why = f"It failed: {cut(_error_text(fatal[-1]), self.limit)}"

    def on_run_closed(self, event: _Fields) -> None:
        status, error, reason = (str(event.get(name, "")) for name in ("status", "error", "reason"))
        if self.view.status != status or not self.view.why:
            self.finish(status, "user_requested" if status == "cancelled" else "", reason)
        if status == "failed" and error:
            self.view.why = f"It failed: {cut(error, self.limit)}"
        elif status == "interrupted":
            self.view.why = f"It was interrupted: {reason or 'its process ended'}."

    def finish(self, status: str, stop: str, message: str) -> None:
        view = self.view
        view.status = status
        view.why = why_stopped(view.steps, status, stop, cut(message, self.limit))
        if len(self.results) < self.began:
            view.elapsed = max(0.0, self.at - view.at)
            count_totals(view)
            return
        usages, costs = (
            [as_mapping(each.get("usage")) for each in self.results],
            [each.get("cost") for each in self.results],
        )
        view.step_count = sum(map(has_reply, view.steps))
        view.elapsed = sum(float(each.get("elapsed", 0.0)) for each in self.results)
        view.tool_calls = sum(int(each.get("tool_calls", 0)) for each in self.results)
        view.input_tokens = sum(int(each.get("input_tokens", 0)) for each in usages)
        view.output_tokens = sum(int(each.get("output_tokens", 0)) for each in usages)
        view.cached_tokens = sum(int(each.get("cached_tokens", 0)) for each in usages)
        view.cost = None if None in costs else sum(float(each) for each in costs if each is not None)
        count_subagents(view)

    def on_failed(self, event: _Fields) -> None:
        error = as_mapping(event.get("error"))
        text = _error_text(error)
        if error.get("where") == "model" and self.request is not None and not self.request.answered:
            self.request.error = cut(text, self.limit)
        elif error.get("where") == "hook" or error.get("call_id") in self.calls:
            pass  # the decision of the hook, or the result of the call, says it
        else:
            self.note(text, "on_error", bad=True)

    def on_steered(self, event: _Fields) -> None:
        text = "\n".join(filter(None, (str(event.get("text", "")), attached_text(event))))
        self.note(text, "steered")

    def on_output_checked(self, event: _Fields) -> None:
        if event.get("problem"):
            self.note(f"The reply is not a {event.get('output_type', '')}: {event['problem']}", "output_checked")

    def on_shadow_decided(self, event: _Fields) -> None:
        reason, text = str(event.get("reason", "")), str(event.get("text", ""))
        said = f"{event.get('hook', '')} would {event.get('verb', '')}{f' ({reason})' if reason else ''}: {text}"
        self.note(f"In shadow mode, {said}", "shadow_decided")

    # Hooks

    def on_hook_executed(self, event: _Fields) -> None:
        point, hook, phase, verb, reason, error = (
            str(event.get(name) or "") for name in ("point", "hook", "phase", "verb", "reason", "error")
        )
        location = str(event.get("location") or "")
        decision = DecisionView(
            hook,
            phase,
            verb,
            cut(reason, self.limit),
            cut(str(event.get("note") or ""), self.limit),
            error=cut(error, self.limit) + (f" ({location})" if location else ""),
            took=float(event.get("duration") or 0.0),
            refused=event.get("refused") is True,
        )
        moments = self.moments_at(point, str(event.get("call_id", "")))
        if not moments or moments[-1].point != point:
            moments.append(MomentView(self.n, point, self.at))
        moments[-1].decisions.append(decision)
        moments[-1].took += decision.took

    def moments_at(self, point: str, call_id: str) -> list[MomentView]:
        """Return the moments of the model call, tool call or event that a point belongs to."""
        if call_id in self.calls:
            self.touch(self.place[call_id])
            return self.calls[call_id].moments
        if point in _AT_APPROVAL and self.asking is not None:
            return self.asking.moments
        if point in _AT_MODEL:
            if self.request is None or (point == "before_llm" and (self.request.model or self.request.answered)):
                self.request = ModelCall(self.at)
                self.put(self.request)
            return self.request.moments
        last = self.current.items[-1] if self.current.items else None
        if not isinstance(last, EventView) or last.text or last.moments[-1].point != point:
            last = EventView(self.at, "", [])
            self.put(last)
        return last.moments

    # Model calls

    def on_model_called(self, event: _Fields) -> None:
        if self.request is None or self.request.model or self.request.answered:
            self.request = ModelCall()
            self.put(self.request)
        call = self.request
        call.at = self.at
        call.model = str(event.get("model", "")) or "model"
        call.purpose, call.attempt = str(event.get("purpose", "step")), int(event.get("attempt", 1))
        call.kept, call.tools = int(event.get("messages", 0)), len(as_items(event.get("tools")))
        self.view.model = self.view.model or call.model

    def on_text_delta(self, event: _Fields) -> None:
        call = self.request
        if call is not None and not call.answered and len(call.text) < self.limit:
            call.text += str(event.get("text", ""))

    def on_discarded(self, event: _Fields) -> None:
        call = self.request
        if call is None or call.answered:
            return
        call.text = ""
        if event.get("reason") != "replaced":  # otherwise another text follows
            call.answered, call.finish_reason, call.duration = True, DISCARDED, max(0.0, self.at - call.at)

    def on_model_replied(self, event: _Fields) -> None:
        usage, purpose = as_mapping(event.get("usage")), str(event.get("purpose", "step"))
        call = self.request
        if call is None or call.answered or (call.model and call.purpose != purpose):
            call = ModelCall(self.at, purpose=purpose)
            self.put(call)
        call.answered = True
        call.text = cut(str(event.get("content", "")), self.limit)
        call.calls = [str(as_mapping(each).get("name", "")) for each in as_items(event.get("tool_calls"))]
        call.finish_reason = str(event.get("finish_reason", ""))
        call.input_tokens, call.output_tokens, call.cached_tokens = (
            int(usage.get(f"{kind}_tokens", 0)) for kind in ("input", "output", "cached")
        )
        cost = event.get("cost")
        call.cost = None if cost is None else float(cost)
        call.duration = float(event.get("duration", 0.0))
        call.source, call.model = str(event.get("source", "model")), str(event.get("model", "")) or call.model
        self.request = call
        for each in as_items(event.get("tool_calls")):
            self.called(as_mapping(each))

    # Tool calls

    def called(self, asked: _Fields) -> None:
        id = str(asked.get("id", ""))
        call = self.call(id, str(asked.get("name", "")), asked.get("arguments"))
        call.raw = cut(str(asked.get("raw") or ""), self.limit)

    def call(self, id: str, tool: str, arguments: Any) -> ToolCallView:
        """Return the call with this id. An id that comes again in a later step is another call."""
        known = self.calls.get(id)
        if known is None or (known.outcome and self.place[id] < len(self.view.steps) - 1):
            known = self.calls[id] = ToolCallView(id, tool, self.at)
            self.arguments[id] = arguments
            pairs = as_mapping(arguments).items()
            known.arguments = [(str(name), cut(as_text(value), self.limit)) for name, value in pairs]
            self.put(known)
            self.place[id] = len(self.view.steps) - 1
        self.touch(self.place[id])
        return known

    def on_tool_started(self, event: _Fields) -> None:
        call = self.of(event)
        call.began = self.at if call.began is None else call.began
        call.attempts = max(call.attempts, int(event.get("attempt", 1)))
        self.executes(call, event.get("arguments"))

    def executes(self, call: ToolCallView, arguments: Any) -> None:
        """Show how hooks, validation or a person changed the arguments."""
        changes = field_changes("arguments", self.arguments.get(call.id), arguments, self.limit)
        if not changes:
            return
        self.arguments[call.id] = arguments
        moments = [moment for moment in call.moments if moment.point in ("before_tool", *_AT_APPROVAL)]
        decisions = [each for moment in moments for each in moment.decisions if each.verb in ("replace", "claim")]
        if decisions:  # with several, the events do not say who changed what
            decisions[-1].changes += changes
        else:
            if not moments:
                moments = [MomentView(self.n, "before_tool", self.at)]
                call.moments += moments
            moments[-1].checked += changes

    def on_tool_progressed(self, event: _Fields) -> None:
        call = self.of(event)
        fraction = event.get("fraction")
        done = f"{fraction:.0%} " if isinstance(fraction, (int, float)) else ""
        call.message = cut(f"{done}{event.get('message', '')}".strip(), self.limit)

    def on_tool_ended(self, event: _Fields) -> None:
        call = self.of(event)
        call.outcome = str(event.get("outcome", "ok"))
        call.duration = float(event.get("duration", 0.0))

    def on_tool_settled(self, event: _Fields) -> None:
        call = self.of(event)
        call.outcome = str(event.get("outcome", "ok"))
        call.result = "\n".join(filter(None, (cut(str(event.get("text", "")), self.limit), attached_text(event))))

    def on_approval_asked(self, event: _Fields) -> None:
        call = self.asking = self.of(event)
        call.questions = [str(each) for each in as_items(event.get("questions"))]
        call.decision = call.decided_by = ""
        self.executes(call, event.get("arguments"))
        call.moments.append(MomentView(self.n, "approval_requested", self.at))

    def on_approval_decided(self, event: _Fields) -> None:
        call = self.of(event)
        call.decision, call.decided_by = str(event.get("decision", "")), str(event.get("by", ""))
        call.message = cut(str(event.get("message", "")), self.limit)
        call.moments.append(MomentView(self.n, "approval_decided", self.at))
        self.asking = call

    def of(self, event: _Fields) -> ToolCallView:
        return self.call(str(event.get("call_id", "")), str(event.get("tool", "")), event.get("arguments"))

    # Nested runs

    def nested(self, id: str, agent: str) -> _Builder:
        """Return a builder for a run that this one started."""
        place = len(self.view.steps) - 1
        view = RunView(id, agent, status="running", at=self.at, chains=self.view.chains)
        made = _Builder(self.whole, view, self.limit, lambda _: self.touch(place))

        def attach() -> None:
            call = self.starter(view)
            view.at = made.at
            if call is None:
                self.put(NestedRun(made.at, view))
            else:
                call.runs.append(view)

        made.attach = attach
        return made

    def attach_now(self) -> None:
        attach, self.attach = self.attach, None
        if attach is not None:
            attach()

    def starter(self, nested: RunView) -> ToolCallView | None:
        """Return the call that probably started a nested run: one that has its task as an argument, or the last."""
        waiting = [call for call in self.calls.values() if call.began is not None and not call.outcome]
        with_task = [call for call in waiting if any(value == nested.task for _, value in call.arguments)]
        return next((call for call in with_task if not call.runs), waiting[-1] if waiting else None)


def _error_text(error: _Fields) -> str:
    return f"{error.get('type', '')}: {error.get('message', '')}".strip(": ")
