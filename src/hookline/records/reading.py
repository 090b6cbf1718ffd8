"""Read records: files of moments, and the moments in tapes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from .._base.errors import NotInstalledError
from .._base.frozen import EMPTY, History
from .._kernel.payloads import ErrorReport, ModelReply, ModelRequest, ToolCallRequest
from .._kernel.points import AFTER_TOOL, POINTS
from .._kernel.state import AgentResult
from .._kernel.values import Ids, Message, ToolSpec
from .._sensitive.encryption import DataKeyError, open_lines
from . import format as fmt
from .account import INCOMPLETE, MAX_LINE, NO_RUN, NOT_A_LINE, TOO_LONG, Account
from .labels import FILE as LABELS
from .labels import GivenLabel, read_labels

SUFFIXES = (fmt.SUFFIX, fmt.TAPE_SUFFIX)
"""The files that are read in folders."""
PARQUET = ".parquet"
"""The suffix of exports. They are only read if they are named, because their runs are in other files too."""

MAX_DEPTH = 100
"""Runs that are nested deeper are skipped, because a damaged file must not exceed the recursion limit of Python."""
INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding a line: ``RecursionError`` for JSON that is nested too deeply."""

_CLOCK_MARGIN = 5.0
"""Seconds by which the time of a file may be behind the times in it: the clock of a file system is coarser, and that of
shared storage is another one."""
_CHUNK = 1 << 20

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One path or several."""


def record_files(paths: Paths, *, since: float | None = None) -> list[Path]:
    """Return the records among files and folders, oldest first.

    Args:
        paths: files, and folders that are searched at any depth.
        since: leave out files that were last written before this Unix time, and so contain no later run.

    Raises:
        RecordError: a path does not exist, or is not a record.
    """
    found: dict[tuple[int, int], tuple[float, Path]] = {}  # by inode: a file may have several names
    for path in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        try:
            inside = [p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file()] if path.is_dir() else [path]
            for file in inside:
                with suppress(FileNotFoundError) if file is not path else nullcontext():  # it was just deleted
                    state = file.stat()
                    found.setdefault((state.st_dev, state.st_ino), (state.st_mtime, file))
        except OSError as error:
            raise fmt.RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    first = None if since is None else since - _CLOCK_MARGIN
    return [file for at, file in sorted(found.values()) if first is None or at >= first]


def last_written(file: Path) -> float:
    """Return the latest Unix time at which a file may have been written; now, if it was just moved."""
    try:
        return file.stat().st_mtime + _CLOCK_MARGIN
    except FileNotFoundError:
        return time.time()


def open_recording(file: str | os.PathLike[str]) -> BinaryIO:
    """Open a file of records or a tape, which may be encrypted.

    Raises:
        RecordError: it is encrypted, and this process does not have the key.
        OSError: the file cannot be read.
    """
    try:
        return open_lines(file)
    except DataKeyError as error:
        raise fmt.RecordError(str(error)) from error


def raw_lines(file: Path, account: Account) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of a file, without the newline. Incomplete and very long lines are skipped.

    Raises:
        RecordError: the file is a tape of another version of the format, or is encrypted with a key that is not here.
    """
    if file.suffix == PARQUET:
        yield from _parquet_lines(file, account)
        return
    with open_recording(file) as stream:
        number, part = 0, b""
        skipping = False
        while chunk := stream.read(_CHUNK):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                number += 1
                if skipping:
                    skipping = False
                else:
                    if number == 1:
                        check_tape(part + line)
                    yield number, part + line
                part = b""
            if not skipping:
                part += rest
                if len(part) > MAX_LINE:
                    account.skip(file, TOO_LONG, number + 1)
                    part, skipping = b"", True
        if part:
            account.skip(file, INCOMPLETE, number + 1)


