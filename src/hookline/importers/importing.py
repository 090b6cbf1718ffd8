"""Import logs: read them with the importer of their system, and write one file of moments."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from .._base.files import partial_file
from .._base.frozen import Frozen
from .._base.text import did_you_mean
from ..records.account import Skipped
from ..records.format import SUFFIX, RecordError
from ..records.redaction import Redaction
from ..records.segments import first_line
from .logs import Losses, find_files
from .runs import ImportedRun, RunEncoder, known_runs

Source = Literal["claude-code", "openai", "otel"]
SOURCES: tuple[Source, ...] = get_args(Source)

REPEATED = "runs that were imported before"

_numbers = count()


class ImportReport(Frozen, frozen=True):
    """The account of an import: the number of things it read, wrote and lost.

    ``left_out`` counts content that was understood but has no place in a record; ``skipped`` are lines that could not
    be read. ``path`` is the file of moments; empty if there was no run to write.
    """

    source: str
    path: str = ""
    files: int = 0
    lines: int = 0
    runs: int = 0
    moments: int = 0
    labels: int = 0
    left_out: Mapping[str, int] = {}
    skipped: tuple[Skipped, ...] = ()


def import_logs(
    source: Source,
    files: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    redact: bool = True,
    progress: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """Convert the logs of another system to a file of moments.

    Lines that cannot be read are skipped and counted. Runs are written one at a time, so the size of the logs does not
    matter. Runs that an earlier import has written to the same folder are left out.

    Example::

        report = import_logs("claude-code", ["~/.claude/projects/my-project"], "records/")
        print(report.runs, report.left_out)

    Args:
        source: the system: ``claude-code``, ``openai`` or ``otel``.
        files: files and folders; ``-`` is standard input.
        out: the file to write, or a folder for it.
        redact: whether to replace sensitive values, such as keys and e-mail addresses. Very long texts are shortened in
            any case, as in all records.
        progress: called after each run with the counts so far.

    Raises:
        RecordError: the source is unknown, a file does not exist, or the output cannot be written.
    """
    if source not in SOURCES:
        raise RecordError(f"unknown source {source!r}: use {', '.join(SOURCES)}.{did_you_mean(source, SOURCES)}")
    losses = Losses()
    given = [Path(path).expanduser() if str(path) != "-" else "-" for path in files]
    importer = import_module(f".{source.replace('-', '_')}", __package__)
    runs: Iterator[ImportedRun] = importer.read(find_files(given, importer.SUFFIXES), losses)
    target = _target(Path(out), source)
    earlier = () if target == Path(out) else Path(out).glob(f"*-{source}{SUFFIX}")
    encoder = RunEncoder(Redaction(None if redact else False), known_runs(earlier))
    if target.exists():
        raise RecordError(f"{target} exists already: choose another file")

    def report(path: str = "") -> ImportReport:
        return ImportReport(
            source,
            path,
            losses.files,
            losses.lines,
            encoder.runs,
            encoder.moments,
            encoder.labels,
            dict(losses.left_out) | ({REPEATED: encoder.repeated} if encoder.repeated else {}),
            losses.skipped.entries(),
        )

    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with partial_file(target) as file:
            for run in runs:
                lines = encoder.encode(run)
                if lines and not file.tell():
                    file.write(first_line(source))
                file.write(lines)
                if progress is not None:
                    progress(report())
    except OSError as error:
        raise RecordError(f"{target} cannot be written: {error.strerror or error}") from error
    return report(str(target) if encoder.runs else "")


def _target(out: Path, source: str) -> Path:
    """Return the file to write: ``out``, or a new file in it if it is a folder."""
    if out.suffix == SUFFIX and not out.is_dir():
        return out
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return out / f"{stamp}-{os.getpid()}-{next(_numbers):06}-{source}{SUFFIX}"
