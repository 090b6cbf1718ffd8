"""The entries of a tape, by what a replay looks them up with."""

from __future__ import annotations

from collections.abc import Sequence

from . import entries as on

Call = tuple[str, str, int]
"""The run, the id and the attempt of a call of a tool."""


class Positions:
    """The entries that a replay answers from, each with its position.

    Args:
        entries: those of the tape.
    """

    def __init__(self, entries: Sequence[on.Entry]) -> None:
        self.asked: list[tuple[int, on.ModelAsked]] = []
        """The requests that a replay makes too, in order."""
        self.replies: dict[int, tuple[int, on.ModelAnswered]] = {}
        self.called: dict[Call, tuple[int, on.ToolCalled]] = {}
        """The calls that a replay makes too."""
        self.reports: dict[int, list[tuple[int, on.ToolReported]]] = {}
        self.results: dict[int, tuple[int, on.ToolAnswered]] = {}
        self.ended: dict[Call, tuple[int, str]] = {}
        """Where the run was done with a call, and its outcome."""
        self.approved: dict[Call, tuple[int, on.ApprovalAnswered]] = {}
        self.counted: dict[str, float | None] = {}
        self.inside: dict[int, list[on.ModelAsked | on.ToolCalled]] = {}
        """What a tool asked of models and tools, by the number of its call: a replay does not."""
        self.runs: dict[str, int] = {}
        """Where each run began, by its id."""
        self.lanes: dict[Call, int] = {}
        """The lane of an attempt at a call; of a run, with an empty id."""
        for position, entry in enumerate(entries):
            self._put(position, entry)

    def _put(self, position: int, entry: on.Entry) -> None:
        match entry:
            case on.LaneBegan(run=run) if run and not entry.inside:
                self.lanes[run, entry.call_id, entry.attempt] = entry.lane
            case on.RunBegan() if not entry.inside:
                self.runs.setdefault(entry.ids.run_id, position)
            case on.ModelAsked() | on.ToolCalled():
                self._begin(position, entry)
            case on.ModelAnswered():
                self.replies[entry.number] = position, entry
            case on.ToolReported():
                self.reports.setdefault(entry.number, []).append((position, entry))
            case on.ToolAnswered():
                self.results[entry.number] = position, entry
            case on.ApprovalAnswered() if not entry.inside:
                self.approved[entry.run, entry.call_id, entry.attempt] = position, entry
            case on.Counted():
                self.counted[entry.key] = entry.value
            case on.Happened(event={"type": "tool_ended"} as event):
                call = event["run_id"], event["call_id"], event["attempt"]
                self.ended.setdefault(call, (position, event["outcome"]))

    def _begin(self, position: int, entry: on.ModelAsked | on.ToolCalled) -> None:
        if entry.inside:
            self.inside.setdefault(entry.inside, []).append(entry)
        elif isinstance(entry, on.ModelAsked):
            self.asked.append((position, entry))
        else:
            self.called[entry.run, entry.request.id, entry.request.attempt] = position, entry
