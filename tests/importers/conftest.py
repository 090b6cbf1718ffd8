"""Import a log and read the record that it became."""

import pytest

from hookline.importers import import_logs
from hookline.records import Account
from hookline.records.reading import read_runs


class Imported:
    """The report of an import, and the runs of its record."""

    def __init__(self, report):
        self.report = report
        account = Account()
        self.runs = list(read_runs([report.path], account=account)) if report.path else []
        assert not account.skipped
        for run in self.runs:
            for each in run.tree():
                assert all(moment.payload is not None for moment in each.moments)

    def calls(self, run=0):
        """The calls of a run: name, arguments and outcome."""
        moments = self.runs[run].moments
        outcomes = {m.payload.id: m.payload.outcome for m in moments if m.point == "after_tool"}
        return [
            (m.tool, dict(m.payload.arguments), outcomes.get(m.payload.id)) for m in moments if m.point == "before_tool"
        ]


@pytest.fixture
def imported(tmp_path):
    """Import files of one system."""

    def run(source, *files, **more):
        return Imported(
            import_logs(source, files, tmp_path / "out" / f"{len(list(tmp_path.glob('out/*')))}.moments", **more)
        )

    return run
