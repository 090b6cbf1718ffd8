"""The events of a run, and the stream that delivers them (DESIGN 6.5)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import copy_context
from functools import cache, lru_cache, partial
from threading import get_ident
from typing import Any, Literal

from .._base.attachment import Attachment
from .._kernel import events as kernel_events
from .._kernel.events import Event, HookExecuted
from .._kernel.points import ON_TOKEN
from .._kernel.results import HookAction
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Ids, Outcome, StopSignal, ToolCall, Usage

log = logging.getLogger("hookline")

Sink = Callable[[Event], None]
"""A callable that consumes events.

With an attribute ``events``, a set of types or :class:`AllEventsExcept`, it only gets these types; events that no
consumer wants are not created.
With a true attribute ``every_call``, it gets an event for every hook call.
"""


class RunStarted(Event, frozen=True):
    """A run started."""

    ids: Ids = Ids()


class TaskTaken(Event, frozen=True):
    """The task, after ``on_run_start``, was added to the transcript."""

    task: str = ""
    attachments: tuple[Attachment, ...] = ()


class StepStarted(Event, frozen=True):
    """A step started."""

    index: int = 0


class ModelCalled(Event, frozen=True):
    """A request was sent to the model.

    ``server`` is the base URL of its API, empty for a model in this process. Callers of a server do not see it.
    """

    model: str = ""
    hop: int = 0
    attempt: int = 1
    purpose: str = "step"
    messages: int = 0
    tools: tuple[str, ...] = ()
    provider: str = ""
    server: str = ""


class TextDelta(Event, frozen=True):
    """A piece of streamed text, after ``on_token``.

    If a hook may still reject the reply at ``after_llm``, its text comes after that, in one piece (DESIGN 7.14).
    """

    text: str = ""
    hop: int = 0
    purpose: str = "step"


class Discarded(Event, frozen=True):
    """The streamed text of this attempt is void: remove it from the display.

    ``reason``: ``retry`` (the reply was rejected, and the model is asked again), ``replaced`` (a hook changed the
    reply; the new text follows), ``rejected`` (a hook ended or failed the run because of the reply) or ``interrupted``
    (the reply is incomplete: the model failed, the run was cancelled, or ``on_token`` ended it).
    """

    hop: int = 0
    attempt: int = 1
    purpose: str = "step"
    reason: Literal["retry", "replaced", "rejected", "interrupted"] = "retry"


class OutputChecked(Event, frozen=True):
    """A final reply was checked against the agent's ``output_type``.

    ``problem`` says why the reply does not match and is empty if it does; ``output`` is the value as JSON.
    ``retries_left`` is the number of retries left.
    """

    output_type: str = ""
    content: str = ""
    problem: str = ""
    output: Any = None
    retries_left: int = 0
    hop: int = 0
    attempt: int = 1


class ModelReplied(Event, frozen=True):
    """A model call finished. These are the values after ``after_llm``."""

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
    """A tool call started, after the hooks allowed it. ``message`` is for people, as in ``on_progress``."""

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
    """A tool call has an outcome. Its result is not in any event before the hooks at ``after_tool`` saw it."""

    call_id: str = ""
    tool: str = ""
    outcome: Outcome = "ok"
    duration: float = 0.0
    attempt: int = 1
    message: str = ""


class ToolSettled(Event, frozen=True):
    """A tool call finished. ``text`` is the result after ``after_tool``, which the model will read."""

    call_id: str = ""
    tool: str = ""
    outcome: Outcome = "ok"
    text: str = ""
    attempt: int = 1
    attachments: tuple[Attachment, ...] = ()


class StepFinished(Event, frozen=True):
    """A step finished."""

    index: int = 0
    tool_names: tuple[str, ...] = ()
    usage: Usage = Usage()


class Signalled(Event, frozen=True):
    """A stop signal was set."""

    signal: StopSignal = StopSignal()


class Failed(Event, frozen=True):
    """A hook, tool or model failed. If ``error.fatal`` is true, the run fails too."""

    error: ErrorInfo = ErrorInfo("hook", "", "")


class ApprovalAsked(Event, frozen=True):
    """A tool call waits for approval."""

    call_id: str = ""
    tool: str = ""
    arguments: Any = None
    questions: tuple[str, ...] = ()
    digest: str = ""


class ApprovalDecided(Event, frozen=True):
    """An approval was decided or cancelled."""

    call_id: str = ""
    decision: str = ""
    by: str = ""
    digest: str = ""
    message: str = ""
    tool: str = ""


class Steered(Event, frozen=True):
    """A message was added to the running conversation with ``run.steer``."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class SubagentEvent(Event, frozen=True):
    """An event of a nested run, at any depth; ``ids`` identify that run and its parent.

    Only sinks and readers get it. A hook with ``on_event`` also takes part in the nested run and gets the event itself.
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
"""The events that only the loop and the dispatcher emit. Hooks and tools emit their own types."""


_NOT_COMPARED = frozenset(("seq", "at", "run_id", "duration", "ids", "location", "server"))
_FOR_PEOPLE = frozenset(str(kind.__struct_config__.tag) for kind in (ToolStarted, ToolEnded))
"""Events whose ``message`` says how long something took."""


def ignored_fields(tag: str) -> frozenset[str]:
    """Return the fields of a type of event that recovery and replay do not compare.

    Sequence numbers, times and ids differ; lines of hooks move.
    """
    return _NOT_COMPARED | {"message"} if tag in _FOR_PEOPLE else _NOT_COMPARED


@cache
def compared_fields(kind: type[Event]) -> tuple[str, ...]:
    """Return the fields of a type of event that recovery and replay compare."""
    ignored = ignored_fields(str(kind.__struct_config__.tag))
    return tuple(name for name in kind.__struct_fields__ if name not in ignored)


class AllEventsExcept:
    """All types of events except these, for the attribute ``events`` of a consumer.

    Args:
        kinds: the types.
        if_wanted: types that it gets only if another consumer wants them. Text is streamed only if a consumer wants it.
    """

    def __init__(self, *kinds: type[Event], if_wanted: Iterable[type[Event]] = ()) -> None:
        self.kinds = frozenset(kinds)
        self.unwanted = self.kinds.union(if_wanted)

    def __contains__(self, kind: object) -> bool:
        return kind not in self.kinds


Kinds = frozenset[type[Event]] | AllEventsExcept
_NONE: frozenset[type[Event]] = frozenset()


def listener(hook: Any) -> Sink:
    """Return a sink that calls the ``on_event`` of a hook for the hook's ``events``."""
    take = partial(hook.on_event)  # a new object, which can have attributes
    vars(take).update({name: getattr(hook, name) for name in ("events", "every_call") if hasattr(hook, name)})
    vars(take)["hook"] = hook
    return take


