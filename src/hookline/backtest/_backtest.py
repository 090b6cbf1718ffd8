"""Test hooks on recorded moments."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from .._base.text import counted, did_you_mean, is_number
from .._kernel.hook import Hook
from .._kernel.registry import HookRegistry, HookStack
from ..models.protocol import Model
from ..records.account import Skipped
from ..records.format import Label
from ..records.labels import FILE as LABELS
from ..records.labels import read_labels
from .confinement import ACTIONS
from .engine import Engine, Test
from .errors import BacktestError
from .parquet import ParquetFiles, split_paths
from .report import EXAMPLES, Report
from .sources import Files, Joined, Source
from .where import Where
from .workers import Limits, can_fork, judge_here, judge_in_processes

TIME_LIMIT = 1.0
MEMORY_LIMIT = 1 << 30

Hooks = HookRegistry | Sequence[Hook] | str
Progress = Callable[[int, int, Report], object]


def backtest(
    rules: Hooks,
    records: Iterable[str | os.PathLike[str]] | str | os.PathLike[str] | Source,
    *,
    baseline: Hooks | None = None,
    without: Iterable[str] = (),
    where: Iterable[str] | str = (),
    since: float | None = None,
    workers: int = 0,
    allow: Iterable[str] = (),
    model: Model | None = None,
    time_limit: float = TIME_LIMIT,
    memory_limit: int = MEMORY_LIMIT,
    examples: int = EXAMPLES,
    progress: Progress | None = None,
) -> Report:
    """Return what hooks would have decided about recorded runs, compared with what was decided then.

    The hooks judge each recorded moment in the real dispatcher, but nothing is run: no model, no tool, no loop. They
    take the place of the recorded hooks with the same names. All other recorded hooks keep their recorded decisions.

    Args:
        rules: the hooks to test, or a reference to them, such as ``"rules.py"``.
        records: files and folders of records (``.moments``), tapes (``.tape``) and Parquet files (``.parquet``).
        baseline: compare with the decisions of these hooks instead of the recorded ones.
        without: names of recorded hooks whose decisions are dropped.
        where: only judge these moments: ``tool=shell``, ``point=before_tool``, ``agent=bob``, ``model=…``,
            ``task~word``, ``status=failed``.
        since: leave out runs that started before this Unix time.
        workers: the number of processes. 0 judges in this process: then a hook that hangs in C code is not stopped,
            and there is no memory limit.
        allow: what hooks may do besides deciding: ``model``, ``network``, ``processes``, ``files``.
        model: the model for ``ctx.llm``, if ``allow`` contains ``model``.
        time_limit: seconds that the hooks may take for one moment.
        memory_limit: bytes that each process may use in addition, with ``workers``.
        examples: how many examples to keep of each kind of difference in one file, or part of a large file. A report
            about several files keeps five.
        progress: called with the bytes read so far, the bytes in total and the report so far.

    Raises:
        BacktestError: an option is invalid, or there are no records.
        RecordError: a record does not exist.
        LoadError: the rules cannot be loaded.

    Example::

        report = backtest([no_sudo], ["records/"])
        print(report.total("newly_blocked"))
        for cell in report.cells:
            for example in cell.examples:
                print(example.run_id, example.n, example.then, "->", example.now)
    """
    allowed = _allowed(allow)
    if not is_number(time_limit) or time_limit <= 0:
        raise BacktestError(f"time_limit must be a positive number of seconds, not {time_limit!r}")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise BacktestError(f"workers must be a whole number, 0 or more, not {workers!r}")
    if "model" in allowed and model is None:
        raise BacktestError("allow='model' needs model=: the model that ctx.llm calls")
    began = time.perf_counter()
    if not isinstance(records, (str, os.PathLike)) and not callable(getattr(records, "blocks", None)):
        records = list(records)  # type: ignore[arg-type]
    source = open_source(records, since)
    labels, unread = labels_beside(records)
    test = Test(
        hook_stack(rules),
        None if baseline is None else hook_stack(baseline, "baseline"),
        tuple([without] if isinstance(without, str) else without),
        Where([where] if isinstance(where, str) else where),
        model if "model" in allowed else None,
        since or 0.0,
        labels,
        examples,
        source.replaced(),
    )
    engine = Engine(test, source)
    units = source.units()
    limits = Limits(float(time_limit), memory_limit, allowed)
    report = Report(
        engine.now.names,
        None if engine.then is None else engine.then.names,
        files=len({unit.file for unit in units}),
        skipped=(*source.skipped(), *unread),
    )
    total, read = sum(unit.size for unit in units), 0

    def tick() -> None:
        if progress is not None:
            progress(read, total, report)

    notes: tuple[str, ...] = ()
    if workers and not can_fork():
        notes = ("this system cannot fork, so the rules ran in the same process, without a memory limit",)
    parts = (
        judge_in_processes(engine, units, limits, workers, tick=tick)
        if workers and can_fork()
        else judge_here(engine, units, limits)
    )
    seen: set[int] = set()
    repeated = 0
    try:
        pending = [report]
        for unit, part, runs in parts:
            read += unit.size
            pending.append(part)
            repeated += _repeated(runs, seen)
            if len(pending) >= _MERGE:
                report = Report.merge(pending)
                pending = [report]
            tick()
        report = Report.merge(pending)
    finally:
        engine.close()
    tick()
    if repeated:
        times = f"{counted(repeated, 'run')} {'is' if repeated == 1 else 'are'} in the records a second time"
        notes += (f"{times}, such as in a tape or a copy, and counted again: name only one of these files",)
    return report.replace(seconds=round(time.perf_counter() - began, 3), notes=(*notes, *report.notes))


_MAX_SEEN = 2_000_000
"""The number of runs up to which repetitions are noticed, so that the memory is bounded."""


def _repeated(runs: Collection[int], seen: set[int]) -> int:
    """Add the hashes of runs to those that were seen, and return how many were there already."""
    new = set(runs) - seen
    if len(seen) < _MAX_SEEN:
        seen |= new
    return len(runs) - len(new)


_MERGE = 8
"""Reports are merged in groups, because each merge copies the whole report."""


def _allowed(allow: Iterable[str]) -> frozenset[str]:
    names = [allow] if isinstance(allow, str) else list(allow)
    for name in names:
        if name not in ACTIONS:
            raise BacktestError(
                f"allow: there is no {name!r}.{did_you_mean(str(name), ACTIONS)} It takes {', '.join(ACTIONS)}"
            )
    return frozenset(names)


def hook_stack(hooks: Hooks, what: str = "rules") -> HookStack:
    """Return hooks, or the hooks of a reference, as a stack.

    Raises:
        BacktestError: there are no rules.
        LoadError: the reference cannot be loaded.
    """
    if isinstance(hooks, str):
        hooks = load_rules([hooks])
    stack = (hooks if isinstance(hooks, HookRegistry) else HookRegistry(hooks)).stack
    if not stack.points and what == "rules":
        raise BacktestError("there are no rules to test: give at least one hook")
    return stack


def load_rules(references: Iterable[str], home: Path | None = None) -> HookRegistry:
    """Load hooks by reference: ``FILE.py``, ``FILE.py:name``, ``module:name`` or the name of a built-in hook.

    Raises:
        LoadError: a reference cannot be resolved, or is not a hook.
    """
    from ..config.loading import load_hooks

    loaded, plugins = load_hooks(references, Path.cwd() if home is None else home)
    registry = HookRegistry()
    for hook in loaded:
        hook.register(registry)
    for plugin in plugins:
        for each in plugin.hooks:
            registry.register(each, plugin=plugin.name)
    return registry


def open_source(records: Any, since: float | None) -> Source:
    """Return records as a source: one that is given, or files and folders of records, tapes and Parquet files.

    Raises:
        RecordError: a path does not exist.
        BacktestError: there is no record.
    """
    if callable(getattr(records, "blocks", None)):
        return records  # type: ignore[no-any-return]
    paths = [records] if isinstance(records, (str, os.PathLike)) else list(records)
    tables, others = split_paths(paths)
    sources: list[Source] = [ParquetFiles(tables)] if tables else []
    if others or not tables:
        sources.append(Files(others, since=since))
    return sources[0] if len(sources) == 1 else Joined(sources)


def labels_beside(records: Any) -> tuple[dict[str, dict[str, Label]], list[Skipped]]:
    """Return the labels in the folders of the records: by run id, then by call id or ``#n``."""
    found: dict[str, dict[str, Label]] = {}
    skipped: list[Skipped] = []
    for folder in _folders(records):
        labels, invalid = read_labels(folder)
        for run, given in labels.items():
            found.setdefault(run, {}).update({label.call_id or f"#{label.n}": label for label in given})
        if invalid:
            skipped.append(Skipped(str(folder / LABELS), "the line is not a label", len(invalid), invalid[0]))
    return found, skipped


def _folders(records: Any) -> Iterable[Path]:
    if callable(getattr(records, "blocks", None)):
        return ()
    paths = [records] if isinstance(records, (str, os.PathLike)) else records
    return dict.fromkeys(path if path.is_dir() else path.parent for path in map(Path, paths))
