"""Run trees while their lines are read: an outermost run with the runs nested in it."""

from __future__ import annotations

from collections.abc import Set
from io import BytesIO
from typing import Any

import msgspec

from .._kernel.values import Ids
from ..models.protocol import Model
from ..records.format import Label, RunInfo
from ..records.reading import decode_run
from .context import BacktestContext, RecordedClock
from .history import Requests, RestoredState, TreeLines
from .report import Certainty
from .where import Where

DecidedCall = tuple[bool, bool, Certainty]
"""Whether a tool call was stopped then, whether it is stopped now, and how sure that is."""


class _Start(msgspec.Struct, gc=False):
    """The part of the line of a run that every moment needs. The rest is decoded when a hook looks at it."""

    ids: Ids = Ids()
    time: float = 0.0
    hooks: str = ""
    outer: int | None = None


_decode_start = msgspec.json.Decoder(tuple[str, int, _Start]).decode


class JudgedRun:
    """One recorded run, and the contexts of the hooks that judge its moments."""

    __slots__ = (
        "_info",
        "_line",
        "_requests",
        "_then",
        "_tree",
        "edited",
        "ids",
        "is_judged",
        "now",
        "number",
        "start",
    )

    def __init__(self, line: bytes, tree: RunTree) -> None:
        _, self.number, self.start = _decode_start(line)
        self._line = line
        self._tree = tree
        self.ids = self.start.ids
        self._info: RunInfo | None = None
        self._requests: Requests | None = None
        self.edited: set[str] | None = None
        """The ids of calls whose arguments a person edited: they are judged again, without rewriters."""
        self.is_judged = not tree.is_left_out and (not tree.where.filters_runs or tree.where.wants_run(self.info))
        self.now = BacktestContext(self, tree.clock, tree.shared, tree.model)
        self._then: BacktestContext | None = None

    def release(self) -> None:
        """Drop the contexts, which refer to this run."""
        del self.now
        self._then = None

    @property
    def then(self) -> BacktestContext:
        """The context of the baseline."""
        if self._then is None:
            self._then = BacktestContext(self, self._tree.clock, self._tree.shared_then, self._tree.model)
        return self._then

    @property
    def requests(self) -> Requests:
        """The requests of the run to the model."""
        if self._requests is None:
            self._requests = Requests()
        return self._requests

    @property
    def info(self) -> RunInfo:
        """The whole line of the run."""
        if self._info is None:
            self._info = decode_run(self._line).info
        return self._info

    @property
    def depth(self) -> int:
        """The nesting depth: 0 for the outermost run."""
        number, seen = self.start.outer, {self.number}
        while number is not None and number not in seen and (outer := self._tree.run(number)) is not None:
            seen.add(number)
            number = outer.start.outer
        return len(seen) - 1

    def state(self) -> RestoredState:
        """Return the state of the run at the current line."""
        return self._tree.state_of(self.number)


class RunTree:
    """An outermost run with its nested runs. The lines of runs are decoded when a moment of the run is judged.

    Args:
        clock: the clock of its contexts.
        where: the filter for runs.
        model: the model for ``ctx.llm``, if hooks may call one.
        replaced: names of recorded hooks whose decisions do not count.
    """

    # Class attributes as defaults: most trees never change them.
    stream: BytesIO | None = None
    """The block that the line that is being judged was just read from."""
    last_n = -1
    """The position of the last moment in the blocks that were read completely."""
    differs_n = -1
    """The position of the first moment at which a decision differs; -1 if there is none."""
    guessed = 0
    """Moments up to that one at which a decision is a guess."""
    guessed_after = 0
    """Such moments after it."""
    left_out = 0
    """The number of moments that the source left out."""
    delivered = 0
    """The number of the others, if there are any such."""
    status = ""
    is_left_out = False
    """Whether the run does not count: it started too early, or a later record of it is read."""
    is_damaged = False
    """Whether a line could not be read."""
    guessing: Set[str] = frozenset()
    """Hooks that have read something that was not recorded: all their later decisions here are guesses."""

    def __init__(self, clock: RecordedClock, where: Where, model: Model | None, replaced: frozenset[str]) -> None:
        self.clock = clock
        self.where = where
        self.model = model
        self._replaced = replaced
        self.runs: dict[int, JudgedRun] = {}
        self._waiting: dict[int, bytes] = {}
        self.lines = TreeLines()
        self.shared: dict[int, Any] = {}
        """``ctx.tree_state`` of the tested hooks."""
        self.shared_then: dict[int, Any] = {}
        """``ctx.tree_state`` of the baseline."""
        self.decided: dict[str, DecidedCall] = {}
        """By call id, the calls about which a hook decided something."""
        self.labels: dict[str, Label] = {}

    def add_run(self, number: int, line: bytes) -> None:
        """Add the line of a run."""
        self._waiting[number] = line
        self.runs.pop(number, None)

    def run(self, number: int) -> JudgedRun | None:
        """Return a run of this tree; ``None`` if its line is missing or damaged."""
        run = self.runs.get(number)
        if run is None and number in self._waiting:
            try:
                run = self.runs[number] = JudgedRun(self._waiting.pop(number), self)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            if number == 0:
                self.clock.started = run.start.time
        return run

    def release(self) -> None:
        """Break the reference cycles, so that the memory is free at once and the garbage collector has no work."""
        for run in self.runs.values():
            run.release()
        self.runs = {}

    def all_runs(self) -> list[JudgedRun]:
        """Return all runs so far."""
        for number in list(self._waiting):
            self.run(number)
        return list(self.runs.values())

    def state_of(self, number: int) -> RestoredState:
        """Return the state of a run at the current line."""
        infos = {run.number: run.info for run in self.all_runs()}
        end = 0 if self.stream is None else self.stream.tell()
        return self.lines.state(number, infos, end, self._replaced)