def _parquet_lines(file: Path, account: Account) -> Iterator[tuple[int, bytes]]:
    """Yield the lines in a Parquet file that :mod:`hookline.records.parquet` wrote."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise NotInstalledError("pyarrow", "backtest") from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for group in range(table.num_row_groups):
                rows = table.read_row_group(group, columns=["block", "seq", "line"])
                for line in rows.sort_by([("block", "ascending"), ("seq", "ascending")]).column("line").to_pylist():
                    number += 1
                    yield number, line.rstrip(b"\n")
    except (pyarrow.ArrowException, AttributeError, IndexError, KeyError) as error:  # damaged, or another kind of table
        account.skip(file, f"the file is not an export of records: {error}", number + 1)


class RecordedMoment:
    """One fire of a point. ``payload`` is the payload as it arrived at the point."""

    __slots__ = ("__dict__", "_before", "_sent", "line", "position", "run")

    def __init__(self, line: fmt.MomentLine, run: RecordedRun) -> None:
        self.line, self.run = line, run
        self.position = line.n
        self._before, self._sent = run.request, run.sent

    point = property(lambda self: self.line.point, doc="The name of the point.")
    tool = property(lambda self: self.line.tool, doc="The name of the tool; empty if the point is not about a tool.")
    at = property(lambda self: self.line.at, doc="Seconds since the outermost run started.")
    took = property(lambda self: self.line.took, doc="Seconds that the hooks needed.")
    verdict = property(lambda self: self.line.verdict, doc="The verdict; ``None`` if the payload passed.")

    @property
    def decisions(self) -> tuple[fmt.Decision, ...]:
        """The results of the hooks, in the order of the calls."""
        return self.line.decisions or ()

    @property
    def notes(self) -> fmt.Notes:
        """Notes about the payload."""
        return self.line.notes or fmt.NO_NOTES

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The recorded fields of the payload, as JSON."""
        return msgspec.json.decode(self.line.payload)  # type: ignore[no-any-return]

    @cached_property
    def payload(self) -> Any:
        """The payload as an object; as a dict if this process does not know the point."""
        return restore(self.line, self.run.info, self._before, self._sent)


class RecordedRun:
    """A recorded run. ``nested`` are the runs that it started; ``end`` is ``None`` if the record was cut off."""

    def __init__(self, number: int, info: fmt.RunInfo, hooks: tuple[fmt.HookInfo, ...], file: Path) -> None:
        self.number, self.info, self.hooks, self.file = number, info, hooks, file
        self.moments: list[RecordedMoment] = []
        self.nested: list[RecordedRun] = []
        self.labels: list[fmt.LabelLine] = []
        self.end: fmt.RunEnd | None = None
        self.depth = 0
        """The nesting depth in the record: 0 for an outermost run."""
        self.request: ModelRequest | None = None
        """The last request to the model, as it arrived at ``before_llm``."""
        self.sent: Mapping[str, ModelRequest] = {}
        """The last request of each purpose, after the hooks changed it."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.info.ids.run_id

    @property
    def status(self) -> str:
        """How the run ended, or why it has not: see :func:`recorded_status`."""
        return recorded_status(self.end, self.waits_for)

    @property
    def steps(self) -> int:
        """Number of steps in which the model has replied, also of a run whose record has no end."""
        if self.end is not None and self.end.status:
            return self.end.steps
        return sum(begins_step(moment.line) for moment in self.moments)

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The tools of the calls, also of nested runs, for whose approval the record waits at its end."""
        waiting: list[str] = []
        for run in self.tree():
            asked: dict[str, str] = {}
            for moment in run.moments:
                note_approval(asked, moment.line)
            waiting += asked.values()
        return tuple(waiting)

    def tree(self) -> Iterator[RecordedRun]:
        """Yield this run and all runs nested in it."""
        yield self
        for run in self.nested:
            yield from run.tree()


def note_approval(asked: dict[str, str], line: fmt.MomentLine) -> None:
    """Add a call for whose approval a hook waits, by its id with its tool, or remove one that was decided.

    If the run is suspended, the record says that the approval was cancelled.
    """
    if line.point == "approval_requested" and any(each.verb == "claim" for each in line.decisions or ()):
        asked[_decode_question(line.payload).call.id] = line.tool
    elif line.point == "approval_decided":
        question = _decode_question(line.payload)
        if question.decision != "cancelled":
            asked.pop(question.call_id, None)


def refusals(line: fmt.MomentLine) -> int:
    """Return how much was prevented at a moment: by hooks, and by a person or approver who denied a call."""
    if line.point == "approval_decided":
        return int(_decode_question(line.payload).decision == "denied")
    if line.decisions:
        return sum(decision.is_refusal for decision in line.decisions)
    return int(line.verdict is not None and line.verdict.verb in ("block", "end"))  # of an imported run


def begins_step(line: fmt.MomentLine) -> bool:
    """Whether a moment is the reply of a model that makes a step: no hook prevented it."""
    if line.point != "after_llm" or any(decision.is_refusal for decision in line.decisions or ()):
        return False
    try:
        return _reply(line.payload).purpose == "step"
    except INVALID:
        return False


class _Reply(msgspec.Struct, frozen=True):
    purpose: str = "step"


_reply = msgspec.json.Decoder(_Reply).decode


class _Called(msgspec.Struct, frozen=True):
    id: str = ""


class _Question(msgspec.Struct, frozen=True):
    """The call that an approval is about, and how it was decided."""

    call: _Called = _Called()
    call_id: str = ""
    decision: str = ""


