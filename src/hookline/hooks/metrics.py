"""MetricsHook: metrics of runs for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakSet

from .._base.workers import after_fork_in_child
from .._kernel.events import Event
from .._kernel.fire_observers import CallReport, FireReport
from .._kernel.payloads import ModelReply
from .._kernel.points import AFTER_LLM, ON_RUN_END, ON_TOKEN
from .._kernel.results import HookAction
from .._kernel.validation import check_bool, check_integer
from .._run.events import (
    ApprovalAsked,
    ApprovalDecided,
    Failed,
    RunFinished,
    RunStarted,
    StepFinished,
    ToolEnded,
)
from .._run.new_fires import NewFireObserver
from ._prometheus import CONTENT_TYPE, SECONDS, Counter, Histogram, Labels, Metrics, Reading

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from .._run.engine import Engine

RUN_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
HOOK_SECONDS = (0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)
APPROVAL_SECONDS = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 14_400, 86_400)


class MetricsHook:
    """Counts runs, steps, model calls, tokens, cost, tool calls, verdicts, approvals and errors for Prometheus.

    One object may serve many agents and threads. Nested runs count as separate runs, and their usage
    counts once. A forked process begins at zero.

    Example:
        >>> metrics = MetricsHook()
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", hooks=[metrics])
        >>> print(metrics.text())

    Args:
        every_call: whether to measure the duration of every hook call. That makes runs slower.
        limit: the maximum number of label sets of one metric. Names come from models and callers; new ones beyond the
            limit are counted as ``other``.

    Raises:
        RegistrationError: ``limit`` is not a positive whole number.
        NotInstalledError: ``prometheus-client`` is missing.
    """

    points = frozenset({ON_RUN_END})
    phase = "observe"
    priority = 0
    events = frozenset({RunStarted, StepFinished, ToolEnded, Failed, ApprovalAsked, ApprovalDecided, RunFinished})
    content_type: ClassVar[str] = CONTENT_TYPE

    def __init__(self, *, every_call: bool = False, limit: int = 200) -> None:
        self._every_call = check_bool(every_call, "every_call")
        self._metrics = metrics = Metrics(check_integer(limit, "limit"))
        counter, histogram, gauge = metrics.counter, metrics.histogram, metrics.gauge
        by_model = ["model", "provider"]
        self._runs_started = counter("hookline_runs_started_total", "Runs started.", ["agent"])
        self._runs = counter("hookline_runs_total", "Runs finished.", ["agent", "status"], fixed=1)
        gauge("hookline_runs_running", "Runs in progress.", self._running_by_agent, ["agent"])
        self._run_seconds = histogram("hookline_run_seconds", "Duration of runs.", ["agent"], RUN_SECONDS)
        self._steps = counter("hookline_steps_total", "Steps of runs.")
        self._model_calls = counter(
            "hookline_model_calls_total", "Replies of models.", ["model", "provider", "finish_reason"]
        )
        self._model_seconds = histogram("hookline_model_seconds", "Duration of model calls.", ["model"], SECONDS)
        self._tokens = counter(
            "hookline_tokens_total", "Tokens; input includes cached tokens.", [*by_model, "kind"], fixed=1
        )
        self._cost = counter("hookline_cost_usd_total", "Cost of model calls in USD.", by_model)
        self._unpriced = counter("hookline_model_calls_unpriced_total", "Replies of unknown cost.", by_model)
        self._tool_calls = counter("hookline_tool_calls_total", "Attempts of tool calls.", ["tool", "outcome"], fixed=1)
        self._tool_seconds = histogram("hookline_tool_seconds", "Duration of tools that ran.", ["tool"], SECONDS)
        self._verdicts = counter("hookline_verdicts_total", "Verdicts of hooks.", ["point", "hook", "verb"], fixed=1)
        self._hook_failures = counter("hookline_hook_failures_total", "Failed hook calls.", ["point", "hook"])
        if every_call:
            self._hook_seconds = histogram(
                "hookline_hook_seconds", "Duration of hook calls.", ["point", "hook"], HOOK_SECONDS
            )
        self._approvals_asked = counter("hookline_approvals_asked_total", "Approvals requested.", ["tool"])
        self._approvals_decided = counter(
            "hookline_approvals_decided_total", "Approvals decided.", ["decision"], fixed=1
        )
        gauge("hookline_approvals_pending", "Calls that wait for an approval.", lambda: len(self._pending))
        self._approval_seconds = histogram(
            "hookline_approval_seconds", "Time until an approval was decided.", (), APPROVAL_SECONDS
        )
        self._errors = counter("hookline_errors_total", "Failures and blocked calls.", ["type", "where"], fixed=1)
        self._running: dict[str, str] = {}
        self._pending: dict[tuple[str, str], float] = {}
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            RunStarted: self._run_started,
            StepFinished: self._step_finished,
            ToolEnded: self._tool_ended,
            Failed: self._failed,
            ApprovalAsked: self._approval_asked,
            ApprovalDecided: self._approval_decided,
            RunFinished: self._run_finished,
        }
        _INSTANCES.add(self)

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Do nothing: a hook needs a point, but everything that is counted are events and fires."""

    def observe_fires(self, engine: Engine) -> NewFireObserver:
        """Return the fire observer that counts model calls and hook calls of a run."""
        return _FireCounter(engine, self, "all" if self._every_call else "results")

    def model_replied(self, reply: ModelReply) -> None:
        """Count a reply of a model, but not an answer that a hook gave instead."""
        if reply.source != "model":
            return
        model, provider, usage = reply.model, reply.provider, reply.usage
        self._model_calls.add(model, provider, reply.finish_reason)
        self._model_seconds.observe(reply.duration, model)
        if usage.input_tokens > 0:
            self._tokens.add(model, provider, "input", by=usage.input_tokens)
        if usage.output_tokens > 0:
            self._tokens.add(model, provider, "output", by=usage.output_tokens)
        if usage.cached_tokens > 0:
            self._tokens.add(model, provider, "cached", by=usage.cached_tokens)
        if reply.cost is None:
            self._unpriced.add(model, provider)
        elif 0 <= reply.cost < inf:
            self._cost.add(model, provider, by=reply.cost)

    def hook_called(self, call: CallReport) -> None:
        """Count a call of a hook: its duration, and its verdict. An approver that is asked again counts then."""
        if call.is_postponed:
            return
        point, hook, result = call.point, call.entry.name, call.result
        if self._every_call:
            self._hook_seconds.observe(call.took, point, hook)
        if call.error is not None:
            self._hook_failures.add(point, hook)
        elif result is not None and (result.reason or not _is_silent(result.action, point)):
            self._verdicts.add(point, hook, result.action)

    def on_event(self, event: Event) -> None:
        """Count one event."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format, to be served as :attr:`content_type`."""
        return self._metrics.text()

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of ``prometheus-client``, for exporters and for metrics that you make with that library."""
        return self._metrics.registry

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """Make a counter of your own: ``counter.add(*label_values, by=1)``.

        Args:
            name: its name, which ends with ``_total``.
            help: the description.
            labels: the names of its labels.

        Raises:
            RegistrationError: the name or a label is invalid, or the name is taken.
        """
        return self._metrics.counter(name, help, labels)

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        """Make a histogram of your own: ``histogram.observe(value, *label_values)``.

        Args:
            name: its name, such as ``app_request_seconds``.
            help: the description.
            labels: the names of its labels.
            bounds: the upper bounds of its buckets, in ascending order.

        Raises:
            RegistrationError: the name or a label is invalid, the name is taken, or the bounds are not ascending.
        """
        return self._metrics.histogram(name, help, labels, bounds)

    def gauge(self, name: str, help: str, read: Reading, labels: Sequence[str] = ()) -> None:
        """Make a gauge that is read whenever the metrics are exported. If reading fails, the gauge is left out.

        Args:
            name: its name. If it ends with ``_total``, the number only grows, and is exported as a counter.
            help: the description.
            read: a function that returns the value; with labels, a mapping from the label value (a tuple, if there
                are several labels) to the value.
            labels: the names of its labels.

        Raises:
            RegistrationError: the name or a label is invalid, or the name is taken.
        """
        self._metrics.gauge(name, help, read, labels)

    def _running_by_agent(self) -> Mapping[Labels, float]:
        running: dict[Labels, float] = dict.fromkeys(self._runs_started.label_sets(), 0)
        for agent in tuple(self._running.values()):
            key = self._runs_started.key((agent,), running)
            running[key] = running.get(key, 0) + 1
        return running

    def _run_started(self, event: RunStarted) -> None:
        self._runs_started.add(event.ids.agent)
        self._running[event.run_id] = event.ids.agent

    def _run_finished(self, event: RunFinished) -> None:
        agent, run_id = event.result.ids.agent, event.run_id
        self._running.pop(run_id, None)
        for key in [key for key in tuple(self._pending) if key[0] == run_id]:
            self._pending.pop(key, None)
        self._runs.add(agent, event.result.status)
        self._run_seconds.observe(event.result.elapsed, agent)

    def _step_finished(self, event: StepFinished) -> None:
        self._steps.add()

    def _tool_ended(self, event: ToolEnded) -> None:
        self._tool_calls.add(event.tool, event.outcome)
        if event.duration > 0 or event.outcome == "ok":  # otherwise the tool did not run
            self._tool_seconds.observe(event.duration, event.tool)

    def _failed(self, event: Failed) -> None:
        self._errors.add(event.error.type, event.error.where)

    def _approval_asked(self, event: ApprovalAsked) -> None:
        self._approvals_asked.add(event.tool)
        self._pending[event.run_id, event.call_id] = monotonic()

    def _approval_decided(self, event: ApprovalDecided) -> None:
        self._approvals_decided.add(event.decision)
        asked = self._pending.pop((event.run_id, event.call_id), None)
        if asked is not None:
            self._approval_seconds.observe(monotonic() - asked)

    def reset(self) -> None:
        """Begin at zero."""
        self._metrics.reset()
        self._running, self._pending = {}, {}


def _is_silent(verb: HookAction, point: str) -> bool:
    """Whether a result without a reason is no verdict. A hook that buffers text replaces nearly every piece of it."""
    return verb is HookAction.CONT or (verb is HookAction.REPLACE and point == ON_TOKEN)


class _FireCounter(NewFireObserver):
    """Counts the fires of one run."""

    points = frozenset({AFTER_LLM})

    def __init__(self, engine: Engine, metrics: MetricsHook, calls: Literal["results", "all"]) -> None:
        super().__init__(engine)
        self.wants_calls = calls
        self._metrics = metrics

    def new_fire(self, fire: FireReport) -> None:
        """Count the calls of hooks, and a reply of a model."""
        for call in fire.calls:
            self._metrics.hook_called(call)
        if fire.point is AFTER_LLM:
            self._metrics.model_replied(fire.verdict.payload)


_INSTANCES: WeakSet[MetricsHook] = WeakSet()


def _after_fork() -> None:
    for hook in list(_INSTANCES):
        hook.reset()


after_fork_in_child(_after_fork)
