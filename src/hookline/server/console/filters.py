"""The filters of the lists of the console, as parameters of their addresses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import urlencode

import msgspec

from ...explain.words import VERBS
from ...stores.audit.reading import RecordFilter
from ...stores.run_figures import Period
from ...stores.run_queries import RefusalFilter
from ...stores.runs import RunFilter
from ..audit import record_filter
from ..errors import ApiError
from ..views import IdText, Name, RunStatus

PERIODS: Mapping[Period, str] = {
    "hour": "the last hour",
    "day": "the last 24 hours",
    "week": "the last 7 days",
    "month": "the last 30 days",
    "all": "always",
}
"""The choices of a period of figures, and their words."""
RANGES: Mapping[str, tuple[str, float]] = {
    "hour": ("the last hour", 3600.0),
    "day": ("the last 24 hours", 24 * 3600.0),
    "week": ("the last 7 days", 7 * 24 * 3600.0),
    "month": ("the last 30 days", 30 * 24 * 3600.0),
}
"""The choices of a time range: their words, and their seconds."""
DENIED = {"denied": ("denied by a person", "red")}
CHOICES: Mapping[str, str] = {verb: word for verb, (word, _) in {**VERBS, **DENIED}.items() if verb != "cont"}
"""The verbs that a list can be filtered by, and their words."""

Moment = Annotated[str, msgspec.Meta(max_length=40)]


_SHOWN_ELSEWHERE = ("before", "range", "text", "status", "type", "by", "views")
"""Parameters that have a control in view, or chips of their own."""


class _Filter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters that all lists have. ``since`` and ``until`` are times in ISO format; without a zone, in UTC."""

    agent: Name = ""
    caller: Name = ""
    tool: Name = ""
    hook: Name = ""
    verb: Name = ""
    range: Literal["", "hour", "day", "week", "month"] = ""
    since: Moment = ""
    until: Moment = ""
    before: Name = ""

    @property
    def is_set(self) -> bool:
        """Whether the list does not have everything."""
        return any(name != "before" for name in _given(self))

    def query(self, **changed: str) -> str:
        """Return the parameters of an address, with some of them changed."""
        return urlencode(_given(msgspec.structs.replace(self, **changed)), doseq=True)

    def chips(self) -> list[tuple[str, str, str]]:
        """Return what is chosen in the panel: the name, the value, and the address of the list without it."""
        names = [name for name in _given(self) if name not in _SHOWN_ELSEWHERE]
        values = ((name, str(getattr(self, name))) for name in names)
        return [(name.replace("_", " "), value, self.query(**{name: "", "before": ""})) for name, value in values]

    def begin(self) -> float:
        """Return the Unix time from which on the list has something; 0 if it has everything."""
        seconds = RANGES[self.range][1] if self.range else 0.0
        return max(_time(self.since), time.time() - seconds if seconds else 0.0)

    def end(self) -> float:
        """Return the Unix time before which the list has something; 0 if it has everything."""
        return _time(self.until)


class RunsQuery(_Filter):
    """The parameters of the list of runs."""

    status: tuple[RunStatus, ...] = ()
    text: Name = ""
    correlation_id: IdText = ""
    model: Name = ""
    origin: Name = ""

    def chosen(self) -> RunFilter:
        """Return the filter for the store."""
        return {
            "agent": self.agent,
            "owner": self.caller or None,
            "states": tuple(dict.fromkeys(self.status)),
            "created_from": self.begin(),
            "created_to": self.end(),
            "tool": self.tool,
            "hook": self.hook,
            "verb": self.verb,
            "text": self.text,
            "correlation_id": self.correlation_id,
            "model": self.model,
            "origin": self.origin,
        }


class RecordedQuery(RunsQuery):
    """The parameters of the list of recorded runs. ``run`` is the id of the only one to list."""

    run: IdText = ""


class FiguresQuery(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters of a page with figures."""

    range: Period = "day"
    agent: Name = ""
    caller: Name = ""

    def query(self, **changed: str) -> str:
        """Return the parameters of an address, with some of them changed."""
        return urlencode(_given(msgspec.structs.replace(self, **changed)))

    def runs(self, since: float, until: float = 0.0, **chosen: str) -> str:
        """Return the parameters of the list of the runs that figures are about.

        Args:
            since: the Unix time at which the figures begin; 0 for always.
            until: the Unix time before which they end; 0 if they go on.
            chosen: further parameters of the list.
        """
        found = RunsQuery(agent=self.agent, caller=self.caller, since=_text(since), until=_text(until))
        return found.query(**chosen)


class RefusalsQuery(_Filter):
    """The parameters of the list of refusals. ``by`` is ``events`` for one row for each of them."""

    by: Literal["", "events"] = ""

    @property
    def is_grouped(self) -> bool:
        """Whether refusals are counted by rule and reason."""
        return not (self.by or self.since or self.until or self.before)

    @property
    def period(self) -> Period:
        """How far back refusals are counted."""
        return self.range or "day"

    def chosen(self) -> RefusalFilter:
        """Return the filter for the store, without the owner."""
        made: RefusalFilter = {"agent": self.agent, "tool": self.tool, "hook": self.hook, "verb": self.verb}
        if begin := self.begin():
            made["since"] = begin
        if end := self.end():
            made["until"] = end
        return made


class AuditFilter(_Filter):
    """The parameters of the list of audit records. ``views`` is ``shown`` with those of pages of the console.

    They are also listed if records of the kind ``auth`` are chosen.
    """

    run: Name = ""
    type: tuple[Name, ...] = ()
    text: Name = ""
    views: Literal["", "shown"] = ""

    def chips(self) -> list[tuple[str, str, str]]:
        """Return what is chosen in the panel, with each kind of records."""
        kinds = dict.fromkeys(self.type)
        rest = {
            kind: msgspec.structs.replace(self, type=tuple(each for each in kinds if each != kind)) for kind in kinds
        }
        return [("kind", kind.replace("_", " "), rest[kind].query(before="")) for kind in kinds] + super().chips()

    @property
    def has_views(self) -> bool:
        """Whether looks at pages of the console are listed."""
        return bool(self.views) or "auth" in self.type

    def chosen(self) -> RecordFilter:
        """Return the filter for the log."""
        names = ("run", "agent", "tool", "hook", "verb", "caller", "text")
        given = {name: getattr(self, name) for name in names}
        return record_filter(self.type, self.begin(), self.end(), views=self.has_views, **given)


def _given(query: msgspec.Struct) -> dict[str, str | list[str]]:
    """Return the parameters that have a value."""
    found: dict[str, str | list[str]] = msgspec.to_builtins(query)
    return found


def _text(at: float) -> str:
    """Return a time as a parameter, in UTC; empty for 0."""
    return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(at)) if at else ""


def _time(text: str) -> float:
    if not text:
        return 0.0
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ApiError(422, "bad_field", f"{text!r:.40} is not a time such as 2026-01-31T18:00") from None
