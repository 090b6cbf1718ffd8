"""The one stream of typed events of a run (DESIGN 6.5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any

from .._base.tasks import running_loop
from .._kernel import events as kernel_events
from .._kernel.events import Event, HookExecuted, PointFired
from .._kernel.points import ON_TOKEN
from .._kernel.results import HookAction
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Ids, Outcome, StopSignal, ToolCall, Usage

log = logging.getLogger("hookline")

Sink = Callable[[Event], None]
"""A consumer of events.

One with an attribute ``events``, a set of types, gets only those: what nobody wants is not made, so a run pays
for what is used. One with a true ``every_call`` attribute gets a record of every hook call.
"""


class RunStarted(Event, frozen=True):
    """A run began."""

    ids: Ids = Ids()


class TaskTaken(Event, frozen=True):
    """The task, as it left ``on_run_start``, is in the transcript."""

    task: str = ""


class StepStarted(Event, frozen=True):
    """A step began."""

    index: int = 0


class ModelCalled(Event, frozen=True):
    """A request went to the model."""

    model: str = ""
    hop: int = 0
    attempt: int = 1
    purpose: str = "step"
    messages: int = 0
    tools: tuple[str, ...] = ()
    provider: str = ""


class TextDelta(Event, frozen=True):
    """A piece of text to show, as it left ``on_token``."""

    text: str = ""
    hop: int = 0
    purpose: str = "step"


class Discarded(Event, frozen=True):
    """The text shown for this attempt does not count: the reply was rejected."""

    hop: int = 0
    attempt: int = 1
    purpose: str = "step"


class OutputChecked(Event, frozen=True):
    """A final reply was checked against the agent's ``output_type``.

    ``problem`` says why it does not fit, and is empty if it does; ``output`` is the value, as JSON. ``retries_left``
    is how often the model may be asked again.
    """

    output_type: str = ""
    content: str = ""
    problem: str = ""
    output: Any = None
    retries_left: int = 0
    hop: int = 0
    attempt: int = 1


class ModelReplied(Event, frozen=True):
    """A model call is over; this is what left ``after_llm``."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    hop: int = 0
    attempt: int = 1
    purpose: str = "step"
    usage: Usage = Usage()
    cost: float | None = None
    finish_reason: str = ""
    model: str = ""
    provider: str = ""
    organization_id: str = ""
    duration: float = 0.0
    source: str = "model"


class ToolStarted(Event, frozen=True):
    """An attempt of a tool call began, after it was judged. ``message`` is for people, as in ``on_progress``."""

    call_id: str = ""
    tool: str = ""
    arguments: Any = None
    attempt: int = 1
    message: str = ""


class ToolProgressed(Event, frozen=True):
    """A tool reported progress."""

    call_id: str = ""
    tool: str = ""
    fraction: float | None = None
    message: str = ""
    attempt: int = 1


class ToolEnded(Event, frozen=True):
    """An attempt of a tool call has an outcome. Its result is in no event before the hooks saw it."""

    call_id: str = ""
    tool: str = ""
    outcome: Outcome = "ok"
    duration: float = 0.0
    attempt: int = 1
    message: str = ""


class ToolSettled(Event, frozen=True):
    """A tool call is over; this is what left ``after_tool`` and what the model will read."""

    call_id: str = ""
    tool: str = ""
    outcome: Outcome = "ok"
    text: str = ""
    attempt: int = 1


class StepFinished(Event, frozen=True):
    """A step is over."""

    index: int = 0
    tool_names: tuple[str, ...] = ()
    usage: Usage = Usage()


class Signalled(Event, frozen=True):
    """A stop signal was recorded."""

    signal: StopSignal = StopSignal()


class Failed(Event, frozen=True):
    """Something failed; ``error.fatal`` says whether the run does."""

    error: ErrorInfo = ErrorInfo("hook", "", "")


class ApprovalAsked(Event, frozen=True):
    """A call waits for approval."""

    call_id: str = ""
    tool: str = ""
    arguments: Any = None
    questions: tuple[str, ...] = ()
    digest: str = ""


class ApprovalDecided(Event, frozen=True):
    """An approval was decided, or cancelled."""

    call_id: str = ""
    decision: str = ""
    by: str = ""
    digest: str = ""
    message: str = ""


class Steered(Event, frozen=True):
    """A message was put into the running conversation."""

    text: str = ""


class SubagentEvent(Event, frozen=True):
    """An event of a run inside this one, at any depth; ``ids`` tell which, and whose child it is.

    It is for sinks and readers. A hook with ``on_event`` takes part in that run too, and gets the event itself.
    """

    event: Event = Event()
    ids: Ids = Ids()


class RunFinished(Event, frozen=True):
    """The last event of a run."""

    result: AgentResult[Any] = AgentResult()


ENGINE_EVENTS: frozenset[type[Event]] = frozenset(
    kind
    for module in (vars(kernel_events), globals())
    for kind in module.values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
)
"""The events that the loop and the dispatcher make. Hooks and tools emit types of their own."""

Kinds = frozenset[type[Event]]
_NONE: Kinds = frozenset()


