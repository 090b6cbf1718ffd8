"""Run trees while their lines are read: an outermost run with the runs nested in it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..models.protocol import Model
from ..records.format import Label, RunInfo, RunLine
from .context import BacktestContext, RecordedClock
from .history import Requests, RunState, TreeLines
from .report import Certainty
from .where import Where

DecidedCall = tuple[bool, bool, Certainty]
"""Whether a tool call was stopped then, whether it is stopped now, and how sure that is."""

decode_run = msgspec.json.Decoder(RunLine).decode


class JudgedRun:
    """One recorded run, and the contexts of the hooks that judge its moments."""

    def __init__(self, line: RunLine, tree: RunTree) -> None:
        self.info: RunInfo = line.info
        self.ids = line.info.ids
        self.number = line.run
        outer = tree.runs.get(line.info.outer) if line.info.outer is not None else None
        self.depth: int = outer.depth + 1 if outer is not None else 0
        self.is_wanted = not tree.where.filters_runs or tree.where.wants_run(line.info)
        self.requests = Requests()
        self.edited: set[str] = set()
        """The ids of calls whose arguments a person edited: they are judged again, without rewriters."""
        self._tree = tree
        self.now = BacktestContext(self, tree.clock, tree.state_now, tree.model)
        self.then = BacktestContext(self, tree.clock, tree.state_then, tree.model)

    def state(self) -> RunState:
        """Return the state of the run at the current line."""
        return self._tree.state_of(self.number)


class RunTree:
    """An outermost run with its nested runs. The lines of runs are decoded when a moment of the run is judged.

    Args:
        first: the position of its first line in the unit.
        clock: the clock of its contexts.
        where: the filter for runs.
        model: the model for ``ctx.llm``, if hooks may call one.
        replaced: names of recorded hooks whose decisions do not count.
    """

    def __init__(
        self, first: int, clock: RecordedClock, where: Where, model: Model | None, replaced: frozenset[str]
    ) -> None:
        self.first = first
        self.clock = clock
        self.where = where
        self.model = model
        self._replaced = replaced
        self.others = 0
        """The number of lines that are not moments."""
        self.left_out = 0
        """The number of moments that the source left out."""
        self.runs: dict[int, JudgedRun] = {}
        self._waiting: dict[int, bytes] = {}
        self.state_now: dict[int, Any] = {}
        self.state_then: dict[int, Any] = {}
        self.lines = TreeLines()
        self.line = 0
        """The index of the current line in its block."""
        self.differs_at = -1
        """The number of moments up to and including the first different decision; -1 if there is none."""
        self.differs_n = -1
        """The position of that moment in its run."""
        self.guessed = 0
        """Moments before that at which a decision is a guess."""
        self.guessing: dict[str, None] = {}
        """Hooks that have read something that was not recorded: all their later decisions here are guesses."""
        self.decided: dict[str, DecidedCall] = {}
        """By call id, the calls about which a hook decided something."""
        self.labels: dict[str, Label] = {}
        self.status = ""
        self.is_old = False
        """Whether the run started too early, so that it does not count."""

    def add_run(self, number: int, line: bytes) -> None:
        """Add the line of a run."""
        self._waiting[number] = line
        self.runs.pop(number, None)

    def run(self, number: int) -> JudgedRun | None:
        """Return a run of this tree; ``None`` if its line is missing or damaged."""
        run = self.runs.get(number)
        if run is None and number in self._waiting:
            try:
                run = self.runs[number] = JudgedRun(decode_run(self._waiting.pop(number)), self)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            if number == 0:
                self.clock.started = run.info.time
        return run

    def all_runs(self) -> list[JudgedRun]:
        """Return all runs so far."""
        for number in list(self._waiting):
            self.run(number)
        return list(self.runs.values())

    def state_of(self, number: int) -> RunState:
        """Return the state of a run at the current line."""
        infos = {run.number: run.info for run in self.all_runs()}
        return self.lines.state(number, infos, self.line, self._replaced)