def is_silent(event: HookExecuted) -> bool:
    """Whether the event contains nothing of interest.

    Either the hook let the payload pass and the event exists only because a consumer wants every call, or the hook
    changed a piece of streamed text, which a hook that buffers text does with nearly every piece.
    """
    if event.reason or event.error is not None:
        return False
    if event.verb == HookAction.REPLACE:
        return event.point == ON_TOKEN
    return event.duration is not None and event.verb == HookAction.CONT


class _SinksByType(dict[type[Event], tuple[Sink, ...] | None]):
    """The sinks for each type of event; ``None`` for a type that no consumer wants."""

    def __init__(self, sinks: tuple[tuple[Sink, Kinds | None], ...], wanted: Kinds | None) -> None:
        self._sinks, self._wanted = sinks, wanted
        self._declared = tuple([(kinds, hasattr(sink, "hook")) for sink, kinds in sinks])

    def __missing__(self, kind: type[Event]) -> tuple[Sink, ...] | None:
        places = _places(kind, self._declared, self._wanted)
        self[kind] = found = None if places is None else tuple([self._sinks[place][0] for place in places])
        return found


@lru_cache(maxsize=1024)
def _places(
    kind: type[Event], declared: tuple[tuple[Kinds | None, bool], ...], wanted: Kinds | None
) -> tuple[int, ...] | None:
    """Return the places of the sinks for a type of event, which are the same in all runs of an agent."""
    if wanted is not None and kind not in wanted:
        return None
    return tuple(
        place
        for place, (kinds, is_hook) in enumerate(declared)
        if (kinds is None or kind in kinds) and not (is_hook and kind is SubagentEvent)
    )


