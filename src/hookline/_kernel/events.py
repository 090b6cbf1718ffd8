"""The base class of events, and the events that dispatch emits."""

from __future__ import annotations

from typing import Any, Protocol

from .._base.frozen import Frozen, plain
from .._base.text import snake_case


class Event(Frozen, frozen=True, tag=snake_case, tag_field="type"):
    """Something that happened in a run. Subclass it to emit events of your own with ``ctx.emit``.

    ``seq`` numbers the events of a run from 1 without gaps; ``at`` is Unix time.

    Example::

        class CacheHit(Event, frozen=True):
            key: str = ""

        ctx.emit(CacheHit, key="weather/Berlin")
    """

    seq: int = 0
    at: float = 0.0
    run_id: str = ""

    @property
    def payload(self) -> dict[str, Any]:
        """The event as a plain dict."""
        return plain(self)  # type: ignore[no-any-return]


class Emit(Protocol):
    """A function that adds an event to the stream of a run."""

    def __call__(self, kind: type[Event], /, **fields: Any) -> None:
        """Create the event, if any consumer wants it."""
        ...


class PointFired(Event, frozen=True):
    """A point was fired; ``verb`` is the action of its verdict."""

    point: str = ""
    verb: str = ""
    hook: str = ""
    reason: str = ""


class HookExecuted(Event, frozen=True):
    """A hook returned a result or failed. If a consumer asks for every call: any hook call.

    ``duration`` is in seconds; ``None`` if nobody measures hooks in this run, as statistics and metrics do.
    ``note`` is the text that a ``retry`` or ``keep_going`` adds to the next request to the model. ``tool`` is the tool
    of the call ``call_id``. ``refused`` says whether the hook prevented something, such as a tool call: by its verb, or
    because it failed and does not fail open. ``location`` is where its code raised ``error``, such as ``rules.py:12``.
    """

    point: str = ""
    hook: str = ""
    phase: str = ""
    verb: str = ""
    reason: str = ""
    error: str | None = None
    duration: float | None = None
    call_id: str = ""
    note: str = ""
    tool: str = ""
    refused: bool = False
    location: str = ""


class JudgedBeforeRewrite(Event, frozen=True):
    """Hooks in the rewrite phase let a payload pass that the hook ``by`` changed afterwards.

    A hook that judges payloads belongs in the guard phase: use ``@guard``.
    """

    point: str = ""
    hooks: tuple[str, ...] = ()
    by: str = ""


class MergeLost(Event, frozen=True):
    """A handler returned a field that an earlier handler, ``kept``, had already returned."""

    point: str = ""
    hook: str = ""
    field: str = ""
    kept: str = ""


class RetryIgnored(Event, frozen=True):
    """A ``retry`` was not carried out; ``why`` is the reason."""

    point: str = ""
    hook: str = ""
    why: str = ""
