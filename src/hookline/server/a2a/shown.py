"""Which calls callers were shown: a plain yes is one to a call that its caller has seen."""

from __future__ import annotations

from .mapping import Story

MAX_TASKS = 10_000


class Shown:
    """Remembers the calls that wait, as each caller was last told of them; like the runs, as long as the program."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], frozenset[str]] = {}

    def put(self, caller: str, story: Story) -> None:
        """A caller is told of a task as it is now."""
        key = caller, story.run.id
        self._calls.pop(key, None)
        calls = frozenset(each.row.id for each in story.waiting.values() if each.row is not None)
        if calls:
            self._calls[key] = calls
            if len(self._calls) > MAX_TASKS:
                del self._calls[next(iter(self._calls))]

    def has(self, caller: str, run_id: str, id: str) -> bool:
        """Whether a caller has seen this call."""
        return id in self._calls.get((caller, run_id), ())
