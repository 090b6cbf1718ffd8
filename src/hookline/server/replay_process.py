"""The process that tries rules on recorded runs: ``hookline backtest``, one run at a time.

The rules are loaded here and nowhere else, so they cannot change the server. No tool and no model is called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from ..backtest._backtest import backtest, hook_stack, load_rules
from ..backtest.errors import BacktestError
from ..backtest.report import Report, headline, how_sure, in_words
from ..backtest.sources import ChosenRuns
from ..config.sources import parse_reference
from ..config.trust import TrustStore
from ..plugins.trust import TrustedFiles, digest, only_trusted
from ..records.format import RecordError
from .jobs import serve_job
from .replayed import Difference, Replayed, ReplayedCell, ReplayedRun

EXAMPLES = 50
"""Number of different calls of each hook, tool and kind that are listed for a run."""


def replay(given: dict[str, Any], progress: Callable[[int, int], object]) -> Any:
    """Judge the runs with the rules. ``given`` is made by ``ReplayService.start``."""
    with _trust(given["trust"]):
        file = parse_reference(given["rules"]).file
        assert file is not None
        seen = digest(file.read_bytes())
        rules = load_rules([given["rules"]], Path(given["home"]))
        hook_stack(rules)  # report that there are none before the first run
        runs, reports = [], []
        for number, (id, path, position) in enumerate(given["runs"]):
            progress(number, len(given["runs"]))
            try:
                report = backtest(rules, ChosenRuns([(Path(path), position)]), workers=1, examples=EXAMPLES)
            except (BacktestError, RecordError) as error:
                runs.append(ReplayedRun(id, error=str(error)))
                continue
            reports.append(report)
            runs.append(_replayed(id, report))
        total = Report.merge(reports)
        cells = tuple(
            ReplayedCell(cell.hook, cell.point, cell.tool, in_words(cell.kind), *msgspec.structs.astuple(cell.count))
            for cell in total.cells
            if cell.kind != "same"
        )
        result = Replayed(headline(total), total.rules, seen, how_sure(total), cells, tuple(runs))
    return msgspec.to_builtins(result)


def _trust(given: dict[str, Any] | None) -> AbstractContextManager[None]:
    """Return a block in which only files run that the server may use as well."""
    if given is None:
        return only_trusted(None)
    return only_trusted(TrustedFiles(map(Path, given["folders"]), TrustStore().is_trusted, map(Path, given["named"])))


def _replayed(id: str, report: Report) -> ReplayedRun:
    cells = [cell for cell in report.cells if cell.kind != "same"]
    listed = sorted(
        (
            Difference(
                example.run_id,
                example.n,
                cell.hook,
                example.point,
                example.tool,
                example.subject,
                in_words(cell.kind),
                example.then,
                example.now,
                example.certainty,
            )
            for cell in cells
            for example in cell.examples
        ),
        key=lambda each: each.n,
    )
    problems = [f"{each.hook}: {each.problem.replace('_', ' ')}: {each.message}" for each in report.failures]
    problems += [f"{each.hook} read {each.read}, which is not recorded" for each in report.guesses]
    problems += [f"{Path(each.file).name}: {each.reason}" for each in report.skipped]
    return ReplayedRun(
        id, report.moments, report.judged, report.differences.total, tuple(listed), tuple(problems), tuple(report.notes)
    )


if __name__ == "__main__":
    serve_job(replay)
