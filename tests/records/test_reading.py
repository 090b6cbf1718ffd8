"""Read records."""

from pathlib import Path

import pytest

from hookline import Agent, ScriptedModel, reply
from hookline.records import read_runs


@pytest.mark.parametrize("paths", ["records", Path("records"), ["records"], [Path("records")]])
def test_records_are_one_path_or_several(tmp_path, monkeypatch, paths):
    monkeypatch.chdir(tmp_path)
    Agent("a", llm=ScriptedModel([reply("done")]), record="records").run("Work.")
    assert [run.info.task for run in read_runs(paths)] == ["Work."]
