"""What dispatch reports into the event stream of a run."""

from __future__ import annotations

from .._base.event import Event


class PointFired(Event, frozen=True):
    """One fire of one point, and what it concluded."""

    point: str = ""
    verb: str = ""
    hook: str = ""
    reason: str = ""


class HookExecuted(Event, frozen=True):
    """One hook call that returned something or failed; every call, when a consumer asks for them."""

    point: str = ""
    hook: str = ""
    phase: str = ""
    verb: str = ""
    reason: str = ""
    error: str | None = None
    duration: float | None = None
    call_id: str = ""


class JudgedBeforeRewrite(Event, frozen=True):
    """Rewrite-phase hooks let pass a payload that ``by`` changed after them: guard with ``@guard``."""

    point: str = ""
    hooks: tuple[str, ...] = ()
    by: str = ""


class MergeLost(Event, frozen=True):
    """A handler gave a field that an earlier one had given already."""

    point: str = ""
    hook: str = ""
    field: str = ""
    kept: str = ""


class RetryIgnored(Event, frozen=True):
    """A ``retry`` that was not honoured, and why."""

    point: str = ""
    hook: str = ""
    why: str = ""