def _decode_question(payload: msgspec.Raw) -> _Question:
    try:
        return _question(payload)
    except INVALID:
        return _Question()


_question = msgspec.json.Decoder(_Question).decode


UNFINISHED = frozenset(("running", "waiting", "interrupted"))
"""The statuses of records that do not say how the run ended."""


def recorded_status(end: fmt.RunEnd | None, waits_for: Sequence[str], *, is_held: bool = False) -> str:
    """Return the status of a run in a record.

    Args:
        end: the line at its end. One without a status says that the run was suspended.
        waits_for: the tools whose approval it waits for at the end.
        is_held: whether a process is writing the record.
    """
    if end is None:
        return "running" if is_held else "interrupted"
    return end.status or ("waiting" if waits_for else "interrupted")


@lru_cache(maxsize=256)
def payload_decoder(point: str) -> msgspec.json.Decoder[Any] | None:
    """Return a decoder for the payloads of a point, or ``None`` if this process does not know the point."""
    known = POINTS.get(point)
    return None if known is None else msgspec.json.Decoder(known.payload)


def restore(
    line: fmt.MomentLine, info: fmt.RunInfo, before: ModelRequest | None, sent: Mapping[str, ModelRequest] = EMPTY
) -> Any:
    """Return the payload of a moment as it arrived at the point.

    Args:
        line: the moment.
        info: the run.
        before: the previous request of the run, as it arrived: the line leaves out the messages that it contains.
        sent: the last request of each purpose, as it was sent: replies and failures leave it out.
    """
    decoder = payload_decoder(line.point)
    if decoder is None:
        return msgspec.json.decode(line.payload)
    payload = decoder.decode(line.payload)
    given: dict[str, Any] = {}
    if isinstance(getattr(payload, "ids", None), Ids):
        given["ids"] = info.ids
    if type(payload) is ModelRequest:
        notes = line.notes or fmt.NO_NOTES
        if notes.kept and before is not None:
            given["messages"] = continued(before.messages, notes.kept, payload.messages)
        if notes.tools_kept and before is not None:
            given["tools"] = before.tools
    elif type(payload) is AgentResult and before is not None:
        kept = line.notes.kept if line.notes is not None else 0
        if kept:
            given["messages"] = (*before.messages[-kept:], *payload.messages)
    elif isinstance(payload, (ModelReply, ErrorReport)) and (request := sent.get(payload.purpose)) is not None:
        given["request"] = request
    return msgspec.structs.replace(payload, **given)


def continued(before: Sequence[Message], kept: int, new: Sequence[Message]) -> Sequence[Message]:
    """Return the first messages of the previous request and the new ones. The requests of a run share one buffer: with
    a copy for each of them, the memory for a long run would grow with the square of its length.
    """
    if isinstance(before, History) and len(before) == kept:
        return before.plus(*new)
    return History((*before[:kept], *new))


def apply_changes(payload: Any, changed: Mapping[str, Any]) -> Any:
    """Return a payload with the changes that a rewriter made to it."""
    given = dict(changed)
    if isinstance(part := given.get("messages"), Mapping):
        new = msgspec.convert(part["new"], tuple[Message, ...])
        given["messages"] = (*payload.messages[: part["kept"]], *new)
    if "tools" in given:
        given["tools"] = msgspec.convert(given["tools"], tuple[ToolSpec, ...])
    return payload.replace(given)


def changed_by(payload: Any, decisions: Iterable[fmt.Decision] | None) -> Any:
    """Return a payload after the recorded rewriters."""
    for decision in decisions or ():
        if decision.changed is not None:
            payload = apply_changes(payload, decision.changed)
    return payload


def judged_payload(moment: RecordedMoment) -> Any:
    """Return the payload that the guards saw: after all rewriters, and after validation of the arguments."""
    payload = changed_by(moment.payload, moment.decisions)
    if moment.notes.checked is not None and isinstance(payload, ToolCallRequest):
        payload = payload.replace(arguments=moment.notes.checked)
    return payload


decode_header = msgspec.json.Decoder(fmt.HeaderLine).decode
decode_tape_head = msgspec.json.Decoder(fmt.TapeHead).decode
decode_hooks = msgspec.json.Decoder(fmt.HooksLine).decode
decode_run = msgspec.json.Decoder(fmt.RunLine).decode
decode_label = msgspec.json.Decoder(fmt.LabelLine).decode
decode_moment = msgspec.json.Decoder(fmt.MomentLine).decode
_decoders: dict[bytes, Callable[[bytes], Any]] = {
    b"hookline": decode_header,
    b"hooks": decode_hooks,
    b"run": decode_run,
    b"end": msgspec.json.Decoder(fmt.EndLine).decode,
    b"label": decode_label,
}