def _kinds_of(sink: Sink) -> Kinds | None:
    """Return the types of events that a sink declares."""
    kinds = getattr(sink, "events", None)
    return kinds if kinds is None or isinstance(kinds, (frozenset, AllEventsExcept)) else frozenset(kinds)


def _is_hook_sink(pair: tuple[Sink, Kinds | None]) -> bool:
    return hasattr(pair[0], "hook")


@lru_cache(maxsize=256)
def _union(every: tuple[Kinds | None, ...]) -> Kinds | None:
    """Return the types that any of several consumers wants."""
    named = _NONE
    excepted: list[frozenset[type[Event]]] = []
    for kinds in every:
        if kinds is None:
            return None
        if isinstance(kinds, AllEventsExcept):
            excepted.append(kinds.unwanted)
        else:
            named = named.union(kinds)
    return AllEventsExcept(*frozenset.intersection(*excepted) - named) if excepted else named


class EventStream:
    """Numbers events, delivers them to sinks, and keeps them for readers in any event loop.

    ``wanted`` are the types that a consumer wants; ``None`` means all.
    """

    def __init__(
        self,
        run_id: str,
        now: Callable[[], float],
        sinks: Iterable[Sink] = (),
        keep: bool = False,
        *,
        every_call: bool = False,
    ) -> None:
        self._run_id, self._now = run_id, now
        self._sinks: tuple[tuple[Sink, Kinds | None], ...] = tuple((s, _kinds_of(s)) for s in sinks)
        self.wanted: Kinds | None = None if keep else _union(tuple([kinds for _, kinds in self._sinks]))
        self.has_consumers = self.wanted != _NONE
        """Whether a consumer wants any events."""
        self.every_call = every_call or any(getattr(sink, "every_call", False) for sink, _ in self._sinks)
        """Whether a consumer wants an event for every call of a hook."""
        self._sinks_by_type = _SinksByType(self._sinks, self.wanted)
        self.hooked = any(map(_is_hook_sink, self._sinks))
        self._aio: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        """The thread of the event loop. Before Python 3.12, asking for the running loop takes a system call."""
        self._events: list[Event] | None = [] if keep else None
        self._seq = 0
        self._closed = False
        self._has_last = False
        """Whether the last event was delivered. The thread of a tool or hook may outlive a cancelled run."""
        self.is_new: Callable[[Event], bool] | None = None
        """In a durable run, tells whether an event was not delivered before the process ended (DESIGN 6.17)."""
        self.redactions: tuple[Any, ...] = ()
        """Redactions that the hooks of the run declare. Each event is cleaned with them before anyone gets it."""
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._from_threads: deque[Callable[[], None]] = deque()
        """Events of other threads that wait for the event loop of the run."""

    def begin(self) -> None:
        """Deliver events in the running event loop from now on."""
        self._aio, self._thread = asyncio.get_running_loop(), get_ident()

    def wants(self, kind: type[Event]) -> bool:
        """Whether a consumer wants events of this type."""
        return self.wanted is None or kind in self.wanted

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Create and deliver an event if a consumer wants it. A failing sink is logged and does not affect the run.

        An event from another thread is numbered and delivered in the event loop of the run, so that numbers are
        without gaps and sinks are called one at a time.
        """
        if self._sinks_by_type[kind] is None:
            return
        at = self._now()
        if self._aio is not None and get_ident() != self._thread:
            self._hand_over(partial(self._deliver, kind, at, fields))
            return
        if self._from_threads:  # a sync hook has waited for a run in another thread, so its events come first
            self._deliver_from_threads()
        self._deliver(kind, at, fields)

    @property
    def is_in_other_thread(self) -> bool:
        """Whether the current code runs in another thread than the event loop of the run."""
        return self._aio is not None and get_ident() != self._thread

    def in_order(self, deliver: Callable[[Any], None], value: Any) -> None:
        """Deliver something else than an event in the event loop of the run, in order with the events."""
        if self.is_in_other_thread:
            self._hand_over(partial(deliver, value))
            return
        if self._from_threads:
            self._deliver_from_threads()
        deliver(value)

    def _hand_over(self, deliver: Callable[[], None]) -> None:
        """Deliver something from another thread in the event loop of the run, in the context of that thread."""
        self._from_threads.append(partial(copy_context().run, deliver))
        assert self._aio is not None
        try:
            self._aio.call_soon_threadsafe(self._deliver_from_threads)
        except RuntimeError:  # the loop is closed: Python closes the coroutine of a run that has not ended
            self._deliver_from_threads()

    def _deliver_from_threads(self) -> None:
        while self._from_threads:
            self._from_threads.popleft()()

    def _deliver(self, kind: type[Event], at: float, fields: dict[str, Any]) -> None:
        if self._closed or self._has_last:
            return
        self._has_last = kind is RunFinished
        seq = self._seq = self._seq + 1
        event = kind(seq=seq, at=at, run_id=self._run_id, **fields)
        if self.is_new is not None and not self.is_new(event):
            self._seq = seq - 1
            return
        if self.redactions and kind is not TextDelta:  # hooks clean shown text at on_token, across its pieces
            for redaction in self.redactions:
                event = redaction.clean(event)
        for sink in self._sinks_by_type[kind] or ():
            try:
                sink(event)
            except (Exception, asyncio.CancelledError, GeneratorExit):
                log.exception("event sink %r failed at seq %d", sink, self._seq)
        if self._events is not None:
            self._events.append(event)
            self._wake()

    def keep_hooks(self, hooks: Iterable[Any]) -> None:
        """Stop delivering events to all hooks except these."""
        kept = {id(hook) for hook in hooks}
        sinks = tuple(
            pair for pair in self._sinks if id(getattr(pair[0], "hook", None)) in kept or not _is_hook_sink(pair)
        )
        if len(sinks) < len(self._sinks):
            self._sinks, self._sinks_by_type = sinks, _SinksByType(sinks, self.wanted)
            self.hooked = any(map(_is_hook_sink, sinks))

    def relay(self, ids: Ids) -> Sink | None:
        """Return a sink that adds the events of a nested run to this stream, or ``None`` if no consumer wants them."""
        if not self._sinks_by_type[SubagentEvent] and self._events is None:
            return None

        def take(event: Event) -> None:
            inner = event if isinstance(event, SubagentEvent) else SubagentEvent(event=event, ids=ids)
            self.emit(SubagentEvent, event=inner.event, ids=inner.ids)

        vars(take)["every_call"] = self.every_call
        return take

    def close(self) -> None:
        """End the stream: no more events follow."""
        if self._closed:
            return
        self._closed = True
        self.wanted = _NONE
        self._sinks_by_type = _SinksByType((), _NONE)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for loop, flag in waiting:
            try:
                loop.call_soon_threadsafe(flag.set)
            except RuntimeError:
                pass  # the loop of this reader is closed

    async def read(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield every event with a ``seq`` above ``after``, live, until the run ends."""
        kept = self._events if self._events is not None else []
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
