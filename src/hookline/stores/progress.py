"""The numbers of runs that have not ended: those that their results would have now.

They are read from facts, or else from the events of a durable run that nothing observes. The row of a run gets its
numbers when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .sql import Connection


class Progress(msgspec.Struct):
    """The numbers of a run so far: tokens and cost contain those of its nested runs, the others do not.

    ``cost`` is ``None`` if the price of any call is unknown. Of a coding agent, ``calls`` of models are not known.
    """

    steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0
    calls: int = 0

    def add(self, other: Progress, *, is_nested: bool) -> None:
        """Add the numbers of the run itself, or of a nested run."""
        if not is_nested:
            self.steps += other.steps
            self.tool_calls += other.tool_calls
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cached_tokens += other.cached_tokens
        self.cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        self.calls += other.calls


_IS_STEP = "kind = 'model' AND purpose = 'step' AND refused = 0"
"""A reply that a hook prevented makes no step."""
_IS_CALL = "kind = 'tool' AND attempt = 1"
_IS_PAID = "kind = 'model' AND source = 'model'"
_COUNTED = f"""SELECT run_id, parent_run_id, root_run_id, sum(CASE WHEN {_IS_STEP} THEN 1 ELSE 0 END),
    sum(CASE WHEN {_IS_CALL} THEN 1 ELSE 0 END),
    {", ".join(f"sum(CASE WHEN {_IS_PAID} THEN {kind}_tokens ELSE 0 END)" for kind in ("input", "output", "cached"))},
    sum(CASE WHEN {_IS_PAID} THEN coalesce(cost, 0.0) ELSE 0.0 END),
    sum(CASE WHEN {_IS_PAID} AND cost IS NULL THEN 1 ELSE 0 END), sum(CASE WHEN {_IS_PAID} THEN 1 ELSE 0 END)
    FROM facts WHERE root_run_id IN (SELECT root_run_id FROM facts WHERE run_id IN ({{}}))
    GROUP BY run_id, parent_run_id, root_run_id"""
_EVENTS = """SELECT run_id, data FROM events
    WHERE run_id IN ({}) AND type IN ('model_replied', 'tool_ended', 'subagent_event')"""


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class _Event(msgspec.Struct):
    type: str
    purpose: str = ""
    source: str = ""
    attempt: int = 1
    usage: _Usage = msgspec.field(default_factory=_Usage)
    cost: float | None = None
    event: _Event | None = None

    @property
    def progress(self) -> Progress:
        if self.type == "tool_ended":
            return Progress(tool_calls=int(self.attempt == 1))
        if self.type != "model_replied":
            return Progress()
        used, step = self.usage, int(self.purpose == "step")
        if self.source != "model":
            return Progress(step)
        return Progress(step, 0, used.input_tokens, used.output_tokens, used.cached_tokens, self.cost, 1)


_decoder = msgspec.json.Decoder(_Event)


def progress_of(db: Connection, ids: Iterable[str]) -> dict[str, Progress]:
    """Return the numbers of runs by id, of those that have facts or events."""
    wanted = [*ids]
    if not wanted:
        return {}
    marks = ",".join("?" * len(wanted))
    rows = db.execute(_COUNTED.format(marks), wanted).fetchall()
    parents = {run_id: parent or (root if root != run_id else "") for run_id, parent, root, *_ in rows}
    found: dict[str, Progress] = {}
    for run_id, _, root, steps, calls, read, written, cached, cost, unpriced, paid in rows:
        own = Progress(steps, calls, read, written, cached, None if unpriced else cost, paid)
        outer, seen = run_id, {root}  # of an outer run without model calls, nothing says what it is nested in
        while outer and outer not in seen:
            seen.add(outer)
            outer = parents.get(outer, "")
        for id in seen.intersection(wanted):
            found.setdefault(id, Progress()).add(own, is_nested=id != run_id)
    rest = [id for id in wanted if id not in found]
    if rest:
        for id, data in db.execute(_EVENTS.format(",".join("?" * len(rest))), rest):
            event = _decoder.decode(bytes(data))
            is_nested = event.event is not None
            progress = (event.event or event).progress
            found.setdefault(id, Progress()).add(progress, is_nested=is_nested)
    return found