def decode_line(line: bytes) -> Any:
    """Decode a line of a record to one of the line types of :mod:`hookline.records.format`.

    Raises:
        msgspec.DecodeError: it is not a valid line.
    """
    kind = line[2 : line.find(b'"', 2)]
    return _decoders.get(kind, decode_moment)(line)


def check_version(header: fmt.Header) -> None:
    """Reject a file of a newer format.

    Raises:
        RecordError: this version of Hookline cannot read it.
    """
    if header.format > fmt.VERSION:
        raise fmt.RecordError(
            f"version {header.format} of the format; this version of Hookline reads up to {fmt.VERSION}: "
            "use a newer version of Hookline"
        )


def check_tape(first_line: bytes) -> None:
    """Reject a tape of another version of the format.

    Raises:
        RecordError: this version of Hookline does not read it.
    """
    if first_line.startswith(b"{"):
        try:
            problem = decode_tape_head(first_line).problem
        except INVALID:
            return  # another entry of a tape, or a damaged line
        if problem:
            raise fmt.RecordError(problem)


class _Ids(msgspec.Struct, frozen=True):
    run_id: str = ""


class _Info(msgspec.Struct, frozen=True):
    ids: _Ids = _Ids()
    time: float = 0.0
    goes_on: bool = False


class _End(msgspec.Struct, frozen=True):
    status: str = ""


TREE = b'["run",0,'
"""How the line of an outermost run begins."""
_TREE_END = b'["end",0,'
_decode_start = msgspec.json.Decoder(tuple[str, int, _Info]).decode
_decode_tree_end = msgspec.json.Decoder(tuple[str, int, _End]).decode

Part = tuple[str, float]
"""A record of an outermost run: the id of the run, and the time at which the record began."""


class PartSummary(NamedTuple):
    """A record of an outermost run.

    Args:
        id: the id of the run.
        began: the time at which the record began.
        is_over: whether it says how the run ended.
        goes_on: whether an earlier record has the beginning of the run.
    """

    id: str
    began: float
    is_over: bool
    goes_on: bool


def replaced_parts(files: Iterable[Path]) -> frozenset[Part]:
    """Return the records of runs that a later record of the same run replaces.

    A durable run that is resumed is executed again from its start, and so is its record: the last one has everything.
    An earlier one has no end, or ends because the run was suspended. A run of a host goes on in the later record.
    """
    return replaced_of(part for file in files if file.suffix != PARQUET for part in read_parts(file))


def replaced_of(parts: Iterable[PartSummary]) -> frozenset[Part]:
    """Return those of the records that another one replaces."""
    started: dict[str, list[PartSummary]] = {}
    for part in parts:
        if part.id:
            started.setdefault(part.id, []).append(part)
    return frozenset(
        (part.id, part.began)
        for found in started.values()
        if len(found) > 1
        for part in found
        if not part.is_over and any(later.began > part.began and not later.goes_on for later in found)
    )


def read_parts(file: Path) -> Iterator[PartSummary]:
    """Yield the records of outermost runs in a file."""
    part: PartSummary | None = None
    with suppress(OSError, fmt.RecordError, NotInstalledError):  # those who read its moments report it
        for _, line in raw_lines(file, Account()):
            with suppress(*INVALID):
                if line.startswith(TREE):
                    if part is not None:
                        yield part
                    part = None
                    info = _decode_start(line)[2]
                    part = PartSummary(info.ids.run_id, info.time, False, info.goes_on)
                elif line.startswith(_TREE_END) and part is not None:
                    part = part._replace(is_over=bool(_decode_tree_end(line)[2].status))
    if part is not None:
        yield part


def read_runs(paths: Paths, *, since: float | None = None, account: Account | None = None) -> Iterator[RecordedRun]:
    """Yield the outermost runs of records, one at a time, each with its moments and nested runs.

    A run that was resumed is yielded once, from its last record. One of a host is yielded once for each process that
    the host has asked: see :func:`joined`. Lines that cannot be read are skipped and counted in ``account``; so are
    files of a newer format, and tapes of another version of their format.

    Args:
        paths: files, and folders that are searched at any depth.
        since: leave out runs that started before this Unix time.
        account: collects what was skipped.

    Example::

        for run in read_runs("records/"):
            print(run.id, run.info.task, len(run.moments))

    Raises:
        RecordError: a path does not exist.
    """
    account = Account() if account is None else account
    labels: dict[Path, Mapping[str, list[GivenLabel]]] = {}
    files = record_files(paths, since=since)
    replaced = replaced_parts(files)
    for file in files:
        folder = file.parent
        if folder not in labels:
            labels[folder], invalid = read_labels(folder)
            for number in invalid:
                account.skip(folder / LABELS, "the line is not a label", number)
        try:
            for run in _runs_of(file, account):
                if since is not None and run.info.time < since:
                    continue
                if (run.id, run.info.time) in replaced:
                    continue
                if labels[folder]:
                    _add_labels(run, labels[folder])
                yield run
        except fmt.RecordError as error:
            account.skip(file, str(error))
        except OSError as error:
            account.skip(file, f"cannot be read: {error.strerror or error}")