def listener(hook: Any) -> Sink:
    """The ``on_event`` of a hook as a consumer that wants the hook's own ``events``."""

    def take(event: Event) -> None:
        hook.on_event(event)

    vars(take).update({name: getattr(hook, name) for name in ("events", "every_call") if hasattr(hook, name)})
    vars(take)["hook"] = hook
    return take


def is_silent(event: HookExecuted) -> bool:
    """Whether the hook decided nothing that is worth a record.

    It let pass, and the event is there because somebody wants to see every call; or it gave a piece of streamed text
    another shape, which a hook that holds text back does with nearly every piece.
    """
    if event.reason or event.error is not None:
        return False
    if event.verb == HookAction.MODIFY:
        return event.point == ON_TOKEN
    return event.duration is not None and event.verb == HookAction.CONTINUE


class _SinksByType(dict[type[Event], tuple[Sink, ...]]):
    """By type, the sinks that want such events."""

    def __init__(self, sinks: tuple[tuple[Sink, Kinds | None], ...]) -> None:
        self._sinks = sinks

    def __missing__(self, kind: type[Event]) -> tuple[Sink, ...]:
        found = [sink for sink, kinds in self._sinks if kinds is None or kind in kinds]
        if kind is SubagentEvent:
            found = [sink for sink in found if not hasattr(sink, "hook")]
        self[kind] = tuple(found)
        return self[kind]


def _is_hook_sink(pair: tuple[Sink, Kinds | None]) -> bool:
    return hasattr(pair[0], "hook")


class EventStream:
    """Numbers events, hands them to sinks, and keeps them for readers in any loop.

    ``wanted`` are the types that somebody wants, ``None`` for all.
    """

    def __init__(self, run_id: str, now: Callable[[], float], sinks: Iterable[Sink] = (), keep: bool = False) -> None:
        self._run_id, self._now = run_id, now
        self._sinks: tuple[tuple[Sink, Kinds | None], ...] = tuple((s, getattr(s, "events", None)) for s in sinks)
        every = [kinds for _, kinds in self._sinks]
        self.wanted: Kinds | None = None if keep or None in every else _NONE.union(*filter(None, every))
        self.recording = self.wants(PointFired)
        self._sinks_by_type = _SinksByType(self._sinks)
        self.hooked = any(map(_is_hook_sink, self._sinks))
        self.aio: asyncio.AbstractEventLoop | None = None
        self._kept: list[Event] | None = [] if keep else None
        self._seq = 0
        self._closed = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would get such an event."""
        return self.wanted is None or kind in self.wanted

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Make the event and hand it on, if anybody wants it. A broken sink is logged and does not disturb the run."""
        wanted = self.wanted
        if wanted is not None and kind not in wanted:
            return
        self._seq += 1
        event = kind(seq=self._seq, at=self._now(), run_id=self._run_id, **fields)
        for sink in self._sinks_by_type[kind]:
            try:
                sink(event)
            except (Exception, asyncio.CancelledError, GeneratorExit):
                log.exception("event sink %r failed at seq %d", sink, self._seq)
        if self._kept is not None:
            self._kept.append(event)
            self._wake()

    def keep_hooks(self, hooks: Iterable[Any]) -> None:
        """Of the hooks that listen, only these hear of what follows."""
        kept = {id(hook) for hook in hooks}
        sinks = tuple(
            pair for pair in self._sinks if id(getattr(pair[0], "hook", None)) in kept or not _is_hook_sink(pair)
        )
        if len(sinks) < len(self._sinks):
            self._sinks, self._sinks_by_type = sinks, _SinksByType(sinks)
            self.hooked = any(map(_is_hook_sink, sinks))

    def relay(self, ids: Ids) -> Sink | None:
        """A sink that puts the events of a run inside this one into this stream; ``None`` if nobody would see them."""
        if not self._sinks_by_type[SubagentEvent] and self._kept is None:
            return None

        def take(event: Event) -> None:
            inner = event if isinstance(event, SubagentEvent) else SubagentEvent(event=event, ids=ids)
            if self.aio is None or running_loop() is self.aio:
                self._take_in(inner)
            else:  # a blocking run in a tool has a loop of its own
                with suppress(RuntimeError):  # that loop is closed, and so is this stream
                    self.aio.call_soon_threadsafe(self._take_in, inner)

        return take

    def _take_in(self, inner: SubagentEvent) -> None:
        if not self._closed:
            self.emit(SubagentEvent, event=inner.event, ids=inner.ids)

    def close(self) -> None:
        """No more events follow."""
        self._closed = True
        self.wanted = _NONE
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for loop, flag in waiting:
            try:
                loop.call_soon_threadsafe(flag.set)
            except RuntimeError:
                pass  # that reader's loop is closed

    async def read(self, after: int = 0) -> AsyncIterator[Event]:
        """Every event with a ``seq`` above ``after``, live, until the run is over."""
        kept = self._kept if self._kept is not None else []
        index = max(0, after)
        while True:
            while index < len(kept):
                yield kept[index]
                index += 1
            if self._closed:
                if index >= len(kept):
                    return
                continue
            flag = asyncio.Event()
            self._waiting.append((asyncio.get_running_loop(), flag))
            if index < len(kept) or self._closed:
                continue
            await flag.wait()
