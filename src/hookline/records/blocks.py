"""Runs in files of records as blocks of lines, for lists and exports: most lines are only copied or counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from .._base.frozen import Frozen
from . import format as fmt
from .account import NO_RUN, NOT_A_LINE, Account
from .reading import (
    INVALID,
    UNFINISHED,
    Part,
    begins_step,
    check_version,
    decode_line,
    decode_moment,
    note_approval,
    raw_lines,
    recorded_status,
    refusals,
)
from .segments import first_line, is_held


class Block:
    """The lines of an outermost run and its nested runs. ``hooks`` are the lines with the hooks that they refer to."""

    def __init__(self, info: fmt.RunInfo, file: Path) -> None:
        self.info, self.file = info, file
        self.lines: list[bytes] = []
        self.is_last = False
        """Whether it is the last block of its file: its run may be in progress."""
        self.hooks: dict[str, bytes] = {}

    @property
    def id(self) -> str:
        """The id of the outermost run."""
        return self.info.ids.run_id

    @property
    def part(self) -> Part:
        """Which record of the run it is: see :func:`hookline.records.reading.replaced_parts`."""
        return self.id, self.info.time

    @property
    def size(self) -> int:
        """The size of the lines in bytes."""
        return sum(map(len, self.lines)) + len(self.lines)


def read_blocks(file: Path, account: Account) -> Iterator[Block]:
    """Yield the runs of a file, one at a time. Lines that cannot be read are skipped and counted."""
    block: Block | None = None
    hooks: dict[str, bytes] = {}
    try:
        for number, raw in raw_lines(file, account):
            if raw.startswith(fmt.OTHER_LINES):
                try:
                    line = decode_line(raw)
                except INVALID:
                    account.skip(file, NOT_A_LINE, number)
                    continue
                if isinstance(line, fmt.HeaderLine):
                    check_version(line.header)
                    continue
                if isinstance(line, fmt.HooksLine):
                    hooks[line.digest] = raw
                    continue
                if isinstance(line, fmt.RunLine):
                    if line.run == 0:
                        if block is not None:
                            yield block
                        block = Block(line.info, file)
                    if block is not None and line.info.hooks in hooks:
                        block.hooks[line.info.hooks] = hooks[line.info.hooks]
            elif not raw.startswith(b"["):
                if not raw.startswith(b"{"):  # an entry of a tape
                    account.skip(file, NOT_A_LINE, number)
                continue
            if block is None:
                account.skip(file, NO_RUN, number)
            else:
                block.lines.append(raw)
    except fmt.RecordError as error:
        account.skip(file, str(error))
    except OSError as error:
        account.skip(file, f"cannot be read: {error.strerror or error}")
    if block is not None:
        block.is_last = True
        yield block


class RunSummary(Frozen, frozen=True):
    """One line about a recorded run. The counts include its nested runs. ``blocked`` counts all that was refused."""

    run_id: str
    time: float
    agent: str
    task: str
    status: str
    steps: int
    moments: int
    blocked: int
    asked: int
    changed: int
    failed: int
    runs: int
    size: int
    file: str
    goes_on: bool = False
    """Whether an earlier record has the beginning of the run."""

    @property
    def is_over(self) -> bool:
        """Whether the record says how the run ended."""
        return self.status not in UNFINISHED


def summarize(block: Block, account: Account) -> RunSummary:
    """Count what happened in a run."""
    end: fmt.RunEnd | None = None
    asked: dict[str, str] = {}
    steps = 0
    counts = dict.fromkeys(("moments", "blocked", "asked", "changed", "failed", "runs"), 0)
    for raw in block.lines:
        try:
            if raw.startswith(fmt.OTHER_LINES):
                line = decode_line(raw)
                counts["runs"] += isinstance(line, fmt.RunLine)
                if isinstance(line, fmt.EndLine) and line.run == 0:
                    end = line.end
                continue
            moment = decode_moment(raw)
        except INVALID:
            account.skip(block.file, NOT_A_LINE)
            continue
        counts["moments"] += 1
        steps += moment.run == 0 and begins_step(moment)
        note_approval(asked, moment)
        counts["blocked"] += refusals(moment)
        if moment.verdict is not None:
            counts["asked"] += moment.verdict.verb == "ask"
        for decision in moment.decisions or ():
            counts["changed"] += decision.verb == "replace"
            counts["failed"] += decision.verb == "failed"
    return RunSummary(
        block.id,
        block.info.time,
        block.info.ids.agent,
        block.info.task,
        recorded_status(end, tuple(asked.values()), is_held=block.is_last and is_held(str(block.file))),
        steps if end is None or not end.status else end.steps,
        size=block.size,
        file=str(block.file),
        goes_on=block.info.goes_on,
        **counts,
    )


def write_blocks(blocks: Iterable[Block], write: Callable[[bytes], object]) -> int:
    """Write runs as one record, and return their number."""
    written: set[str] = set()
    count = 0
    for block in blocks:
        if not count:
            write(first_line())
        for digest, line in block.hooks.items():
            if digest not in written:
                written.add(digest)
                write(line + b"\n")
        for line in block.lines:
            write(line + b"\n")
        count += 1
    return count
