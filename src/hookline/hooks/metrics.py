"""What runs do, in numbers that Prometheus reads."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any, ClassVar
from weakref import WeakSet

from .._base.workers import after_fork_in_child
from .._kernel.events import Event, HookExecuted
from .._kernel.payloads import ModelReply
from .._kernel.points import AFTER_LLM
from .._run.events import (
    ApprovalAsked,
    ApprovalDecided,
    Failed,
    RunFinished,
    RunStarted,
    StepFinished,
    ToolEnded,
    is_silent,
)
from ._prometheus import CONTENT_TYPE, SECONDS, Counter, Histogram, Labels, Metrics, Reading
from ._support.validation import check_bool, check_integer

RUN_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
HOOK_SECONDS = (0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)
APPROVAL_SECONDS = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 14_400, 86_400)


class MetricsHook:
    """Counts what runs do: runs, steps, model calls, tokens, cost, tools, verdicts, approvals, errors; for Prometheus.

    :meth:`text` gives the numbers of this process; serve it wherever you like. One object may serve many agents and
    threads. Runs inside a run count as runs of their own, and what they spend counts once. A fork starts at 0.

    Args:
        every_call: whether the time that each hook takes is measured. That makes runs slower.
        limit: how many sets of labels one metric may have. Names come from models and callers; what is new after that
            is counted as ``other``.

    Raises:
        RegistrationError: a limit that is none.
    """

    points = frozenset({AFTER_LLM})
    phase = "observe"
    priority = 0
    events = frozenset(
        {RunStarted, StepFinished, ToolEnded, HookExecuted, Failed, ApprovalAsked, ApprovalDecided, RunFinished}
    )
    content_type: ClassVar[str] = CONTENT_TYPE

    def __init__(self, *, every_call: bool = False, limit: int = 200) -> None:
        self.every_call = check_bool(every_call, "every_call")
        self._metrics = made = Metrics(check_integer(limit, "limit"))
        count, histogram = made.counter, made.histogram
        self._began = count("hookline_runs_started_total", "Runs that began.", ["agent"])
        self._ended = count("hookline_runs_total", "Runs that ended.", ["agent", "status"], fixed=1)
        made.gauge("hookline_runs_running", "Runs that go on.", self._running_now, ["agent"])
        self._run_seconds = histogram("hookline_run_seconds", "How long runs took.", ["agent"], RUN_SECONDS)
        self._steps = count("hookline_steps_total", "Steps of runs.")
        what = ["model", "provider", "finish_reason"]
        self._model_calls = count("hookline_model_calls_total", "Replies of models.", what)
        self._model_seconds = histogram("hookline_model_seconds", "How long models took.", ["model"], SECONDS)
        what = ["model", "provider", "kind"]
        self._tokens = count("hookline_tokens_total", "Tokens; input counts cached ones too.", what, fixed=1)
        self._cost = count("hookline_cost_usd_total", "What models cost, in USD.", ["model", "provider"])
        self._unpriced = count(
            "hookline_model_calls_unpriced_total", "Replies whose cost is unknown.", ["model", "provider"]
        )
        self._tool_calls = count("hookline_tool_calls_total", "Attempts of tool calls.", ["tool", "outcome"], fixed=1)
        self._tool_seconds = histogram("hookline_tool_seconds", "How long tools that ran took.", ["tool"], SECONDS)
        what = ["point", "hook", "verb"]
        self._verdicts = count("hookline_verdicts_total", "What hooks decided.", what, fixed=1)
        self._hook_failures = count("hookline_hook_failures_total", "Hook calls that failed.", ["point", "hook"])
        if every_call:
            self._hook_seconds = histogram(
                "hookline_hook_seconds", "How long calls of hooks took.", ["point", "hook"], HOOK_SECONDS
            )
        self._asked = count("hookline_approvals_asked_total", "Calls that people were asked about.", ["tool"])
        self._decided = count("hookline_approvals_decided_total", "What was decided.", ["decision"], fixed=1)
        made.gauge("hookline_approvals_pending", "Calls that wait for a decision.", lambda: len(self._pending))
        self._approval_seconds = histogram(
            "hookline_approval_seconds", "How long calls waited for a decision.", (), APPROVAL_SECONDS
        )
        self._errors = count("hookline_errors_total", "What failed, or was blocked.", ["type", "where"], fixed=1)
        self._running: dict[str, Labels] = {}
        self._pending: dict[tuple[str, str], float] = {}
        self._takers: dict[type[Event], Callable[[Any], None]] = {
            RunStarted: self._run_began, StepFinished: self._step_ended, ToolEnded: self._tool_ended,
            HookExecuted: self._hook_ended, Failed: self._failed, ApprovalAsked: self._was_asked,
            ApprovalDecided: self._was_decided, RunFinished: self._run_ended,
        }  # fmt: skip
        _ALIVE.add(self)

    def __call__(self, point: str, ctx: Any, reply: ModelReply) -> None:
        """Count a reply of a model; what a hook answered in its place is none."""
        if reply.source != "model":
            return
        model, provider, usage, cost = reply.model, reply.provider, reply.usage, reply.cost
        with self._metrics.lock:
            self._model_calls.put((model, provider, reply.finish_reason))
            self._model_seconds.put((model,), reply.duration)
            for kind, tokens in (
                ("input", usage.input_tokens), ("output", usage.output_tokens), ("cached", usage.cached_tokens)
            ):  # fmt: skip
                if tokens > 0:
                    self._tokens.put((model, provider, kind), tokens)
            if cost is None:
                self._unpriced.put((model, provider))
            elif 0 <= cost < inf:
                self._cost.put((model, provider), cost)

    def on_event(self, event: Event) -> None:
        """Count one event."""
        taker = self._takers.get(type(event))
        if taker is not None:
            with self._metrics.lock:
                taker(event)

    def text(self) -> str:
        """The numbers, in the text format of Prometheus, to be served as :attr:`content_type`."""
        return self._metrics.text()

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        """A counter of your own: ``counter.add(value of each label, by=1)``.

        Args:
            name: its name, which ends with ``_total``.
            help: what it counts.
            labels: the names of its labels.

        Raises:
            RegistrationError: no name for a metric or a label, or one that is taken.
        """
        return self._metrics.counter(name, help, labels)

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS
    ) -> Histogram:
        """A histogram of your own: ``histogram.observe(number, value of each label)``.

        Args:
            name: its name, such as ``app_request_seconds``.
            help: what is measured.
            labels: the names of its labels.
            bounds: the upper bounds of its buckets, in order; those for seconds if left out.

        Raises:
            RegistrationError: no name for a metric or a label, one that is taken, or bounds out of order.
        """
        return self._metrics.histogram(name, help, labels, bounds)

    def gauge(self, name: str, help: str, read: Reading, labels: Sequence[str] = ()) -> None:
        """A number that goes up and down, read when the text is made. One that cannot be read is left out, and logged.

        Args:
            name: its name.
            help: what it is.
            read: gives the number; with labels, a mapping from the value of the label (a tuple, if there are several)
                to the number.
            labels: the names of its labels.

        Raises:
            RegistrationError: no name for a metric or a label, or one that is taken.
        """
        self._metrics.gauge(name, help, read, labels)

    def _running_now(self) -> Mapping[Labels, float]:
        with self._metrics.lock:
            return {**dict.fromkeys(self._began.values, 0), **Tally(self._running.values())}

    def _run_began(self, event: RunStarted) -> None:
        self._running[event.run_id] = self._began.put((event.ids.agent,))

    def _run_ended(self, event: RunFinished) -> None:
        agent, run_id = event.result.ids.agent, event.run_id
        self._running.pop(run_id, None)
        for key in [key for key in self._pending if key[0] == run_id]:
            del self._pending[key]
        self._ended.put((agent, event.result.status))
        self._run_seconds.put((agent,), event.result.elapsed)

    def _step_ended(self, event: StepFinished) -> None:
        self._steps.put(())

    def _tool_ended(self, event: ToolEnded) -> None:
        self._tool_calls.put((event.tool, event.outcome))
        if event.duration > 0 or event.outcome == "ok":  # else it did not run
            self._tool_seconds.put((event.tool,), event.duration)

    def _hook_ended(self, event: HookExecuted) -> None:
        where = (event.point, event.hook)
        if self.every_call and event.duration is not None:
            self._hook_seconds.put(where, event.duration)
        if event.error is not None:
            self._hook_failures.put(where)
        elif not is_silent(event):
            self._verdicts.put((*where, event.verb))

    def _failed(self, event: Failed) -> None:
        self._errors.put((event.error.type, event.error.where))

    def _was_asked(self, event: ApprovalAsked) -> None:
        self._asked.put((event.tool,))
        self._pending[event.run_id, event.call_id] = monotonic()

    def _was_decided(self, event: ApprovalDecided) -> None:
        self._decided.put((event.decision,))
        asked = self._pending.pop((event.run_id, event.call_id), None)
        if asked is not None:
            self._approval_seconds.put((), monotonic() - asked)

    def begin(self) -> None:
        """Count from nothing again."""
        self._metrics.reset()
        self._running, self._pending = {}, {}


_ALIVE: WeakSet[MetricsHook] = WeakSet()


def _after_fork() -> None:
    for one in list(_ALIVE):
        one.begin()


after_fork_in_child(_after_fork)