def _add_labels(run: RecordedRun, labels: Mapping[str, list[GivenLabel]]) -> None:
    """Add the labels that people gave afterwards."""
    for each in run.tree():
        for given in labels.get(each.id, ()):
            moments = [m for m in each.moments if m.point == "before_tool"]
            found = [
                m for m in moments if m.position == given.n or (given.call_id and m.fields.get("id") == given.call_id)
            ]
            tool, n = (found[0].tool, found[0].position) if found else ("", given.n)
            label = fmt.Label(given.label, given.call_id, given.by, given.note)
            each.labels.append(fmt.LabelLine("label", tool, each.number, n, label))


def _runs_of(file: Path, account: Account) -> Iterator[RecordedRun]:
    hooks: dict[str, tuple[fmt.HookInfo, ...]] = {}
    runs: dict[int, RecordedRun] = {}
    for number, raw in raw_lines(file, account):
        if raw.startswith(b"{"):
            continue  # an entry of a tape
        try:
            line = decode_line(raw)
        except INVALID:
            account.skip(file, NOT_A_LINE, number)
            continue
        if isinstance(line, fmt.HeaderLine):
            check_version(line.header)
        elif isinstance(line, fmt.HooksLine):
            hooks[line.digest] = line.hooks
        elif isinstance(line, fmt.RunLine):
            if line.run == 0:
                yield from _finished(runs)
                runs.clear()
            outer = runs.get(line.info.outer or 0) if line.run else None
            run = RecordedRun(line.run, line.info, hooks.get(line.info.hooks, ()), file)
            if outer is not None:
                run.depth = outer.depth + 1
                if run.depth > MAX_DEPTH:
                    account.skip(file, f"runs are nested deeper than {MAX_DEPTH} levels", number)
                    continue
                outer.nested.append(run)
            runs[line.run] = run
        elif (known := runs.get(line.run)) is None:
            account.skip(file, NO_RUN, number)
        elif isinstance(line, fmt.EndLine):
            known.end = line.end
        elif isinstance(line, fmt.LabelLine):
            known.labels.append(line)
        else:
            _add(known, line, account, number)
    yield from _finished(runs)


def _add(run: RecordedRun, line: fmt.MomentLine, account: Account, number: int) -> None:
    moment = RecordedMoment(line, run)
    try:
        if not isinstance(moment.fields, dict):
            raise TypeError
        if line.point == "before_llm":
            run.request = moment.payload
            request = judged_payload(moment)
            run.sent = {**run.sent, request.purpose: request}
    except (*INVALID, TypeError, ValueError):
        account.skip(run.file, "the payload of the moment cannot be read", number)
        return
    run.moments.append(moment)


def joined(parts: Sequence[RecordedRun]) -> RecordedRun:
    """Return one run for the records of a run of a host, oldest first: each process has recorded a part."""
    whole = parts[0]
    for part in parts[1:]:
        positions = 1 + max((moment.position for run in whole.tree() for moment in run.moments), default=-1)
        number, seconds = 1 + max(run.number for run in whole.tree()), part.info.time - whole.info.time
        for run in part.tree():
            run.number += number
            run.info = run.info.replace(at=run.info.at + seconds)
            for moment in run.moments:
                line = moment.line
                moment.line = msgspec.structs.replace(line, n=line.n + positions, at=line.at + seconds)
                moment.position = moment.line.n
        for moment in part.moments:
            moment.run = whole
        whole.moments += part.moments
        whole.nested += part.nested
        whole.labels += part.labels
        whole.hooks, whole.end = part.hooks, part.end
        if part.end is not None and part.end.status:
            calls = sum(moment.point == AFTER_TOOL for moment in whole.moments)
            whole.end = part.end.replace(tool_calls=calls, elapsed=part.end.elapsed + seconds)
    return whole


def _finished(runs: Mapping[int, RecordedRun]) -> Iterator[RecordedRun]:
    if 0 in runs:
        yield runs[0]
