"""What is where on a tape, looked up once for a replay."""

from __future__ import annotations

from collections.abc import Sequence

from . import entries as on

Call = tuple[str, str, int]
"""The run, the id and the attempt of a call of a tool."""


class Places:
    """The entries that a replay answers from, each with its place.

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
        self.cancels: list[str] = []
        self.inside: dict[int, list[on.ModelAsked | on.ToolCalled]] = {}
        """What a tool asked of models and tools, by the number of its call: a replay does not."""
        self.began: dict[int, float] = {}
        """When a request or a call was made, by its number."""
        for place, entry in enumerate(entries):
            self._put(place, entry)

    def _put(self, place: int, entry: on.Entry) -> None:
        match entry:
            case on.ModelAsked() | on.ToolCalled():
                self._begin(place, entry)
            case on.ModelAnswered():
                self.replies[entry.number] = place, entry
            case on.ToolReported():
                self.reports.setdefault(entry.number, []).append((place, entry))
            case on.ToolAnswered():
                self.results[entry.number] = place, entry
            case on.ApprovalAnswered() if not entry.inside:
                self.approved[entry.run, entry.call_id, entry.attempt] = place, entry
            case on.Counted():
                self.counted[entry.key] = entry.value
            case on.CancelledFrom():
                self.cancels.append(entry.reason)
            case on.Happened(event={"type": "tool_ended"} as event):
                call = event["run_id"], event["call_id"], event["attempt"]
                self.ended.setdefault(call, (place, event["outcome"]))

    def _begin(self, place: int, entry: on.ModelAsked | on.ToolCalled) -> None:
        self.began[entry.number] = entry.at
        if entry.inside:
            self.inside.setdefault(entry.inside, []).append(entry)
        elif isinstance(entry, on.ModelAsked):
            self.asked.append((place, entry))
        else:
            self.called[entry.run, entry.request.id, entry.request.attempt] = place, entry
